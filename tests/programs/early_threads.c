/* Threads that run before the runtime starts, as those that constructors of other libraries have started: one waits in
 * libc meanwhile, then reads far memory; with an argument, all signals are blocked in it, as in jemalloc's and log4cplus's. */
#define _GNU_SOURCE
#include "case.h"

enum { BYTES = 4 * MIB };

static pthread_barrier_t begin, end;
static uint8_t *far;
static size_t bad;

static void *run(void *unused) {
    (void)unused;
    pthread_barrier_wait(&begin);
    bad = wrong(far, BYTES, 1);
    pthread_barrier_wait(&end);
    return NULL;
}

static void first(int arguments) {
    sigset_t all, old;
    pthread_t thread;
    sigfillset(&all);
    MUST(!pthread_barrier_init(&begin, NULL, 2) && !pthread_barrier_init(&end, NULL, 2));
    if (arguments > 1) MUST(!pthread_sigmask(SIG_SETMASK, &all, &old));
    MUST(!pthread_create(&thread, NULL, run, NULL));
    if (arguments > 1) MUST(!pthread_sigmask(SIG_SETMASK, &old, NULL));
}

/* Before any library's constructors. */
__attribute__((section(".preinit_array"), used)) static void (*const run_first)(int) = first;

int main(void) {
    far = far_map(BYTES);
    fill(far, BYTES, 1);
    squeeze();
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&end);
    printf("%zu wrong\n", bad);
    return 0;
}
