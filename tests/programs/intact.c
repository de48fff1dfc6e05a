// Checks itself while somebody traces it, until SIGTERM; then says whether it was harmed ("unharmed", status 0).
//
//   intact registers N     N threads that keep values in every register, vectors among them, and below their stack
//                          pointers, and look whether they stay; beside them one that makes calls and checks results
//   intact asleep HOW      its only thread is in calls that wait, which nothing may end but their time (sleep, poll)
//                          or the signal that they wait for (read, suspend)
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t over;
static void end(int signal) { over = 1; }

static void harmed(const char *how) {
    fprintf(stderr, "harmed: %s (%s)\n", how, strerror(errno));
    exit(3);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

// What a thread keeps: general registers, the red zone, vectors. Beside each member, where it is.
struct kept {
    uint64_t general[14];      // 0: rax rbx rcx rdx rsi rdi r8 .. r15
    uint64_t spins;            // 112
    uint64_t red[16];          // 120: what is below the stack pointer
    uint64_t unused;           // 248
    uint8_t vectors[32][64];   // 256
    uint64_t masks[8];         // 2304
    uint32_t mxcsr;            // 2368
    uint16_t control, unused2; // 2372
} __attribute__((aligned(64)));

// Loads all of it, spins, stores all of it again. rbp counts the spins; no other register but rsp is left out.
#define TIMES(COUNT, WHAT)                                                                                             \
    ".altmacro\n .macro each n\n" WHAT "\n .endm\n .set i, 0\n .rept " #COUNT                                          \
    "\n each %%i\n .set i, i+1\n .endr\n .purgem each\n .noaltmacro\n"
#define SPIN(LOAD_VECTORS, STORE_VECTORS)                                                                              \
    __asm__ volatile("push %%rbp\n push %%rbx\n push %%r12\n push %%r13\n push %%r14\n push %%r15\n push %%rax\n"      \
                     "ldmxcsr 2368(%%rax)\n fldcw 2372(%%rax)\n" LOAD_VECTORS                                          \
                     TIMES(16, "mov 120+\\n*8(%%rax), %%rbx\n mov %%rbx, -128+\\n*8(%%rsp)")                           \
                     "mov 112(%%rax), %%rbp\n mov 8(%%rax), %%rbx\n mov 16(%%rax), %%rcx\n mov 24(%%rax), %%rdx\n"     \
                     "mov 32(%%rax), %%rsi\n mov 40(%%rax), %%rdi\n mov 48(%%rax), %%r8\n mov 56(%%rax), %%r9\n"       \
                     "mov 64(%%rax), %%r10\n mov 72(%%rax), %%r11\n mov 80(%%rax), %%r12\n mov 88(%%rax), %%r13\n"     \
                     "mov 96(%%rax), %%r14\n mov 104(%%rax), %%r15\n mov 0(%%rax), %%rax\n"                            \
                     "1: dec %%rbp\n jnz 1b\n"                                                                         \
                     "xchg %%rax, (%%rsp)\n" /* the address is in rax again, and what rax held on the stack */         \
                     "mov %%rbx, 8(%%rax)\n mov %%rcx, 16(%%rax)\n mov %%rdx, 24(%%rax)\n mov %%rsi, 32(%%rax)\n"      \
                     "mov %%rdi, 40(%%rax)\n mov %%r8, 48(%%rax)\n mov %%r9, 56(%%rax)\n mov %%r10, 64(%%rax)\n"       \
                     "mov %%r11, 72(%%rax)\n mov %%r12, 80(%%rax)\n mov %%r13, 88(%%rax)\n mov %%r14, 96(%%rax)\n"     \
                     "mov %%r15, 104(%%rax)\n"                                                                         \
                     TIMES(16, "mov -128+\\n*8(%%rsp), %%rbx\n mov %%rbx, 120+\\n*8(%%rax)")                           \
                     STORE_VECTORS "stmxcsr 2368(%%rax)\n fnstcw 2372(%%rax)\n"                                        \
                     "pop %%rbx\n mov %%rbx, 0(%%rax)\n"                                                               \
                     "pop %%r15\n pop %%r14\n pop %%r13\n pop %%r12\n pop %%rbx\n pop %%rbp\n"                         \
                     : "+a"(at)                                                                                        \
                     :                                                                                                 \
                     : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc", "xmm0", "xmm1", "xmm2",   \
                       "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",     \
                       "xmm14", "xmm15")

static void spin_sse(struct kept *at) {
    SPIN(TIMES(16, "movups 256+\\n*64(%%rax), %%xmm\\n"), TIMES(16, "movups %%xmm\\n, 256+\\n*64(%%rax)"));
}
static void spin_avx(struct kept *at) {
    SPIN(TIMES(16, "vmovups 256+\\n*64(%%rax), %%ymm\\n"),
         TIMES(16, "vmovups %%ymm\\n, 256+\\n*64(%%rax)") "vzeroupper\n");
}
static void spin_avx512(struct kept *at) {
    SPIN(TIMES(32, "vmovups 256+\\n*64(%%rax), %%zmm\\n") TIMES(8, "kmovw 2304+\\n*8(%%rax), %%k\\n"),
         TIMES(32, "vmovups %%zmm\\n, 256+\\n*64(%%rax)") TIMES(8, "kmovw %%k\\n, 2304+\\n*8(%%rax)") "vzeroupper\n");
}

static uint64_t mask_of_signals(void) {
    uint64_t mask = 0;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, 0, &mask, 8);
    return mask;
}

static void *keeper(void *number) {
    uint64_t random = 88172645463325252u + (uintptr_t)number;
    struct kept kept, before;
    stack_t none, stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    if (sigaltstack(&stack, 0)) harmed("sigaltstack");
    uint64_t mask = mask_of_signals();
    __builtin_cpu_init();
    while (!over) {
        for (size_t word = 0; word < sizeof kept / 8; word++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            ((uint64_t *)&kept)[word] = random;
        }
        for (int n = 0; n < 8; n++) kept.masks[n] &= 0xffff;
        // One of four roundings; all exceptions masked, the sticky flags clear.
        kept.mxcsr = 0x1f80 | (random & 3) << 13;
        kept.control = 0x37f & ~(random & 0x100);
        kept.spins = 3000 + random % 60000;
        before = kept;
        if (__builtin_cpu_supports("avx512f")) spin_avx512(&kept);
        else if (__builtin_cpu_supports("avx")) spin_avx(&kept);
        else spin_sse(&kept);
        uint16_t usual = 0x37f;
        uint32_t usual_mxcsr = 0x1f80;
        __asm__ volatile("fldcw %0\n ldmxcsr %1" : : "m"(usual), "m"(usual_mxcsr));
        if (memcmp(&kept, &before, sizeof kept)) {
            for (size_t word = 0; word < sizeof kept / 8; word++)
                if (((uint64_t *)&kept)[word] != ((uint64_t *)&before)[word])
                    fprintf(stderr, "word %zu: %lx, not %lx\n", word, ((uint64_t *)&kept)[word], ((uint64_t *)&before)[word]);
            harmed("a register is not what it was");
        }
        if (mask_of_signals() != mask) harmed("other signals are blocked");
        if (sigaltstack(0, &none) || none.ss_sp != stack.ss_sp || none.ss_size != stack.ss_size || none.ss_flags)
            harmed("another stack for signals");
    }
    return 0;
}

static void *caller(void *unused) {
    int ends[2];
    if (pipe(ends)) harmed("pipe");
    pid_t process = getpid(), thread = syscall(SYS_gettid);
    char out[300], in[300];
    for (uint64_t round = 0; !over; round++) {
        memset(out, (int)round, sizeof out);
        if (syscall(SYS_getpid) != process || syscall(SYS_gettid) != thread) harmed("another thread");
        if (write(ends[1], out, sizeof out) != sizeof out) harmed("write");
        if (read(ends[0], in, sizeof in) != sizeof in || memcmp(in, out, sizeof in)) harmed("read");
        if (close(-1) != -1 || errno != EBADF) harmed("close");
    }
    return 0;
}

static volatile sig_atomic_t alarms;
static void alarmed(int signal) { alarms++; }

// Waits that are over at a known time, by nothing but themselves or a signal.
static void asleep(const char *how) {
    struct sigaction action = {.sa_handler = alarmed};
    sigaction(SIGALRM, &action, 0);
    int ends[2];
    if (pipe(ends)) harmed("pipe");
    uint64_t mask = mask_of_signals();
    for (int expected = 1; !over; expected++) {
        double begun = now(), least = 0.002;
        struct itimerval once = {{0, 0}, {0, 4000}};
        if (!strcmp(how, "sleep")) {
            struct timespec brief = {0, 2000000};
            if (nanosleep(&brief, 0) && !over) harmed("nanosleep");
            expected--;
        } else if (!strcmp(how, "poll")) {
            struct pollfd none = {ends[0], POLLIN, 0};
            if (poll(&none, 1, 2) != 0 && !over) harmed("poll");
            expected--;
        } else if (!strcmp(how, "read")) {
            char byte;
            int before = alarms;
            // Again and again: one may come before the call.
            once.it_interval = once.it_value;
            setitimer(ITIMER_REAL, &once, 0);
            if (read(ends[0], &byte, 1) != -1 || errno != EINTR) harmed("read");
            if (alarms == before && !over) harmed("a call was ended by no signal");
            least = 0;
        } else {
            // Blocked until the call that waits for it: it cannot come before.
            sigset_t alarm, none;
            sigemptyset(&none);
            sigemptyset(&alarm);
            sigaddset(&alarm, SIGALRM);
            sigprocmask(SIG_BLOCK, &alarm, 0);
            setitimer(ITIMER_REAL, &once, 0);
            while (alarms < expected && !over) sigsuspend(&none);
            sigprocmask(SIG_UNBLOCK, &alarm, 0);
        }
        if (now() - begun < least && !over) harmed("it was woken too soon");
        if (least > 0 && alarms != expected && !over) harmed("a signal was lost, or came twice");
        if (mask_of_signals() != mask) harmed("other signals are blocked");
    }
}

int main(int n, char **arguments) {
    struct sigaction action = {.sa_handler = end, .sa_flags = SA_ONSTACK};
    sigaction(SIGTERM, &action, 0);
    if (!strcmp(arguments[1], "registers")) {
        pthread_t threads[64];
        int count = atoi(arguments[2]);
        for (intptr_t i = 0; i < count; i++) pthread_create(&threads[i], 0, keeper, (void *)i);
        pthread_create(&threads[count], 0, caller, 0);
        for (int i = 0; i <= count; i++) pthread_join(threads[i], 0);
    } else {
        asleep(arguments[2]);
    }
    puts("unharmed");
    return 0;
}
