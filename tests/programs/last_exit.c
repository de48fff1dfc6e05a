/* The end of a thread by its system call, without libc: the process ends with its last one, whatever threads the runtime
 * has besides. */
#include "case.h"

enum { BYTES = 8 << 20 };
static uint8_t *mem;

static void *ends_it(void *unused) {
    usleep(50000);
    if (wrong(mem, BYTES, 1)) _exit(9);
    _exit(8);
    return unused;
}

static void *returns(void *wait) {
    if (wait) usleep(50000);
    return (void *)(uintptr_t)wrong(mem, BYTES, 1);
}

/* The first thread ends before the other, which ends as pthreads do; or right after it, when the kernel may still count
 * the other. */
static void ends_first(int joins) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        squeeze();
        pthread_t thread;
        void *r = NULL;
        MUST(pthread_create(&thread, NULL, returns, joins ? NULL : mem) == 0);
        if (joins) MUST(pthread_join(thread, &r) == 0 && !r);
        syscall(SYS_exit, 7);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    if (!joins || status != 0x700) printf("joins %d: %x\n", joins, status);
}

static void child(int others) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        squeeze();
        if (wrong(mem, BYTES, 1)) _exit(9);
        pthread_t thread;
        if (others) MUST(pthread_create(&thread, NULL, ends_it, NULL) == 0);
        syscall(SYS_exit, 7);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    printf("%d: %x\n", others, status);
}

int main(void) {
    mem = far_map(BYTES);
    fill(mem, BYTES, 1);
    for (int others = 0; others < 2; others++) child(others);
    ends_first(0);
    for (int i = 0; i < 10; i++) ends_first(1);
    squeeze();
    printf("wrong %zu\n", wrong(mem, BYTES, 1));
    fflush(stdout);
    syscall(SYS_exit, 0);
}
