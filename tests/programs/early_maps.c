/* Memory mapped at far addresses before the runtime starts, as by an allocator that asks for addresses of its own choice
 * while another library's constructor runs: it keeps its bytes, and its addresses, whatever is mapped later. */
#define _GNU_SOURCE
#include "case.h"

enum { BYTES = 4 * MIB };

/* In the midst of where the runtime maps first, and far away from it. */
static uint8_t *const named[] = {(uint8_t *)0x210000100000, (uint8_t *)0x3a402c8e1000};
static uint8_t *early[2];

static void first(void) {
    for (int i = 0; i < 2; i++) {
        early[i] = mmap(named[i], BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (early[i] == named[i]) fill(early[i], BYTES, i);
    }
}

/* Before any library's constructors. */
__attribute__((section(".preinit_array"), used)) static void (*const run_first)(void) = first;

int main(void) {
    for (int i = 0; i < 2; i++) MUST(early[i] == named[i]);
    uint8_t *later = far_map(BYTES), *large = far_map(64 * MIB);
    fill(later, BYTES, 7);
    for (size_t i = 0; i < 64 * MIB; i += PAGE) large[i] = 1;
    squeeze();
    printf("%zu wrong in what is mapped later\n", wrong(later, BYTES, 7));
    for (int i = 0; i < 2; i++) {
        printf("%zu wrong in what was mapped early, ", wrong(early[i], BYTES, i));
        const int zero = open("/dev/zero", O_RDONLY);
        MUST(zero >= 0 && read(zero, early[i], PAGE) == (ssize_t)PAGE);
        MUST(!mprotect(early[i] + PAGE, PAGE, PROT_READ) && !close(zero));
        printf("%zu of the first page not zero, ", nonzero(early[i], PAGE));
        /* Half of it goes, and its addresses can be had again. */
        MUST(!munmap(early[i], BYTES / 2));
        void *again = mmap(early[i], BYTES / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        MUST(again == early[i] && !nonzero(again, BYTES / 2));
        
        printf("%zu wrong in the rest\n", wrong(early[i] + BYTES / 2, BYTES / 2, i + BYTES / 16));
    }
    return 0;
}
