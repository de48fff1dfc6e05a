/* A program that confines itself: from now on it may read, write and end, and nothing else, on pain of death. Its memory
 * is as good as before, also what is taken out and fetched then, and so is that of a thread and of a child that were
 * there before. What is forbidden stays forbidden. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "case.h"

enum { BYTES = 16 << 20 };
static uint8_t *mem, *other;

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define CASE(number, verdict)                                                                      \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, verdict)

static int confine(unsigned flags) {
    struct sock_filter filter[] = {
        LOAD(nr),
        CASE(SYS_read, SECCOMP_RET_ALLOW),
        CASE(SYS_write, SECCOMP_RET_ALLOW),
        CASE(SYS_exit, SECCOMP_RET_ALLOW),
        CASE(SYS_exit_group, SECCOMP_RET_ALLOW),
        CASE(SYS_rt_sigreturn, SECCOMP_RET_ALLOW),
        CASE(SYS_futex, SECCOMP_RET_ALLOW),
        CASE(SYS_fsync, SECCOMP_RET_ERRNO | 77),
        CASE(SYS_sendto, SECCOMP_RET_ERRNO | 78),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (flags == 0) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

static void say(const char *what, size_t n) {
    char line[80];
    write(1, line, snprintf(line, sizeof line, "%s %zu\n", what, n));
}

/* Long enough for the runtime to do what it does now and then, which must not be forbidden either. */
static void work(void) {
    for (int round = 0; round < 3; round++) {
        squeeze();
        say("wrong", wrong(mem, BYTES, 1));
        fill(other, BYTES, 2 + round);
        squeeze();
        say("wrong", wrong(other, BYTES, 2 + round));
        for (volatile long i = 0; i < 100000000; i++);
    }
}

static int go[2], done[2];

/* Never ends, for that takes more than is allowed. */
static void *thread(void *unused) {
    char byte;
    MUST(write(done[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
    say("thread, wrong", wrong(mem, BYTES, 1));
    MUST(write(done[1], "x", 1) == 1);
    read(go[0], &byte, 1);
    return unused;
}

static void child(unsigned flags, int forbidden) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t other_thread;
        MUST(pipe(go) == 0 && pipe(done) == 0);
        char byte;
        if (flags) MUST(pthread_create(&other_thread, NULL, thread, NULL) == 0 && read(done[0], &byte, 1) == 1);
        MUST(confine(flags) == 0);
        MUST(fsync(1) == -1 && errno == 77);
        /* By way of the runtime, which brings the bytes in: the filter is asked all the same. */
        squeeze();
        MUST(sendto(1, mem, 100, 0, NULL, 0) == -1 && errno == 78);
        work();
        if (flags) MUST(write(go[1], "x", 1) == 1 && read(done[0], &byte, 1) == 1);
        if (forbidden) getppid();
        _exit(5);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    if (WIFSIGNALED(status)) printf("killed by %d\n", WTERMSIG(status));
    else printf("exited %d\n", WEXITSTATUS(status));
}

int main(void) {
    mem = far_map(BYTES);
    other = far_map(BYTES);
    fill(mem, BYTES, 1);
    squeeze();
    child(0, 0);
    child(0, 1);
    child(SECCOMP_FILTER_FLAG_TSYNC, 0);
}
