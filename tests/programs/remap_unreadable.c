/* Memory that the program may not read moves while its pages are local, and leaves from where it came to:
 * eviction must know there too that it may not read them as the program does. */
#include "case.h"

enum { BYTES = 2 << 20 };

int main(void) {
    size_t bad = 0;
    for (int round = 0; round < 6; round++) {
        uint8_t *at = far_map(BYTES), *to = far_map(BYTES);
        fill(at, BYTES, round);
        MUST(mprotect(at, BYTES, PROT_NONE) == 0);
        if (round % 2) squeeze();
        MUST(mremap(at, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        squeeze();
        MUST(mprotect(to, BYTES, PROT_READ | PROT_WRITE) == 0);
        bad += wrong(to, BYTES, round);
        fill(to, BYTES, round + 100);
        /* Only a part of it, which the move cuts out. */
        MUST(mprotect(to + BYTES / 4, BYTES / 4, PROT_NONE) == 0);
        MUST(mremap(to + BYTES / 4, BYTES / 4, BYTES / 4, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
        squeeze();
        MUST(mprotect(at, BYTES / 4, PROT_READ) == 0);
        MUST(memcmp(at, to, 8) != 0);
        const uint64_t *w = (const uint64_t *)at;
        for (size_t i = 0; i < BYTES / 32; i++) bad += w[i] != mix(round + 100 + BYTES / 32 + i);
        bad += wrong(to, BYTES / 4, round + 100);
        munmap(at, BYTES);
        munmap(to, BYTES);
    }
    printf("bad %zu\n", bad);
}
