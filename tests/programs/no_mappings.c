/* A program with two threads has as many mappings as it may, or nearly, and pages that it may not read: they hold what they held, when
 * it may read them again. */
#include "case.h"

enum { BARRED = 2 << 20, BYTES = 24 << 20, MOST = 40000 };
static uint8_t *many;

/* Where it may have many more than by default, there is nothing to see. */
static size_t wanted(void) {
    long most = 0;
    FILE *limit = fopen("/proc/sys/vm/max_map_count", "r");
    MUST(limit && fscanf(limit, "%ld", &most) == 1 && fclose(limit) == 0);
    return most / 2 < MOST ? MOST : 1000;
}

static void *sweep(void *of) {
    uint64_t s = 0;
    for (int round = 0; round < 4; round++)
        for (size_t at = (uintptr_t)of; at < BYTES; at += 2 * PAGE) s += many[at]++;
    return (void *)(uintptr_t)(s == 1);
}

int main(void) {
    size_t made = 0, most = wanted();
    uint8_t *barred = far_map(BARRED), *pieces = mmap(0, 2 * most * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(pieces != MAP_FAILED);
    many = far_map(BYTES);
    fill(barred, BARRED, 1);
    MUST(mprotect(barred, BARRED, PROT_NONE) == 0);
    while (made < most && mprotect(pieces + 2 * made * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0) made++;
    MUST(made == 1000 || (errno == ENOMEM && made > 1000 && made < MOST));
    /* Two mappings each: what is left is too little to move one, and enough for all else. */
    for (int i = 0; i < 2; i++) MUST(mprotect(pieces + 2 * --made * PAGE, PAGE, PROT_NONE) == 0);
    pthread_t t;
    int error = pthread_create(&t, NULL, sweep, (void *)PAGE);
    if (error) {
        for (int i = 0; i < 4; i++) MUST(mprotect(pieces + 2 * --made * PAGE, PAGE, PROT_NONE) == 0);
        MUST(pthread_create(&t, NULL, sweep, (void *)PAGE) == 0);
    }
    sweep(0);
    MUST(pthread_join(t, NULL) == 0);
    MUST(munmap(pieces, 2 * most * PAGE) == 0);
    MUST(mprotect(barred, BARRED, PROT_READ) == 0);
    printf("wrong %zu\n", wrong(barred, BARRED, 1));
}
