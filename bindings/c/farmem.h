/* farmem.h: a program tells `farmem run` about its use of memory.
 *
 * Header only, C89 or C++, nothing to link. Without `farmem run` every function only tests a null
 * pointer. A hint may be wrong, late, or about memory that is not far or not mapped. Then it costs
 * time, and changes nothing.
 *
 *     farmem_read(next, 4);    I will read the page of `next`, and 4 pages behind it
 *
 * If the page is local, that is one look at its word. If not, it comes in at once, in this thread,
 * without a signal, and the pages behind it come with it in one batch. For pages that are not
 * neighbours use farmem_read_each.
 */
#ifndef FARMEM_H
#define FARMEM_H

#include <stddef.h>
#include <stdint.h>

/* C89 has no `inline`. */
#ifdef __GNUC__
#define FARMEM_INLINE __inline__
#elif defined(__cplusplus) || __STDC_VERSION__ >= 199901L
#define FARMEM_INLINE inline
#else
#define FARMEM_INLINE
#endif

/* How a range will be used: the values of madvise. */
#define FARMEM_NORMAL 0     /* as its faults suggest */
#define FARMEM_RANDOM 1     /* fetch nothing ahead */
#define FARMEM_SEQUENTIAL 2 /* fetch as much as possible ahead */

#ifdef __cplusplus
extern "C" {
#endif

/* The runtime's table. Fields are added at its end only. */
struct farmem_v1 {
    size_t bytes;
    uintptr_t far_start;
    size_t far_pages;               /* 0 until the program is on far memory */
    const volatile uint64_t *words; /* one for each far page */
    void (*use_range)(uintptr_t addr, size_t pages, int write);
    void (*use_each)(const uintptr_t *addrs, size_t n, int write);
    void (*advise)(uintptr_t addr, size_t bytes, int advice);
    size_t (*objects)(intptr_t pages); /* local memory of farmem-objects */
    intptr_t (*weigh)(size_t pages, size_t cost, size_t saved); /* the share of farmem-objects */
    size_t (*need)(void); /* more for a scope of farmem-objects */
};

/* The table, or null. By a weak symbol, always through the global offset table: in a program that
 * is not position-independent the linker makes a plain reference to a weak symbol null for good. */
static FARMEM_INLINE const struct farmem_v1 *farmem_table(void) {
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
    const struct farmem_v1 *table;
    __asm__(".weak farmem_v1\n\tmovq farmem_v1@GOTPCREL(%%rip), %0" : "=r"(table));
    return table;
#else
    return (const struct farmem_v1 *)0;
#endif
}

/* A page word's bits: 60 to 62 the state, 2 of which is local; 59: it can be written to. */
static FARMEM_INLINE int farmem_needs_(const struct farmem_v1 *table, const void *p, int write) {
    uintptr_t page = ((uintptr_t)p - table->far_start) >> 12;
    uint64_t word;
    if (page >= table->far_pages) return 0;
    word = table->words[page];
    return write ? (word >> 59 & 15) != 5 : (word >> 60 & 7) != 2;
}

/* Whether the program runs on far memory. */
static FARMEM_INLINE int farmem_runs(void) {
    const struct farmem_v1 *table = farmem_table();
    return table && table->far_pages != 0;
}

/* Whether the page of p is local, or not far at all. It may leave a moment later. */
static FARMEM_INLINE int farmem_is_near(const void *p) {
    const struct farmem_v1 *table = farmem_table();
    return !table || !farmem_needs_(table, p, 0);
}

/* I will read the page of p, and so many pages behind it. */
static FARMEM_INLINE void farmem_read(const void *p, size_t pages) {
    const struct farmem_v1 *table = farmem_table();
    if (table && farmem_needs_(table, p, 0)) table->use_range((uintptr_t)p, pages + 1, 0);
}

/* I will write to the page of p, and to so many pages behind it: they come in ready to be written to. */
static FARMEM_INLINE void farmem_write(void *p, size_t pages) {
    const struct farmem_v1 *table = farmem_table();
    if (table && farmem_needs_(table, p, 1)) table->use_range((uintptr_t)p, pages + 1, 1);
}

static FARMEM_INLINE void farmem_each_(const void *const *p, size_t n, int write) {
    const struct farmem_v1 *table = farmem_table();
    uintptr_t away[63];
    size_t i, k = 0;
    if (!table || !table->far_pages) return;
    for (i = 0; i < n; i++) {
        if (!farmem_needs_(table, p[i], write)) continue;
        away[k++] = (uintptr_t)p[i];
        if (k == sizeof away / sizeof *away) {
            table->use_each(away, k, write);
            k = 0;
        }
    }
    if (k) table->use_each(away, k, write);
}

/* I will read the pages of n addresses. Those that are away come in by batches of up to 63. */
static FARMEM_INLINE void farmem_read_each(const void *const *p, size_t n) { farmem_each_(p, n, 0); }

/* I will write to the pages of n addresses. */
static FARMEM_INLINE void farmem_write_each(void *const *p, size_t n) { farmem_each_((const void *const *)p, n, 1); }

/* madvise of the pages that lie wholly in a range. */
static FARMEM_INLINE void farmem_advise_(const void *p, size_t bytes, int advice) {
    const struct farmem_v1 *table = farmem_table();
    uintptr_t first = ((uintptr_t)p + 4095) & ~(uintptr_t)4095;
    uintptr_t last = ((uintptr_t)p + bytes) & ~(uintptr_t)4095;
    if (table && table->far_pages && first < last && (uintptr_t)p + bytes > (uintptr_t)p)
        table->advise(first, last - first, advice);
}

/* I will not use a range soon: its pages leave before all others. */
static FARMEM_INLINE void farmem_cold(const void *p, size_t bytes) { farmem_advise_(p, bytes, 20); }

/* I will not use a range for long: its pages leave now. */
static FARMEM_INLINE void farmem_pageout(const void *p, size_t bytes) { farmem_advise_(p, bytes, 21); }

/* How I will use a range. Holds for its blocks of 2 MiB, until it is unmapped or another pattern is said. */
static FARMEM_INLINE void farmem_pattern(const void *p, size_t bytes, int pattern) {
    if (pattern >= FARMEM_NORMAL && pattern <= FARMEM_SEQUENTIAL) farmem_advise_(p, bytes, pattern);
}

#ifdef __cplusplus
}
#endif

#endif
