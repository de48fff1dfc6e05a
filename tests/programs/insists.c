/* Takes memory only where it hints at, as Java's ZGC does; what it gets before that, it gives back. */
#include "case.h"

int main(void) {
    const size_t bytes = 8 * MIB;
    uint8_t *far = far_map(bytes);
    fill(far, bytes, 3);
    size_t tries = 0;
    uint8_t *got = NULL;
    for (uintptr_t hint = 1ul << 42; !got && tries < 8192; tries++, hint += 1ul << 30) {
        got = mmap((void *)hint, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(got != MAP_FAILED);
        if (got != (uint8_t *)hint) {
            MUST(munmap(got, bytes) == 0);
            got = NULL;
        }
    }
    MUST(got);
    fill(got, bytes, 4);
    squeeze();
    printf("wrong %zu %zu\n", wrong(far, bytes, 3), wrong(got, bytes, 4));
    fprintf(stderr, "tries %zu\n", tries);
    return 0;
}
