/* What a debugger does: reads a stopped process's far memory through the kernel,
 * calls a function in it to have an absent page brought in, and reads again. */
#include "case.h"
#include <dlfcn.h>
#include <sys/ptrace.h>
#include <sys/user.h>

enum { N = 400000 };
struct item {
    uint64_t id;
    char name[24];
} *items;

static int memory;
static int readable(const void *at, struct item *into) {
    return pread(memory, into, sizeof *into, (off_t)at) == sizeof *into;
}

/* Until the child ends or stops for a signal that is not the runtime's: those are passed on, as with
 * gdb's `handle SIGBUS SIGSYS nostop noprint pass`. */
static int go_on(pid_t child) {
    int status, signal = 0;
    do {
        MUST(ptrace(PTRACE_CONT, child, 0, (long)signal) == 0);
        MUST(waitpid(child, &status, 0) == child);
        signal = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
    } while (signal == SIGBUS || signal == SIGSYS);
    return status;
}

/* Calls a function of two arguments in the stopped child, as gdb's `call` does. */
static long call_in(pid_t child, void *function, long a, long b) {
    struct user_regs_struct before, regs;
    MUST(ptrace(PTRACE_GETREGS, child, 0, &before) == 0);
    regs = before;
    regs.rsp = ((before.rsp - 1024) & ~15ul) - 8;
    MUST(ptrace(PTRACE_POKEDATA, child, (void *)regs.rsp, (void *)8) == 0);
    regs.rip = (unsigned long)function, regs.rdi = a, regs.rsi = b, regs.rax = 0, regs.orig_rax = -1;
    MUST(ptrace(PTRACE_SETREGS, child, 0, &regs) == 0);
    int status = go_on(child);
    MUST(ptrace(PTRACE_GETREGS, child, 0, &regs) == 0);
    MUST(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSEGV && regs.rip == 8); /* it has returned to where nothing is */
    MUST(ptrace(PTRACE_SETREGS, child, 0, &before) == 0);
    return regs.rax;
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    items = malloc(N * sizeof *items);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < N; i++) {
            items[i].id = i;
            snprintf(items[i].name, sizeof items[i].name, "item %d", i);
        }
        squeeze();
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        uint64_t sum = 0;
        for (int i = 0; i < N; i++) sum += items[i].id;
        printf("child's sum %lu\n", sum);
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    char path[40];
    snprintf(path, sizeof path, "/proc/%d/mem", child);
    MUST((memory = open(path, O_RDONLY)) >= 0);
    void *fetch = dlsym(RTLD_DEFAULT, "farmem_fetch");
    struct item *wanted = &items[N / 2], *found = malloc(sizeof *found);
    /* Natively it is readable at once. */
    MUST(readable(wanted, found) == !fetch);
    if (fetch) MUST(call_in(child, fetch, (long)wanted, sizeof *wanted) == sizeof *wanted);
    MUST(readable(wanted, found));
    printf("%lu, %s\n", found->id, found->name);
    status = go_on(child);
    printf("ended %d %d\n", WIFEXITED(status), WEXITSTATUS(status));
}
