/* Threads made by raw clones, which share the thread pointer of the one that makes them: when they end, what is that
 * one's stays that one's. It has a far stack, and so has the thread that comes next; both fault on them. */
#include "case.h"
#include <linux/futex.h>
#include <sched.h>

enum { STACK = 256 << 10, ROUNDS = 4, RAW = 64 << 10 };
static uint8_t *mem;

static int raw(void *said) {
    *(volatile int *)said = 1;
    return 0;
}

/* Makes one, and waits for its end. */
static void make(void) {
    static uint8_t near_stack[RAW] __attribute__((aligned(64)));
    static volatile int said;
    static pid_t tid;
    said = 0;
    tid = 1;
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    MUST(clone(raw, near_stack + RAW, flags, (void *)&said, NULL, NULL, &tid) > 0);
    for (pid_t seen; (seen = __atomic_load_n(&tid, __ATOMIC_ACQUIRE)) != 0;)
        syscall(SYS_futex, &tid, FUTEX_WAIT, seen, NULL, NULL, 0);
    MUST(said == 1);
}

static uint64_t work(uint64_t key) {
    uint64_t bad = 0;
    for (int round = 0; round < ROUNDS; round++) {
        bad += deep(key + round, 160);
        squeeze();
    }
    return bad;
}

static void *later(void *unused) { return (void *)(uintptr_t)work(100 + (uintptr_t)unused); }

static void on_far_stack(pthread_t *t, void *(*what)(void *)) {
    pthread_attr_t attr;
    MUST(pthread_attr_init(&attr) == 0);
    MUST(pthread_attr_setstack(&attr, far_map(STACK), STACK) == 0);
    MUST(pthread_create(t, &attr, what, NULL) == 0);
}

static void *first(void *unused) {
    (void)unused;
    uint64_t bad = 0;
    make();
    pthread_t t[2];
    for (int i = 0; i < 2; i++) on_far_stack(&t[i], later);
    bad += work(1);
    for (int i = 0; i < 2; i++) {
        void *r;
        MUST(pthread_join(t[i], &r) == 0);
        bad += (uintptr_t)r;
    }
    return (void *)(uintptr_t)bad;
}

/* Forks of forks, each with a thread beside it: what is left of the parents' threads is given back. */
static void forks(int depth) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t t;
        void *r;
        on_far_stack(&t, first);
        if (depth) forks(depth - 1);
        MUST(pthread_join(t, &r) == 0);
        printf("depth %d: wrong %zu\n", depth, (size_t)r);
        fflush(stdout);
        _exit(0);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    if (status) printf("status %x\n", status);
}

/* As many thread-locals as a stack has room for, and stacks that end anywhere in a page. */
static __thread uint8_t locals[96 << 10] = {1};
static void *with_locals(void *unused) {
    (void)unused;
    uint8_t *volatile own = locals;
    uint64_t bad = nonzero(own, sizeof locals) != 1;
    fill(own, sizeof locals, 2);
    bad += deep(7, 100);
    squeeze();
    bad += deep(8, 100) + wrong(own, sizeof locals, 2);
    return (void *)(uintptr_t)bad;
}

static void on_stacks_that_end_anywhere(void) {
    uint64_t bad = 0;
    for (int i = 0; i < 16; i++) {
        pthread_attr_t attr;
        pthread_t t;
        void *r;
        uint8_t *stack = far_map(2 * STACK);
        MUST(pthread_attr_init(&attr) == 0);
        MUST(pthread_attr_setstack(&attr, stack + i * 256, STACK + (i & 8 ? PAGE : 0)) == 0);
        MUST(pthread_create(&t, &attr, with_locals, NULL) == 0 && pthread_join(t, &r) == 0);
        bad += (uintptr_t)r;
        MUST(munmap(stack, 2 * STACK) == 0);
    }
    printf("anywhere: wrong %zu\n", (size_t)bad);
}

int main(void) {
    alarm(200);
    mem = far_map(1 << 20);
    fill(mem, 1 << 20, 1);
    squeeze();
    for (int i = 0; i < 2; i++) {
        pthread_t t;
        void *r;
        on_far_stack(&t, first);
        MUST(pthread_join(t, &r) == 0);
        printf("wrong %zu\n", (size_t)r);
    }
    forks(1);
    on_stacks_that_end_anywhere();
    printf("wrong %zu\n", wrong(mem, 1 << 20, 1));
}
