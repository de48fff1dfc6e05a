/* A filter that forbids to change the execution domain judges ADDR_COMPAT_LAYOUT, too. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/personality.h>
#include <sys/prctl.h>

#include "case.h"

static int set(unsigned long persona) {
    int before = personality(persona);
    return before < 0 ? -errno : before;
}

int main(void) {
    unsigned now = personality(0xffffffff);
    squeeze();
    printf("as it is: %d\n", set(now) == (int)now);
    printf("the old layout: %d\n", set(now | ADDR_COMPAT_LAYOUT) == (int)now);
    printf("and back: %d\n", set(now) >= 0);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_personality, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, now, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffffff, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    squeeze();
    printf("confined, as it is: %d\n", set(now) == (int)now);
    printf("the old layout: %d\n", set(now | ADDR_COMPAT_LAYOUT));
    printf("without random addresses: %d\n", set(now ^ ADDR_NO_RANDOMIZE));
}
