/* Parent and child both live and write after fork; each must see its own
 * writes and the snapshot, never the other's. Three generations. */
#include "case.h"

enum { BYTES = 16 << 20 };
static uint8_t *mem;

static int child(int depth) {
    size_t bad = wrong(mem, BYTES, 1000 + depth);
    fill(mem, BYTES / 2, 5000 + depth); /* only the first half changes */
    squeeze();
    bad += wrong(mem, BYTES / 2, 5000 + depth);
    const uint64_t *w = (const uint64_t *)mem;
    for (size_t i = BYTES / 16; i < BYTES / 8; i++) bad += w[i] != mix(1000 + depth + i);
    if (depth < 2) {
        fill(mem, BYTES, 1000 + depth + 1);
        pid_t p = fork();
        MUST(p >= 0);
        if (p == 0) _exit(child(depth + 1));
        fill(mem, BYTES, 77);
        int status;
        MUST(waitpid(p, &status, 0) == p);
        bad += wrong(mem, BYTES, 77);
        bad += WEXITSTATUS(status) + !WIFEXITED(status);
    }
    return bad > 250 ? 250 : bad;
}

int main(void) {
    mem = far_map(BYTES);
    fill(mem, BYTES, 1000);
    squeeze();
    pid_t kids[3];
    for (int k = 0; k < 3; k++) {
        kids[k] = fork();
        MUST(kids[k] >= 0);
        if (kids[k] == 0) _exit(child(0));
    }
    /* Written while the children read their snapshots. */
    fill(mem, BYTES, 31337);
    squeeze();
    size_t bad = wrong(mem, BYTES, 31337);
    for (int k = 0; k < 3; k++) {
        int status;
        MUST(waitpid(kids[k], &status, 0) == kids[k]);
        printf("child %d: exited %d bad %d\n", k, WIFEXITED(status), WEXITSTATUS(status));
    }
    bad += wrong(mem, BYTES, 31337);
    /* A child that outlives its parent's mapping. */
    int pipefd[2];
    MUST(pipe(pipefd) == 0);
    pid_t p = fork();
    if (p == 0) {
        char go;
        MUST(read(pipefd[0], &go, 1) == 1);
        _exit(wrong(mem, BYTES, 31337) != 0);
    }
    munmap(mem, BYTES);
    mem = far_map(BYTES);
    fill(mem, BYTES, 4);
    MUST(write(pipefd[1], "g", 1) == 1);
    int status;
    MUST(waitpid(p, &status, 0) == p);
    printf("orphaned snapshot: %d\nparent bad %zu\n", WEXITSTATUS(status), bad + wrong(mem, BYTES, 4));
}
