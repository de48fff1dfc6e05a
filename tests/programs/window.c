/* A signal at each instruction of a fault's last ones, where the mask is open and the registers are half restored: a
 * tracer goes there step by step. The handler sees the program's registers. */
#include "case.h"
#include "probe.h"
#include <sys/ptrace.h>
#include <sys/user.h>

/* The address behind the system call by which the runtime sets masks. */
static const uint64_t AFTER_CALL = (64ull << 40) + 0x10022;
/* Not over iretq: the kernel then takes the tracer's single steps for the program's own. */
enum { PAGES = 3072, TOUCHES = 1200, STEPS = 14 };

static struct state state;
static uint64_t contexts;
static volatile uint64_t signals;
static uint64_t *heap;
static char *stack;

static void on_signal(int s, siginfo_t *i, void *u) {
    (void)s, (void)i;
    signals++;
    if (in_probe(u)) contexts += probe_differs(u, &state);
    contexts += labs((char *)((ucontext_t *)u)->uc_mcontext.gregs[REG_RSP] - stack) > 65536;
    __builtin_ia32_ldmxcsr(0x1f80);
    heap[(signals % 64) * 512] += 1;
}

static int child(void) {
    struct sigaction a = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGUSR1, &a, NULL) == 0);
    uint8_t *far = far_map(PAGES * PAGE);
    heap = far_map(64 * PAGE);
    stack = __builtin_frame_address(0);
    for (int i = 0; i < PAGES; i++) *(uint64_t *)(far + i * PAGE) = mix(i);
    MUST(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
    raise(SIGSTOP);
    uint64_t wrong = 0;
    for (uint64_t x = 1; x <= TOUCHES; x++) {
        uint64_t page = mix(x) % PAGES;
        prepare(&state, far + page * PAGE, x, x % 3 == 0, mix(page));
        probe(&state);
        wrong += state_differs(&state, mix(page));
    }
    /* Counting faults as well. */
    sigset_t all;
    sigfillset(&all);
    MUST(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
    uint64_t counted = 0;
    for (int i = 0; i < 64; i++) counted += heap[i * 512];
    printf("wrong %lu, contexts %lu, all counted %d\n", wrong, contexts, counted == signals);
    fflush(stdout);
    return 0;
}

int main(void) {
    if (!__builtin_cpu_supports("avx")) {
        printf("no AVX\n");
        return 0;
    }
    fflush(stdout);
    pid_t p = fork();
    if (p == 0) _exit(child());
    int status, how = PTRACE_SYSCALL;
    long signal = 0;
    uint64_t sent[STEPS] = {0}, n = 0;
    waitpid(p, &status, 0);
    MUST(WIFSTOPPED(status) && ptrace(PTRACE_SETOPTIONS, p, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
    while (ptrace(how, p, 0, signal) == 0 && waitpid(p, &status, 0) == p && WIFSTOPPED(status)) {
        signal = WSTOPSIG(status);
        if (signal == (SIGTRAP | 0x80)) {
            struct user_regs_struct r;
            signal = 0;
            MUST(ptrace(PTRACE_GETREGS, p, 0, &r) == 0);
            /* Behind the call: before it the result is not there yet. The mask is in the fault's frame; elsewhere the
             * signal itself would lead to where it is sent again. */
            if (r.rip != AFTER_CALL || r.orig_rax != SYS_rt_sigprocmask || r.rax != 0 || r.rsi - r.rsp > PAGE) continue;
            int steps = n++ % STEPS, k = 0;
            for (; k < steps; k++) {
                MUST(ptrace(PTRACE_SINGLESTEP, p, 0, 0) == 0 && waitpid(p, &status, 0) == p);
                if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP) break;
            }
            if (!WIFSTOPPED(status)) break;
            /* A fault of its own, or what else is on its way, goes first. */
            signal = k == steps ? SIGUSR1 : WSTOPSIG(status);
            sent[steps] += k == steps;
        } else if (signal == SIGTRAP || signal == SIGSTOP) {
            signal = 0;
        }
    }
    printf("ended %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    uint64_t least = ~0ul;
    for (int k = 0; k < STEPS; k++) least = sent[k] < least ? sent[k] : least;
    fprintf(stderr, "signals at each step %lu\n", least);
}
