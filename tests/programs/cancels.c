/* Threads that are cancelled while they wait in a call are unwound: the cleanups of their functions run, a condition's mutex
 * is theirs again, stdio's lock is given back; on near stacks and far ones, with near memory and far, and where a handler
 * has been in the call before. Signals in a call find who made it. Built with -fexceptions -rdynamic. */
#include "case.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/time.h>

enum { STACK = 512 * 1024, OFTEN = 300 };

static int pipes[2];
static FILE *file;
static char *far;
/* arrived: cleanups that stand. A thread that is cancelled from then on is so in its next call, at the latest. */
static volatile int cleaned, ready, arrived;
static struct waiting {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
} near_waiting, *far_waiting;

static void count(int *value) { cleaned += *value; }
static void unlock(void *mutex) { cleaned += 10 * (pthread_mutex_unlock(mutex) == 0); }

#define CLEANED int value __attribute__((cleanup(count), unused)) = (arrived++, 1)
static void *reads_near(void *x) {
    CLEANED;
    char byte;
    read(pipes[0], &byte, 1);
    return x;
}
__attribute__((noinline)) static void *reads_far(void *x) {
    CLEANED;
    read(pipes[0], far, 1);
    return x;
}
static void *reads_file(void *x) {
    CLEANED;
    fgetc(file);
    return x;
}
static void *sleeps(void *x) {
    CLEANED;
    nanosleep(&(struct timespec){.tv_sec = 100}, NULL);
    return x;
}
static void *polls(void *x) {
    CLEANED;
    struct pollfd *fds = (struct pollfd *)far + 1;
    fds->fd = pipes[0], fds->events = POLLIN;
    poll(fds, 1, -1);
    return x;
}
static void *waits(void *of) {
    CLEANED;
    struct waiting *waiting = of;
    pthread_mutex_lock(&waiting->mutex);
    pthread_cleanup_push(unlock, &waiting->mutex);
    for (;;) pthread_cond_wait(&waiting->condition, &waiting->mutex);
    pthread_cleanup_pop(0);
    return of;
}

static volatile int handled, found;
static void handler(int s) {
    (void)s;
    void *frames[64];
    int n = backtrace(frames, 64);
    found = 0;
    for (int i = 0; i < n; i++) {
        Dl_info info;
        found |= dladdr(frames[i], &info) && info.dli_sname && !strcmp(info.dli_sname, "main");
    }
    handled++;
}
/* A handler comes into the call, and the call goes on. */
static void *handles_then_reads(void *x) {
    ready = 1;
    return reads_far(x);
}

static __thread sigjmp_buf landing;
static void jumps(int s) {
    (void)s;
    siglongjmp(landing, 1);
}
/* A handler leaves the call, and another call is made, from deeper. */
static void *jumps_then_reads(void *x) {
    CLEANED;
    if (!sigsetjmp(landing, 1)) {
        ready = 1;
        read(pipes[0], far, 1);
    }
    return deep(1, 20) ? x : reads_near(x);
}

static void cancel(const char *name, void *(*how)(void *), void *of, void *stack, int signal) {
    pthread_t thread;
    pthread_attr_t attributes;
    void *result;
    MUST(pthread_attr_init(&attributes) == 0);
    if (stack) MUST(pthread_attr_setstack(&attributes, stack, STACK) == 0);
    arrived = handled = 0;
    MUST(pthread_create(&thread, &attributes, how, of) == 0);
    if (signal) {
        while (!ready) usleep(1000);
        usleep(5000);
        ready = 0;
        MUST(pthread_kill(thread, signal) == 0);
    }
    /* However slow the machine: the handler has been, and who jumps has come to its other call. */
    while (arrived < (signal == SIGUSR2 ? 2 : 1) || handled < (signal == SIGUSR1)) usleep(100);
    usleep(name ? 5000 : 300);
    MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    if (name) printf("%s%s: cancelled %d, cleaned %d\n", name, stack ? ", far" : "", result == PTHREAD_CANCELED, cleaned);
    if (name) cleaned = 0;
}

/* A call that a signal ends, or goes on with after it. */
static void signalled(int flags, int readable) {
    struct sigaction a = {.sa_handler = handler, .sa_flags = flags};
    MUST(sigaction(SIGALRM, &a, NULL) == 0);
    for (int far_buffer = 0; far_buffer < 2; far_buffer++) {
        char byte;
        pid_t child = readable ? fork() : 0;
        if (readable && child == 0) {
            usleep(200000);
            write(pipes[1], "x", 1);
            _exit(0);
        }
        handled = 0;
        /* Again and again: on a slow machine one may come before the call. */
        struct itimerval timer = {.it_value.tv_usec = 10000, .it_interval.tv_usec = 50000}, none = {0};
        MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);
        errno = 0;
        ssize_t got = read(pipes[0], far_buffer ? far : &byte, 1);
        printf("read %zd, errno %d, handled %d", got, got < 0 ? errno : 0, handled > 0);
        if (!far_buffer) printf(", main found %d", found);
        if (readable) MUST(waitpid(child, NULL, 0) == child);
        struct pollfd fds = {.fd = pipes[0], .events = POLLIN};
        MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);
        errno = 0;
        int polled = poll(&fds, 1, 10000);
        printf("; polled %d, errno %d, main found %d", polled, errno, found);
        MUST(setitimer(ITIMER_REAL, &timer, NULL) == 0);
        struct timespec left = {0};
        errno = 0;
        int slept = nanosleep(&(struct timespec){.tv_sec = 10}, &left);
        printf("; slept %d, errno %d, left %d, main found %d\n", slept, errno, left.tv_sec == 9, found);
        MUST(setitimer(ITIMER_REAL, &none, NULL) == 0);
    }
}

int main(void) {
    void *warm[4];
    backtrace(warm, 4);
    MUST(pipe(pipes) == 0 && (file = fdopen(pipes[0], "r")));
    far = far_map(MIB);
    far_waiting = far_map(MIB);
    struct waiting initial = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
    initial.mutex.__data.__kind = PTHREAD_MUTEX_ERRORCHECK_NP;
    near_waiting = *far_waiting = initial;
    struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART}, b = {.sa_handler = jumps};
    MUST(sigaction(SIGUSR1, &a, NULL) == 0 && sigaction(SIGUSR2, &b, NULL) == 0);
    char *stack = far_map(STACK);
    for (int round = 0; round < 2; round++) {
        void *on = round ? stack : NULL;
        squeeze();
        cancel("read, near", reads_near, NULL, on, 0);
        cancel("read, far", reads_far, NULL, on, 0);
        cancel("fgetc", reads_file, NULL, on, 0);
        printf("stdio's lock: %d\n", ftrylockfile(file));
        funlockfile(file);
        cancel("nanosleep", sleeps, NULL, on, 0);
        cancel("poll", polls, NULL, on, 0);
        cancel("condition, near", waits, &near_waiting, on, 0);
        cancel("condition, far", waits, far_waiting, on, 0);
        cancel("read, far, after a handler", handles_then_reads, NULL, on, SIGUSR1);
        cancel("read, after a jump", jumps_then_reads, NULL, on, SIGUSR2);
    }
    /* More than the runtime has near stacks for calls from far ones. */
    for (int i = 0; i < OFTEN; i++) cancel(NULL, reads_far, NULL, stack, 0);
    printf("often: cleaned %d\n", cleaned);
    /* Behind those: whatever the mode, the runtime delivers all signals by now. */
    signalled(0, 0);
    signalled(SA_RESTART, 1);
    return 0;
}
