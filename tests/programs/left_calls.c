/* Calls that wait with large buffers and never return: a handler jumps out of them, or their thread is cancelled.
 * What was kept local for them is not kept for good (the tests look at the peak). And calls that are only
 * interrupted keep theirs, whatever stack the handler runs on and wherever it goes meanwhile. */
#include "case.h"
#include <setjmp.h>
#include <sys/time.h>
#include <ucontext.h>

enum { BYTES = 64 << 10, TIMES = 200 };

static int quiet[2], loud[2];
static uint8_t *mem;
static sigjmp_buf back;
static volatile size_t bad;

static void jump(int s) {
    (void)s;
    siglongjmp(back, 1);
}

static void alarm_in(long us) {
    struct itimerval t = {.it_value = {0, us}};
    MUST(setitimer(ITIMER_REAL, &t, NULL) == 0);
}

/* Whether calls are libc's, or the program's own, which a filter traps. */
static int own;

static ssize_t reading(int fd, void *at) {
    if (!own) return read(fd, at, BYTES);
    ssize_t n;
    __asm__ volatile("syscall" : "=a"(n) : "a"(SYS_read), "D"((long)fd), "S"(at), "d"((long)BYTES) : "rcx", "r11", "memory");
    return n;
}

/* Waits for nothing, `depth` levels down. */
static __attribute__((noinline)) ssize_t waits(uint8_t *at, int depth) {
    volatile uint8_t pad[200];
    memset((void *)pad, depth, sizeof pad);
    ssize_t n = depth ? waits(at, depth - 1) : reading(quiet[0], at);
    bad += pad[5] != depth;
    return n;
}

static void left(uint8_t *at, int depth) {
    if (sigsetjmp(back, 1) == 0) {
        alarm_in(1000);
        waits(at, depth);
        bad++;
    }
}

/* Guarded calls here and further down, and everything else leaves. */
static __attribute__((noinline)) void busy(int depth) {
    volatile uint8_t pad[200];
    memset((void *)pad, depth, sizeof pad);
    uint8_t *at = mem + 32 * MIB;
    int fd = open("/dev/zero", O_RDONLY);
    bad += reading(fd, at) != BYTES || nonzero(at, BYTES) != 0;
    close(fd);
    if (depth) busy(depth - 1);
    bad += pad[5] != depth;
}

static int how;
static ucontext_t handler_at, coroutine_at;

static void coroutine(void) {
    for (;;) {
        busy(8);
        squeeze();
        swapcontext(&coroutine_at, &handler_at);
    }
}

