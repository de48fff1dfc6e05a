/* Instructions that fault in the middle: string moves, unaligned and vector
 * accesses over page boundaries, locked operations, calls through far tables. */
#include "case.h"
#include <immintrin.h>
#include <wchar.h>

enum { BYTES = 8 << 20 };

static void rep_movs(void *to, const void *from, size_t n) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n)::"memory");
}
static void rep_stos(void *to, int v, size_t n) {
    __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(v) : "memory");
}
static uint64_t twice(uint64_t x) { return 2 * x; }
static uint64_t thrice(uint64_t x) { return 3 * x; }

int main(void) {
    size_t bad = 0;
    uint8_t *a = far_map(BYTES), *b = far_map(BYTES);
    fill(a, BYTES, 1);
    squeeze();
    rep_movs(b + 3, a, BYTES - 3);
    bad += memcmp(b + 3, a, BYTES - 3) != 0;
    squeeze();
    rep_stos(b, 0x5a, BYTES);
    for (size_t i = 0; i < BYTES; i++) bad += b[i] != 0x5a;
    printf("rep bad %zu\n", bad);
    squeeze();
    memcpy(b, a, BYTES);
    squeeze();
    memmove(b + 1, b, BYTES - 1);
    bad += memcmp(b + 1, a, BYTES - 1) != 0;
    printf("memmove bad %zu\n", bad);
    /* Astride pages, neither of them there. */
    squeeze();
    for (size_t i = 1; i < BYTES / PAGE; i++) {
        uint64_t v;
        memcpy(&v, a + i * PAGE - 4, 8);
        uint64_t expect = mix(1 + i * 512 - 1) >> 32 | mix(1 + i * 512) << 32;
        bad += v != expect;
    }
    squeeze();
    for (size_t i = 1; i < BYTES / PAGE; i++) {
        __m128i v = _mm_loadu_si128((__m128i *)(a + i * PAGE - 8));
        _mm_storeu_si128((__m128i *)(b + i * PAGE - 8), v);
    }
    squeeze();
    for (size_t i = 1; i < BYTES / PAGE; i++) bad += memcmp(a + i * PAGE - 8, b + i * PAGE - 8, 16) != 0;
    printf("astride bad %zu\n", bad);
    uint64_t *w = (uint64_t *)b;
    memset(b, 0, BYTES);
    squeeze();
    for (size_t i = 0; i < BYTES / 8; i += 512) {
        __atomic_fetch_add(&w[i], 5, __ATOMIC_SEQ_CST);
        __atomic_fetch_or(&w[i + 1], 6, __ATOMIC_SEQ_CST);
        uint64_t zero = 0;
        __atomic_compare_exchange_n(&w[i + 2], &zero, 7, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        __atomic_exchange_n(&w[i + 3], 8, __ATOMIC_SEQ_CST);
        __asm__ volatile("push %0; pop %1" : : "m"(w[i]), "m"(w[i + 4]) : "memory");
    }
    squeeze();
    for (size_t i = 0; i < BYTES / 8; i += 512)
        bad += w[i] != 5 || w[i + 1] != 6 || w[i + 2] != 7 || w[i + 3] != 8 || w[i + 4] != 5;
    printf("locked bad %zu\n", bad);
    uint64_t (**table)(uint64_t) = (void *)a;
    for (size_t i = 0; i < BYTES / 8; i += 100) table[i] = i & 4 ? twice : thrice;
    squeeze();
    uint64_t sum = 0;
    for (size_t i = 0; i < BYTES / 8; i += 100) sum += table[i](i);
    printf("table %lu\n", sum);
    double *d = (double *)b;
    for (size_t i = 0; i < BYTES / 8; i++) d[i] = i;
    squeeze();
    double x = 1.5, total = 0;
    /* Values live in vector registers across the faults. */
    for (size_t i = 0; i < BYTES / 8; i += 64) x = x * 0.999 + d[i], total += x;
    printf("double %.6f\n", total);
    memset(a, 'q', BYTES - 1);
    a[BYTES - 1] = 0;
    squeeze();
    printf("strlen %zu", strlen((char *)a));
    squeeze();
    printf(" memchr %d strstr %d\n", memchr(a, 'z', BYTES) == NULL, strstr((char *)a, "qz") == NULL);
}
