/* What is blocked while a handler runs, where the interrupted call had a mask of its own, and where another signal
 * comes as the handler is begun; what one-shot handlers leave behind. */
#include "case.h"
#include <poll.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/user.h>

static char order[256];
static int length;
static void note(char c) { order[length++ % 256] = c; }
static void show(const char *what) {
    order[length % 256] = 0;
    printf("%s: %s\n", what, order);
    length = 0;
}

static sigset_t of(int a, int b) {
    sigset_t set;
    sigemptyset(&set);
    if (a) sigaddset(&set, a);
    if (b) sigaddset(&set, b);
    return set;
}

static void note_mask(void) {
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    for (int s = 1; s < 65; s++)
        if (sigismember(&now, s) == 1)
            note(s == SIGUSR1 ? 'u' : s == SIGALRM ? 'l' : s == SIGUSR2 ? 'v' : s == SIGBUS ? 'b' : s == SIGSYS ? 's' : '?');
}

static void on_alarm(int s) {
    (void)s;
    note('[');
    note_mask();
    note(']');
}
static void on_user(int s) {
    (void)s;
    note('(');
    note_mask();
    raise(SIGALRM);
    note(')');
}
/* A wait within a handler has a mask of its own, and leaves that of the outer one alone. */
static int inner;
static void on_other(int s) {
    (void)s;
    note('{');
    note_mask();
    if (!inner++) {
        sigset_t only = of(SIGUSR1, 0), alarm = of(SIGALRM, 0);
        pthread_sigmask(SIG_BLOCK, &alarm, NULL);
        raise(SIGALRM);
        sigsuspend(&only);
    }
    raise(SIGUSR1);
    note('}');
}

static int wait_by(int way, const sigset_t *mask, int *pipes, uint8_t *far) {
    struct timespec soon = {20, 0};
    memcpy(far, mask, sizeof *mask);
    const sigset_t *at = way % 2 ? (const sigset_t *)far : mask;
    switch (way / 2) {
    case 0: return sigsuspend(at);
    case 1: {
        struct pollfd p = {pipes[0], POLLIN, 0};
        return ppoll(&p, 1, &soon, at);
    }
    case 2: {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(pipes[0], &set);
        return pselect(pipes[0] + 1, &set, NULL, NULL, &soon, at);
    }
    default: {
        int e = epoll_create1(0);
        /* What it waits for lies far on every other way. */
        struct epoll_event near, *events = way % 2 ? (void *)(far + 256) : &near;
        int r = epoll_pwait(e, events, 1, 20000, at), error = errno;
        close(e);
        errno = error;
        return r;
    }
    }
}

static void waits(void) {
    int pipes[2];
    MUST(pipe(pipes) == 0);
    uint8_t *far = far_map(4 * PAGE);
    struct sigaction a = {.sa_handler = on_user};
    MUST(sigaction(SIGUSR1, &a, NULL) == 0);
    a.sa_handler = on_alarm;
    MUST(sigaction(SIGALRM, &a, NULL) == 0);
    a.sa_handler = on_other;
    MUST(sigaction(SIGUSR2, &a, NULL) == 0);
    sigset_t blocked = of(SIGUSR1, SIGALRM), none = of(0, 0), alarm = of(SIGALRM, 0), was;
    sigaddset(&blocked, SIGUSR2);
    MUST(pthread_sigmask(SIG_BLOCK, &blocked, &was) == 0);
    for (int way = 0; way < 8; way++) {
        char name[64];
        raise(SIGUSR1);
        int r = wait_by(way, &none, pipes, far);
        snprintf(name, sizeof name, "way %d, all open, %d %d", way, r, errno);
        note_mask();
        show(name);
        raise(SIGUSR1);
        r = wait_by(way, &alarm, pipes, far);
        snprintf(name, sizeof name, "way %d, one open, %d %d", way, r, errno);
        note_mask();
        show(name);
        r = wait_by(way, &none, pipes, far);
        snprintf(name, sizeof name, "way %d, the other, %d %d", way, r, errno);
        note_mask();
        show(name);
        inner = 0;
        raise(SIGUSR2);
        r = wait_by(way, &none, pipes, far);
        snprintf(name, sizeof name, "way %d, nested, %d %d", way, r, errno);
        note_mask();
        show(name);
        /* And no mask of an earlier call's: this one has none. */
        pthread_sigmask(SIG_SETMASK, &was, NULL);
        raise(SIGUSR1);
        show("by itself");
        pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    }
    pthread_sigmask(SIG_SETMASK, &was, NULL);
}

