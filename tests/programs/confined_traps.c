/* A program whose filter hands calls to a handler of its own, which makes them in the kernel's place (as browsers' sandboxes
 * do): with arguments in far memory, forks, and ends. The handler has all of the program's memory, and what it returns
 * is what the call returns. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <ucontext.h>

#include "case.h"

enum { BYTES = 12 << 20 };
static uint8_t *mem;
static char *path;
static volatile long asked[4], answered, bad;

static void on_sys(int signal, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    squeeze();
    bad += signal != SIGSYS || wrong(mem, BYTES, 1);
    if (info->si_syscall == SYS_openat) {
        bad += strcmp((char *)regs[REG_RSI], "/no/such/place") != 0;
        strcpy(path, "/from/the/handler");
        asked[0]++, answered = 900;
    } else if (info->si_syscall == SYS_clone) asked[1]++, answered = 4321;
    else if (info->si_syscall == SYS_mremap) munmap(far_map(MIB), MIB), answered = -EPERM;
    else if (info->si_syscall == SYS_exit_group) asked[2] += regs[REG_RDI], answered = -EPERM;
    else asked[3]++, answered = -ENOSYS;
    regs[REG_RAX] = answered;
}

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define CASE(number, verdict)                                                                      \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, verdict)

int main(void) {
    mem = far_map(BYTES), path = far_map(PAGE);
    fill(mem, BYTES, 1);
    struct sigaction action = {.sa_sigaction = on_sys, .sa_flags = SA_SIGINFO | SA_NODEFER};
    MUST(sigaction(SIGSYS, &action, NULL) == 0);
    struct sock_filter filter[] = {
        LOAD(nr),
        CASE(SYS_openat, SECCOMP_RET_TRAP),
        CASE(SYS_clone, SECCOMP_RET_TRAP),
        CASE(SYS_mremap, SECCOMP_RET_TRAP),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 3),
        LOAD(args[0]),
        CASE(7, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    for (int round = 0; round < 3; round++) {
        strcpy(path, "/no/such/place");
        squeeze();
        int fd = open(path, O_RDONLY);
        printf("open %d, %s\n", fd, path);
        printf("clone %ld\n", syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
        printf("exit %ld, errno %d\n", syscall(SYS_exit_group, 7), errno);
        squeeze();
        printf("wrong %zu\n", wrong(mem, BYTES, 1));
        uint8_t *more = far_map(MIB);
        fill(more, MIB, round);
        printf("wrong %zu\n", wrong(more, MIB, round));
    }
    /* Near memory does not move, and no handler waits for what its own call holds. */
    uint8_t *near = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0), *to = far_map(MIB);
    MUST(near != MAP_FAILED);
    fill(near, MIB, 2), fill(to, MIB, 3);
    int moved = mremap(near, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED, error = errno;
    printf("moved %d, errno %d, wrong %zu %zu\n", moved, error, wrong(near, MIB, 2), wrong(to, MIB, 3));
    printf("asked %ld %ld %ld %ld, bad %ld\n", asked[0], asked[1], asked[2], asked[3], bad);
    /* A library asks what there is by what must fail. */
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) == -1 && errno == EFAULT);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1 << 20, NULL) == -1);
    printf("unknown flag: errno %d\n", errno);
    /* Numbers that are no calls are the filter's to judge. */
    MUST(syscall(-1) == -1);
    printf("call -1: errno %d\n", errno);
    long ret = 0x40000000 + SYS_getpid;
    __asm__ volatile("syscall" : "+a"(ret)::"rcx", "r11", "memory");
    printf("x32: %ld\n", ret);
    ret = -1;
    __asm__ volatile("syscall" : "+a"(ret)::"rcx", "r11", "memory");
    printf("inline -1: %ld\n", ret);
}
