/* What Free Pascal's programs do without libc, in a program that names that compiler: one function makes system calls of
 * any number. Handlers, masks, mappings, forks, and calls with far arguments. */
#include "case.h"

/* The name by which such a program is known. */
__attribute__((used)) static char name[] = "FPC 3.2.2 [2023/03/30] for x86_64 - Linux";

/* The number, then the arguments; -1 is any error. */
long do_syscall(long number, ...);
__asm__("do_syscall:\n\t"
        "mov %rdi, %rax\n\tmov %rsi, %rdi\n\tmov %rdx, %rsi\n\tmov %rcx, %rdx\n\tmov %r8, %r10\n\tmov %r9, %r8\n\t"
        "mov 8(%rsp), %r9\n\t"
        "syscall\n\t"
        "cmp $-4095, %rax\n\t"
        "jb 1f\n\tor $-1, %rax\n1:\tret\n"
        "restorer: mov $15, %rax\n\tsyscall");
extern char restorer[];

/* The kernel's, not libc's. */
struct action {
    void *handler;
    uint64_t flags;
    void *restorer;
    uint64_t mask;
};

enum { BYTES = 16 << 20, RESTORER = 0x04000000 };
static volatile sig_atomic_t faults, alarms;
static uint8_t *file;

/* The fault is mended by memory in the place of the file's. */
static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)context;
    faults += signal == SIGBUS && (uint8_t *)info->si_addr == file + PAGE ? 1 : 100;
    long flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    MUST(do_syscall(SYS_mmap, file, 2 * PAGE, 3l, flags, -1l, 0l) == (long)file);
}

static void on_alarm(int signal) {
    (void)signal;
    alarms++;
}

static void handles(int signal, void *handler, long flags) {
    struct action action = {handler, flags | RESTORER, restorer, 0}, before;
    MUST(do_syscall(SYS_rt_sigaction, (long)signal, &action, &before, 8l, 0l, 0l) == 0);
    MUST(before.handler == 0);
}

int main(void) {
    size_t bad = 0;
    handles(SIGBUS, on_fault, SA_SIGINFO);
    handles(SIGUSR1, on_alarm, 0);
    /* Memory that is mapped by such a call. */
    uint8_t *mem = (void *)do_syscall(SYS_mmap, 0l, (long)BYTES, 3l, (long)(MAP_PRIVATE | MAP_ANONYMOUS), -1l, 0l);
    MUST(mem != MAP_FAILED);
    fill(mem, BYTES, 1);
    squeeze();
    printf("handled, bad %zu, faults %d\n", bad += wrong(mem, BYTES, 1), faults);

    char path[] = "/tmp/pascal_XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    file = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(file != MAP_FAILED && ftruncate(fd, PAGE) == 0);
    bad += ((volatile uint8_t *)file)[PAGE];
    printf("beyond the file, faults %d, bad %zu\n", faults, bad);

    /* Far arguments, and errors. */
    squeeze();
    MUST(do_syscall(SYS_pwrite64, (long)fd, mem + BYTES / 2, 8 * PAGE, 0l, 0l, 0l) == 8 * PAGE);
    squeeze();
    MUST(do_syscall(SYS_pread64, (long)fd, mem + PAGE, 8 * PAGE, 0l, 0l, 0l) == 8 * PAGE);
    bad += memcmp(mem + PAGE, mem + BYTES / 2, 8 * PAGE) != 0;
    fill(mem, BYTES, 1);
    printf("calls, bad %zu, error %ld\n", bad, do_syscall(SYS_close, 4711l, 0l, 0l, 0l, 0l, 0l));

    /* All signals are blocked, and far memory is used. */
    uint64_t all = ~0ul, before = 0;
    MUST(do_syscall(SYS_rt_sigprocmask, (long)SIG_BLOCK, &all, &before, 8l, 0l, 0l) == 0);
    MUST(do_syscall(SYS_kill, (long)getpid(), (long)SIGUSR1, 0l, 0l, 0l, 0l) == 0);
    squeeze();
    bad += wrong(mem, BYTES, 1);
    printf("blocked, alarms %d, bad %zu\n", alarms, bad);
    MUST(do_syscall(SYS_rt_sigprocmask, (long)SIG_SETMASK, &before, 0l, 8l, 0l, 0l) == 0);
    printf("unblocked, alarms %d\n", alarms);

    /* A child that uses what its parent had, and executes another program by far arguments. */
    fflush(stdout);
    for (int round = 0; round < 3; round++) {
        long child = do_syscall(SYS_fork, 0l, 0l, 0l, 0l, 0l, 0l);
        if (child == 0) {
            bad += wrong(mem, BYTES, 1);
            fill(mem, BYTES, 2);
            squeeze();
            bad += wrong(mem, BYTES, 2);
            char **argv = (void *)mem;
            argv[0] = strcpy((char *)mem + 2 * PAGE, "sh");
            argv[1] = strcpy((char *)mem + 4 * PAGE, "-c");
            argv[2] = strcpy((char *)mem + 6 * PAGE, "exit 7");
            argv[3] = NULL;
            char **environment = (void *)(mem + 8 * PAGE);
            environment[0] = NULL;
            char *shell = strcpy((char *)mem + BYTES / 2, "/bin/sh");
            squeeze();
            if (bad == 0 && round < 2) do_syscall(SYS_execve, shell, argv, environment, 0l, 0l, 0l);
            do_syscall(SYS_exit_group, bad ? 1l : 3l, 0l, 0l, 0l, 0l, 0l);
        }
        int status;
        MUST(child > 0 && do_syscall(SYS_wait4, child, &status, 0l, 0l, 0l, 0l) == child);
        printf("child ended with %x, bad %zu\n", status, bad += wrong(mem, BYTES, 1));
    }
    printf("%d\n", name[0] == 'F');
    return 0;
}
