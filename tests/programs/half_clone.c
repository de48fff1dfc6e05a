/* A child that shares the memory and not the descriptors, as some sandboxes and tests make one. Where the system knows
 * no such clone, which it may say, a program forks instead: either way nobody's memory is wrong. */
#define _GNU_SOURCE
#include <sched.h>

#include "case.h"

enum { BYTES = 24 << 20 };
static uint8_t *mem;

static int child(void *stack) {
    (void)stack;
    for (int round = 0; round < 3; round++)
        if (wrong(mem, BYTES / 2, 1)) return 1;
    return 0;
}

static void awaited(pid_t pid) {
    MUST(pid > 0);
    for (int round = 0; round < 3; round++) MUST(!wrong(mem + BYTES / 2, BYTES / 2, 2));
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

static pid_t forked(void) {
    pid_t pid = fork();
    if (pid == 0) _exit(child(0));
    return pid;
}

int main(void) {
    mem = far_map(BYTES);
    fill(mem, BYTES / 2, 1);
    fill(mem + BYTES / 2, BYTES / 2, 2);
    uint8_t *stack = far_map(1 << 20);
    pid_t pid = clone(child, stack + (1 << 20), CLONE_VM | SIGCHLD, 0);
    MUST(pid > 0 || errno == ENOSYS);
    awaited(pid > 0 ? pid : forked());
}
