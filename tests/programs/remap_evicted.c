/* Maps that are moved, grown and shrunk while their pages are on their way out:
 * every thread remaps a map of its own, to and fro between two places, and
 * others keep pages leaving. Every word is checked after every move. */
#include "case.h"

enum { MOVERS = 4, TOUCHERS = 2, ROUNDS = 200 };
static volatile int done;
static size_t moved[MOVERS], bad[MOVERS];
/* What a map leaves is free for a moment: no other thread may be looking for a place by then. */
static pthread_barrier_t all_mapped;

static void *move(void *arg) {
    size_t me = (uintptr_t)arg;
    const size_t most = 3 * MIB;
    uint64_t random = mix(me + 77);
    /* Two places, each kept by a reservation while the map is at the other. */
    char *place[2];
    for (int i = 0; i < 2; i++) {
        place[i] = mmap(NULL, most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(place[i] != MAP_FAILED);
    }
    size_t len = MIB;
    char *at = mmap(place[0], len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    MUST(at == place[0]);
    pthread_barrier_wait(&all_mapped);
    uint64_t key = mix(me);
    fill(at, len, key);
    for (int round = 0; round < ROUNDS; round++) {
        random = mix(random);
        size_t to_len = PAGE * (64 + random % (most / PAGE - 64));
        char *to = place[(round + 1) % 2];
        char *now = mremap(at, len, to_len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
        MUST(now == to);
        /* Where it was, the reservation again. */
        MUST(mmap(at, most, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at);
        size_t kept = to_len < len ? to_len : len;
        bad[me] += wrong(now, kept, key);
        bad[me] += nonzero(now + kept, to_len - kept);
        at = now, len = to_len;
        key = mix(key);
        fill(at, len, key);
        moved[me]++;
    }
    return NULL;
}

static void *touch(void *arg) {
    const size_t bytes = 12 * MIB;
    volatile uint8_t *ballast = far_map(bytes);
    pthread_barrier_wait(&all_mapped);
    while (!done)
        for (size_t i = 0; i < bytes && !done; i += PAGE) ballast[i]++;
    return arg;
}

int main(void) {
    pthread_t movers[MOVERS], touchers[TOUCHERS];
    pthread_barrier_init(&all_mapped, NULL, MOVERS + TOUCHERS);
    for (int i = 0; i < TOUCHERS; i++) pthread_create(&touchers[i], NULL, touch, NULL);
    for (uintptr_t i = 0; i < MOVERS; i++) pthread_create(&movers[i], NULL, move, (void *)i);
    for (int i = 0; i < MOVERS; i++) pthread_join(movers[i], NULL);
    done = 1;
    for (int i = 0; i < TOUCHERS; i++) pthread_join(touchers[i], NULL);
    for (int i = 0; i < MOVERS; i++) printf("mover %d moved %zu bad %zu\n", i, moved[i], bad[i]);
}
