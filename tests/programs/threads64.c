/* 64 threads, each with memory of its own, all with one shared array of
 * counters whose words lie between each other's: a lost write shows as a sum. */
#include "case.h"

enum { THREADS = 64, ROUNDS = 40, SLOTS = 4096 };
static uint64_t (*counters)[8];
static size_t bad[THREADS];

static void *work(void *arg) {
    uintptr_t me = (uintptr_t)arg;
    size_t bytes = 384 * 1024;
    uint8_t *mine = far_map(bytes);
    fill(mine, bytes, me << 32);
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < SLOTS; i += 37)
            __atomic_fetch_add(&counters[(i * (me + 1)) % SLOTS][me % 8], 1, __ATOMIC_RELAXED);
    bad[me] = wrong(mine, bytes, me << 32);
    munmap(mine, bytes);
    return NULL;
}

int main(void) {
    counters = far_map(sizeof(*counters) * SLOTS);
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) MUST(pthread_create(&t[i], NULL, work, (void *)i) == 0);
    uint64_t sum = 0, wrongs = 0;
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL), wrongs += bad[i];
    for (int i = 0; i < SLOTS; i++)
        for (int j = 0; j < 8; j++) sum += counters[i][j];
    printf("sum %lu wrong %lu\n", sum, wrongs);
}