static atomic_int shots;
static void shot(int s) {
    (void)s;
    atomic_fetch_add(&shots, 1);
}

static void one_shots(void) {
    struct sigaction a = {.sa_handler = shot, .sa_flags = SA_RESETHAND}, old;
    MUST(sigaction(SIGUSR1, &a, NULL) == 0);
    pid_t p = vfork();
    if (p == 0) {
        kill(getpid(), SIGUSR1);
        _exit(0);
    }
    int status;
    waitpid(p, &status, 0);
    MUST(sigaction(SIGUSR1, NULL, &old) == 0);
    printf("after a child's shot: %d, ours %d\n", shots, old.sa_handler == shot);
    raise(SIGUSR1);
    MUST(sigaction(SIGUSR1, NULL, &old) == 0);
    printf("after its own: %d, default %d\n", shots, old.sa_handler == SIG_DFL);
    p = vfork();
    if (p == 0) {
        kill(getpid(), SIGUSR1);
        _exit(0);
    }
    waitpid(p, &status, 0);
    printf("a child's without: %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
}

static atomic_int ready;
static void *hit(void *at) {
    (void)at;
    atomic_fetch_add(&ready, 1);
    for (;;) pause();
    return NULL;
}

/* Two threads are hit at once: one has the handler, the other ends the process. */
static void two_at_once(void) {
    int lived = 0;
    for (int round = 0; round < 60; round++) {
        fflush(stdout);
        pid_t p = fork();
        if (p == 0) {
            alarm(100);
            shots = 0;
            struct sigaction a = {.sa_handler = shot, .sa_flags = SA_RESETHAND};
            MUST(sigaction(SIGUSR1, &a, NULL) == 0);
            pthread_t t[2];
            for (int i = 0; i < 2; i++) MUST(pthread_create(&t[i], NULL, hit, NULL) == 0);
            while (ready < 2) usleep(100);
            for (int i = 0; i < 2; i++) pthread_kill(t[i], SIGUSR1);
            /* One shot is to end it, whenever; both had the handler if it comes to two. */
            while (shots < 2) usleep(1000);
            _exit(0);
        }
        int status;
        waitpid(p, &status, 0);
        lived += !(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
    }
    printf("outlived two: %d\n", lived);
}

/* Another signal, which the runtime never blocks, comes right before the call that sets the handler's mask. */
static volatile int bus;
static volatile uint64_t blocked_in;
static void on_bus(int s) { bus += s == SIGBUS; }
static void masked(int s) {
    (void)s;
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    memcpy((void *)&blocked_in, &now, 8);
}

static void between(void) {
    const uint64_t call = (64ull << 40) + 0x10020;
    fflush(stdout);
    pid_t p = fork();
    if (p == 0) {
        struct sigaction a = {.sa_handler = on_bus};
        MUST(sigaction(SIGBUS, &a, NULL) == 0);
        a.sa_handler = masked;
        MUST(sigaction(SIGUSR1, &a, NULL) == 0);
        MUST(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
        raise(SIGSTOP);
        raise(SIGUSR1);
        /* With a thread of the runtime's that serves faults it may come to that, and be handed on. */
        for (int i = 0; i < 1000 && !bus; i++) usleep(1000);
        printf("bus %d, blocked %lx\n", bus, blocked_in);
        fflush(stdout);
        _exit(0);
    }
    int status, step = 0;
    long sent = 0, signal = 0;
    waitpid(p, &status, 0);
    while (ptrace(step ? PTRACE_SINGLESTEP : PTRACE_CONT, p, 0, signal) == 0 && waitpid(p, &status, 0) == p &&
           WIFSTOPPED(status)) {
        signal = WSTOPSIG(status);
        if (signal == SIGUSR1) step = 1;
        if (signal != SIGTRAP) continue;
        signal = 0;
        struct user_regs_struct r;
        MUST(ptrace(PTRACE_GETREGS, p, 0, &r) == 0);
        int begins = r.rip == call && r.rax == SYS_rt_sigprocmask;
        /* Natively there is no such place: any will do. */
        if (r.rip == (uintptr_t)masked) begins = 1;
        if (begins && !sent++) {
            /* Not by the tracer's own call: at a handler's first instruction it may not send any. */
            kill(p, SIGBUS);
            step = 0;
        }
    }
    printf("ended %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* A library that asks the kernel by itself, and has its own handler call what it found. */
struct plain {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};
static struct plain found;
static long raw_action(int signal, const struct plain *new, struct plain *old) {
    long r;
    register long size __asm__("r10") = 8;
    __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_rt_sigaction), "D"(signal), "S"(new), "d"(old), "r"(size) : "rcx", "r11", "memory");
    return r;
}
__asm__(".text\nback: mov $15, %eax\n syscall\n");
extern char back[];
static void programs(int s, siginfo_t *i, void *u) {
    (void)s, (void)u;
    note(i->si_signo == SIGUSR2 ? 'p' : '?');
}
static void librarys(int s, siginfo_t *i, void *u) {
    note('<');
    found.handler(s, i, u);
    note('>');
}
static void chained(void) {
    struct sigaction a = {.sa_sigaction = programs, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGUSR2, &a, NULL) == 0);
    struct plain own = {librarys, SA_SIGINFO | 0x04000000, (void (*)(void))back, 0};
    MUST(raw_action(SIGUSR2, NULL, &found) == 0 && raw_action(SIGUSR2, &own, NULL) == 0);
    raise(SIGUSR2);
    raise(SIGUSR2);
    show("chained");
}

/* What a handler blocks is as before once it returns. */
static void blocks(int s) {
    (void)s;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
}
static void blocked_by_a_handler(void) {
    struct sigaction a = {.sa_handler = blocks};
    MUST(sigaction(SIGUSR1, &a, NULL) == 0);
    raise(SIGUSR1);
    note_mask();
    show("after one that blocks all");
}

/* A handler's own signal waits for its end, and so do those that its action blocks, SIGBUS and SIGSYS as well. */
static int nests;
static volatile int finished;
static uint8_t *seen;
static void on_masked(int s) {
    note(s == SIGBUS ? 'B' : s == SIGSYS ? 'S' : 'U');
    note_mask();
    if (nests-- > 0) raise(nests % 2 ? SIGSYS : SIGBUS);
    if (seen) MUST(wrong(seen, 64 * PAGE, 9) == 0);
    note(')');
    finished++;
}

static long raw_read(int fd, void *to) {
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_read), "D"(fd), "S"(to), "d"(1ul) : "rcx", "r11", "memory");
    return r;
}

