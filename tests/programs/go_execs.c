/* A program that says it is Go's executes another of the same layout, which is static, so that the runtime is not in it:
 * its system call instructions are at the addresses that the first one's filter looks for. Both are built from this
 * file, with the instructions in a section at a fixed address. */
#include "case.h"

__asm__(".pushsection .note.go.buildid,\"a\",@note\n"
        ".long 4, 4, 4\n.asciz \"Go\\0\"\n.byte 'c','a','s','e'\n"
        ".popsection");
/* Go's runtime's, and package syscall's. */
__asm__(".pushsection .gosys,\"ax\",@progbits\n"
        "raw_sigprocmask: mov %rcx, %r10\n\tmovl $14, %eax\n\tsyscall\n\tret\n"
        "raw: mov %rdi, %rax\n\tmov %rsi, %rdi\n\tmov %rdx, %rsi\n\tmov %rcx, %rdx\n\tmov %r8, %r10\n"
        "syscall\n\tcmp $-4095, %rax\n\tjb 1f\n\tneg %rax\n\tor $0x100000, %rax\n1: ret\n"
        ".popsection");
long raw_sigprocmask(long how, const void *new, void *old, long size);
long raw(long number, const volatile void *a, const volatile void *b, long c, long d);

int main(int argc, char **argv) {
    uint64_t all = ~0ull, old = 0, now = 0;
    uint8_t *mem = far_map(12 << 20);
    fill(mem, 12 << 20, 1);
    MUST(raw_sigprocmask(SIG_BLOCK, &all, &old, 8) == 0);
    squeeze();
    printf("wrong %zu\n", wrong(mem, 12 << 20, 1));
    MUST(raw(SYS_rt_sigprocmask, (void *)SIG_SETMASK, &old, (long)&now, 8) == 0);
    printf("before %llx, while %llx\n", (unsigned long long)old, (unsigned long long)now);
    printf("pid %d, no such descriptor %lx\n", raw(SYS_getpid, 0, 0, 0, 0) == getpid(),
           raw(SYS_close, (void *)1000, 0, 0, 0));
    fflush(stdout);
    if (argc > 1) execl(argv[1], argv[1], (char *)0);
}
