/* The program's own handlers for SIGSEGV, SIGBUS and SIGSYS get what is theirs
 * and nothing of the pager's, and sigaction tells the program what it set. */
#include "case.h"
#include <setjmp.h>

static uint8_t *far;
static volatile int segv, bus, sys;
static sigjmp_buf out;

static void on_segv(int s, siginfo_t *i, void *u) {
    (void)s, (void)u;
    segv++;
    if ((uint8_t *)i->si_addr >= far && (uint8_t *)i->si_addr < far + 64 * PAGE)
        mprotect((void *)((uintptr_t)i->si_addr & ~(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE);
    else
        siglongjmp(out, 1);
}
static void on_bus(int s, siginfo_t *i, void *u) {
    (void)s, (void)u, (void)i;
    bus++;
    if (i->si_code == BUS_ADRERR) siglongjmp(out, 2);
}
static void on_sys(int s, siginfo_t *i, void *u) {
    (void)s, (void)u, (void)i;
    sys++;
}

int main(void) {
    struct sigaction a = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
    sigemptyset(&a.sa_mask);
    sigaddset(&a.sa_mask, SIGUSR1);
    MUST(sigaction(SIGSEGV, &a, NULL) == 0);
    a.sa_sigaction = on_bus;
    MUST(sigaction(SIGBUS, &a, NULL) == 0);
    a.sa_sigaction = on_sys;
    a.sa_flags |= SA_RESTART;
    MUST(sigaction(SIGSYS, &a, NULL) == 0);

    uint8_t *heap = far_map(24 * MIB);
    fill(heap, 24 * MIB, 5);
    squeeze();
    printf("wrong %zu, handlers ran %d %d %d\n", wrong(heap, 24 * MIB, 5), segv, bus, sys);

    struct sigaction old;
    MUST(sigaction(SIGBUS, NULL, &old) == 0);
    printf("SIGBUS ours %d flags %x mask %d\n", old.sa_sigaction == on_bus, old.sa_flags & ~0x04000000,
           sigismember(&old.sa_mask, SIGUSR1));
    MUST(sigaction(SIGSYS, NULL, &old) == 0);
    printf("SIGSYS ours %d flags %x\n", old.sa_sigaction == on_sys, old.sa_flags & ~0x04000000);

    /* The kernel keeps no flag that it does not know, and nobody blocks SIGKILL or SIGSTOP. */
    for (int i = 0; i < 3; i++) {
        static const int signals[3] = {SIGBUS, SIGSYS, SIGUSR2};
        struct {
            void *handler;
            unsigned long flags;
            void *restorer;
            uint64_t mask;
        } set, told, was;
        MUST(syscall(SYS_rt_sigaction, signals[i], NULL, &was, 8) == 0);
        set = was;
        set.mask = ~0ul;
        set.flags |= 0x7fffffc0f0ul;
        MUST(syscall(SYS_rt_sigaction, signals[i], &set, NULL, 8) == 0);
        MUST(syscall(SYS_rt_sigaction, signals[i], NULL, &told, 8) == 0);
        printf("told of %d: flags %lx mask %lx\n", signals[i], told.flags & ~0x04000000ul, told.mask);
        MUST(syscall(SYS_rt_sigaction, signals[i], &was, NULL, 8) == 0);
    }

    /* A write barrier of the garbage collectors' kind. */
    far = far_map(64 * PAGE);
    fill(far, 64 * PAGE, 6);
    squeeze();
    MUST(mprotect(far, 64 * PAGE, PROT_READ) == 0);
    for (int i = 0; i < 64; i++) far[i * PAGE] ^= 0xff;
    printf("barriers %d\n", segv);
    for (int i = 0; i < 64; i++) far[i * PAGE] ^= 0xff;
    printf("content %zu\n", wrong(far, 64 * PAGE, 6));
    MUST(mprotect(far, 64 * PAGE, PROT_NONE) == 0);
    size_t sum = 0;
    for (int i = 0; i < 64; i++) sum += far[i * PAGE + 1];
    printf("from PROT_NONE %d %zu\n", segv, sum);

    if (sigsetjmp(out, 1) == 0) *(volatile int *)16 = 1;
    printf("null write %d\n", segv);
    raise(SIGBUS);
    printf("raised SIGBUS %d\n", bus);
    char path[] = "/tmp/own_handlers_XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    MUST(ftruncate(fd, PAGE) == 0);
    volatile char *file = mmap(NULL, 4 * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    if (sigsetjmp(out, 1) == 0) (void)file[3 * PAGE];
    printf("past end of file %d\n", bus);
    raise(SIGSYS);
    printf("raised SIGSYS %d\n", sys);
    uint8_t *gone = far;
    munmap(far, 64 * PAGE);
    far = NULL;
    segv = 0;
    if (sigsetjmp(out, 1) == 0) *(volatile uint8_t *)gone = 1;
    printf("after munmap %d\n", segv);
    /* Default action again: the process dies by the signal itself. */
    for (int signal = SIGBUS;; signal = SIGSEGV) {
        fflush(stdout);
        pid_t p = fork();
        if (p == 0) {
            struct sigaction d = {.sa_handler = SIG_DFL};
            sigaction(signal, &d, NULL);
            if (wrong(heap, 24 * MIB, 5)) _exit(1);
            if (signal == SIGBUS) (void)file[3 * PAGE];
            *(volatile int *)16 = 1;
            _exit(0);
        }
        int status;
        waitpid(p, &status, 0);
        printf("died of %d\n", WTERMSIG(status));
        if (signal == SIGSEGV) break;
    }
}
