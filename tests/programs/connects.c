/* Processes in this memory that have connections of their own, if they need any at all, and fault more often than a node
 * has queue pairs for one program: a companion with a thread pointer of its own, then a vfork child. */
#define _GNU_SOURCE
#include <sched.h>

#include "case.h"

enum { BYTES = 16 << 20, FAULTS = 9500, TLS = 64 << 10 };
static uint8_t *mem;

/* A page at a time, in no order that could be foreseen. */
static int bad_of(uint64_t key) {
    uint64_t x = key;
    int bad = 0;
    for (int i = 0; i < FAULTS; i++) {
        x = mix(x);
        size_t word = x % (BYTES / 8);
        bad += ((uint64_t *)mem)[word] != mix(word);
    }
    return bad;
}

static int companion(void *unused) {
    (void)unused;
    return bad_of(1) != 0;
}

static __attribute__((noinline)) void child(void) { _exit(bad_of(2) != 0); }

static void awaited(const char *what, pid_t pid) {
    MUST(pid > 0);
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    printf("%s %d\n", what, WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
}

int main(void) {
    static uint8_t stack[256 << 10], tls[2 * TLS] __attribute__((aligned(64)));
    mem = far_map(BYTES);
    fill(mem, BYTES, 0);
    uintptr_t *own = (uintptr_t *)(tls + TLS), *theirs;
    __asm__("mov %%fs:0, %0" : "=r"(theirs));
    memcpy(own, theirs, 704);
    own[0] = own[2] = (uintptr_t)own;
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SETTLS | SIGCHLD;
    awaited("companion", clone(companion, stack + sizeof stack, flags, NULL, NULL, own));
    pid_t pid = vfork();
    if (pid == 0) child();
    awaited("vfork child", pid);
    printf("bad %zu\n", wrong(mem, BYTES, 0));
}
