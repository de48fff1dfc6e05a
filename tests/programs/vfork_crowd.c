/* A vfork child and new threads of its parent connect at once, where descriptors are few (the limit is the argument) and
 * many threads have taken theirs: what one of the two connects is nothing to the other, whatever number it has. */
#include "case.h"
#include <stdatomic.h>
#include <sys/resource.h>

enum { CROWD = 80, PART = 256 << 10, BYTES = 8 << 20 };
static uint8_t *parts, *mine, *theirs;
static atomic_int ready, going, rounds, bad;

/* Fetches, so that it has connections of its own, and stays. */
static void *member(void *arg) {
    size_t me = (size_t)arg;
    fill(parts + me * PART, PART, me);
    atomic_fetch_add(&ready, 1);
    while (atomic_load(&ready) < CROWD) usleep(1000);
    bad += wrong(parts + me * PART, PART, me) != 0;
    atomic_fetch_add(&ready, 1);
    for (;;) pause();
    return NULL;
}

static void *newcomer(void *arg) {
    size_t key = (size_t)arg;
    fill(theirs, BYTES, key);
    bad += wrong(theirs, BYTES, key) != 0;
    return NULL;
}

/* One thread after the other, each new to the runtime, while the child works and after. */
static void *beside(void *unused) {
    for (int round = 0;; round++) {
        while (atomic_load(&going) <= round) usleep(1000);
        for (size_t i = 0; i < 3; i++) {
            pthread_t thread;
            MUST(pthread_create(&thread, NULL, newcomer, (void *)(round * 10 + i)) == 0);
            pthread_join(thread, NULL);
        }
        atomic_store(&rounds, round + 1);
    }
    return unused;
}

static __attribute__((noinline)) void child(int key) {
    atomic_fetch_add(&going, 1);
    for (int i = 0; i < 3; i++) {
        fill(mine, BYTES, key + i);
        bad += wrong(mine, BYTES, key + i) != 0;
    }
    _exit(3);
}

int main(int argc, char **argv) {
    rlim_t most = argc > 1 ? atoi(argv[1]) : 256;
    struct rlimit limit = {most, most};
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    parts = far_map((size_t)CROWD * PART);
    mine = far_map(BYTES);
    theirs = far_map(BYTES);
    pthread_t thread;
    for (size_t i = 0; i < CROWD; i++) MUST(pthread_create(&thread, NULL, member, (void *)i) == 0);
    while (atomic_load(&ready) < 2 * CROWD) usleep(1000);
    MUST(pthread_create(&thread, NULL, beside, NULL) == 0);
    for (int key = 10; key < 40; key += 10) {
        pid_t pid = vfork();
        if (pid == 0) child(key);
        MUST(pid > 0);
        int status;
        MUST(waitpid(pid, &status, 0) == pid);
        while (atomic_load(&rounds) < atomic_load(&going)) usleep(1000);
        bad += wrong(mine, BYTES, key + 2) != 0;
        printf("child %d, wrong %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), bad);
        fflush(stdout);
    }
    _exit(0);
}
