/* A process that shares the memory and the descriptors of the one that makes it, and runs beside it: no thread of its, so
 * that it is not among those that are counted. Before it comes and after it has gone the other is alone with its memory.
 * Each adds to words of its own, all over pages that both write to. */
#define _GNU_SOURCE
#include <sched.h>

#include "case.h"

enum { BYTES = 24 << 20, PER_PAGE = 8, ALONE = 5000, TOGETHER = 20000 };
static uint64_t *mem;

/* Words 0 … 3 of each page are the one's, 4 … 7 the other's. */
static void work(uint64_t who, int steps) {
    uint64_t x = who + 1;
    for (int i = 0; i < steps; i++) {
        x = mix(x);
        size_t page = x % (BYTES / PAGE);
        mem[page * (PAGE / 8) + (x >> 40) % 4 + 4 * who] += x >> 32 | 1;
    }
}

static int companion(void *unused) {
    (void)unused;
    work(1, TOGETHER);
    return 0;
}

static uint64_t sum(void) {
    uint64_t s = 0;
    for (size_t page = 0; page < BYTES / PAGE; page++)
        for (int i = 0; i < PER_PAGE; i++) s = mix(s + mem[page * (PAGE / 8) + i]);
    return s;
}

int main(void) {
    static uint8_t stack[256 << 10] __attribute__((aligned(64)));
    mem = far_map(BYTES);
    for (int round = 0; round < 3; round++) {
        work(0, ALONE);
        printf("alone %016lx\n", sum());
        pid_t pid = clone(companion, stack + sizeof stack, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, 0);
        MUST(pid > 0);
        work(0, TOGETHER);
        int status;
        MUST(waitpid(pid, &status, 0) == pid && status == 0);
        printf("together %016lx\n", sum());
    }
}
