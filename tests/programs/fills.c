/* Fills MIB of memory, then looks at all of it; then a forked child rewrites a quarter. */
#include "case.h"

int main(int argc, char **argv) {
    size_t bytes = (argc > 1 ? strtoul(argv[1], 0, 10) : 200) * MIB;
    void *all = far_map(bytes);
    fill(all, bytes, 1);
    size_t bad = wrong(all, bytes, 1);
    pid_t child = fork();
    if (child == 0) {
        fill(all, bytes / 4, 2);
        _exit(wrong(all, bytes / 4, 2) != 0);
    }
    int status = -1;
    MUST(waitpid(child, &status, 0) == child);
    bad += wrong(all, bytes, 1);
    printf("bad %zu, child %d\n", bad, status);
    return 0;
}
