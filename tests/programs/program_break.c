/* brk both ways, and malloc on top of it. */
#include "case.h"

int main(void) {
    size_t bad = 0;
    /* Whatever malloc already took lies below. */
    uint8_t *base = sbrk(0);
    base += -(uintptr_t)base & (PAGE - 1);
    MUST(brk(base) == 0);
    for (int round = 0; round < 4; round++) {
        MUST(sbrk(12 * MIB) == base);
        bad += nonzero(base, 12 * MIB);
        fill(base, 12 * MIB, round);
        squeeze();
        bad += wrong(base, 12 * MIB, round);
        MUST(brk(base + 5 * MIB + 100) == 0);
        bad += wrong(base, 5 * MIB, round);
        MUST(brk(base + 6 * MIB) == 0);
        bad += nonzero(base + 5 * MIB + PAGE, MIB - PAGE);
        MUST(brk(base) == 0);
    }
    printf("brk bad %zu\n", bad);
    errno = 0;
    printf("below start %d\n", sbrk(-(intptr_t)(1ul << 40)) == (void *)-1);
    /* Small blocks come from brk. */
    enum { N = 60000 };
    static uint64_t *block[N];
    for (int i = 0; i < N; i++) {
        size_t words = 2 + mix(i) % 100;
        block[i] = malloc(words * 8);
        for (size_t k = 0; k < words; k++) block[i][k] = mix(i) + k;
    }
    for (int i = 0; i < N; i += 2) free(block[i]), block[i] = NULL;
    for (int i = 0; i < N; i += 2) {
        size_t words = 2 + mix(i + 7) % 60;
        block[i] = malloc(words * 8);
        for (size_t k = 0; k < words; k++) block[i][k] = mix(i) + k;
    }
    for (int i = 0; i < N; i++) {
        size_t words = i % 2 ? 2 + mix(i) % 100 : 2 + mix(i + 7) % 60;
        for (size_t k = 0; k < words; k++) bad += block[i][k] != mix(i) + k;
    }
    printf("small blocks bad %zu\n", bad);
}
