/* New pages beside old ones: two maps are written by turns, so that they share what far memory keeps together; one
 * is given back, and a third takes its place. Then the first is checked.
 *
 *   refills MIB
 *
 * Says "ready PID 0" when both maps are written, and goes on at SIGUSR1. Says "sound", and ends with 0. A word that is
 * not what was written: "WRONG", and 99. */
#include "case.h"

static uint64_t word(size_t map, size_t at) { return mix(at * 4 + map + 1); }

static void fill_part(uint64_t *map, size_t which, size_t from, size_t words) {
    for (size_t at = from; at < from + words; at++) map[at] = word(which, at);
}

static uint64_t *map_of(size_t bytes) {
    uint64_t *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(map != MAP_FAILED);
    return map;
}

int main(int argc, char **argv) {
    MUST(argc == 2);
    size_t bytes = strtoul(argv[1], NULL, 10) * MIB, words = bytes / 8, part = 32 * PAGE / 8;
    sigset_t finish;
    sigemptyset(&finish);
    sigaddset(&finish, SIGUSR1);
    sigprocmask(SIG_BLOCK, &finish, NULL);
    uint64_t *stays = map_of(bytes), *goes = map_of(bytes);
    for (size_t from = 0; from < words; from += part) fill_part(stays, 0, from, part), fill_part(goes, 1, from, part);
    printf("ready %d 0\n", (int)getpid());
    fflush(stdout);
    int got;
    MUST(sigwait(&finish, &got) == 0);
    MUST(munmap(goes, bytes) == 0);
    fill_part(map_of(bytes), 2, 0, words);
    for (size_t at = 0; at < words; at++) {
        if (stays[at] == word(0, at)) continue;
        printf("WRONG word %zu\n", at);
        return 99;
    }
    printf("sound child 0\n");
    return 0;
}
