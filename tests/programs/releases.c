/* Fills MIB of memory in pieces; when told so (a byte on standard input) frees three quarters of them,
 * by munmap and by MADV_DONTNEED; when told again looks at all that is left, and uses it anew. */
#include "case.h"

enum { PIECE = 8 << 20 };

static size_t not_zero(const uint64_t *words) {
    size_t bad = 0;
    for (size_t i = 0; i < PIECE / 8; i++) bad += words[i] != 0;
    return bad;
}

static void told(const char *what) {
    printf("%s\n", what);
    fflush(stdout);
    getchar();
}

int main(int argc, char **argv) {
    size_t pieces = (argc > 1 ? strtoul(argv[1], 0, 10) : 1024) * MIB / PIECE;
    uint64_t **piece = calloc(pieces, sizeof *piece);
    char *all = far_map(pieces * PIECE);
    for (size_t i = 0; i < pieces; i++) {
        piece[i] = (uint64_t *)(all + i * PIECE);
        fill(piece[i], PIECE, (uint64_t)i << 32);
    }
    told("filled");
    for (size_t i = 0; i < pieces; i++) {
        if (i % 4 == 1 || i % 4 == 2) madvise(piece[i], PIECE, MADV_DONTNEED);
        if (i % 4 == 3) munmap(piece[i], PIECE);
    }
    told("freed");
    size_t bad = 0;
    for (size_t i = 0; i < pieces; i++) {
        if (i % 4 == 0) bad += wrong(piece[i], PIECE, (uint64_t)i << 32);
        if (i % 4 == 1) bad += not_zero(piece[i]);
    }
    for (size_t i = 0; i < pieces; i++)
        if (i % 4 == 1 || i % 4 == 2) fill(piece[i], PIECE, (uint64_t)(i + 1000) << 32);
    for (size_t i = 0; i < pieces; i++)
        if (i % 4 != 3) bad += wrong(piece[i], PIECE, (uint64_t)(i % 4 == 0 ? i : i + 1000) << 32);
    printf("sound, %zu words wrong\n", bad);
    return bad != 0;
}
