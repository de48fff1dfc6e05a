/* A signal stack from malloc, large enough to be far, absent when the signal
 * comes: the kernel itself writes the frame there. In threads too, and with
 * thread stacks the program made far on purpose. */
#include "case.h"

static volatile int ran;
static volatile size_t bad;
static uint8_t *mem;
static volatile uintptr_t stack_low, stack_high;

static void handler(int s, siginfo_t *i, void *u) {
    (void)s, (void)i, (void)u;
    volatile uint8_t local[60000];
    for (size_t k = 0; k < sizeof local; k += 64) local[k] = k;
    for (size_t k = 0; k < sizeof local; k += 64) bad += local[k] != (uint8_t)k;
    bad += !((uintptr_t)local > stack_low && (uintptr_t)local < stack_high);
    bad += wrong(mem, 4 * MIB, 8);
    ran++;
}

static volatile uint8_t *guarded;
static void on_segv(int s, siginfo_t *i, void *u) {
    handler(s, i, u);
    mprotect((void *)guarded, PAGE, PROT_READ | PROT_WRITE);
}

static void *work(void *arg) {
    (void)arg;
    size_t bytes = 512 * 1024;
    stack_t st = {.ss_sp = malloc(bytes), .ss_size = bytes};
    memset(st.ss_sp, 0x5a, bytes);
    MUST(sigaltstack(&st, NULL) == 0);
    stack_t back;
    MUST(sigaltstack(NULL, &back) == 0);
    bad += back.ss_sp != st.ss_sp || back.ss_size != bytes || back.ss_flags != 0;
    stack_low = (uintptr_t)st.ss_sp, stack_high = stack_low + bytes;
    squeeze();
    MUST(pthread_kill(pthread_self(), SIGUSR1) == 0);
    squeeze();
    guarded = far_map(PAGE);
    MUST(mprotect((void *)guarded, PAGE, PROT_READ) == 0);
    squeeze();
    guarded[5] = 1;
    st.ss_flags = SS_DISABLE;
    MUST(sigaltstack(&st, NULL) == 0);
    MUST(sigaltstack(NULL, &back) == 0);
    bad += back.ss_flags != SS_DISABLE;
    free((void *)stack_low);
    return NULL;
}

int main(void) {
    mem = far_map(4 * MIB);
    fill(mem, 4 * MIB, 8);
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGUSR1, &a, NULL);
    a.sa_sigaction = on_segv;
    sigaction(SIGSEGV, &a, NULL);
    work(NULL);
    pthread_t t;
    for (int i = 0; i < 3; i++) {
        pthread_create(&t, NULL, work, NULL);
        pthread_join(t, NULL);
    }
    /* A thread whose whole stack is far, signalled without SA_ONSTACK. */
    a.sa_flags = SA_SIGINFO;
    a.sa_sigaction = handler;
    sigaction(SIGUSR1, &a, NULL);
    a.sa_flags |= SA_ONSTACK;
    a.sa_sigaction = on_segv;
    sigaction(SIGSEGV, &a, NULL);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, far_map(MIB), MIB);
    pthread_create(&t, &attr, work, NULL);
    pthread_join(t, NULL);
    /* On the far stack the first handler ran off the alternate one: one off a thread. */
    printf("ran %d bad %zu\n", ran, bad);
}
