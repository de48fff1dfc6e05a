/* Structures and strings that calls point to, at far addresses: in shared memory that lies there, where the runtime has
 * no pages of its own; and where they may not be read or written, which the system says. */
#include "case.h"
#include <poll.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define SAY(call)                                                                                  \
    do {                                                                                           \
        errno = 0;                                                                                 \
        long r_ = (long)(call);                                                                    \
        int e_ = errno;                                                                            \
        printf("%s: %ld, errno %d\n", #call, r_, e_);                                              \
    } while (0)

int main(int argc, char **argv) {
    int rw = PROT_READ | PROT_WRITE;
    uint8_t *p = far_map(8 * MIB);
    fill(p, 8 * MIB, 1);
    char *s = mmap(p + MIB, MIB, rw, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    MUST(s == (char *)p + MIB);
    squeeze();

    /* In shared memory. */
    sigset_t *set = (void *)s, *old = (void *)(s + PAGE);
    sigemptyset(set);
    sigaddset(set, SIGUSR1);
    SAY(sigprocmask(SIG_BLOCK, set, old));
    SAY(sigprocmask(SIG_BLOCK, NULL, old));
    printf("member %d\n", sigismember(old, SIGUSR1));
    struct sigaction *action = (void *)(s + 2 * PAGE);
    action->sa_handler = SIG_IGN;
    SAY(sigaction(SIGUSR2, action, action + 1));
    stack_t *stack = (void *)(s + 3 * PAGE);
    SAY(sigaltstack(NULL, stack));
    struct rlimit *limit = (void *)(s + 4 * PAGE);
    SAY(getrlimit(RLIMIT_NOFILE, limit));
    SAY(setrlimit(RLIMIT_NOFILE, limit));
    struct timespec *time = (void *)(s + 5 * PAGE);
    *time = (struct timespec){0, 1000};
    SAY(ppoll(NULL, 0, time, set));
    /* Vectors there, of far buffers that have left. */
    int ends[2];
    MUST(pipe(ends) == 0);
    struct iovec *vectors = (void *)(s + 6 * PAGE);
    for (int i = 0; i < 4; i++) vectors[i] = (struct iovec){p + 2 * MIB + i * 16 * PAGE, PAGE};
    squeeze();
    SAY(writev(ends[1], vectors, 4));
    for (int i = 0; i < 4; i++) vectors[i].iov_base = p + 4 * MIB + i * 16 * PAGE;
    squeeze();
    SAY(readv(ends[0], vectors, 4));
    for (int i = 0; i < 4; i++) MUST(memcmp(p + 2 * MIB + i * 16 * PAGE, p + 4 * MIB + i * 16 * PAGE, PAGE) == 0);

    /* Where nobody may read or write, or only read. */
    char *barred = (char *)p + 6 * MIB, *fixed = (char *)p + 7 * MIB;
    strcpy(barred, "/");
    strcpy(fixed, "/");
    for (int left = 0; left < 2; left++) {
        MUST(mprotect(barred, MIB, PROT_NONE) == 0 && mprotect(fixed, MIB, PROT_READ) == 0);
        if (left) squeeze();
        SAY(access(barred, F_OK));
        SAY(access(fixed, F_OK));
        SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, barred, NULL, 8));
        SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, barred, 8));
        SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, fixed, 8));
        SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, fixed, NULL, 8));
        SAY(syscall(SYS_sigaltstack, NULL, barred));
        SAY(syscall(SYS_sigaltstack, NULL, fixed));
        SAY(readv(ends[0], (void *)barred, 2));
        SAY(execv(barred, argv));
        /* Near ones. */
        SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, (void *)8, 8));
        SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, (void *)main, 8));
        SAY(syscall(SYS_sigaltstack, NULL, (void *)8));
        MUST(mprotect(barred, MIB, rw) == 0 && mprotect(fixed, MIB, rw) == 0);
        printf("%s %s\n", barred, fixed);
    }

    /* Vectors that cannot be read, or not to their end, where the path is far. */
    {
        char *path = strcpy(s + 9 * PAGE, "/bin/echo"), *nowhere = strcpy(s + 11 * PAGE, "/nowhere");
        char **endless = mmap(NULL, 64 * PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(endless != MAP_FAILED && munmap(endless + 63 * PAGE / 8, PAGE) == 0);
        char **last = endless + 63 * PAGE / 8 - 2;
        last[0] = last[1] = path;
        squeeze();
        extern char **environ;
        char **volatile none = (char **)8;
        SAY(execve(path, none, environ));
        SAY(execve(path, argv, none));
        SAY(execve(path, last, environ));
        SAY(execve(path, argv, last));
        SAY(execve(path, endless + 63 * PAGE / 8, environ));
        SAY(execve(nowhere, none, environ));
        SAY(execve(nowhere, last, environ));
        SAY(execve("/bin/echo", last, NULL));
    }

    char **words = (char **)(s + 8 * PAGE);
    words[0] = strcpy(s + 9 * PAGE, "/bin/echo");
    words[1] = strcpy(s + 10 * PAGE, "hello");
    words[2] = NULL;
    fflush(stdout);
    execv(words[0], words);
    perror("exec");
}
