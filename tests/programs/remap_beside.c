/* Maps that move to where a neighbour's first touches reach: some threads fill
 * fresh maps to their very end, over and over, and others grow maps of their own,
 * which the system then places right behind. Every word is checked. */
#include "case.h"

enum { FILLERS = 2, GROWERS = 2, ROUNDS = 1500 };
static volatile int done;
static size_t grown[GROWERS], bad[GROWERS];

static void *fill_fresh(void *arg) {
    uint64_t random = mix((uintptr_t)arg + 5);
    while (!done) {
        random = mix(random);
        size_t len = PAGE * (16 + random % 200);
        volatile char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(at != MAP_FAILED);
        for (size_t i = 0; i < len; i += PAGE) at[i] = 1;
        MUST(munmap((void *)at, len) == 0);
    }
    return NULL;
}

static void *grow(void *arg) {
    size_t me = (uintptr_t)arg;
    uint64_t random = mix(me + 99);
    for (int round = 0; round < ROUNDS; round++) {
        random = mix(random);
        size_t len = PAGE * (16 + random % 64), to_len = len * (2 + random / 64 % 3);
        char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(at != MAP_FAILED);
        fill(at, len, random);
        char *now = mremap(at, len, to_len, MREMAP_MAYMOVE);
        MUST(now != MAP_FAILED);
        bad[me] += wrong(now, len, random);
        bad[me] += nonzero(now + len, to_len - len);
        MUST(munmap(now, to_len) == 0);
        grown[me]++;
    }
    return NULL;
}

int main(void) {
    pthread_t growers[GROWERS], fillers[FILLERS];
    for (uintptr_t i = 0; i < FILLERS; i++) pthread_create(&fillers[i], NULL, fill_fresh, (void *)i);
    for (uintptr_t i = 0; i < GROWERS; i++) pthread_create(&growers[i], NULL, grow, (void *)i);
    for (int i = 0; i < GROWERS; i++) pthread_join(growers[i], NULL);
    done = 1;
    for (int i = 0; i < FILLERS; i++) pthread_join(fillers[i], NULL);
    for (int i = 0; i < GROWERS; i++) printf("grower %d grown %zu bad %zu\n", i, grown[i], bad[i]);
}
