/* A program that has used up its descriptors forks, starts a thread, and takes more memory: each needs
 * descriptors of the runtime's. */
#include "case.h"
#include <sys/resource.h>

enum { BYTES = 24 << 20 };
static uint8_t *mem;

static void *thread(void *more) {
    fill(more, BYTES, 5);
    return (void *)(wrong(more, BYTES, 5) + wrong(mem, BYTES, 1));
}

int main(int argc, char **argv) {
    if (argc < 2) { /* As `ulimit -n` does: before the program begins. */
        struct rlimit limit = {300, 300};
        MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        execl("/proc/self/exe", argv[0], "limited", NULL);
        MUST(0);
    }
    mem = far_map(BYTES);
    fill(mem, BYTES, 1);
    int fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0) {}
    MUST(errno == EMFILE);
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            size_t bad = wrong(mem, BYTES, 1);
            fill(mem, BYTES, 2);
            bad += wrong(mem, BYTES, 2);
            _exit(bad > 250 ? 250 : bad);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    }
    void *more = far_map(BYTES), *bad;
    pthread_t other;
    MUST(pthread_create(&other, NULL, thread, more) == 0);
    MUST(pthread_join(other, &bad) == 0);
    printf("thread %zu\n", (size_t)bad);
    /* More than one slab. */
    uint8_t *much = far_map(96 << 20);
    fill(much, 96 << 20, 9);
    printf("wrong %zu\n", wrong(much, 96 << 20, 9));
    return 0;
}
