/* SIGBUS and SIGSYS that are sent while they are blocked: they are pending, are taken by sigwait and its kin with what came
 * with them, and wait for the thread that unblocks them. A child has none of them; an executed program has the mask and what
 * is ignored. */
#include "case.h"
#include <poll.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum { ROUNDS = 1000 };
static const int both[2] = {SIGBUS, SIGSYS};
static uint8_t *mem;
static sigset_t two;

static volatile int handled, handled_by_main, code;
static pthread_t first_thread;
static void handler(int s, siginfo_t *info, void *context) {
    (void)context;
    code = info->si_code;
    handled += s;
    handled_by_main += pthread_equal(pthread_self(), first_thread) != 0;
    MUST(wrong(mem, MIB, 3) == 0);
}

static void pending(const char *when) {
    sigset_t *set = far_map(PAGE);
    MUST(sigpending(set) == 0);
    printf("%s: pending %d %d\n", when, sigismember(set, SIGBUS), sigismember(set, SIGSYS));
    munmap(set, PAGE);
}

/* By far memory, which is away when the wait begins. */
static void take(const char *what) {
    sigset_t *set = far_map(PAGE);
    siginfo_t *info = far_map(PAGE);
    struct timespec *soon = far_map(PAGE);
    *set = two;
    soon->tv_nsec = 20000000;
    squeeze();
    int got = sigtimedwait(set, info, soon);
    if (got < 0)
        printf("%s: errno %d\n", what, errno);
    else
        printf("%s: %d, signo %d code %d mine %d value %d\n", what, got, info->si_signo, info->si_code,
               info->si_pid == getpid() && info->si_uid == getuid(), info->si_code == SI_QUEUE ? info->si_value.sival_int : 0);
    munmap(set, PAGE), munmap(info, PAGE), munmap(soon, PAGE);
}

