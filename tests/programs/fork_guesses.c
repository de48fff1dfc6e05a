/* Pages that were written whenever they were here come in writable for a read, too. Where their slots are shared
 * with a child, neither side's writes may reach the other's bytes, and what was only read stays as it was. */
#include "case.h"

enum { BYTES = 12 << 20, PAGES = BYTES / 4096 };
static uint8_t *mem;

/* Reads a page, then writes every third. */
static size_t read_some_write_some(uint64_t before, uint64_t after) {
    size_t bad = 0;
    for (size_t page = 0; page < PAGES; page++) {
        uint64_t *w = (uint64_t *)(mem + page * PAGE);
        for (size_t i = 0; i < PAGE / 8; i += 64) bad += w[i] != mix(before + page * (PAGE / 8) + i);
        if (page % 3 == 0) w[0] = mix(after + page);
    }
    return bad;
}

static size_t changed_as_told(uint64_t before, uint64_t after) {
    size_t bad = 0;
    for (size_t page = 0; page < PAGES; page++) {
        uint64_t *w = (uint64_t *)(mem + page * PAGE);
        bad += w[0] != (page % 3 == 0 ? mix(after + page) : mix(before + page * (PAGE / 8)));
        for (size_t i = 1; i < PAGE / 8; i++) bad += w[i] != mix(before + page * (PAGE / 8) + i);
    }
    return bad;
}

static char turn(int from) {
    char c = 0;
    MUST(read(from, &c, 1) == 1);
    return c;
}

int main(void) {
    mem = far_map(BYTES);
    size_t bad = 0;
    for (int round = 0; round < 3; round++) {
        /* Written twice, with everything leaving in between: expected to be written again. */
        fill(mem, BYTES, 1);
        squeeze();
        fill(mem, BYTES, 2 + round);
        squeeze();
        int to_child[2], to_parent[2];
        MUST(pipe(to_child) == 0 && pipe(to_parent) == 0);
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            turn(to_child[0]);
            size_t bad = read_some_write_some(2 + round, 2000);
            squeeze();
            bad += changed_as_told(2 + round, 2000);
            MUST(write(to_parent[1], "c", 1) == 1);
            turn(to_child[0]);
            squeeze();
            bad += changed_as_told(2 + round, 2000);
            _exit(bad > 250 ? 250 : bad);
        }
        bad += read_some_write_some(2 + round, 1000);
        squeeze();
        MUST(write(to_child[1], "p", 1) == 1);
        turn(to_parent[0]);
        bad += changed_as_told(2 + round, 1000);
        fill(mem, BYTES, 77);
        squeeze();
        MUST(write(to_child[1], "p", 1) == 1);
        int status;
        MUST(waitpid(child, &status, 0) == child);
        printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
        bad += wrong(mem, BYTES, 77);
        for (int i = 0; i < 2; i++) close(to_child[i]), close(to_parent[i]);
    }
    printf("bad %zu\n", bad);
}
