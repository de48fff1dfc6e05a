/* mincore while other threads fork, and while handlers of signals map memory. */
#include "case.h"
#include <stdatomic.h>
#include <sys/time.h>

enum { PAGES = 4096, FORKS = 200, SIGNALS = 200 };
static uint8_t *map;
static _Atomic int done, handled;

static void *looks(void *none) {
    static unsigned char told[PAGES];
    while (!done) MUST(mincore(map, PAGES * PAGE, told) == 0);
    return none;
}

static void on_alarm(int s) {
    (void)s;
    void *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED && munmap(p, MIB) == 0) handled++;
}

int main(void) {
    alarm(120); /* a wait without an end ends here */
    map = far_map(PAGES * PAGE);
    fill(map, PAGES * PAGE, 1);
    /* Many mappings in one range. */
    for (size_t i = 0; i < PAGES; i += 2) MUST(mprotect(map + i * PAGE, PAGE, PROT_READ) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, looks, NULL) == 0);
    int ended = 0;
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) _exit(munmap(far_map(MIB), MIB) == 0 ? 7 : 8);
        int status;
        MUST(waitpid(child, &status, 0) == child);
        ended += WIFEXITED(status) && WEXITSTATUS(status) == 7;
    }
    done = 1;
    MUST(pthread_join(thread, NULL) == 0);
    printf("%d children ended\n", ended);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGPROF, &action, NULL) == 0);
    MUST(setitimer(ITIMER_PROF, &(struct itimerval){{0, 1000}, {0, 1000}}, NULL) == 0);
    unsigned char told[PAGES];
    while (handled < SIGNALS) MUST(mincore(map, PAGES * PAGE, told) == 0);
    MUST(setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL) == 0);
    printf("handlers ran; bad %zu\n", wrong(map, PAGES * PAGE, 1));
}
