/* Pages that come in by being read, and are written then, are local still when a program with two threads forks: what it wrote is its child's, too,
 * when the child has pushed them out. The other thread writes to pages of its own meanwhile. */
#include "case.h"

enum { FEW = 96, MANY = 2048, ROUNDS = 16 };
static uint64_t *few, *many;
static volatile int over;

static void *beside(void *unused) {
    uint64_t *own = few + FEW * (PAGE / 8), x = 3;
    while (!over) {
        x = mix(x);
        own[x % FEW * (PAGE / 8) + 1] += x;
    }
    return unused;
}

static uint64_t swept(void) {
    uint64_t s = 0;
    for (size_t page = 0; page < MANY; page++) s += many[page * (PAGE / 8)];
    return s;
}

int main(void) {
    few = far_map(2 * FEW * PAGE);
    many = far_map(MANY * PAGE);
    fill(many, MANY * PAGE, 1);
    for (size_t page = 0; page < FEW; page++) few[page * (PAGE / 8)] = page;
    uint64_t expected = swept(), stale = 0;
    pthread_t t;
    MUST(pthread_create(&t, NULL, beside, NULL) == 0);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        stale += swept() != expected;
        uint64_t before = 0;
        for (size_t page = 0; page < FEW; page++) before += few[page * (PAGE / 8)];
        stale += before != FEW * (FEW - 1) / 2 + (round - 1) * FEW;
        for (size_t page = 0; page < FEW; page++) few[page * (PAGE / 8)]++;
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            uint64_t lost = swept() != expected;
            for (size_t page = 0; page < FEW; page++) lost += few[page * (PAGE / 8)] != page + round;
            _exit(lost != 0);
        }
        int status;
        MUST(waitpid(pid, &status, 0) == pid);
        stale += status != 0;
    }
    over = 1;
    MUST(pthread_join(t, NULL) == 0);
    printf("stale %lu\n", stale);
}
