/* A vfork child and another thread of its parent, both at work in the same memory, each with descriptors of its own: what
 * one connects is nothing to the other. First the thread evicts for the first time while the child runs, then the child;
 * later both have worked before. With an argument both pause while the child runs, until a line comes: meanwhile their
 * connections may be cut. */
#include "case.h"
#include <stdatomic.h>

enum { BYTES = 16 << 20 };
static uint8_t *mine, *theirs;
static atomic_int go, rounds, bad;
static int pauses;

static void *beside(void *unused) {
    for (int round = 0;; round++) {
        while (atomic_load(&go) <= round) usleep(1000);
        fill(theirs, BYTES, round);
        bad += wrong(theirs, BYTES, round) != 0;
        atomic_store(&rounds, round + 1);
    }
    return unused;
}

static void one_round(void) {
    int round = atomic_load(&go);
    atomic_store(&go, round + 1);
    while (atomic_load(&rounds) <= round) usleep(1000);
}

static __attribute__((noinline)) void child(int key) {
    one_round();
    fill(mine, BYTES, key);
    if (pauses) {
        char byte;
        if (write(1, "paused\n", 7) != 7 || read(0, &byte, 1) != 1) _exit(9);
    }
    bad += wrong(mine, BYTES, key) != 0;
    atomic_fetch_add(&go, 1);
    for (int i = 0; i < 3; i++) {
        fill(mine, BYTES, key + i);
        bad += wrong(mine, BYTES, key + i) != 0;
    }
    _exit(3);
}

int main(int argc, char **argv) {
    pauses = argc > 1;
    pthread_t thread;
    mine = far_map(BYTES);
    theirs = far_map(BYTES);
    MUST(pthread_create(&thread, NULL, beside, NULL) == 0);
    for (int key = 10; key < 13; key++) {
        pid_t pid = vfork();
        if (pid == 0) child(key);
        MUST(pid > 0);
        bad += wrong(mine, BYTES, key + 2) != 0;
        while (atomic_load(&rounds) < atomic_load(&go)) usleep(1000);
        int status;
        MUST(waitpid(pid, &status, 0) == pid);
        printf("child %d, wrong %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), bad);
        fflush(stdout);
        fill(mine, BYTES, 1);
        one_round();
    }
}
