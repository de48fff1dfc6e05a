/* fork while other threads fault: the child has one thread, whole memory and a
 * working runtime, whatever the others held at that moment. */
#include "case.h"

enum { THREADS = 4, PAGES = 2048 };
static uint8_t *mem;
static volatile int stop;

static void *noise(void *arg) {
    uint64_t me = (uintptr_t)arg, x = me;
    uint64_t *words = far_map(PAGES * PAGE);
    while (!stop) {
        x = mix(x);
        words[(x % PAGES) * 512 + me] += 1;
        if (x % 512 == 0) {
            void *p = malloc(300000);
            memset(p, 1, 300000);
            free(p);
        }
    }
    return NULL;
}

int main(void) {
    mem = far_map(PAGES * PAGE);
    fill(mem, PAGES * PAGE, 9);
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&t[i], NULL, noise, (void *)i);
    int good = 0;
    for (int round = 0; round < 25; round++) {
        pid_t p = fork();
        MUST(p >= 0);
        if (p == 0) {
            alarm(250);
            size_t bad = wrong(mem, PAGES * PAGE, 9);
            uint8_t *more = malloc(8 * MIB);
            fill(more, 8 * MIB, round);
            bad += wrong(more, 8 * MIB, round);
            _exit(bad != 0);
        }
        int status;
        MUST(waitpid(p, &status, 0) == p);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    printf("good children %d, parent bad %zu\n", good, wrong(mem, PAGES * PAGE, 9));
}
