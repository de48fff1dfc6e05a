/* What the cases share. A case prints the same bytes every time it is right;
 * the tests compare those bytes with a native run's. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)

#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            int e_ = errno;                                                                        \
            printf("line %d: %s: errno %d\n", __LINE__, #x, e_);                                   \
            fflush(stdout);                                                                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Fresh private anonymous memory: what farmem makes far. */
static inline void *far_map(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(p != MAP_FAILED);
    return p;
}

static inline void fill(void *p, size_t bytes, uint64_t key) {
    uint64_t *w = p;
    for (size_t i = 0; i < bytes / 8; i++) w[i] = mix(key + i);
}

/* How many words differ from what fill wrote. */
static inline size_t wrong(const void *p, size_t bytes, uint64_t key) {
    const uint64_t *w = p;
    size_t n = 0;
    for (size_t i = 0; i < bytes / 8; i++) n += w[i] != mix(key + i);
    return n;
}

/* Uses some 800 bytes of stack a level; how many of its own words it found changed is in what it returns. */
static inline uint64_t deep(uint64_t x, int depth) {
    volatile uint64_t pad[96];
    for (int i = 0; i < 96; i++) pad[i] = mix(x + i);
    uint64_t r = depth ? deep(x + 1, depth - 1) : 0;
    for (int i = 0; i < 96; i++) r += pad[i] != mix(x + i);
    return r;
}

/* How many bytes are not zero. */
static inline size_t nonzero(const void *p, size_t bytes) {
    const uint8_t *b = p;
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += b[i] != 0;
    return n;
}

/* Touches enough other memory, twice, that every other far page has left. The
 * tests run the cases with a few MiB local. */
static inline void squeeze(void) {
    static uint8_t *ballast;
    const size_t bytes = 24 * MIB;
    if (!ballast) ballast = far_map(bytes);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < bytes; i += PAGE) ballast[i] += 1;
}
