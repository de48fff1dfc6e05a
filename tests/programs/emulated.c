/* A process whose system calls somebody else answers, as emulators do: one who takes MAP_FIXED_NOREPLACE for a hint, and
 * does not follow it. No far memory can be in there, and the process must not notice. */
#include "case.h"
#include <sys/ptrace.h>
#include <sys/user.h>

/* What is executed, under the tracer. */
static void inner(void) {
    const size_t bytes = 16 * MIB;
    uint8_t *p = far_map(bytes);
    fill(p, bytes, 7);
    int ends[2];
    MUST(pipe(ends) == 0);
    MUST(write(ends[1], p + MIB, 4096) == 4096);
    MUST(read(ends[0], p + 2 * MIB, 4096) == 4096);
    printf("within: %d, %zu wrong\n", memcmp(p + MIB, p + 2 * MIB, 4096), wrong(p + 4 * MIB, bytes - 4 * MIB, 7 + MIB / 2));
    pid_t child = fork();
    if (child == 0) _exit(wrong(p, MIB, 7) ? 1 : 23);
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("its child: %d\n", WEXITSTATUS(status));
}

int main(int argc, char **argv) {
    if (argc > 1) {
        inner();
        return 0;
    }
    uint8_t *p = far_map(8 * MIB);
    fill(p, 8 * MIB, 3);
    squeeze();
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execl("/proc/self/exe", argv[0], "within", (char *)NULL);
        _exit(99);
    }
    int status, entered = 0;
    MUST(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    MUST(ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
    long signal = 0;
    for (;;) {
        MUST(ptrace(PTRACE_SYSCALL, child, 0, signal) == 0);
        MUST(waitpid(child, &status, 0) == child);
        if (!WIFSTOPPED(status)) break;
        signal = WSTOPSIG(status);
        if (signal != (SIGTRAP | 0x80)) continue;
        signal = 0;
        entered = !entered;
        struct user_regs_struct regs;
        MUST(ptrace(PTRACE_GETREGS, child, 0, &regs) == 0);
        if (!entered || regs.orig_rax != SYS_mmap || !(regs.r10 & MAP_FIXED_NOREPLACE)) continue;
        regs.rdi = 0;
        regs.r10 &= ~(unsigned long)MAP_FIXED_NOREPLACE;
        MUST(ptrace(PTRACE_SETREGS, child, 0, &regs) == 0);
    }
    printf("ended %d %d, %zu wrong\n", WIFEXITED(status), WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
           wrong(p, 8 * MIB, 3));
}
