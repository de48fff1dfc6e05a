/* Children with a copy of the memory that are no fork's: on a stack of their own, near or far, as container tools and
 * sandboxes make them, and by clone3. Each finds the memory as it was, writes to its copy, and has threads and children. */
#define _GNU_SOURCE
#include "case.h"
#include <linux/sched.h>
#include <sched.h>
#include <setjmp.h>

enum { BYTES = 12 << 20, STACK = 256 << 10, NEAR = 64 << 10 };
static uint8_t *mem;
static uint8_t near_stack[NEAR] __attribute__((aligned(64)));
static int key = 1;

static void *reads(void *unused) {
    (void)unused;
    return (void *)wrong(mem, BYTES, key);
}

struct job {
    uint8_t *stack;
    size_t bytes;
    int nested;
};

static pid_t started(struct job *job);

static void awaited(const char *how, pid_t pid) {
    int status;
    MUST(pid > 0);
    MUST(waitpid(pid, &status, __WALL) == pid);
    printf("%s: %d, mine wrong %zu\n", how, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), wrong(mem, BYTES, key));
    fflush(stdout);
}

static int works(void) {
    if (wrong(mem, BYTES, key)) return 1;
    fill(mem, BYTES, ++key);
    squeeze();
    pthread_t t;
    void *bad;
    if (pthread_create(&t, NULL, reads, NULL) || pthread_join(t, &bad) || bad) return 2;
    return wrong(mem, BYTES, key) ? 3 : 40;
}

static int child(void *argument) {
    struct job *job = argument;
    uint8_t here;
    if (&here < job->stack || &here >= job->stack + job->bytes) return 4;
    if (job->bytes == STACK && deep(7, 200)) return 5;
    int r = works();
    if (job->nested--) {
        struct job far = {far_map(STACK), STACK, job->nested};
        awaited("nested", started(&far));
    }
    return r + (wrong(mem, BYTES, key) > 0);
}

static pid_t started(struct job *job) {
    fflush(stdout);
    return clone(child, job->stack + job->bytes, SIGCHLD, job);
}

/* Both threads fault on far stacks at once: on alternate stacks, each its own. */
static void *sums(void *unused) {
    (void)unused;
    uint8_t *far = far_map(BYTES);
    uintptr_t bad = 0;
    for (int round = 0; round < 3; round++) {
        fill(far, BYTES, round);
        bad += wrong(far, BYTES, round);
    }
    munmap(far, BYTES);
    return (void *)bad;
}

static int faults(void *argument) {
    (void)argument;
    pthread_t t;
    if (pthread_create(&t, NULL, sums, NULL)) return 1;
    void *own = sums(NULL), *its;
    if (pthread_join(t, &its)) return 2;
    return own || its ? 3 : wrong(mem, BYTES, key) ? 4 : 41;
}

/* Back to the stack of the parent, of which the child has a copy. */
static jmp_buf back;
static int jumps(void *unused) {
    (void)unused;
    longjmp(back, 1);
}

static pid_t by_clone3(struct clone_args *args) {
    fflush(stdout);
    pid_t pid = syscall(SYS_clone3, args, sizeof *args);
    if (pid == 0) _exit(works());
    return pid;
}

/* With a thread pointer of its own: a copy of the parent's thread block. */
enum { BELOW = 1024, ABOVE = 3072 };
static pid_t settled(struct job *job) {
    static uint8_t block[BELOW + ABOVE] __attribute__((aligned(64)));
    uint8_t *own = (uint8_t *)pthread_self(), *its = block + BELOW;
    memcpy(block, own - BELOW, sizeof block);
    memcpy(its, &its, sizeof its);
    memcpy(its + 16, &its, sizeof its);
    fflush(stdout);
    return clone(faults, job->stack + job->bytes, SIGCHLD | CLONE_SETTLS, job, NULL, its);
}

/* By clone3 from a far stack that is not there when the call begins. */
static void *from_far(void *unused) {
    (void)unused;
    struct clone_args args = {.exit_signal = SIGCHLD};
    for (int i = 0; i < 3; i++) {
        squeeze();
        awaited("clone3, far stack", by_clone3(&args));
    }
    return NULL;
}

int main(void) {
    alarm(200);
    mem = far_map(BYTES);
    fill(mem, BYTES, key);
    squeeze();
    struct job near = {near_stack, NEAR, 0}, far = {far_map(STACK), STACK, 2};
    awaited("near stack", started(&near));
    awaited("far stack", started(&far));
    fflush(stdout);
    if (setjmp(back)) _exit(works());
    awaited("own thread pointer", settled(&far));
    awaited("jump", clone(jumps, near_stack + NEAR, SIGCHLD, NULL));

    /* Numbers that the kernel writes for both. */
    pid_t *numbers = far_map(2 * PAGE);
    squeeze();
    far.nested = 0;
    pid_t pid = clone(child, far.stack + STACK, SIGCHLD | CLONE_PARENT_SETTID, &far, numbers);
    printf("told %d\n", *numbers == pid);
    awaited("told", pid);
    struct clone_args *args = far_map(PAGE);
    memset(args, 0, sizeof *args);
    args->exit_signal = SIGCHLD;
    args->flags = CLONE_PIDFD | CLONE_PARENT_SETTID;
    args->pidfd = (uintptr_t)(numbers + 1);
    args->parent_tid = (uintptr_t)(numbers + 1024);
    squeeze();
    pid = by_clone3(args);
    printf("told %d, descriptor %d\n", numbers[1024] == pid, fcntl(numbers[1], F_GETFD) >= 0);
    awaited("clone3", pid);
    struct clone_args plain = {.exit_signal = SIGCHLD};
    awaited("clone3, near", by_clone3(&plain));
    /* Longer than any kernel knows: what lies behind must be zeros. */
    union {
        struct clone_args args;
        uint8_t bytes[PAGE + 8];
    } *wide = far_map(2 * PAGE);
    wide->args.exit_signal = SIGCHLD;
    for (size_t bytes = sizeof *args + 8; bytes <= PAGE; bytes = bytes == PAGE ? PAGE + 1 : PAGE) {
        squeeze();
        fflush(stdout);
        pid = syscall(SYS_clone3, wide, bytes);
        if (pid == 0) _exit(works());
        awaited("clone3, wide", pid);
    }
    printf("too wide %d", (int)syscall(SYS_clone3, wide, PAGE + 8) == -1 && errno == E2BIG);
    wide->bytes[PAGE - 1] = 1;
    printf(" %d\n", (int)syscall(SYS_clone3, wide, PAGE) == -1 && errno == E2BIG);
    pthread_attr_t attributes;
    pthread_t t;
    pthread_attr_init(&attributes);
    MUST(pthread_attr_setstack(&attributes, far_map(STACK), STACK) == 0);
    MUST(pthread_create(&t, &attributes, from_far, NULL) == 0 && pthread_join(t, NULL) == 0);
    pid = clone(child, near_stack + NEAR, SIGCHLD | CLONE_FILES, &near);
    if (pid < 0 && errno == ENOSYS) pid = started(&near);
    awaited("shared descriptors", pid);
    printf("refused %d\n", (int)syscall(SYS_clone3, args, 8) == -1 && errno == EINVAL);
}
