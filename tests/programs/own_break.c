/* Built at fixed addresses, as GCL's images are: turns random addresses off, executes itself again,
 * and counts on a heap right behind its own data. */
#include "case.h"
#include <sys/personality.h>

extern char end[];

int main(int argc, char **argv) {
    if (argc == 1) {
        int persona = personality(0xffffffff);
        MUST(persona >= 0 && personality(persona | ADDR_NO_RANDOMIZE) >= 0);
        execl("/proc/self/exe", argv[0], "again", NULL);
        MUST(0);
    }
    setvbuf(stdout, NULL, _IONBF, 0);
    char *heap = sbrk(0);
    printf("near its data %d\n", heap >= end && (size_t)(heap - end) < MIB);
    MUST(sbrk(20 * MIB) == heap);
    printf("zeros %zu\n", nonzero(heap, 20 * MIB));
    heap += -(uintptr_t)heap & 7;
    fill(heap, 16 * MIB, 5);
    /* Other memory is far. */
    squeeze();
    printf("wrong %zu\n", wrong(heap, 16 * MIB, 5));
    char *block = malloc(100), *large = malloc(MIB);
    memset(block, 1, 100), memset(large, 1, MIB);
    printf("malloc near %d\n", block > end && (size_t)(block - end) < 64 * MIB);
    MUST(brk(heap) == 0 && sbrk(0) == (void *)heap);
}
