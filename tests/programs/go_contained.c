/* A program that says it is Go's, in a container whose filter kills for numbers of another ABI (as libseccomp's do without
 * it). The filter is there before the program starts: it is installed by an instruction, and then the program executes
 * itself. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "case.h"

__asm__(".pushsection .note.go.buildid,\"a\",@note\n"
        ".long 4, 4, 4\n.asciz \"Go\\0\"\n.byte 'c','a','s','e'\n"
        ".popsection");
__asm__("raw_sigprocmask: mov %rcx, %r10\n\tmovl $14, %eax\n\tsyscall\n\tret\n");
long raw_sigprocmask(long how, const void *new, void *old, long size);
__asm__("raw_call: mov %rdi, %rax\n\tmov %rsi, %rdi\n\tmov %rdx, %rsi\n\tmov %rcx, %rdx\n\tmov %r8, %r10\n"
        "\tsyscall\n\tcmp $-4095, %rax\n\tjae 1f\n1:\tret\n");
long raw_call(long nr, long a, const void *b, void *c, long d);

static void contain(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    long ret = SYS_seccomp;
    __asm__ volatile("syscall" : "+a"(ret) : "D"(SECCOMP_SET_MODE_FILTER), "S"(0), "d"(&program) : "rcx", "r11", "memory");
    MUST(ret == 0);
}

int main(int argc, char **argv) {
    enum { BYTES = 12 << 20 };
    uint8_t *mem = far_map(BYTES);
    fill(mem, BYTES, 1);
    squeeze();
    if (argc < 2) {
        contain();
        fflush(stdout);
        execl("/proc/self/exe", argv[0], "contained", NULL);
        return 1;
    }
    uint64_t all = ~0ull, old;
    for (int round = 0; round < 20; round++) {
        long masked = raw_sigprocmask(SIG_SETMASK, &all, &old, 8);
        squeeze();
        size_t bad = wrong(mem, BYTES, 1);
        masked |= raw_sigprocmask(SIG_SETMASK, &old, &all, 8);
        masked |= raw_call(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
        squeeze();
        bad += wrong(mem, BYTES, 1);
        masked |= raw_call(SYS_rt_sigprocmask, SIG_SETMASK, &old, NULL, 8);
        printf("masked %ld, wrong %zu\n", masked, bad);
    }
}
