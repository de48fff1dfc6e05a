/* Threads write all over far memory while it leaves, and all that it leaves by is made difficult beside them: forks, whose children
 * share it for a while; protection that comes and goes; pages of the same content, which the kernel may merge. No write is lost. */
#include <sys/prctl.h>

#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

#include "case.h"

enum { WRITERS = 3, PAGES = 6144, QUIET = 1024, LOCKED = 512, STEPS = 150 };
static uint64_t *mem, *quiet, *locked;
/* What each writer has added to each page. Not far. */
static uint32_t tally[WRITERS][PAGES];
static volatile int stop;
/* How many pages each writer has come by. Not far. */
static volatile uint64_t steps[WRITERS];
/* Each takes a slab of far memory where it forks. */
static int rounds = 24;

static uint64_t *word(size_t page, uint64_t who) { return mem + page * (PAGE / 8) + who * 64; }

static void *writer(void *arg) {
    uint64_t who = (uintptr_t)arg, x = who, odd = 0;
    while (!stop) {
        x = mix(x);
        size_t page = x % PAGES;
        /* Some pages are only read for a while, so that writes that follow find them clean. */
        if (x >> 60 > 3) *word(page, who) += 1, tally[who][page]++;
        else odd += *word(page, (who + 1) % WRITERS) & 1;
        if (x >> 52 == 7) odd += locked[x % (LOCKED * PAGE / 8)] & 1;
        steps[who]++;
    }
    return (void *)odd;
}

/* However slow the machine, enough leaves in each round. */
static void go_on(const uint64_t *begun) {
    for (int i = 0; i < WRITERS; i++)
        while (steps[i] - begun[i] < STEPS) usleep(1000);
}

static void work(int how) {
    pthread_t t[WRITERS];
    stop = 0;
    for (uintptr_t i = 0; i < WRITERS; i++) MUST(pthread_create(&t[i], NULL, writer, (void *)i) == 0);
    for (int round = 0; round < rounds; round++) {
        uint64_t begun[WRITERS];
        for (int i = 0; i < WRITERS; i++) begun[i] = steps[i];
        if (how == 1) {
            int ends[2];
            MUST(pipe(ends) == 0);
            pid_t child = fork();
            MUST(child >= 0);
            if (child == 0) {
                alarm(250);
                char none;
                close(ends[1]);
                MUST(read(ends[0], &none, 1) == 0);
                _exit(wrong(quiet, QUIET * PAGE, 3) != 0);
            }
            usleep(5000);
            /* The child shares it meanwhile, and while it reads. */
            go_on(begun);
            close(ends[0]);
            close(ends[1]);
            int status;
            MUST(waitpid(child, &status, 0) == child && status == 0);
        } else if (how == 2) {
            for (int i = 0; i < 8; i++) {
                MUST(mprotect(locked, LOCKED * PAGE, PROT_READ) == 0);
                usleep(200);
                MUST(mprotect(locked, LOCKED * PAGE, PROT_READ | PROT_WRITE) == 0);
                for (size_t at = 0; at < LOCKED; at += 3) locked[at * (PAGE / 8) + round] = mix(round * LOCKED + at);
            }
        } else {
            usleep(5000);
        }
        go_on(begun);
    }
    stop = 1;
    for (int i = 0; i < WRITERS; i++) MUST(pthread_join(t[i], NULL) == 0);
    size_t lost = 0, bad = 0;
    for (size_t page = 0; page < PAGES; page++)
        for (int who = 0; who < WRITERS; who++) lost += *word(page, who) != tally[who][page];
    if (how == 2)
        for (int round = 0; round < rounds; round++)
            for (size_t at = 0; at < LOCKED; at += 3) bad += locked[at * (PAGE / 8) + round] != mix(round * LOCKED + at);
    printf("way %d: lost %zu, wrong %zu, quiet wrong %zu\n", how, lost, bad, wrong(quiet, QUIET * PAGE, 3));
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = atoi(argv[1]);
    mem = far_map(PAGES * PAGE);
    quiet = far_map(QUIET * PAGE);
    locked = far_map(LOCKED * PAGE);
    fill(quiet, QUIET * PAGE, 3);
    memset(mem, 0, PAGES * PAGE);
    for (int how = 0; how < 3; how++) work(how);
    /* Where the kernel knows it: all of the process may be merged. */
    prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0);
    work(3);
    prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0);
    work(4);
}
