/* A program that confines itself and only then fills its memory, more than one slab of it: what the runtime asks of its
 * node meanwhile is not forbidden. With an argument it pauses between, until a line comes: its connections may be cut.
 * Its end is allowed, and its node hears of it. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "case.h"

enum { BYTES = 160 << 20 };

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOWED(number)                                                                            \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(int argc, char **argv) {
    uint8_t *mem = far_map(BYTES);
    fill(mem, 16 << 20, 1);
    squeeze();
    struct sock_filter filter[] = {
        LOAD(nr),        ALLOWED(SYS_read),       ALLOWED(SYS_write),
        ALLOWED(SYS_futex), ALLOWED(SYS_exit_group), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    size_t bad = wrong(mem, 16 << 20, 1);
    for (int round = 0; round < 3; round++) {
        fill(mem, BYTES / 3 * (round + 1), round);
        char byte;
        if (argc > 1 && (write(1, "paused\n", 7) != 7 || read(0, &byte, 1) != 1)) _exit(9);
        bad += wrong(mem, BYTES / 3 * (round + 1), round);
    }
    char line[80];
    write(1, line, snprintf(line, sizeof line, "wrong %zu\n", bad));
    _exit(bad != 0);
}
