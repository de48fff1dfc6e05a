/* malloc used before any library's constructor has run, as libstdc++ does: the
 * heap exists already when the runtime starts, near, and must go on from there.
 * Linked at a fixed address too, where the near heap lies below the far range. */
#include "case.h"
#include <malloc.h>

static char *early[100], *large;

static void before_everything(void) {
    for (int i = 0; i < 100; i++) early[i] = memset(malloc(300), i, 300);
    large = malloc(100000);
}
__attribute__((section(".preinit_array"), used)) static void (*first)(void) = before_everything;

int main(void) {
    size_t bad = 0;
    /* The end of the heap goes back to the system, as it would from any heap. */
    free(large);
    malloc_trim(0);
    enum { N = 60000 };
    static uint64_t *block[N];
    for (int i = 0; i < N; i++) {
        size_t words = 2 + mix(i) % 60;
        block[i] = malloc(words * 8);
        MUST(block[i]);
        for (size_t k = 0; k < words; k++) block[i][k] = mix(i) + k;
    }
    squeeze();
    for (int i = 0; i < N; i++) {
        size_t words = 2 + mix(i) % 60;
        for (size_t k = 0; k < words; k++) bad += block[i][k] != mix(i) + k;
        if (i % 3) free(block[i]);
    }
    for (int i = 0; i < 100; i++) {
        for (int k = 0; k < 300; k++) bad += early[i][k] != i;
        early[i] = realloc(early[i], 30000);
        for (int k = 0; k < 300; k++) bad += early[i][k] != i;
        free(early[i]);
    }
    printf("bad %zu\n", bad);
}
