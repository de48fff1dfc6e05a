/* A program with one thread gets a second, in each way that there is: before, pages that it only read and pages that it wrote have
 * come and gone, and children were forked; after, both write to the same pages. Nothing that was written is lost. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>

#include "case.h"

enum { BYTES = 24 << 20, ALONE = 8000, TOGETHER = 40000 };
static uint64_t *mem;

/* Words 0 … 3 of each page are the first's, 4 … 7 the newcomer's. Every third page is read only. */
static void work(uint64_t who, uint64_t seed, int steps) {
    uint64_t x = seed, seen = 0;
    for (int i = 0; i < steps; i++) {
        x = mix(x);
        size_t page = x % (BYTES / PAGE);
        uint64_t *word = mem + page * (PAGE / 8) + (x >> 40) % 4 + 4 * who;
        seen += *word;
        if (page % 3) *word += x >> 32 | 1;
    }
    if (seen == 1) printf("never\n");
}

static uint64_t sum(void) {
    uint64_t s = 0;
    for (size_t page = 0; page < BYTES / PAGE; page++)
        for (int i = 0; i < 8; i++) s = mix(s + mem[page * (PAGE / 8) + i]);
    return s;
}

static volatile int done;
static pid_t tid;

static void *by_pthread(void *unused) {
    work(1, 7, TOGETHER);
    return unused;
}

static int by_clone(void *unused) {
    (void)unused;
    work(1, 7, TOGETHER);
    return 0;
}

static void by_timer(union sigval unused) {
    (void)unused;
    work(1, 7, TOGETHER);
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
}

static void together(int way) {
    static uint8_t stack[256 << 10] __attribute__((aligned(64)));
    if (way == 0) {
        pthread_t t;
        MUST(pthread_create(&t, NULL, by_pthread, NULL) == 0);
        work(0, 9, TOGETHER);
        MUST(pthread_join(t, NULL) == 0);
    } else if (way == 1) {
        tid = 1;
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
        MUST(clone(by_clone, stack + sizeof stack, flags, NULL, NULL, NULL, &tid) > 0);
        work(0, 9, TOGETHER);
        for (pid_t seen; (seen = __atomic_load_n(&tid, __ATOMIC_ACQUIRE)) != 0;)
            syscall(SYS_futex, &tid, FUTEX_WAIT, seen, NULL, NULL, 0);
    } else {
        struct sigevent how = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = by_timer};
        struct itimerspec once = {.it_value = {.tv_nsec = 1000000}};
        timer_t timer;
        MUST(timer_create(CLOCK_MONOTONIC, &how, &timer) == 0);
        MUST(timer_settime(timer, 0, &once, NULL) == 0);
        work(0, 9, TOGETHER);
        while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) usleep(1000);
    }
}

int main(void) {
    mem = far_map(BYTES);
    fill(mem, BYTES, 1);
    for (int way = 0; way < 3; way++) {
        work(0, way, ALONE);
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            work(0, 5, ALONE);
            printf("way %d, alone %016lx\n", way, sum());
            together(way);
            printf("way %d, together %016lx\n", way, sum());
            work(0, 11, ALONE);
            printf("way %d, after %016lx\n", way, sum());
            exit(0);
        }
        work(0, 13, ALONE);
        int status;
        MUST(waitpid(pid, &status, 0) == pid && status == 0);
        printf("parent %016lx\n", sum());
        fflush(stdout);
    }
    together(0);
    printf("together %016lx\n", sum());
}
