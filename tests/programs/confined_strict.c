/* Strict mode: from now on a thread may read, write and end, on pain of SIGKILL. Its memory is as good as before. */
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include "case.h"

enum { BYTES = 16 << 20 };
static uint8_t *mem, *other;

static void say(const char *what, size_t n) {
    char line[80];
    write(1, line, snprintf(line, sizeof line, "%s %zu\n", what, n));
}

enum { ENDS, BY_LIBC, FORBIDDEN, INLINE, FOREIGN };

static void child(int by_prctl, int how) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int done = by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) : syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL);
        say("confined", done);
        say("wrong", wrong(mem, BYTES, 1));
        fill(other, BYTES, 2);
        say("wrong", wrong(mem, BYTES, 1) + wrong(other, BYTES, 2));
        /* From far memory, by way of the runtime. */
        memcpy(other, "far\n", 4);
        write(1, other, 4);
        long number = SYS_getppid, out;
        if (how == FORBIDDEN) getppid();
        if (how == INLINE) __asm__ volatile("syscall" : "=a"(out) : "a"(number) : "rcx", "r11", "memory");
        /* By the table of 32-bit programs, where 15, which returns from handlers here, is chmod. */
        number = SYS_rt_sigreturn;
        if (how == FOREIGN) __asm__ volatile("int $0x80" : "=a"(out) : "a"(number), "b"(0), "c"(0) : "memory");
        if (how == BY_LIBC) _exit(5); /* exit_group, which is not allowed */
        syscall(SYS_exit, 6);
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
    for (int how = ENDS; how <= FOREIGN; how++) child(how % 2, how);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) == -1 && errno == EINVAL);
}
