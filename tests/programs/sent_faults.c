/* SIGBUS and SIGSYS that a process sends, beside other signals: into faults, and right before another; and vfork children
 * that a signal ends while they fault. Handlers touch far memory, find the program's stack, and run nobody's code in the
 * midst. */
#include "case.h"
#include <ucontext.h>

enum { PAGES = 3072, COUNTS = 256, TOUCHES = 12000, STOPS = 12, CHILDREN = 150 };

static uint8_t *far;
static uint64_t *counts;
static pthread_t faulting;
static volatile int stop;
static volatile uint64_t came, ticks;

static uint64_t touch(uint64_t x) {
    uint64_t page = mix(x) % PAGES;
    return *(uint64_t *)(far + page * PAGE) != mix(page);
}

static void sent(int s) {
    (void)s;
    came++;
}

static void tick(int s) {
    (void)s;
    ticks++;
    counts[mix(ticks) % COUNTS * 512] += 1;
}

static void wait_a_little(uint64_t x) {
    for (volatile uint64_t i = 0; i < mix(x) % 5000; i++);
}

static void *send(void *signal) {
    for (uint64_t n = 0; !stop; n++) {
        const uint64_t before = came;
        pthread_kill(faulting, (int)(intptr_t)signal);
        /* Not faster than they are handled; and one may be lost beside a fault's own SIGBUS (docs/design/limits-processes.md). */
        for (int i = 0; i < 2000 && came == before && !stop; i++) sched_yield();
        wait_a_little(n);
    }
    return NULL;
}

static void *tick_all(void *unused) {
    (void)unused;
    for (uint64_t n = 0; !stop; n++) {
        pthread_kill(faulting, SIGRTMIN);
        pthread_kill(faulting, SIGRTMIN + 1);
        wait_a_little(~n);
        while (ticks < 2 * n && !stop) sched_yield();
    }
    return NULL;
}

static void into_faults(int signal, int flags) {
    struct sigaction a = {.sa_handler = sent};
    MUST(sigaction(signal, &a, NULL) == 0);
    a = (struct sigaction){.sa_handler = tick, .sa_flags = flags};
    sigaddset(&a.sa_mask, SIGRTMIN);
    sigaddset(&a.sa_mask, SIGRTMIN + 1);
    MUST(sigaction(SIGRTMIN, &a, NULL) == 0 && sigaction(SIGRTMIN + 1, &a, NULL) == 0);
    stop = came = ticks = 0;
    memset(counts, 0, COUNTS * PAGE);
    pthread_t one, other;
    MUST(pthread_create(&one, NULL, send, (void *)(intptr_t)signal) == 0);
    MUST(pthread_create(&other, NULL, tick_all, NULL) == 0);
    uint64_t bad = 0, counted = 0;
    for (uint64_t x = 1; x <= TOUCHES || came == 0 || ticks == 0; x++) bad += touch(x);
    stop = 1;
    MUST(pthread_join(one, NULL) == 0 && pthread_join(other, NULL) == 0);
    /* What is on its way comes at a call at the latest. */
    getppid();
    sigset_t all, before;
    sigfillset(&all);
    MUST(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
    for (int i = 0; i < COUNTS; i++) counted += counts[i * 512];
    MUST(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    printf("signal %d into faults: bad %lu, all counted %d\n", signal, bad, counted == ticks);
}

static char *stack, *own_stack;
static volatile int buses, users, elsewhere;

static int is_stack(const void *at) {
    const char *p = at;
    return labs(p - stack) < MIB || (p >= own_stack && p <= own_stack + 64 * PAGE);
}

static void on_bus(int s) {
    (void)s;
    buses++;
}

static void on_user(int s, siginfo_t *i, void *u) {
    (void)s, (void)i;
    users++;
    elsewhere += !is_stack((void *)((ucontext_t *)u)->uc_mcontext.gregs[REG_RSP]) || !is_stack(__builtin_frame_address(0));
}

static __attribute__((noinline)) uint64_t spin(void) {
    volatile uint64_t mine[64];
    uint64_t spoiled = 0;
    for (int i = 0; i < 64; i++) mine[i] = mix(i);
    while (!buses || !users)
        for (int i = 0; i < 64; i++) spoiled += mine[i] != mix(i);
    return spoiled;
}

static volatile uint64_t spoiled;

static void spins(int s) {
    (void)s;
    spoiled += spin();
}

/* Both are pending when it goes on: the second comes at the first instruction of what handles the first. */
static void before_another(int flags) {
    struct sigaction a = {.sa_handler = on_bus, .sa_flags = flags};
    MUST(sigaction(SIGBUS, &a, NULL) == 0);
    a = (struct sigaction){.sa_sigaction = on_user, .sa_flags = SA_SIGINFO | flags};
    MUST(sigaction(SIGUSR1, &a, NULL) == 0);
    a = (struct sigaction){.sa_handler = spins, .sa_flags = flags};
    MUST(sigaction(SIGUSR2, &a, NULL) == 0);
    pid_t parent = getpid();
    for (int n = 0; n < STOPS; n++) {
        buses = users = 0;
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            usleep(10000);
            kill(parent, SIGSTOP);
            usleep(5000);
            kill(parent, SIGBUS);
            kill(parent, SIGUSR1);
            kill(parent, SIGCONT);
            _exit(0);
        }
        raise(SIGUSR2);
        MUST(waitpid(child, NULL, 0) == child);
    }
    printf("before another: elsewhere %d, spoiled %lu\n", elsewhere, spoiled);
}

static void ended_children(void) {
    int to[2];
    volatile uint64_t bad = 0;
    MUST(pipe(to) == 0);
    fflush(stdout);
    pid_t killer = fork();
    if (killer == 0) {
        pid_t victim;
        close(to[1]);
        while (read(to[0], &victim, sizeof victim) == sizeof victim) {
            usleep(500 + mix(victim) % 1000);
            kill(victim, SIGTERM);
        }
        _exit(0);
    }
    close(to[0]);
    for (volatile int n = 0; n < CHILDREN; n++) {
        pid_t child = vfork();
        if (child == 0) {
            pid_t own = syscall(SYS_getpid);
            syscall(SYS_write, to[1], &own, sizeof own);
            for (volatile uint64_t x = 1;; x++) bad += touch(x * 7 + n);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
        for (int i = 0; i < 20; i++) bad += touch(i * 3 + n);
    }
    close(to[1]);
    MUST(waitpid(killer, NULL, 0) == killer);
    printf("ended children: bad %lu\n", bad);
}

int main(void) {
    faulting = pthread_self();
    setvbuf(stdout, NULL, _IOLBF, 0);
    stack = __builtin_frame_address(0);
    far = far_map(PAGES * PAGE);
    counts = far_map(COUNTS * PAGE);
    for (uint64_t i = 0; i < PAGES; i++) *(uint64_t *)(far + i * PAGE) = mix(i);
    own_stack = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    MUST(own_stack != MAP_FAILED);
    ended_children();
    into_faults(SIGSYS, 0);
    into_faults(SIGBUS, 0);
    before_another(0);
    stack_t other = {.ss_sp = own_stack, .ss_size = 64 * PAGE};
    MUST(sigaltstack(&other, NULL) == 0);
    before_another(SA_ONSTACK);
    into_faults(SIGSYS, SA_ONSTACK);
    return 0;
}
