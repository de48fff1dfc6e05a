/* What Go's runtime does without libc, in a program that says it is Go's: masks, actions and an alternate stack by
 * system calls of its own, handlers that insist on that stack, also while a call with far arguments waits and while
 * another handler's does. */
#include "case.h"

/* The build id by which such a program is known. */
__asm__(".pushsection .note.go.buildid,\"a\",@note\n"
        ".long 4, 4, 4\n.asciz \"Go\\0\"\n.byte 'c','a','s','e'\n"
        ".popsection");

#define RAW(name, number)                                                                          \
    static __attribute__((noinline)) long name(long a, const void *b, void *c, long d) {           \
        long ret;                                                                                  \
        register long r10 __asm__("r10") = d;                                                      \
        __asm__ volatile("movl $" #number ", %%eax\n\tsyscall"                                     \
                         : "=&a"(ret)                                                              \
                         : "D"(a), "S"(b), "d"(c), "r"(r10)                                        \
                         : "rcx", "r11", "memory");                                                \
        return ret;                                                                                \
    }
RAW(raw_sigaction, 13)
RAW(raw_sigprocmask, 14)

static long raw(long number, const volatile void *a, long b, long c, const volatile void *d) {
    register const volatile void *r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return number;
}

static __attribute__((noinline)) long raw_sigaltstack(const stack_t *new, stack_t *old) {
    long ret;
    __asm__ volatile("movl $131, %%eax\n\tsyscall" : "=&a"(ret) : "D"(new), "S"(old) : "rcx", "r11", "memory");
    return ret;
}

/* The kernel's, not libc's. */
struct action {
    void *handler;
    uint64_t flags;
    void *restorer;
    uint64_t mask;
};
__asm__("restorer: movl $15, %eax\n\tsyscall");
extern char restorer[];

static uint8_t *mem, *stack;
enum { BYTES = 16 << 20, STACK = 256 << 10 };
static struct far {
    struct timespec moment;
    int word;
} *far;
static volatile sig_atomic_t alarms, others, bad, depth, deepest;

static void handler(int signal, siginfo_t *info, void *context) {
    (void)context;
    volatile uint8_t here[4000];
    for (size_t i = 0; i < sizeof here; i++) here[i] = signal;
    bad += (uint8_t *)here < stack || (uint8_t *)here > stack + STACK || info->si_signo != signal;
    if (++depth > deepest) deepest = depth;
    size_t at = mix(alarms * 2 + others) % (BYTES / 8);
    bad += ((uint64_t *)mem)[at] != mix(7 + at);
    /* Waits, and may be interrupted by the other signal. */
    raw(SYS_nanosleep, &far->moment, 0, 0, NULL);
    depth--;
    *(signal == SIGALRM ? &alarms : &others) += 1;
    for (size_t i = 0; i < sizeof here; i++) bad += here[i] != (uint8_t)signal;
}

static void never(int signal) {
    (void)signal;
    bad++;
}

static struct action action_of(void *handler, uint64_t more) {
    return (struct action){handler, SA_SIGINFO | SA_RESTART | 0x04000000 /* SA_RESTORER */ | more, restorer, 0};
}

int main(void) {
    mem = far_map(BYTES);
    fill(mem, BYTES, 7);
    far = far_map(BYTES);
    far->moment.tv_nsec = 200000;
    /* A handler for the signal of far faults, which are none of its business. */
    struct action bus = action_of(never, 0), back;
    MUST(raw_sigaction(SIGBUS, &bus, NULL, 8) == 0);
    MUST(raw_sigaction(SIGBUS, NULL, &back, 8) == 0);
    printf("handler kept: %d\n", back.handler == never);
    /* Everything blocked, as while a thread of Go's starts. */
    uint64_t all = ~0ull, none = 0, before = 0;
    MUST(raw_sigprocmask(SIG_SETMASK, &all, NULL, 8) == 0);
    squeeze();
    printf("blocked: wrong %zu\n", wrong(mem, BYTES, 7));
    int ends[2];
    MUST(pipe(ends) == 0);
    MUST(raw(SYS_write, (void *)(long)ends[1], (long)mem, 4096, NULL) == 4096);
    MUST(raw(SYS_read, (void *)(long)ends[0], (long)far + 8192, 4096, NULL) == 4096);
    printf("through a pipe: wrong %zu\n", wrong((uint8_t *)far + 8192, 4096, 7));
    MUST(raw_sigprocmask(SIG_SETMASK, &none, &before, 8) == 0);
    printf("was blocked: %d %d\n", (int)(before >> (SIGBUS - 1) & 1), (int)(before >> (SIGSYS - 1) & 1));
    /* Signals on a stack of our own, which is far. */
    stack = far_map(STACK);
    stack_t own = {.ss_sp = stack, .ss_size = STACK}, seen;
    MUST(raw_sigaltstack(&own, NULL) == 0);
    MUST(raw_sigaltstack(NULL, &seen) == 0);
    printf("stack kept: %d\n", seen.ss_sp == stack && seen.ss_size == STACK);
    struct action on_stack = action_of(handler, SA_ONSTACK);
    int signals[] = {SIGALRM, SIGUSR1};
    for (int i = 0; i < 2; i++) {
        MUST(raw_sigaction(signals[i], &on_stack, NULL, 8) == 0);
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = signals[i]};
        timer_t timer;
        MUST(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
        struct itimerspec often = {{0, 700000 + 300000 * i}, {0, 1000000}};
        MUST(timer_settime(timer, 0, &often, NULL) == 0);
    }
    while (alarms < 200 || others < 200) {
        raw(SYS_futex, &far->word, 0 /* FUTEX_WAIT */, 0, &far->moment);
        mem[mix(alarms) % BYTES] += 0;
    }
    MUST(raw_sigprocmask(SIG_SETMASK, &all, NULL, 8) == 0);
    printf("bad %d, nested %d, wrong %zu\n", (int)bad, deepest <= 2, wrong(mem, BYTES, 7));
    return 0;
}
