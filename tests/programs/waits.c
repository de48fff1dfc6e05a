/* Waits for pages in functions of its own, each in its way; in a child as well. */
#include "case.h"

enum { PAGES = 6000 };

static uint8_t *m;

__attribute__((noinline)) static uint64_t jumps(uint64_t key) {
    uint64_t sum = 0;
    for (int i = 0; i < 6000; i++) sum += m[mix(key + i) % PAGES * PAGE + 8];
    return sum;
}

__attribute__((noinline)) static uint64_t walks(void) {
    uint64_t sum = 0;
    for (int page = 0; page < PAGES; page++) sum += m[page * PAGE + 8];
    return sum;
}

__attribute__((noinline)) static void writes(void) {
    for (int page = 0; page < PAGES; page++) m[page * PAGE + 8] = page;
}

int main(void) {
    m = far_map(PAGES * PAGE);
    writes();
    uint64_t sum = walks();
    sum += jumps(1);
    pid_t child = fork();
    if (child == 0) _exit(jumps(7) == 1);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 4; i++) sum += walks();
    printf("%lu\n", sum);
    return 0;
}
