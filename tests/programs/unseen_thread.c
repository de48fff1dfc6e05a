/* A thread that begins by an inline system call, which nobody sees. It touches no far memory; its maker does. */
#include <sched.h>

#include "case.h"

enum { BYTES = 24 << 20 };
static volatile int left;

int main(void) {
    static uint8_t stack[64 << 10] __attribute__((aligned(64)));
    uint8_t *mem = far_map(BYTES);
    fill(mem, BYTES, 1);
    long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM, made;
    register long none __asm__("r10") = 0, tls __asm__("r8") = 0;
    __asm__ volatile(
        "syscall\n\ttest %%rax, %%rax\n\tjnz 2f\n"
        "1:\tpause\n\tcmpl $0, %5\n\tje 1b\n\tmov $60, %%eax\n\txor %%edi, %%edi\n\tsyscall\n"
        "2:"
        : "=a"(made)
        : "a"((long)SYS_clone), "D"(flags), "S"(stack + sizeof stack), "d"(0L), "m"(left), "r"(none), "r"(tls)
        : "rcx", "r11", "memory");
    MUST(made > 0);
    printf("wrong %zu\n", wrong(mem, BYTES, 1));
    left = 1;
}
