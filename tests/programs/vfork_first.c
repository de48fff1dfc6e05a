/* The first page to leave leaves while a vfork child runs: whatever the runtime starts then must be the parent's,
 * not the child's, which is soon gone. */
#include "case.h"
#include <sys/stat.h>

enum { BYTES = 24 << 20 };
static uint8_t *mem;

/* With the runtime's, which are left out of what libc is told: so by an instruction of this program's. */
static int threads(void) {
    struct stat about;
    long done;
    __asm__ volatile("syscall" : "=a"(done) : "a"(4L), "D"("/proc/self/task"), "S"(&about) : "rcx", "r11", "memory");
    MUST(done == 0);
    return about.st_nlink - 2;
}

static __attribute__((noinline)) void child(void) {
    fill(mem, BYTES, 1);
    _exit(wrong(mem, BYTES, 1) ? 1 : 0);
}

int main(void) {
    mem = far_map(BYTES);
    for (int round = 0; round < 3; round++) {
        pid_t pid = vfork();
        if (pid == 0) child();
        MUST(pid > 0);
        int status;
        MUST(waitpid(pid, &status, 0) == pid);
        printf("child %d, wrong %zu\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, wrong(mem, BYTES, 1));
        fill(mem, BYTES, 1);
    }
    /* For the test, which knows how many the runtime has. */
    fprintf(stderr, "threads %d\n", threads());
}
