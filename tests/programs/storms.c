/* Signals fall on threads that fault all the time. Every handler finds the registers of the code that was
 * interrupted, wherever the runtime stood, and that code finds its own again: general registers, flags, vectors,
 * rounding, and what lies below its stack pointer. Queued signals come all, and in order. */
#include "case.h"
#include "probe.h"
#include <setjmp.h>
#include <stdatomic.h>

enum { WORKERS = 3, PAGES = 3072, TOUCHES = 4000, LETTERS = 800 };

struct worker {
    pthread_t thread;
    pid_t tid;
    struct state state;
    uintptr_t low, high;
    uint8_t *far, *own_stack;
    sigjmp_buf out;
    uint64_t wrong, contexts, letters, unordered, jumps, in_access;
    uint64_t *heap;
    atomic_int ready, done;
};
static struct worker workers[WORKERS];
static __thread struct worker *me;

static void look(const ucontext_t *u, struct worker *w) {
    const greg_t *g = u->uc_mcontext.gregs;
    const uintptr_t ip = g[REG_RIP], sp = g[REG_RSP];
    if (in_probe(u)) {
        w->contexts += probe_differs(u, &w->state);
        w->in_access += ip == (uintptr_t)probe_read || ip == (uintptr_t)probe_write;
    } else {
        int on_own = sp >= (uintptr_t)w->own_stack && sp <= (uintptr_t)w->own_stack + 64 * PAGE;
        w->contexts += !(sp >= w->low && sp < w->high) && !on_own;
    }
}

/* What a handler may leave behind in registers is its own affair. */
static void spoil(struct worker *w, uint64_t x) {
    __builtin_ia32_ldmxcsr(0x1f80 | (x & 3) << 13);
    __asm__ volatile("vpcmpeqd %%ymm0, %%ymm0, %%ymm0\n vpcmpeqd %%ymm9, %%ymm9, %%ymm9" ::: "xmm0", "xmm9");
    w->heap[(mix(x) % 256) * 512] += 1;
}

static void tick(int s, siginfo_t *i, void *u) {
    (void)s, (void)i;
    struct worker *w = me;
    look(u, w);
    spoil(w, w->state.in[0]);
}

/* Now and then it does not return. */
static void leap(int s, siginfo_t *i, void *u) {
    (void)s, (void)i;
    struct worker *w = me;
    look(u, w);
    spoil(w, w->state.in[1]);
    if (in_probe(u) && w->state.in[1] % 4 == 0) {
        w->jumps++;
        siglongjmp(w->out, 1);
    }
}

static void letter(int s, siginfo_t *i, void *u) {
    (void)s;
    struct worker *w = me;
    look(u, w);
    w->unordered += (uint64_t)i->si_value.sival_ptr != ++w->letters || i->si_code != SI_QUEUE;
}

static void every(struct worker *w, timer_t *timer, int signal, long ns) {
    struct sigevent e = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = signal};
    e._sigev_un._tid = w->tid;
    MUST(timer_create(CLOCK_MONOTONIC, &e, timer) == 0);
    struct itimerspec t = {{0, ns}, {0, ns}};
    MUST(timer_settime(*timer, 0, &t, NULL) == 0);
}

static void *work(void *at) {
    struct worker *w = me = at;
    w->tid = syscall(SYS_gettid);
    pthread_attr_t attr;
    void *low;
    size_t size;
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstack(&attr, &low, &size);
    w->low = (uintptr_t)low, w->high = w->low + size;
    w->far = far_map(PAGES * PAGE), w->heap = far_map(256 * PAGE), w->own_stack = far_map(64 * PAGE);
    for (int i = 0; i < PAGES; i++) *(uint64_t *)(w->far + i * PAGE) = mix(i);
    stack_t own = {.ss_sp = w->own_stack, .ss_size = 64 * PAGE};
    MUST(sigaltstack(&own, NULL) == 0);
    struct state *s = &w->state;
    timer_t timers[3];
    every(w, &timers[0], SIGRTMIN, 61000);
    every(w, &timers[1], SIGRTMIN + 1, 83000);
    every(w, &timers[2], SIGRTMIN + 2, 307000);
    atomic_store(&w->ready, 1);
    /* Kept over a leap, hence in memory. */
    volatile uint64_t n = 0;
    while (n < TOUCHES || w->letters < LETTERS) {
        uint64_t x = n = n + 1, page = mix(x * 7 + (w - workers)) % PAGES;
        sigset_t open;
        sigemptyset(&open);
        if (sigsetjmp(w->out, 0) != 0) {
            __builtin_ia32_ldmxcsr(0x1f80);
            pthread_sigmask(SIG_SETMASK, &open, NULL);
            continue;
        }
        prepare(s, w->far + page * PAGE, x, x % 3 == 0, mix(page));
        probe(s);
        w->wrong += state_differs(s, mix(page));
    }
    for (int i = 0; i < 3; i++) timer_delete(timers[i]);
    atomic_store(&w->done, 1);
    return NULL;
}

int main(void) {
    if (!__builtin_cpu_supports("avx")) {
        printf("no AVX\n");
        return 0;
    }
    struct {
        void (*handler)(int, siginfo_t *, void *);
        int flags;
    } kinds[4] = {{tick, 0}, {tick, SA_ONSTACK}, {leap, SA_NODEFER}, {letter, SA_RESTART}};
    for (int k = 0; k < 4; k++) {
        struct sigaction a = {.sa_sigaction = kinds[k].handler, .sa_flags = SA_SIGINFO | kinds[k].flags};
        /* Letters wait for each other, and for leaps: one that is left by a leap is counted all the same. */
        if (k == 3) sigfillset(&a.sa_mask);
        MUST(sigaction(SIGRTMIN + k, &a, NULL) == 0);
    }
    for (int k = 0; k < WORKERS; k++)
        MUST(pthread_create(&workers[k].thread, NULL, work, &workers[k]) == 0);
    for (int k = 0; k < WORKERS; k++)
        while (!atomic_load(&workers[k].ready)) usleep(100);
    for (uint64_t n = 1; n <= LETTERS; n++) {
        for (int k = 0; k < WORKERS; k++) {
            union sigval v = {.sival_ptr = (void *)n};
            while (pthread_sigqueue(workers[k].thread, SIGRTMIN + 3, v) != 0) usleep(100);
        }
        if (n % 4 == 0) usleep(50);
    }
    uint64_t seen = 0, jumps = 0;
    for (int k = 0; k < WORKERS; k++) {
        struct worker *w = &workers[k];
        pthread_join(w->thread, NULL);
        printf("worker %d: wrong %lu, contexts %lu, letters %lu, out of order %lu\n", k, w->wrong, w->contexts, w->letters,
               w->unordered);
        seen += w->in_access, jumps += w->jumps;
    }
    fprintf(stderr, "in an access %lu, leaps %lu\n", seen, jumps);
}
