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
#include <dirent.h>
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

/* The state of a process's thread as `/proc` names it, or 0. */
static char state_of(pid_t process, const char *thread) {
    char path[64], stat[512];
    snprintf(path, sizeof path, "/proc/%d/task/%.16s/stat", process, thread);
    int from = open(path, O_RDONLY);
    ssize_t bytes = from < 0 ? 0 : read(from, stat, sizeof stat - 1);
    if (from >= 0) close(from);
    stat[bytes < 0 ? 0 : bytes] = 0;
    const char *name = strrchr(stat, ')');
    return name ? name[2] : 0;
}

/* Stops the node, and waits until each of its threads stands still: the others answer until they see the signal. The
 * first round comes before the signal, so that nothing of it needs the node. */
static void stop(pid_t node) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", node);
    DIR *threads = opendir(path);
    MUST(threads);
    for (int round = 0, moving = 1; moving; round++, usleep(1000)) {
        moving = 0;
        rewinddir(threads);
        for (struct dirent *thread; (thread = readdir(threads));) {
            char state = thread->d_name[0] == '.' ? 0 : state_of(node, thread->d_name);
            moving += state && state != 'T';
        }
        if (round == 0) kill(node, SIGSTOP), moving = 1;
    }
    closedir(threads);
}

/* Waits until a process has slept for 200 ms, and so waits for the node. One that the machine has not come to does not
 * sleep. */
static void until_it_waits(pid_t process) {
    char thread[16];
    snprintf(thread, sizeof thread, "%d", process);
    for (int asleep = 0; asleep < 20; usleep(10000)) asleep = state_of(process, thread) == 'S' ? asleep + 1 : 0;
}

/* Beside all of this, in a memory of its own: kills the process whose number comes by `in`, and lets the node go on. */
static void kill_after(int in, pid_t node) {
    pid_t child;
    MUST(read(in, &child, sizeof child) == sizeof child);
    until_it_waits(child);
    kill(child, SIGKILL);
    usleep(100000);
    kill(node, SIGCONT);
    _exit(0);
}

static __attribute__((noinline)) void in_vfork(int out) {
    pid_t own = getpid();
    write(out, &own, sizeof own);
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
        stop(node);
        pid_t child = vfork();
        if (child == 0) in_vfork(ends[1]);
        MUST(child > 0 && waitpid(child, &status, 0) == child);
    } else {
        int stops = does == faults || does == evicts;
        if (stops) stop(node);
        pid_t child = clone(does, stack + sizeof stack, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, NULL);
        MUST(child > 0);
        if (does == storms) usleep(node);
        else until_it_waits(child);
        kill(child, SIGKILL);
        MUST(waitpid(child, &status, 0) == child);
        if (stops) kill(node, SIGCONT);
    }
    killed(status);
    for (int round = 0; round < 3; round++) printf("wrong %zu\n", wrong(mem, BYTES, 0));
    printf("ends\n");
}
