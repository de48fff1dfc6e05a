/* Threads that end by the system call on stacks in far memory, more of them than the runtime has near ones for such. */
#include "case.h"
#include <ucontext.h>

enum { THREADS = 600, STACK = 256 << 10 };
static uint8_t *stack;
static int ended;

static void ends(void) {
    ended++;
    syscall(SYS_exit, 0);
}

static void *thread(void *unused) {
    ucontext_t here, there;
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = STACK;
    there.uc_link = &here;
    makecontext(&there, ends, 0);
    swapcontext(&here, &there);
    return unused;
}

int main(void) {
    stack = far_map(STACK);
    for (int i = 0; i < THREADS; i++) {
        if (i % 100 == 0) squeeze();
        pthread_t made;
        MUST(pthread_create(&made, NULL, thread, NULL) == 0);
        MUST(pthread_join(made, NULL) == 0);
    }
    printf("ended %d\n", ended);
}
