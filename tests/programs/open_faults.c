/* A signal at each instruction of a fault: at the first ones, at the last ones up to its return, and anywhere between. A
 * tracer goes there step by step. Every signal comes, once; its handler sees the program's registers. */
#include "case.h"
#include "probe.h"
#include <sys/ptrace.h>
#include <sys/user.h>

enum { PAGES = 3072, TOUCHES = 600, FIRST = 32, LAST = 40, MOST = 60000 };
static const uint16_t IRETQ = 0xcf48;

static struct state state;
static uint64_t contexts;
static struct { volatile uint64_t signals, quiet; } *told;
static uint64_t *heap;
static char *stack;

static void on_signal(int s, siginfo_t *i, void *u) {
    (void)s, (void)i;
    told->quiet = 1;
    told->signals++;
    if (in_probe(u)) contexts += probe_differs(u, &state);
    contexts += labs((char *)((ucontext_t *)u)->uc_mcontext.gregs[REG_RSP] - stack) > 65536;
    __builtin_ia32_ldmxcsr(0x1f80);
    heap[(told->signals % 64) * 512] += 1;
    told->quiet = 0;
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
    /* No more of them: counting faults as well. */
    told->quiet = 1;
    uint64_t counted = 0;
    for (int i = 0; i < 64; i++) counted += heap[i * 512];
    printf("wrong %lu, contexts %lu, all counted %d\n", wrong, contexts, counted == told->signals);
    fflush(stdout);
    return 0;
}

static uint64_t rip(pid_t p) {
    struct user_regs_struct r;
    MUST(ptrace(PTRACE_GETREGS, p, 0, &r) == 0);
    return r.rip;
}

/* Whether there is a step to be made: none over iretq, behind which the kernel takes the tracer's steps for the program's. */
static int step(pid_t p, int *status) {
    errno = 0;
    long code = ptrace(PTRACE_PEEKTEXT, p, rip(p), 0);
    if (errno != 0 || (uint16_t)code == IRETQ) return 0;
    MUST(ptrace(PTRACE_SINGLESTEP, p, 0, 0) == 0 && waitpid(p, status, 0) == p);
    return WIFSTOPPED(*status) && WSTOPSIG(*status) == SIGTRAP;
}

static uint64_t last[LAST];

/* All of one fault; how many steps to the last instruction, and which the last ones are. */
static int learn(pid_t p, int *status) {
    static uint64_t seen[MOST];
    int n = 0;
    do seen[n++] = rip(p);
    while (n < MOST && step(p, status));
    for (int i = 0; i < LAST; i++) last[i] = n > i ? seen[n - 1 - i] : 0;
    return n - 1;
}

int main(void) {
    if (!__builtin_cpu_supports("avx")) {
        printf("no AVX\n");
        return 0;
    }
    fflush(stdout);
    told = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(told != MAP_FAILED);
    pid_t p = fork();
    if (p == 0) _exit(child());
    int status, all = 0;
    long signal = 0;
    uint64_t sent = 0, faults = 0, at_first[FIRST] = {0}, at_last[LAST] = {0};
    waitpid(p, &status, 0);
    MUST(WIFSTOPPED(status) && ptrace(PTRACE_SETOPTIONS, p, 0, PTRACE_O_EXITKILL) == 0);
    while (ptrace(PTRACE_CONT, p, 0, signal) == 0 && waitpid(p, &status, 0) == p && WIFSTOPPED(status)) {
        signal = WSTOPSIG(status);
        if (signal == SIGSTOP) signal = 0;
        if (signal != SIGBUS || told->quiet) continue;
        /* To the handler's first instruction. */
        MUST(ptrace(PTRACE_SINGLESTEP, p, 0, SIGBUS) == 0 && waitpid(p, &status, 0) == p);
        if (!WIFSTOPPED(status)) break;
        if (WSTOPSIG(status) != SIGTRAP) {
            signal = WSTOPSIG(status);
            continue;
        }
        uint64_t n = faults++, turn = n / 3;
        if (n % 64 == 0) {
            /* The last ones are others after a change of the path. */
            all = learn(p, &status);
            signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
            continue;
        }
        uint64_t steps = n % 3 == 0 ? turn % FIRST : n % 3 == 1 ? MOST : mix(n) % (all + 1);
        uint64_t until = n % 3 == 1 ? last[turn % LAST] : 0, k = 0;
        int there = 1;
        for (; there && k < steps && rip(p) != until; k++) there = step(p, &status);
        if (!WIFSTOPPED(status)) break;
        /* What else is on its way goes first. */
        if (!there && WSTOPSIG(status) != SIGTRAP) {
            signal = WSTOPSIG(status);
            continue;
        }
        signal = 0;
        MUST(syscall(SYS_tgkill, p, p, SIGUSR1) == 0);
        sent++;
        if (n % 3 == 0 && there) at_first[turn % FIRST]++;
        if (n % 3 == 1 && there) at_last[turn % LAST]++;
    }
    printf("ended %d, all came %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, told->signals == sent);
    uint64_t least = ~0ul;
    for (int k = 0; k < FIRST; k++) least = at_first[k] < least ? at_first[k] : least;
    for (int k = 0; k < LAST; k++) least = at_last[k] < least ? at_last[k] : least;
    fprintf(stderr, "signals at each place %lu, sent %lu, came %lu\n", least, sent, told->signals);
}
