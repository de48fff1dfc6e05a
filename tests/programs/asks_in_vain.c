/* What a kernel may not have: calls emulated by where they come from, a seal on memory, and no code in memory that was
 * written. A program that has a way around each of them loses nothing, whether it gets them or not. */
#include "case.h"
#include <sys/prctl.h>
#include <ucontext.h>

enum { DISPATCH = 59, MDWE = 65, MSEAL = 462, BYTES = 8 << 20 };

static volatile char selector;
static void emulates(int signal, siginfo_t *info, void *context) {
    selector = 0;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4242;
}

static long emulated(void) {
    struct sigaction action = {.sa_flags = SA_SIGINFO, .sa_sigaction = emulates};
    sigaction(SIGSYS, &action, NULL);
    if (prctl(DISPATCH, 1, 0, 0, &selector) != 0) return 4242;
    selector = 1;
    long got = syscall(SYS_getuid);
    selector = 0;
    MUST(prctl(DISPATCH, 0, 0, 0, 0) == 0);
    return got;
}

int main(int argc, char **argv) {
    uint8_t *p = far_map(BYTES);
    fill(p, BYTES, 1);
    squeeze();
    if (argc > 1) {
        printf("executed, wrong %zu\n", wrong(p, BYTES, 1));
        return 0;
    }
    printf("emulated %ld, wrong %zu\n", emulated(), wrong(p, BYTES, 1));
    for (int round = 0; round < 2; round++) {
        if (round) MUST(mprotect(p, BYTES, PROT_READ) == 0);
        int sealed = syscall(MSEAL, p, BYTES, 0) == 0;
        squeeze();
        if (sealed) {
            MUST(munmap(p, BYTES) == -1);
            MUST(mmap(p, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED);
        }
        printf("wrong %zu\n", wrong(p, BYTES, 1));
        p = far_map(BYTES);
        fill(p, BYTES, 1);
        squeeze();
    }
    fflush(stdout);
    prctl(MDWE, 1, 0, 0, 0);
    execl("/proc/self/exe", argv[0], "again", NULL);
    printf("errno %d\n", errno);
}
