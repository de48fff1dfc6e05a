/* Huge pages that mremap moves over far memory, by lengths that are not whole huge pages: the kernel moves whole ones, and
 * nothing else is touched, near or far. (No huge page is used: the system may have none.) And mincore into memory that cannot
 * be written. */
#include "case.h"

enum { HUGE = 2 << 20, NEAR = 64 };

int main(void) {
    uint8_t *raw = far_map(18 * MIB), *far = (uint8_t *)(((uintptr_t)raw + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    size_t bytes = 8 * HUGE;
    static uint8_t *near[NEAR];
    size_t moved = 0, refused = 0;
    for (int round = 0; round < 40; round++) {
        fill(far, bytes, 5);
        squeeze();
        /* A near mapping right above the next one. */
        near[round % NEAR] = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        MUST(near[round % NEAR] != MAP_FAILED);
        memset(near[round % NEAR], round + 1, 3 * PAGE);
        size_t len = HUGE + PAGE * (1 + round % 3);
        uint8_t *huge = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
        if (huge == MAP_FAILED) {
            printf("no huge pages here: errno %d\n", errno);
            break;
        }
        uint8_t *to = far + 2 * HUGE;
        if (round % 4 == 3) {
            /* Not to where no huge page can lie. */
            errno = 0;
            refused += mremap(huge, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to + PAGE) == MAP_FAILED && errno == EINVAL;
            MUST(munmap(huge, 2 * HUGE) == 0);
            MUST(wrong(far, bytes, 5) == 0);
            continue;
        }
        moved += mremap(huge, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
        MUST(wrong(far, 2 * HUGE, 5) == 0 && wrong(far + 4 * HUGE, bytes - 4 * HUGE, 5 + 4 * HUGE / 8) == 0);
        MUST(munmap(to, 2 * HUGE) == 0);
        MUST(mmap(to, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == to);
        MUST(nonzero(to, 2 * HUGE) == 0);
        for (int i = 0; i <= round; i++)
            for (size_t at = 0; near[i] && at < 3 * PAGE; at++) MUST(near[i][at] == i + 1);
    }
    fill(far, bytes, 6);
    squeeze();
    printf("moved %zu, refused %zu, wrong %zu\n", moved, refused, wrong(far, bytes, 6));
    uint8_t *none = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    errno = 0;
    printf("mincore %d", mincore(far, bytes, (unsigned char *)none));
    printf(" errno %d, ", errno);
    munmap(none, PAGE);
    printf("%d", mincore(far, bytes, (unsigned char *)none));
    printf(" errno %d\n", errno);
}
