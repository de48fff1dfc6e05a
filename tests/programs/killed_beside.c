/* A process that shares this memory is killed while far memory comes or goes for it. `killed_beside HOW NODE`: the node,
 * a process of this machine, is stopped, so that what the other does takes until it is killed.
 *
 *   idle    a companion that does nothing
 *   fault   a companion that waits for a page
 *   evict   a companion that makes room, and so holds the runtime's lock for that
 *   vfork   a vfork child that waits for a page
 *   storm   a companion that reads at random, killed after NODE microseconds: no node is stopped
 *   Rfault, Revict, Ridle, Rstorm   the same, made by a `syscall` instruction of the program's own
 *   Rvfork  a child that waits for a page, made so, while its parent waits for it as for a vfork child
 *   Nfault, Nevict, Nidle, Nstorm   the same as without N, in a PID namespace of its own
 *   Lfault  as Nfault, with a list of robust locks of its own, so that nobody can be sure that it has ended
 *   Lstop   such a one is not killed, but stopped for 16 s
 * 77: there are no namespaces to be had.
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

static const char *thread_of(pid_t process) {
    static char thread[16];
    snprintf(thread, sizeof thread, "%d", process);
    return thread;
}

/* Waits until a process has slept for 200 ms, and so waits for the node. One that the machine has not come to does not
 * sleep. */
static void until_it_waits(pid_t process) {
    const char *thread = thread_of(process);
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

/* A clone by an instruction of this program's own. The child has the same thread pointer. */
static pid_t raw_clone(int (*does)(void *), uint8_t *top, unsigned long flags) {
    long made = SYS_clone;
    register long none __asm__("r10") = 0;
    register long no_tls __asm__("r8") = 0;
    __asm__ volatile(
        "syscall\n"
        "test %%rax, %%rax\n"
        "jnz 1f\n"
        "xor %%edi, %%edi\n"
        "call *%%rbx\n"
        "xor %%edi, %%edi\n"
        "mov $60, %%eax\n"
        "syscall\n"
        "1:"
        : "+a"(made)
        : "D"(flags), "S"(top), "d"(0L), "r"(none), "r"(no_tls), "b"(does)
        : "rcx", "r11", "memory");
    return made;
}

/* What a child that is its parent's vfork child does: it says its number, and waits for a page. */
static int told_to;
static int vforked(void *unused) {
    (void)unused;
    pid_t own = syscall(SYS_getpid);
    syscall(SYS_write, told_to, &own, sizeof own);
    return faults(NULL);
}

static int lists(void *unused) {
    static struct { void *next; long offset; void *pending; } head = {&head, 0, NULL};
    syscall(SYS_set_robust_list, &head, sizeof head);
    return faults(unused);
}

/* Lets the one whose number comes by `in` go on after a while. Made before, because a fork waits for threads that far
 * memory comes for. */
static void continue_later(int in) {
    pid_t stopped;
    if (fork()) return;
    MUST(read(in, &stopped, sizeof stopped) == sizeof stopped);
    sleep(16);
    kill(stopped, SIGCONT);
    _exit(0);
}

int main(int argc, char **argv) {
    static uint8_t stack[256 << 10] __attribute__((aligned(64)));
    MUST(argc == 3);
    const char *how = argv[1];
    pid_t node = atoi(argv[2]);
    mem = far_map(BYTES);
    fresh = far_map(FRESH);
    fill(mem, BYTES, 0);
    int raw = how[0] == 'R', elsewhere = how[0] == 'N' || how[0] == 'L', own_list = how[0] == 'L';
    how += raw || elsewhere;
    int stays = !strcmp(how, "stop");
    int (*does)(void *) = how[0] == 'i' ? idles : how[0] == 'e' ? evicts : strcmp(how, "storm") ? faults : storms;
    int status, ends[2];
    if (!strcmp(how, "vfork")) {
        MUST(!pipe(ends));
        pid_t killer = fork();
        if (killer == 0) kill_after(ends[0], node);
        stop(node);
        told_to = ends[1];
        pid_t child = raw ? raw_clone(vforked, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD) : vfork();
        if (child == 0) in_vfork(ends[1]);
        MUST(child > 0 && waitpid(child, &status, 0) == child);
    } else {
        int stops = does == faults || does == evicts;
        /* A namespace of processes is for those who may, or in a namespace of users, where CLONE_FS may not be. */
        unsigned long apart = geteuid() ? CLONE_NEWPID | CLONE_NEWUSER : CLONE_NEWPID | CLONE_FS;
        unsigned long flags = CLONE_VM | CLONE_FILES | SIGCHLD | (elsewhere ? apart : CLONE_FS);
        MUST(!pipe(ends));
        if (stays) continue_later(ends[0]);
        if (stops) stop(node);
        pid_t child = raw ? raw_clone(does, stack + sizeof stack, flags)
                          : clone(own_list ? lists : does, stack + sizeof stack, flags, NULL);
        if (child < 0 && elsewhere && errno == EPERM) return kill(node, SIGCONT), 77;
        MUST(child > 0);
        if (does == storms) usleep(node);
        else until_it_waits(child);
        if (stays) {
            kill(child, SIGSTOP);
            while (state_of(child, thread_of(child)) != 'T') usleep(1000);
            MUST(write(ends[1], &child, sizeof child) == sizeof child);
        } else {
            kill(child, SIGKILL);
            MUST(waitpid(child, &status, 0) == child);
        }
        if (stops) kill(node, SIGCONT);
    }
    if (stays) printf("killed\n"), fflush(stdout);
    else killed(status);
    for (int round = 0; round < 3; round++) printf("wrong %zu\n", wrong(mem, BYTES, 0));
    printf("ends\n");
}