static int wakes[2];
static void *hits(void *first) {
    usleep(100000);
    for (int i = 0; i < 4; i++) {
        int before = finished;
        pthread_kill(*(pthread_t *)first, SIGUSR1);
        /* The first one sends another. */
        while (finished < before + 1 + !i) usleep(1000);
    }
    MUST(write(wakes[1], "x", 1) == 1);
    return NULL;
}

static void masks_of_actions(void) {
    const int signals[3] = {SIGBUS, SIGSYS, SIGUSR1};
    seen = far_map(4 * MIB);
    fill(seen, 64 * PAGE, 9);
    for (int i = 0; i < 24; i++) {
        char name[64];
        struct sigaction a = {.sa_handler = on_masked, .sa_flags = i & 4 ? SA_NODEFER : 0};
        if (i & 1) sigaddset(&a.sa_mask, SIGBUS);
        if (i & 2) sigaddset(&a.sa_mask, SIGSYS);
        for (int k = 0; k < 3; k++) MUST(sigaction(signals[k], &a, NULL) == 0);
        squeeze();
        nests = 4;
        raise(signals[i / 8]);
        note('|');
        note_mask();
        snprintf(name, sizeof name, "action %d", i);
        show(name);
    }
    /* In the midst of a call by an instruction of the program's own. */
    struct sigaction a = {.sa_handler = on_masked, .sa_flags = SA_RESTART};
    for (int k = 0; k < 3; k++) MUST(sigaction(signals[k], &a, NULL) == 0);
    sigaddset(&a.sa_mask, SIGBUS);
    MUST(sigaction(SIGUSR1, &a, NULL) == 0);
    pthread_t self = pthread_self(), other;
    nests = 1;
    squeeze();
    MUST(pipe(wakes) == 0 && pthread_create(&other, NULL, hits, &self) == 0);
    long r = raw_read(wakes[0], seen + 2 * MIB);
    MUST(pthread_join(other, NULL) == 0);
    note_mask();
    printf("read %ld\n", r);
    show("in a call");
}

int main(void) {
    uint8_t *heap = far_map(8 * MIB);
    fill(heap, 8 * MIB, 3);
    squeeze();
    waits();
    one_shots();
    two_at_once();
    between();
    blocked_by_a_handler();
    masks_of_actions();
    chained();
    printf("wrong %zu\n", wrong(heap, 8 * MIB, 3));
}
