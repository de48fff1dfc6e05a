/* Address space reserved by the terabyte and committed piecemeal, the ways
 * runtimes do it: by mprotect, by MAP_FIXED, by MAP_NORESERVE and hope. */
#include "case.h"

enum { PIECES = 300 };
#define TIB (1ul << 40)

int main(void) {
    size_t bad = 0;
    uint8_t *r = mmap(NULL, TIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(r != MAP_FAILED);
    for (uint64_t i = 0; i < PIECES; i++) {
        uint8_t *at = r + (mix(i) % (TIB / MIB)) * MIB;
        if (i & 1)
            MUST(mprotect(at, 64 * 1024, PROT_READ | PROT_WRITE) == 0);
        else
            MUST(mmap(at, 64 * 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
        bad += nonzero(at, 64 * 1024);
        fill(at, 64 * 1024, i);
    }
    for (uint64_t i = 0; i < PIECES; i++) bad += wrong(r + (mix(i) % (TIB / MIB)) * MIB, 64 * 1024, i);
    printf("piecemeal bad %zu\n", bad);

    /* Decommitted each way, then committed anew: zero. */
    for (uint64_t i = 0; i < PIECES; i++) {
        uint8_t *at = r + (mix(i) % (TIB / MIB)) * MIB;
        switch (i % 3) {
        case 0:
            MUST(mmap(at, 64 * 1024, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == at);
            break;
        case 1:
            MUST(madvise(at, 64 * 1024, MADV_DONTNEED) == 0 && mprotect(at, 64 * 1024, PROT_NONE) == 0);
            break;
        default:
            MUST(mprotect(at, 64 * 1024, PROT_NONE) == 0); /* keeps what it holds */
        }
    }
    squeeze();
    for (uint64_t i = 0; i < PIECES; i++) {
        uint8_t *at = r + (mix(i) % (TIB / MIB)) * MIB;
        MUST(mprotect(at, 64 * 1024, PROT_READ | PROT_WRITE) == 0);
        bad += i % 3 == 2 ? wrong(at, 64 * 1024, i) : nonzero(at, 64 * 1024);
    }
    printf("decommitted bad %zu\n", bad);
    MUST(munmap(r, TIB) == 0);

    uint64_t *sparse = mmap(NULL, 4 * TIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(sparse != MAP_FAILED);
    for (uint64_t i = 0; i < 5000; i++) sparse[mix(i) % (4 * TIB / 8)] = i;
    squeeze();
    for (uint64_t i = 0; i < 5000; i++) bad += sparse[mix(i) % (4 * TIB / 8)] != i;
    printf("sparse bad %zu\n", bad);
    MUST(munmap(sparse, 4 * TIB) == 0);

    /* An allocator that aligns by reserving more and cutting both ends off. */
    for (int i = 0; i < 20; i++) {
        uint8_t *raw = mmap(NULL, 8 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uint8_t *at = (uint8_t *)(((uintptr_t)raw + 4 * MIB - 1) & ~(4 * MIB - 1));
        if (at > raw) MUST(munmap(raw, at - raw) == 0);
        MUST(munmap(at + 4 * MIB, raw + 8 * MIB - (at + 4 * MIB)) == 0);
        MUST(mprotect(at, 4 * MIB, PROT_READ | PROT_WRITE) == 0);
        fill(at, 4 * MIB, i);
        bad += wrong(at, 4 * MIB, i);
        if (i % 2) MUST(munmap(at, 4 * MIB) == 0);
    }
    printf("aligned bad %zu\n", bad);
    errno = 0;
    void *p = mmap(NULL, 1ul << 62, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("too much %d errno %d\n", p == MAP_FAILED, errno);
}
