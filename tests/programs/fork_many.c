/* Children one after the other, each with far memory of its own: what one held
 * is there for the next, as soon as it has ended. */
#include "case.h"

int main(void) {
    const size_t own = 16 * MIB, childs = 24 * MIB;
    uint64_t *mem = far_map(own);
    fill(mem, own, 3);
    int good = 0;
    for (int round = 0; round < 20; round++) {
        pid_t p = fork();
        MUST(p >= 0);
        if (p == 0) {
            uint64_t *more = far_map(childs);
            fill(more, childs, round);
            _exit(wrong(mem, own, 3) + wrong(more, childs, round) != 0);
        }
        int status;
        MUST(waitpid(p, &status, 0) == p);
        good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    printf("good children %d, parent bad %zu\n", good, wrong(mem, own, 3));
}
