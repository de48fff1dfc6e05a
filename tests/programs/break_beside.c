/* The break does not move over a mapping that lies above it. (Nothing is printed before the end, because malloc moves
 * the break too.) */
#include "case.h"

int main(void) {
    uint8_t *base = sbrk(0);
    base += -(uintptr_t)base & (PAGE - 1);
    MUST(brk(base) == 0);
    uint8_t *beside = base + 16 * MIB;
    MUST(mmap(beside, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == beside);
    fill(beside, 8 * MIB, 1);
    /* Over it, into it, and up to it: a page is left between. */
    size_t sizes[] = {32 * MIB, 20 * MIB, 16 * MIB};
    int moved[3], why[3];
    for (int i = 0; i < 3; i++) {
        errno = 0;
        moved[i] = brk(base + sizes[i]), why[i] = errno;
        MUST(sbrk(0) == base);
    }
    MUST(brk(base + 15 * MIB) == 0);
    size_t bad = nonzero(base, 15 * MIB);
    fill(base, 15 * MIB, 2);
    squeeze();
    bad += wrong(base, 15 * MIB, 2) + wrong(beside, 8 * MIB, 1);
    MUST(munmap(beside, 8 * MIB) == 0);
    MUST(brk(base + 32 * MIB) == 0);
    bad += wrong(base, 15 * MIB, 2) + nonzero(base + 15 * MIB, 17 * MIB);
    for (int i = 0; i < 3; i++) printf("to %zu MiB: %d errno %d\n", sizes[i] / MIB, moved[i], why[i]);
    printf("bad %zu\n", bad);
}
