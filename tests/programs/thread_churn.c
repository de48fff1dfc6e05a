/* Threads that come, fault and go, 1500 of them: whatever the runtime keeps
 * per thread it must give back. */
#include "case.h"

static uint8_t *shared;
static void *work(void *arg) {
    uintptr_t me = (uintptr_t)arg;
    uint8_t *page = shared + (me % 4096) * PAGE;
    uint64_t seen = *(uint64_t *)page;
    *(uint64_t *)(page + 8 * (1 + me / 4096)) = mix(me);
    return (void *)(uintptr_t)(seen != mix(me % 4096));
}

int main(void) {
    shared = far_map(4096 * PAGE);
    for (uint64_t i = 0; i < 4096; i++) *(uint64_t *)(shared + i * PAGE) = mix(i);
    size_t bad = 0;
    for (uintptr_t i = 0; i < 1500; i += 4) {
        pthread_t t[4];
        for (int j = 0; j < 4; j++) MUST(pthread_create(&t[j], NULL, work, (void *)((i + j) * 7)) == 0);
        for (int j = 0; j < 4; j++) {
            void *r;
            pthread_join(t[j], &r);
            bad += (uintptr_t)r;
        }
    }
    for (uintptr_t i = 0; i < 1500; i++)
        bad += *(uint64_t *)(shared + (i * 7 % 4096) * PAGE + 8 * (1 + i * 7 / 4096)) != mix(i * 7);
    printf("bad %zu\n", bad);
}
