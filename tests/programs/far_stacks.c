/* Coroutines on stacks in far memory, which go absent between resumptions,
 * while timer signals arrive on whatever stack runs. */
#include "case.h"
#include <sys/time.h>
#include <ucontext.h>

enum { COROUTINES = 96, STACK = 256 << 10, ROUNDS = 12 };
static ucontext_t scheduler, contexts[COROUTINES];
static uint64_t results[COROUTINES];
static volatile uint64_t ticks;
static uint64_t *signal_memory;

static void tick(int s) {
    (void)s;
    ticks++;
    signal_memory[(mix(ticks) % 2048) * 512] += 1;
}

static void coroutine(int me) {
    volatile uint64_t locals[256];
    uint64_t bad = 0;
    for (int i = 0; i < 256; i++) locals[i] = mix(me * 1000 + i);
    for (int round = 0; round < ROUNDS; round++) {
        bad += deep(me + round, 60);
        swapcontext(&contexts[me], &scheduler);
        for (int i = 0; i < 256; i++) bad += locals[i] != mix(me * 1000 + i);
    }
    results[me] = bad;
}

int main(void) {
    signal_memory = far_map(2048 * PAGE);
    struct sigaction a = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &a, NULL);
    for (int i = 0; i < COROUTINES; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = far_map(STACK);
        contexts[i].uc_stack.ss_size = STACK;
        contexts[i].uc_link = &scheduler;
        makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
    }
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int round = 0; round <= ROUNDS; round++)
        for (int i = 0; i < COROUTINES; i++) {
            swapcontext(&scheduler, &contexts[i]);
            if (i % 16 == 0) squeeze();
        }
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    uint64_t bad = 0, counted = 0;
    for (int i = 0; i < COROUTINES; i++) bad += results[i];
    for (int i = 0; i < 2048; i++) counted += signal_memory[i * 512];
    printf("bad %lu ticked %d all counted %d\n", bad, ticks > 0, counted == ticks);
}
