/* Asks for more than there is, in every way that can say no; being refused,
 * goes on with what it has. Natively under a limit of address space that plays
 * the part of the node's. */
#include "case.h"

int main(int argc, char **argv) {
    size_t piece = 16 * MIB, most = strtoul(argv[1], NULL, 10) * MIB;
    uint8_t *held[4096];
    size_t n = 0;
    int by_malloc = 0;
    (void)argc;
    for (; n < 4096 && n * piece < most; n++) {
        uint8_t *p = n % 2 ? malloc(piece) : mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || p == NULL) {
            by_malloc = p == NULL;
            break;
        }
        held[n] = p;
        for (size_t i = 0; i < piece; i += PAGE) *(uint64_t *)(p + i + 64) = mix(n + i);
    }
    int e = errno;
    size_t bad = 0;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < piece; i += PAGE) bad += *(uint64_t *)(held[k] + i + 64) != mix(k + i);
    fprintf(stderr, "refused after %zu MiB by %s\n", n * piece / MIB, by_malloc ? "malloc" : "mmap");
    printf("refused %d errno %d bad %zu\n", n * piece < most, e, bad);
    /* What is given back can be had again. */
    for (size_t k = 0; k < n; k += 2) munmap(held[k], piece);
    size_t again = 0;
    for (size_t k = 0; k + 4 < n; k += 2, again++) {
        held[k] = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (held[k] == MAP_FAILED) break;
        for (size_t i = 0; i < piece; i += PAGE) held[k][i] = 1;
    }
    printf("again %d\n", again + 4 >= n / 2);
}
