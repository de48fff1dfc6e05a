/* A program that says it is Go's, and confines itself: its own calls about masks, by which the runtime must go, are marked,
 * and its filter, which knows no such numbers, lets them pass all the same. What it forbids is forbidden. */
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

int main(void) {
    enum { BYTES = 12 << 20 };
    uint8_t *mem = far_map(BYTES);
    fill(mem, BYTES, 1);
    squeeze();
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigprocmask, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    fflush(stdout);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    uint64_t all = ~0ull, old;
    for (int round = 0; round < 20; round++) {
        long masked = raw_sigprocmask(SIG_SETMASK, &all, &old, 8);
        squeeze();
        size_t bad = wrong(mem, BYTES, 1);
        masked |= raw_sigprocmask(SIG_SETMASK, &old, &all, 8);
        char line[80];
        write(1, line, snprintf(line, sizeof line, "masked %ld, wrong %zu, old %llx\n", masked, bad, (unsigned long long)old));
    }
}
