/* mremap in every form, with content that has been paged out. */
#include "case.h"

int main(void) {
    size_t bad = 0;
    uint8_t *m = far_map(4 * MIB);
    fill(m, 4 * MIB, 1);
    squeeze();
    m = mremap(m, 4 * MIB, 12 * MIB, MREMAP_MAYMOVE);
    MUST(m != MAP_FAILED);
    bad += wrong(m, 4 * MIB, 1) + nonzero(m + 4 * MIB, 8 * MIB);
    printf("grown bad %zu\n", bad);
    fill(m, 12 * MIB, 2);
    MUST(mremap(m, 12 * MIB, 2 * MIB, 0) == m);
    bad += wrong(m, 2 * MIB, 2);
    printf("shrunk bad %zu\n", bad);
    squeeze();
    uint8_t *to = far_map(32 * MIB);
    fill(to, 32 * MIB, 3);
    MUST(mremap(m, 2 * MIB, 2 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to + 6 * MIB) == to + 6 * MIB);
    bad += wrong(to, 6 * MIB, 3) + wrong(to + 6 * MIB, 2 * MIB, 2);
    for (size_t i = 8 * MIB / 8; i < 32 * MIB / 8; i++) bad += ((uint64_t *)to)[i] != mix(3 + i);
    printf("moved over bad %zu\n", bad);
    /* Where it was there is nothing now. */
    unsigned char vec[1];
    errno = 0;
    printf("old place %d", mincore(m, PAGE, vec));
    printf(" errno %d\n", errno);
    /* A page out of the middle, to elsewhere, growing as it goes. */
    uint8_t *middle = mremap(to + 6 * MIB, 1 * MIB, 5 * MIB, MREMAP_MAYMOVE);
    MUST(middle != MAP_FAILED);
    bad += wrong(middle, MIB, 2) + nonzero(middle + MIB, 4 * MIB);
    printf("middle moved %d bad %zu\n", middle != to + 6 * MIB, bad);
    errno = 0;
    void *no = mremap(to, 2 * MIB, 64 * MIB, 0);
    printf("cannot grow in place %d errno %d\n", no == MAP_FAILED, errno);
    uint8_t *copy = mremap(middle, 5 * MIB, 5 * MIB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    MUST(copy != MAP_FAILED);
    bad += wrong(copy, MIB, 2) + nonzero(middle, 5 * MIB);
    printf("dontunmap bad %zu\n", bad);
    /* realloc, which glibc does by mremap. */
    uint64_t *v = NULL;
    for (size_t n = MIB; n <= 24 * MIB; n += MIB) {
        v = realloc(v, n);
        MUST(v);
        for (size_t i = (n - MIB) / 8; i < n / 8; i++) v[i] = mix(i);
    }
    for (size_t i = 0; i < 24 * MIB / 8; i++) bad += v[i] != mix(i);
    v = realloc(v, 600000);
    for (size_t i = 0; i < 600000 / 8; i++) bad += v[i] != mix(i);
    printf("realloc bad %zu\n", bad);
    /* What was protected in parts shrinks to one of them, or to a place between. */
    for (int way = 0; way < 6; way++) {
        uint8_t *parts = far_map(2 * MIB), *whither = far_map(4 * MIB);
        fill(parts, 2 * MIB, 7);
        MUST(mprotect(parts + 2 * MIB - PAGE, PAGE, PROT_NONE) == 0);
        if (way & 1) MUST(mprotect(parts + PAGE, PAGE, PROT_READ) == 0);
        if (way & 2) MUST(munmap(parts + MIB + PAGE, PAGE) == 0);
        squeeze();
        errno = 0;
        uint8_t *r = way < 4 ? mremap(parts, 2 * MIB, MIB, 0)
                             : mremap(parts, 2 * MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, whither);
        printf("in parts %d: %d errno %d", way, r == parts ? 0 : r == whither ? 1 : 2, errno);
        if (r == MAP_FAILED) r = parts;
        bad += wrong(r, MIB, 7);
        printf(" behind %d bad %zu\n", mincore(parts + MIB, PAGE, vec), bad);
        errno = 0;
        r = mremap(r + PAGE, MIB - PAGE, MIB - PAGE, 0);
        printf("as long %d errno %d\n", r == MAP_FAILED, errno);
    }
    /* Near memory moved to far addresses stays what it is, and moves on from there. */
    uint8_t *small = far_map(8 * PAGE), *place = far_map(4 * MIB);
    fill(small, 8 * PAGE, 5);
    MUST(mremap(small, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    small = mremap(place, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    MUST(small != MAP_FAILED);
    bad += wrong(small, 8 * PAGE, 5) + nonzero(place, 8 * PAGE);
    fill(place, 8 * PAGE, 6);
    small = mremap(place, 8 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    MUST(small != MAP_FAILED && munmap(place + 64 * PAGE, 4 * MIB - 64 * PAGE) == 0);
    bad += wrong(small, 8 * PAGE, 6) + nonzero(small + 8 * PAGE, 56 * PAGE);
    MUST(mremap(small, 64 * PAGE, 32 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    MUST(mremap(to, 32 * PAGE, 4 * PAGE, 0) == to);
    squeeze();
    bad += wrong(to, 4 * PAGE, 6);
    MUST(munmap(to, 4 * PAGE) == 0);
    printf("near at far addresses bad %zu\n", bad);
    errno = 0;
    printf("unaligned %d", mremap(to + 1, PAGE, PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
    printf(" errno %d\n", errno);
}
