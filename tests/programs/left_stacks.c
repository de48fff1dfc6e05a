/* A thread on a far stack whose calls are left by jumps out of a handler, from one place again and again, more often than the
 * runtime has near stacks to serve them on; and from places at many depths. */
#include "case.h"
#include <setjmp.h>
#include <sys/time.h>

static sigjmp_buf out;
static int ends[2];
static uint8_t *buffer;

static void leaves(int s) {
    (void)s;
    siglongjmp(out, 1);
}

/* Waits for what does not come, with so many bytes of its own below the caller. */
static __attribute__((noinline)) void waits(size_t own) {
    volatile uint8_t *mine = __builtin_alloca(own + 16);
    mine[0] = 1;
    ssize_t n = read(ends[0], buffer, 4 * PAGE);
    printf("came back with %zd\n", n);
}

static void *works(void *arg) {
    struct sigaction sa = {.sa_handler = leaves};
    MUST(sigaction(SIGALRM, &sa, NULL) == 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    volatile int left = 0;
    for (volatile int i = 0; i < 700; i++) {
        if (sigsetjmp(out, 1) == 0) {
            struct itimerval soon = {.it_value.tv_usec = 1000};
            setitimer(ITIMER_REAL, &soon, NULL);
            waits(i < 600 ? 0 : 64 * (i % 10));
        }
        left++;
    }
    printf("left %d\n", left);
    return arg;
}

int main(void) {
    MUST(pipe(ends) == 0);
    buffer = far_map(16 * PAGE);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_attr_t on_far;
    pthread_attr_init(&on_far);
    MUST(pthread_attr_setstack(&on_far, far_map(MIB), MIB) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, &on_far, works, NULL) == 0);
    pthread_join(thread, NULL);
    squeeze();
    printf("done\n");
    return 0;
}
