/* Reads objects as an interpreter does: it takes a reference to each and gives it back, so that every page is stored to
 * and leaves as it came. In the end it only reads, with no stores.
 * counts PAGES PASSES sequence|scattered */
#include "case.h"

struct object {
    volatile uint64_t references;
    uint64_t value, unused[14];
};

enum { OBJECTS = PAGE / sizeof(struct object) };

int main(int argc, char **argv) {
    MUST(argc == 4);
    uint64_t pages = strtoull(argv[1], 0, 10), passes = strtoull(argv[2], 0, 10);
    uint64_t step = strcmp(argv[3], "scattered") == 0 ? 4099 : 1;
    MUST(pages % 4099 != 0);
    struct object *all = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(all != MAP_FAILED);
    for (uint64_t i = 0; i < pages * OBJECTS; i++) all[i].references = 1, all[i].value = mix(i);
    uint64_t sum = 0, expected = 0;
    for (uint64_t i = 0; i < pages * OBJECTS; i++) expected += mix(i);
    for (uint64_t pass = 0; pass < 2 * passes; pass++)
        for (uint64_t i = 0; i < pages; i++)
            for (uint64_t k = 0; k < OBJECTS; k++) {
                struct object *one = &all[i * step % pages * OBJECTS + k];
                /* A load first, as of a count that may be immortal. */
                if (pass < passes && one->references < 1000) one->references++;
                sum += one->value;
                if (pass < passes) one->references--;
            }
    MUST(sum == expected * 2 * passes);
    puts("ok");
    return 0;
}
