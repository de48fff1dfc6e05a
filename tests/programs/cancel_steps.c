/* A thread is cancelled at each instruction of a read, where a tracer goes step by step: by libc's signal, as
 * pthread_cancel sends it. It is unwound every time: the cleanups of its functions run. */
#include "case.h"
#include <sys/ptrace.h>
#include <sys/user.h>

enum { CANCEL = 32, NEAR_STEPS = 90, FAR_ROUNDS = 80 };
/* How many instructions from one round to the next, where the buffer is far; an argument of 1 and more rounds: at each. */
static int far_stride = 11;

static int pipes[2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char *buffer;
static volatile int cleaned, last;

static void unlock(pthread_mutex_t **m) { pthread_mutex_unlock(*m), cleaned++; }

static void *reads(void *arg) {
    pthread_mutex_t *locked __attribute__((cleanup(unlock))) = &mutex;
    pthread_mutex_lock(locked);
    __asm__ volatile("int3");
    read(pipes[0], arg, 1);
    __asm__ volatile("int3");
    last++;
    for (;;) pthread_testcancel();
    return NULL;
}

static void *waits(void *arg) {
    pause();
    return arg;
}

static int child(void) {
    char byte = 0;
    void *result;
    int wrong = 0;
    pthread_t thread;
    /* Libc has no handler before the first. */
    MUST(pthread_create(&thread, NULL, waits, NULL) == 0 && pthread_cancel(thread) == 0);
    MUST(pthread_join(thread, &result) == 0 && pipe(pipes) == 0);
    buffer = far_map(MIB);
    squeeze();
    MUST(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
    raise(SIGSTOP);
    for (int round = 0; round < NEAR_STEPS + FAR_ROUNDS; round++) {
        cleaned = 0;
        MUST(fcntl(pipes[0], F_SETFL, O_NONBLOCK) == 0);
        while (read(pipes[0], &byte, 1) == 1) continue;
        MUST(fcntl(pipes[0], F_SETFL, 0) == 0 && write(pipes[1], &byte, 1) == 1);
        buffer[0] = 1;
        MUST(pthread_create(&thread, NULL, reads, round < NEAR_STEPS ? &byte : buffer) == 0);
        MUST(pthread_join(thread, &result) == 0);
        int right = result == PTHREAD_CANCELED && cleaned == 1 && pthread_mutex_trylock(&mutex) == 0;
        wrong += !right;
        if (!right) fprintf(stderr, "round %d: cleaned %d\n", round, cleaned);
        pthread_mutex_unlock(&mutex);
    }
    printf("wrong %d\n", wrong);
    fprintf(stderr, "after the read %d\n", last);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) far_stride = atoi(argv[1]);
    fflush(stdout);
    pid_t p = fork();
    if (p == 0) _exit(child());
    int status, round = 0, steps = 0;
    pid_t thread;
    enum { WAITING, STEPPING, SENT } state = WAITING;
    waitpid(p, &status, 0);
    long options = PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    MUST(WIFSTOPPED(status) && ptrace(PTRACE_SETOPTIONS, p, 0, options) == 0 && ptrace(PTRACE_CONT, p, 0, 0) == 0);
    while ((thread = waitpid(-1, &status, __WALL)) > 0) {
        if (!WIFSTOPPED(status)) {
            if (thread == p) break;
            continue;
        }
        long signal = WSTOPSIG(status);
        siginfo_t info = {0};
        ptrace(PTRACE_GETSIGINFO, thread, 0, &info);
        if (signal == CANCEL) {
            info.si_pid = p;
            MUST(ptrace(PTRACE_SETSIGINFO, thread, 0, &info) == 0);
            state = WAITING, round++;
        } else if (signal == SIGTRAP && status >> 16 == 0) {
            int wanted = round < NEAR_STEPS ? round : (round - NEAR_STEPS) * far_stride;
            int marker = info.si_code == SI_KERNEL;
            signal = 0;
            if (state == WAITING && marker) state = STEPPING, steps = 0;
            else if (state == STEPPING) steps = marker ? wanted : steps + 1;
            if (state == STEPPING && steps == wanted) {
                MUST(syscall(SYS_tgkill, p, thread, CANCEL) == 0);
                state = SENT;
            }
        } else if (signal == SIGSTOP || status >> 16) {
            signal = 0;
        }
        /* Only the thread of the round runs meanwhile, but for what the runtime has of its own. */
        ptrace(state == STEPPING && thread != p ? PTRACE_SINGLESTEP : PTRACE_CONT, thread, 0, signal);
    }
    printf("ended %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}
