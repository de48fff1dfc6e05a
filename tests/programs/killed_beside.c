/* A process that shares this memory is killed while far memory comes or goes for it. `killed_beside HOW NODE`: the node,
 * a process of this machine, is stopped, so that what the other does takes until it is killed.
 *
 *   idle    a companion that does nothing
 *   fault   a companion that waits for a page
 *   evict   a companion that makes room, and so holds the runtime's lock for that
 *   vfork   a vfork child that waits for a page
 *   storm   a companion that reads at random, killed after NODE microseconds: no node is stopped
 */
#define _GNU_SOURCE
#include <sched.h>

#include "case.h"

enum { BYTES = 24 << 20, FRESH = 64 << 20 };
static uint8_t *mem, *fresh;
static volatile uint64_t sink;

static int idles(void *unused) {
    (void)unused;
    for (;;) syscall(SYS_pause);
}

static int faults(void *unused) {
    (void)unused;
    sink = *(volatile uint64_t *)mem;
    return 0;
}

static int evicts(void *unused) {
    (void)unused;
    fill(fresh, FRESH, 7);
    return 0;
}

static int storms(void *unused) {
    (void)unused;
    for (uint64_t x = 1;; x = mix(x)) sink = ((volatile uint64_t *)mem)[x % (BYTES / 8)];
}

/* Beside all of this, in a memory of its own: kills the process whose number comes by `in`, and lets the node go on. */
static void kill_after(int in, pid_t node) {
    pid_t child;
    MUST(read(in, &child, sizeof child) == sizeof child);
    usleep(300000);
    kill(child, SIGKILL);
    usleep(100000);
    kill(node, SIGCONT);
    _exit(0);
}

static __attribute__((noinline)) void in_vfork(int out, pid_t node) {
    pid_t own = getpid();
    write(out, &own, sizeof own);
    kill(node, SIGSTOP);
    faults(NULL);
    _exit(0);
}

static void killed(int status) {
    MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    printf("killed\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    static uint8_t stack[256 << 10] __attribute__((aligned(64)));
    MUST(argc == 3);
    const char *how = argv[1];
    pid_t node = atoi(argv[2]);
    mem = far_map(BYTES);
    fresh = far_map(FRESH);
    fill(mem, BYTES, 0);
    int status, ends[2], (*does)(void *) = how[0] == 'i' ? idles : how[0] == 'f' ? faults : how[0] == 'e' ? evicts : storms;
    if (!strcmp(how, "vfork")) {
        MUST(!pipe(ends));
        pid_t killer = fork();
        if (killer == 0) kill_after(ends[0], node);
        pid_t child = vfork();
        if (child == 0) in_vfork(ends[1], node);
        MUST(child > 0 && waitpid(child, &status, 0) == child);
    } else {
        int stops = does == faults || does == evicts;
        if (stops) kill(node, SIGSTOP);
        pid_t child = clone(does, stack + sizeof stack, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, NULL);
        MUST(child > 0);
        usleep(does == storms ? node : 300000);
        kill(child, SIGKILL);
        MUST(waitpid(child, &status, 0) == child);
        if (stops) kill(node, SIGCONT);
    }
    killed(status);
    for (int round = 0; round < 3; round++) printf("wrong %zu\n", wrong(mem, BYTES, 0));
    printf("ends\n");
}
