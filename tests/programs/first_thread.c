/* A program's second thread begins right behind a fork, and right behind a posix_spawn, while the child has not come far: all on one
 * CPU, so that the parent goes on first. Then children of a program whose descriptors are used up page, and make a thread. */
#define _GNU_SOURCE
#include <sched.h>
#include <spawn.h>
#include <sys/resource.h>

#include "case.h"

enum { PAGES = 4096 };
static volatile uint64_t *mem;
static uint64_t *word(size_t page, int which) { return (uint64_t *)mem + page * (PAGE / 8) + 8 * which; }

static void add(int which) {
    for (size_t page = 0; page < PAGES; page++) *word(page, which) += page;
}

static uint64_t sum(int which) {
    uint64_t s = 0;
    for (size_t page = 0; page < PAGES; page++) s = mix(s + *word(page, which));
    return s;
}

static void *newcomer(void *unused) {
    add(1);
    return unused;
}

static void with_a_thread(const char *what) {
    pthread_t t;
    MUST(pthread_create(&t, NULL, newcomer, NULL) == 0);
    add(2);
    MUST(pthread_join(t, NULL) == 0);
    printf("%s: %016lx %016lx %016lx\n", what, sum(0), sum(1), sum(2));
    fflush(stdout);
}

static void ended(pid_t pid) {
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
}

static void behind_a_fork(void) {
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) _exit(0);
    with_a_thread("fork");
    ended(pid);
}

static void behind_a_spawn(void) {
    extern char **environ;
    pid_t pid;
    MUST(posix_spawn(&pid, "/bin/true", NULL, NULL, (char *[]){"true", NULL}, environ) == 0);
    with_a_thread("spawn");
    ended(pid);
}

static void without_descriptors(void) {
    while (open("/dev/null", O_RDONLY) >= 0) {}
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            add(0);
            add(0);
            with_a_thread("few descriptors");
            _exit(0);
        }
        ended(pid);
    }
}

int main(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    MUST(sched_getaffinity(0, sizeof one, &one) == 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &one)) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    MUST(sched_setaffinity(0, sizeof one, &one) == 0);
    struct rlimit few = {512, 512};
    MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
    mem = far_map(PAGES * PAGE);
    add(0);
    void (*ways[])(void) = {behind_a_fork, behind_a_spawn};
    for (int way = 0; way < 2; way++) {
        fflush(stdout);
        /* Each with a second thread of its own. */
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            add(0);
            ways[way]();
            _exit(0);
        }
        ended(pid);
    }
    without_descriptors();
}
