/* Every signal blocked, in every thread, by every call that can: faults are
 * served all the same, and the program reads back the mask it set. */
#include "case.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/signalfd.h>

static void *work(void *arg) {
    uint8_t *m = far_map(12 * MIB);
    fill(m, 12 * MIB, (uintptr_t)arg);
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, NULL, &now);
    size_t bad = wrong(m, 12 * MIB, (uintptr_t)arg);
    for (int s = 1; s < 32; s++)
        if (s != SIGKILL && s != SIGSTOP) bad += !sigismember(&now, s);
    return (void *)bad;
}

static uint8_t *handler_memory;
static volatile size_t handler_bad;
static void handler(int s) {
    (void)s;
    handler_bad += wrong(handler_memory, 12 * MIB, 55);
}

int main(void) {
    sigset_t all, before, now;
    sigfillset(&all);
    MUST(sigprocmask(SIG_SETMASK, &all, &before) == 0);
    printf("bus was blocked %d\n", sigismember(&before, SIGBUS));
    pthread_t t[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&t[i], NULL, work, (void *)i);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        printf("thread bad %zu\n", (size_t)bad);
    }
    MUST(sigprocmask(SIG_SETMASK, NULL, &now) == 0);
    printf("bus %d segv %d sys %d usr1 %d\n", sigismember(&now, SIGBUS), sigismember(&now, SIGSEGV),
           sigismember(&now, SIGSYS), sigismember(&now, SIGUSR1));

    /* A handler whose mask is full, and which faults. */
    handler_memory = far_map(12 * MIB);
    fill(handler_memory, 12 * MIB, 55);
    struct sigaction a = {.sa_handler = handler};
    sigfillset(&a.sa_mask);
    sigaction(SIGUSR1, &a, NULL);
    kill(getpid(), SIGUSR1);
    squeeze();
    sigset_t none;
    sigemptyset(&none);
    errno = 0;
    printf("sigsuspend %d", sigsuspend(&none));
    printf(" errno %d handler bad %zu\n", errno, handler_bad);
    struct timespec soon = {0, 1000000};
    printf("ppoll %d\n", ppoll(NULL, 0, &soon, &all));
    printf("pselect %d\n", pselect(0, NULL, NULL, NULL, &soon, &all));
    int ep = epoll_create1(0);
    struct epoll_event *ev = far_map(PAGE);
    squeeze();
    printf("epoll_pwait %d\n", epoll_pwait(ep, ev, 4, 1, &all));
    int sfd = signalfd(-1, &all, 0);
    kill(getpid(), SIGUSR2);
    struct signalfd_siginfo *info = far_map(PAGE);
    squeeze();
    printf("signalfd %zd", read(sfd, info, sizeof *info));
    printf(" signo %u\n", info->ssi_signo);
    kill(getpid(), SIGTERM);
    siginfo_t *got = far_map(PAGE);
    squeeze();
    printf("sigwaitinfo %d", sigwaitinfo(&all, got));
    printf(" %d\n", got->si_signo);
    sigset_t *pending = far_map(PAGE);
    kill(getpid(), SIGHUP);
    squeeze();
    MUST(sigpending(pending) == 0);
    printf("pending %d %d\n", sigismember(pending, SIGHUP), sigismember(pending, SIGTERM));
    squeeze();
    printf("still right %zu\n", wrong(handler_memory, 12 * MIB, 55));
}
