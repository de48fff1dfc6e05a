/* A vfork child forks, and ends. What its child then writes is not what its parent reads, which had no part in the fork. */
#include "case.h"

enum { BYTES = 16 << 20 };
static uint8_t *mem;
static int ends[2];

static void grandchild(pid_t parent) {
    while (getppid() == parent) usleep(1000);
    size_t bad = wrong(mem, BYTES, 1);
    for (int key = 2; key < 5; key++) {
        fill(mem, BYTES, key);
        squeeze();
        bad += wrong(mem, BYTES, key);
    }
    _exit(write(ends[1], &bad, sizeof bad) != sizeof bad);
}

static __attribute__((noinline)) void child(void) {
    pid_t me = getpid(), pid = syscall(SYS_fork);
    if (pid == 0) grandchild(me);
    _exit(pid > 0 ? 3 : 4);
}

int main(void) {
    mem = far_map(BYTES);
    fill(mem, BYTES, 1);
    squeeze();
    MUST(pipe(ends) == 0);
    pid_t pid = vfork();
    if (pid == 0) child();
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    size_t bad = 1;
    close(ends[1]);
    MUST(read(ends[0], &bad, sizeof bad) == sizeof bad);
    printf("child %d, grandchild's wrong %zu, mine %zu\n", WEXITSTATUS(status), bad, wrong(mem, BYTES, 1));
    fill(mem, BYTES, 9);
    squeeze();
    printf("and then %zu\n", wrong(mem, BYTES, 9));
}
