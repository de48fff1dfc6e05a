/* A process that shares this memory, and whose far memory its maker's handler thread brings, outlives its maker. It
 * reads all of its memory then. Prints its number first. `outlives kill`: the maker is killed; `outlives exit`: it
 * exits; `outlives exec`: it executes another program, which waits for the other's end and prints it. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>

#include "case.h"

enum { BYTES = 24 << 20 };
static uint8_t *mem;
static int alone[2];

static int reads(void *unused) {
    (void)unused;
    char byte;
    /* Ends when no other process holds the other end. */
    while (read(alone[0], &byte, 1) > 0)
        ;
    for (int round = 0; round < 3; round++)
        if (wrong(mem, BYTES, 0)) return 1;
    return 0;
}

/* Whether that process has been started with an argument "wait". */
static int waits(pid_t process) {
    char path[64], line[256];
    sprintf(path, "/proc/%d/cmdline", process);
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line);
    close(fd);
    return n > 0 && memmem(line, n, "\0wait", 6) != NULL;
}

int main(int argc, char **argv) {
    static uint8_t stack[256 << 10] __attribute__((aligned(64)));
    MUST(argc >= 2);
    if (!strcmp(argv[1], "wait")) {
        int status;
        MUST(waitpid(atoi(argv[2]), &status, 0) > 0);
        printf("ended %d\n", WTERMSIG(status));
        return 0;
    }
    mem = far_map(BYTES);
    fill(mem, BYTES, 0);
    MUST(!pipe(alone));
    /* The table of descriptors is shared: so another process holds the other end, until this one is gone. */
    pid_t maker = getpid();
    pid_t holder = fork();
    if (holder == 0) {
        int told = syscall(SYS_pidfd_open, maker, 0);
        struct pollfd gone = {.fd = told, .events = POLLIN};
        /* It may be gone already. */
        while (told >= 0 && poll(&gone, 1, 1) == 0 && !waits(maker))
            ;
        _exit(0);
    }
    close(alone[1]);
    pid_t child = clone(reads, stack + sizeof stack, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, NULL);
    MUST(child > 0);
    printf("%d\n", child);
    fflush(stdout);
    if (!strcmp(argv[1], "exec")) {
        char number[16];
        sprintf(number, "%d", child);
        execl("/proc/self/exe", "outlives", "wait", number, NULL);
    }
    if (!strcmp(argv[1], "exit")) _exit(0);
    kill(maker, SIGKILL);
}
