/* What the ways back from a fault cost: pages come in by SIGBUS and UFFDIO_COPY, nothing else is done for them, and the
 * handler returns in one of five ways (`docs/design/signals.md`, "The return from a fault").
 *
 *   cc -O2 -o returns lab/returns/returns.c && taskset -c 1 ./returns [ROUNDS]
 *
 * Needs AVX-512 for its last part, and userfaultfd. Every round goes through all ways, in turn, 64 faults each. */
#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGES = 64, PAGE = 4096, WAYS = 6 };
static const unsigned long OURS = 1ul << (SIGBUS - 1) | 1ul << (SIGSYS - 1);
static int descriptor;
static char *far, *source;

struct kernel_action {
    void *handler;
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

void restorer(void);
_Noreturn void by_iret(void *context), by_mask(void *context), by_jump(void *context);
/* Where a jump finds its target, at a fixed offset from the thread pointer. */
__thread uintptr_t slot[2] __attribute__((tls_model("local-exec"), used));

#define VECTOR "mov 224(%rdi), %rcx\n mov 472(%rcx), %eax\n mov 476(%rcx), %edx\n xrstor64 (%rcx)\n"
#define REGISTERS                                                                                                      \
    "mov 40(%rdi), %r8\n mov 48(%rdi), %r9\n mov 56(%rdi), %r10\n mov 64(%rdi), %r11\n mov 72(%rdi), %r12\n"         \
    "mov 80(%rdi), %r13\n mov 88(%rdi), %r14\n mov 96(%rdi), %r15\n mov 112(%rdi), %rsi\n mov 120(%rdi), %rbp\n"     \
    "mov 128(%rdi), %rbx\n mov 136(%rdi), %rdx\n mov 144(%rdi), %rax\n mov 152(%rdi), %rcx\n mov 104(%rdi), %rdi\n"

__asm__(".text\n.globl restorer, by_iret, by_mask, by_jump\n"
        "restorer: mov $15, %rax\n syscall\n"
        "by_mask: mov %rdi, %rsp\n mov $2, %edi\n lea 296(%rsp), %rsi\n xor %edx, %edx\n mov $8, %r10d\n"
        "mov $14, %eax\n syscall\n mov %rsp, %rdi\n"
        "by_iret: lea -48(%rdi), %rsp\n"
        "mov 168(%rdi), %rax\n mov %rax, (%rsp)\n mov %cs, %rax\n mov %rax, 8(%rsp)\n mov 176(%rdi), %rax\n"
        "mov %rax, 16(%rsp)\n mov 160(%rdi), %rax\n mov %rax, 24(%rsp)\n mov %ss, %rax\n mov %rax, 32(%rsp)\n" VECTOR
            REGISTERS "iretq\n"
        "by_jump: mov 168(%rdi), %rax\n mov %rax, %fs:slot@tpoff\n mov 160(%rdi), %rax\n mov %rax, %fs:slot@tpoff+8\n"
        "lea 176(%rdi), %rsp\n" VECTOR REGISTERS "popfq\n mov %fs:slot@tpoff+8, %rsp\n jmp *%fs:slot@tpoff\n");

static void serve(siginfo_t *info) {
    struct uffdio_copy copy = {.dst = (uintptr_t)info->si_addr & -(uintptr_t)PAGE, .len = PAGE};
    copy.src = (uintptr_t)source + (copy.dst - (uintptr_t)far);
    if (ioctl(descriptor, UFFDIO_COPY, &copy) != 0) _exit(70);
}
static void kernel(int s, siginfo_t *i, void *u) { (void)s, (void)u, serve(i); }
static void one_call_more(int s, siginfo_t *i, void *u) { (void)s, (void)u, serve(i), syscall(SYS_getppid); }
static void iret(int s, siginfo_t *i, void *u) { (void)s, serve(i), by_iret(u); }
static void mask(int s, siginfo_t *i, void *u) { (void)s, serve(i), by_mask(u); }
static void jump(int s, siginfo_t *i, void *u) { (void)s, serve(i), by_jump(u); }

static const struct {
    const char *name;
    void (*handler)(int, siginfo_t *, void *);
    int blocks;
} WAY[WAYS] = {
    {"all blocked, rt_sigreturn", kernel, 1},
    {"nothing blocked, rt_sigreturn", kernel, 0},
    {"all blocked, rt_sigprocmask, xrstor, iretq", mask, 1},
    {"nothing blocked, xrstor, iretq", iret, 0},
    {"nothing blocked, xrstor, popfq, jump", jump, 0},
    {"all blocked, rt_sigreturn, and an empty call", one_call_more, 1},
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static double pass(int state) {
    madvise(far, PAGES * PAGE, MADV_DONTNEED);
    double begun = now();
    for (int i = 0; i < PAGES; i++) {
        if (state == 1) __asm__ volatile("vpcmpeqd %%ymm3, %%ymm3, %%ymm3" ::: "xmm3");
        if (state == 2) __asm__ volatile(".byte 0x62,0xa3,0x65,0x40,0x25,0xdb,0xff" ::: "memory"); /* vpternlogd zmm19 */
        (void)*(volatile char *)(far + i * 37 % PAGES * PAGE);
    }
    return (now() - begun) / PAGES;
}

static int ascending(const void *a, const void *b) {
    double x = *(double *)a, y = *(double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1500;
    descriptor = syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS};
    far = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    source = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(source, 1, PAGES * PAGE);
    struct uffdio_register all = {.range = {(uintptr_t)far, PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    stack_t stack = {.ss_size = 128 << 10};
    stack.ss_sp = mmap(NULL, stack.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ioctl(descriptor, UFFDIO_API, &api) != 0 || ioctl(descriptor, UFFDIO_REGISTER, &all) != 0 ||
        sigaltstack(&stack, NULL) != 0) {
        perror("userfaultfd");
        return 1;
    }
    double *taken = malloc(sizeof(double) * WAYS * rounds);
    for (int state = 0; state < (__builtin_cpu_supports("avx512f") ? 3 : 2); state++) {
        for (int k = 0; k < rounds; k++)
            for (int i = 0; i < WAYS; i++) {
                int way = (i + k) % WAYS;
                struct kernel_action a = {.handler = WAY[way].handler, .restorer = restorer};
                a.flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | 0x04000000; /* SA_RESTORER */
                a.mask = WAY[way].blocks ? ~OURS : 0;
                syscall(SYS_rt_sigaction, SIGBUS, &a, NULL, 8);
                taken[way * rounds + k] = pass(state);
            }
        printf("%s\n", state == 0 ? "vectors unused" : state == 1 ? "AVX in use" : "AVX-512 in use");
        for (int way = 0; way < WAYS; way++) {
            double *t = taken + way * rounds;
            qsort(t, rounds, sizeof(double), ascending);
            printf("  %-46s %5.0f ns (%.0f to %.0f)\n", WAY[way].name, t[rounds / 2], t[rounds / 4], t[rounds * 3 / 4]);
        }
    }
}
