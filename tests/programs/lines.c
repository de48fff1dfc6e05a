/* Changes so many lines of every page of an array, eight bytes in each, page after page in an order without
 * sequences; reads all of it in the end.
 * lines PAGES LINES PASSES */
#include "case.h"

static uint64_t *array;
static uint64_t pages, lines, passes;

/* The word of a line that is changed in a pass. */
static uint64_t *word(uint64_t page, uint64_t line, uint64_t pass) {
    return array + page * (PAGE / 8) + line * 8 + (pass + line) % 8;
}

/* Which lines of a page: the same in every pass, spread over it. */
static uint64_t nth(uint64_t page, uint64_t n) { return (n * 64 / lines + page) % 64; }

int main(int argc, char **argv) {
    MUST(argc == 4);
    pages = strtoull(argv[1], 0, 10), lines = strtoull(argv[2], 0, 10), passes = strtoull(argv[3], 0, 10);
    MUST(pages % 4099 != 0 && lines >= 1 && lines <= 64);
    array = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(array != MAP_FAILED);
    for (uint64_t i = 0; i < pages * (PAGE / 8); i++) array[i] = mix(i);
    for (uint64_t pass = 0; pass < passes; pass++)
        for (uint64_t i = 0; i < pages; i++) {
            uint64_t page = i * 4099 % pages;
            /* Read first, as most code that writes does. */
            for (uint64_t n = 0; n < lines; n++) *word(page, nth(page, n), pass) ^= ~0ull;
        }
    for (uint64_t page = 0; page < pages; page++)
        for (uint64_t pass = 0; pass < passes; pass++)
            for (uint64_t n = 0; n < lines; n++) *word(page, nth(page, n), pass) ^= ~0ull;
    for (uint64_t i = 0; i < pages * (PAGE / 8); i++) MUST(array[i] == mix(i));
    puts("ok");
    return 0;
}