static void by_one_thread(int s) {
    printf("signal %d\n", s);
    take("none");
    raise(s);
    pending("raised");
    raise(s);
    take("raised");
    take("raised twice is once");
    kill(getpid(), s);
    pending("sent");
    take("sent");
    MUST(sigqueue(getpid(), s, (union sigval){.sival_int = 4711}) == 0);
    take("queued");
    pending("taken");
    int got = 0;
    kill(getpid(), s);
    printf("sigwait %d", sigwait(&two, &got));
    printf(" %d\n", got);
    /* Unblocked, it comes to the handler. */
    handled = 0;
    kill(getpid(), s);
    raise(s);
    MUST(handled == 0 && sigprocmask(SIG_UNBLOCK, &two, NULL) == 0);
    printf("handled %d\n", handled > 0);
    MUST(sigprocmask(SIG_BLOCK, &two, NULL) == 0);
    raise(s);
    pid_t child = fork();
    if (child == 0) {
        pending("a child");
        fflush(stdout);
        _exit(wrong(mem, 4 * MIB, 3) != 0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("child %d\n", status);
    take("the parent's");
}

static void sends(int s) {
    (void)s;
    raise(SIGBUS);
}

static volatile int has_begun, taken, sum;
static void *takes(void *unused) {
    (void)unused;
    /* libc has no SI_TKILL here. */
    static const int codes[4] = {SI_USER, SI_USER, SI_QUEUE, SI_USER};
    has_begun = 1;
    for (int i = 0; i < 4 * ROUNDS; i++) {
        siginfo_t info;
        int got;
        while ((got = sigwaitinfo(&two, &info)) < 0) MUST(errno == EINTR);
        MUST(got == info.si_signo && info.si_code == codes[i % 4] && info.si_pid == getpid());
        sum += got;
        __atomic_store_n(&taken, taken + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* One after the other, to the process and to a thread that waits, or is about to, and by a handler that comes there. */
static void to_a_thread_that_waits(void) {
    pthread_t waits;
    struct sigaction a = {.sa_handler = sends};
    MUST(sigaction(SIGUSR2, &a, NULL) == 0);
    MUST(pthread_create(&waits, NULL, takes, NULL) == 0);
    while (!has_begun) sched_yield();
    for (int i = 0; i < 4 * ROUNDS; i++) {
        int s = both[i / 4 % 2];
        if (i % 4 == 0)
            pthread_kill(waits, s);
        else if (i % 4 == 1)
            kill(getpid(), s);
        else if (i % 4 == 3)
            pthread_kill(waits, SIGUSR2);
        else
            MUST(sigqueue(getpid(), s, (union sigval){.sival_int = i}) == 0);
        while (__atomic_load_n(&taken, __ATOMIC_ACQUIRE) != i + 1) sched_yield();
    }
    MUST(pthread_join(waits, NULL) == 0);
    printf("taken %d, sum %d\n", taken, sum);
}

static volatile int is_open;
static void *opens(void *unused) {
    (void)unused;
    MUST(pthread_sigmask(SIG_UNBLOCK, &two, NULL) == 0);
    is_open = 1;
    while (handled == 0) usleep(1000);
    return NULL;
}

/* The first thread has them blocked: another's handler gets them. */
static void to_a_thread_that_has_not_blocked_them(void) {
    pthread_t open;
    handled = handled_by_main = 0;
    MUST(pthread_create(&open, NULL, opens, NULL) == 0);
    while (!is_open) usleep(1000);
    kill(getpid(), SIGBUS);
    MUST(pthread_join(open, NULL) == 0);
    printf("handled %d, by the first thread %d, code %d\n", handled, handled_by_main, code);
}

static __thread sigjmp_buf out_of_wait;
static __thread volatile int is_inside;
static volatile int left;
static void leaves(int s) {
    (void)s;
    if (!is_inside) return;
    is_inside = 0;
    siglongjmp(out_of_wait, 1);
}

static void *leaves_a_wait(void *over) {
    siginfo_t info;
    if (sigsetjmp(out_of_wait, 1) == 0) {
        is_inside = 1;
        for (;;) sigwaitinfo(&two, &info);
    }
    __atomic_add_fetch(&left, 1, __ATOMIC_SEQ_CST);
    while (!*(volatile int *)over) usleep(1000);
    return NULL;
}

/* Threads that a handler has taken out of a wait by a jump do not wait any more: what is sent then is pending. */
static void past_threads_that_left_a_wait(void) {
    struct sigaction a = {.sa_handler = leaves};
    MUST(sigaction(SIGUSR1, &a, NULL) == 0);
    static volatile int over;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) MUST(pthread_create(&threads[i], NULL, leaves_a_wait, (void *)&over) == 0);
    for (int i = 0; i < 2; i++)
        while (left == i) {
            pthread_kill(threads[i], SIGUSR1);
            usleep(20000);
        }
    kill(getpid(), SIGBUS);
    pending("past threads that left a wait");
    take("past them");
    MUST(sigqueue(getpid(), SIGBUS, (union sigval){.sival_int = 4712}) == 0);
    take("past them, queued");
    over = 1;
    for (int i = 0; i < 2; i++) MUST(pthread_join(threads[i], NULL) == 0);
}

/* Calls that wait with a mask of their own let in, and hold back, what it says, for as long as they wait. */
static char order[64];
static volatile int length;
static void notes(int s) {
    sigset_t now;
    MUST(sigprocmask(SIG_BLOCK, NULL, &now) == 0);
    order[length++] = s == SIGBUS ? 'b' : s == SIGSYS ? 's' : 'u';
    order[length++] = '0' + sigismember(&now, SIGBUS) + 2 * sigismember(&now, SIGSYS) + 4 * sigismember(&now, SIGUSR1);
    order[length] = 0;
}

static int wait_by(int way, const sigset_t *mask, int fd, long ms) {
    struct timespec soon = {ms / 1000, ms % 1000 * 1000000};
    switch (way) {
    case 0: return sigsuspend(mask);
    case 1: return ppoll(&(struct pollfd){fd, POLLIN, 0}, 1, &soon, mask);
    case 2: {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        return pselect(fd + 1, &set, NULL, NULL, &soon, mask);
    }
    default: {
        struct epoll_event event = {.events = EPOLLIN};
        int e = epoll_create1(0);
        MUST(e >= 0 && epoll_ctl(e, EPOLL_CTL_ADD, fd, &event) == 0);
        int r = epoll_pwait(e, &event, 1, ms, mask), error = errno;
        close(e);
        errno = error;
        return r;
    }
    }
}

/* How long a signal is sent after the one before, in us. Where it is open already, the wait must have begun by then. */
static int pause_us = 30000;
static volatile int is_over;
static void *sends_soon(void *first) {
    const int *signals = first;
    for (; *signals; signals++) {
        usleep(pause_us);
        if (signals[0] > 0)
            kill(getpid(), signals[0]);
        else
            pthread_kill(first_thread, -signals[0]);
    }
    /* A wait that began too late for them has no other end. What is printed is wrong then. */
    for (int n = 0; n < 500 && !is_over; n++) usleep(10000);
    if (!is_over) pthread_kill(first_thread, SIGUSR1);
    return NULL;
}

static void waits(const char *what, int way, const sigset_t *mask, int fd, long ms, const int *sent) {
    pthread_t sender;
    length = order[0] = is_over = 0;
    if (sent) MUST(pthread_create(&sender, NULL, sends_soon, (void *)sent) == 0);
    errno = 0;
    int r = wait_by(way, mask, fd, ms);
    is_over = 1;
    printf("%s, way %d: %d %d, %s", what, way, r, errno, order);
    sigset_t now;
    MUST(sigprocmask(SIG_BLOCK, NULL, &now) == 0 && (!sent || pthread_join(sender, NULL) == 0));
    printf(", %s, blocked %d %d\n", order, sigismember(&now, SIGBUS), sigismember(&now, SIGSYS));
}

static void waits_with_masks(void) {
    int ends[2], ready[2];
    MUST(pipe(ends) == 0 && pipe(ready) == 0 && write(ready[1], "x", 1) == 1);
    struct sigaction before[2], a = {.sa_handler = notes};
    MUST(sigaction(SIGUSR1, &a, NULL) == 0);
    for (int i = 0; i < 2; i++) MUST(sigaction(both[i], &a, &before[i]) == 0);
    sigset_t *none = far_map(PAGE), all, was, open;
    sigfillset(&all);
    sigdelset(&all, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, NULL, &was) == 0);
    open = was;
    sigdelset(&open, SIGBUS), sigdelset(&open, SIGSYS);
    for (int way = 0; way < 4; way++)
        for (int i = 0; i < 2; i++) {
            int s = both[i];
            raise(s);
            squeeze();
            waits("raised", way, none, ends[0], 20000, NULL);
            kill(getpid(), s);
            waits("killed", way, none, ends[0], 20000, NULL);
            waits("to the process", way, none, ends[0], 20000, (int[]){s, 0});
            waits("to the thread", way, none, ends[0], 20000, (int[]){-s, 0});
            sigset_t other;
            sigemptyset(&other);
            sigaddset(&other, s);
            raise(s);
            waits("not this one", way, &other, ends[0], 20000, (int[]){-both[!i], 0});
            take("left");
            if (way) {
                raise(s);
                waits("ready", way, none, ready[0], 20000, NULL);
                take("left");
            }
            /* Open before and after. */
            MUST(sigprocmask(SIG_SETMASK, &open, NULL) == 0);
            pause_us = 200000;
            waits("held back", way, &all, ends[0], 20000, (int[]){-s, -SIGUSR1, 0});
            if (way) waits("to the end", way, &all, ends[0], 800, (int[]){-s, 0});
            pause_us = 30000;
            MUST(sigprocmask(SIG_SETMASK, &was, NULL) == 0);
        }
    /* What is ignored is not pending any more, and ends no wait. */
    for (int i = 0; i < 2; i++) {
        raise(both[i]);
        kill(getpid(), both[i]);
        MUST(signal(both[i], SIG_IGN) == notes);
        pending("ignored");
        MUST(signal(both[i], notes) == SIG_IGN);
        pending("not any more");
    }
    for (int i = 0; i < 2; i++) MUST(sigaction(both[i], &before[i], NULL) == 0);
}

/* A handler that the program sets by an instruction of its own, past all libraries. */
static volatile int foreign;
static void is_foreign(int s) {
    (void)s;
    foreign++;
}
void foreign_return(void);
__asm__(".text\nforeign_return:\n mov $15, %eax\n syscall\n");

static void waits_for_a_foreign_handler(void) {
    struct {
        void (*handler)(int);
        unsigned long flags;
        void (*restorer)(void);
        unsigned long mask;
    } action = {is_foreign, 0x04000000 /* SA_RESTORER */, foreign_return, 0};
    long r;
    register long size __asm__("r10") = 8;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "a"(13L), "D"((long)SIGUSR2), "S"(&action), "d"(0L), "r"(size)
                     : "rcx", "r11", "memory");
    sigset_t blocked, was, none;
    sigemptyset(&none);
    blocked = two;
    sigaddset(&blocked, SIGUSR2);
    MUST(r == 0 && sigprocmask(SIG_BLOCK, &blocked, &was) == 0);
    waits("foreign", 0, &none, -1, 20000, (int[]){-SIGUSR2, 0});
    MUST(sigprocmask(SIG_SETMASK, &was, NULL) == 0 && signal(SIGUSR2, SIG_DFL) != SIG_ERR);
    printf("foreign handlers %d\n", foreign);
}

static int executed(void) {
    sigset_t now;
    struct sigaction bus, sys;
    MUST(sigprocmask(SIG_BLOCK, NULL, &now) == 0);
    MUST(sigaction(SIGBUS, NULL, &bus) == 0 && sigaction(SIGSYS, NULL, &sys) == 0);
    mem = far_map(16 * MIB);
    fill(mem, 16 * MIB, 3);
    printf("executed: blocked %d %d, ignored %d %d, wrong %zu\n", sigismember(&now, SIGBUS), sigismember(&now, SIGSYS),
           bus.sa_handler == SIG_IGN, sys.sa_handler == SIG_IGN, wrong(mem, 16 * MIB, 3));
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return executed();
    first_thread = pthread_self();
    mem = far_map(16 * MIB);
    fill(mem, 16 * MIB, 3);
    sigemptyset(&two);
    for (int i = 0; i < 2; i++) {
        struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
        sigaddset(&two, both[i]);
        MUST(sigaction(both[i], &a, NULL) == 0);
    }
    MUST(sigprocmask(SIG_BLOCK, &two, NULL) == 0);
    by_one_thread(SIGBUS);
    by_one_thread(SIGSYS);
    to_a_thread_that_waits();
    to_a_thread_that_has_not_blocked_them();
    past_threads_that_left_a_wait();
    waits_with_masks();
    waits_for_a_foreign_handler();
    printf("wrong %zu\n", wrong(mem, 16 * MIB, 3));
    fflush(stdout);
    signal(SIGSYS, SIG_IGN);
    sigset_t sys;
    sigemptyset(&sys);
    sigaddset(&sys, SIGSYS);
    MUST(sigprocmask(SIG_UNBLOCK, &sys, NULL) == 0);
    /* One that fails changes nothing. */
    char *none[] = {"none", NULL};
    execv("/nowhere/at/all", none);
    MUST(wrong(mem, 16 * MIB, 3) == 0);
    char *again[] = {argv[0], "executed", NULL};
    execv("/proc/self/exe", again);
    return 1;
}