static void interrupts(int s) {
    (void)s;
    if (how == 2) {
        pid_t child = fork();
        if (child == 0) {
            busy(8);
            squeeze();
            busy(8);
            _exit(bad != 0);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        bad += status != 0;
    } else if (how == 3) {
        pid_t child = vfork();
        if (child == 0) {
            busy(8);
            _exit(0);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        bad += status != 0;
    } else if (how == 4) {
        MUST(swapcontext(&handler_at, &coroutine_at) == 0);
    }
    busy(12);
    squeeze();
    busy(12);
    static uint8_t message[BYTES];
    memset(message, 'a' + how, sizeof message);
    MUST(write(loud[1], message, sizeof message) == (ssize_t)sizeof message);
}

static void leaves(void) {
    for (int i = 0; i < 100; i++) left(mem + i * BYTES, i % 3);
    swapcontext(&coroutine_at, &handler_at);
}

static void *cancelled(void *at) {
    reading(quiet[0], at);
    return NULL;
}

static void *reads(void *at) {
    return (void *)reading(loud[0], at);
}

int main(void) {
    MUST(pipe(quiet) == 0 && pipe(loud) == 0);
    mem = far_map(64 * MIB);
    fill(mem, 32 * MIB, 1);

    for (own = 0; own < 2; own++) {
        signal(SIGALRM, jump);
        for (int i = 0; i < TIMES; i++) left(mem + i * BYTES, i % 3);
        squeeze();
        printf("jumps: wrong %zu, bad %zu\n", wrong(mem, 32 * MIB, 1), bad);
    }
    own = 0;

    /* On a stack that is far. */
    getcontext(&coroutine_at);
    coroutine_at.uc_stack.ss_sp = far_map(MIB);
    coroutine_at.uc_stack.ss_size = MIB;
    makecontext(&coroutine_at, leaves, 0);
    MUST(swapcontext(&handler_at, &coroutine_at) == 0);
    printf("far: wrong %zu, bad %zu\n", wrong(mem, 32 * MIB, 1), bad);

    /* One after the other, and all at once. */
    for (size_t i = 0; i < TIMES; i++) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, cancelled, mem + i * BYTES) == 0);
        usleep(1000);
        MUST(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    }
    pthread_t all[TIMES];
    for (size_t i = 0; i < TIMES; i++) MUST(pthread_create(&all[i], NULL, cancelled, mem + i % 16 * BYTES) == 0);
    usleep(50000);
    for (size_t i = 0; i < TIMES; i++) MUST(pthread_cancel(all[i]) == 0 && pthread_join(all[i], NULL) == 0);
    squeeze();
    printf("cancelled: wrong %zu, bad %zu\n", wrong(mem, 32 * MIB, 1), bad);

    /* What a call had that was left is unmapped, and another's is at its place. */
    uint8_t *at = far_map(4 * MIB);
    for (int i = 0; i < 3; i++) {
        left(at, i);
        MUST(munmap(at, BYTES) == 0);
        MUST(mmap(at, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
        memset(at, 1, BYTES);
        pthread_t thread;
        /* The alarm's jump is the first thread's: the other is not to take it while that one is in a fault. */
        sigset_t alarms;
        MUST(sigemptyset(&alarms) == 0 && sigaddset(&alarms, SIGALRM) == 0);
        MUST(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0);
        MUST(pthread_create(&thread, NULL, reads, at) == 0);
        MUST(pthread_sigmask(SIG_UNBLOCK, &alarms, NULL) == 0);
        usleep(20000);
        left(mem, i);
        squeeze();
        static uint8_t message[BYTES];
        memset(message, i, sizeof message);
        MUST(write(loud[1], message, sizeof message) == (ssize_t)sizeof message);
        void *got;
        MUST(pthread_join(thread, &got) == 0);
        bad += got != (void *)(size_t)BYTES || memcmp(at, message, BYTES) != 0;
    }
    printf("unmapped: bad %zu\n", bad);

    static uint8_t stack[256 << 10];
    getcontext(&coroutine_at);
    coroutine_at.uc_stack.ss_sp = stack;
    coroutine_at.uc_stack.ss_size = sizeof stack;
    makecontext(&coroutine_at, coroutine, 0);
    stack_t other = {.ss_sp = malloc(256 << 10), .ss_size = 256 << 10};
    MUST(sigaltstack(&other, NULL) == 0);
    /* (A trapped call's handler that switches to a coroutine is known to go wrong: docs/design/limits-processes.md.) */
    for (int round = 0; round < 18; round++) {
        how = round / 2 % 5;
        own = round >= 10;
        struct sigaction a = {.sa_handler = interrupts, .sa_flags = SA_RESTART | (round % 2 ? SA_ONSTACK : 0)};
        MUST(sigaction(SIGALRM, &a, NULL) == 0);
        uint8_t *to = mem + 48 * MIB + round * BYTES;
        memset(to, 1, BYTES);
        alarm_in(5000);
        ssize_t n = reading(loud[0], to);
        size_t wrong_bytes = 0;
        for (size_t i = 0; i < BYTES; i++) wrong_bytes += to[i] != 'a' + how;
        printf("interrupted %d: %zd, wrong %zu, bad %zu\n", round, n, wrong_bytes, bad);
    }
    return 0;
}
