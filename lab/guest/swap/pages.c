/* pages MIB CHANGES [LINE]: memory whose every word says where it is and how often its page was changed. Fills it, changes
 * pages at random, and verifies each before it is changed, and every word of all at the end. Prints LINE when half of the
 * changes are made, and on SIGUSR1 how far it is. Ends with 0 if every word was right. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define WORDS 512

static uint64_t *memory;
static uint32_t *times;
static long wrong;
/* Pages filled, changed and verified. */
static volatile size_t done[3];

static void say_how_far(int signal) {
    char line[96];
    (void)signal;
    int n = snprintf(line, sizeof line, "  %zu pages filled, %zu changed, %zu verified, %ld words wrong\n", done[0], done[1],
                     done[2], wrong);
    if (write(1, line, n) < 0) return;
}

static uint64_t word(size_t page, size_t at) { return (page * WORDS + at) * 0x9e3779b97f4a7c15ull + times[page]; }

static void write_page(size_t page) {
    for (size_t at = 0; at < WORDS; at++) memory[page * WORDS + at] = word(page, at);
}

static void verify(size_t page) {
    for (size_t at = 0; at < WORDS; at++) wrong += memory[page * WORDS + at] != word(page, at);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int n, char **argument) {
    if (n < 3) return 2;
    size_t pages = strtoul(argument[1], NULL, 10) << 8, changes = strtoul(argument[2], NULL, 10);
    uint64_t random = 88172645463325252ull;
    double begun = now();
    signal(SIGUSR1, say_how_far);
    memory = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    times = calloc(pages, sizeof *times);
    if (memory == MAP_FAILED || !times) return 2;
    madvise(memory, pages << 12, MADV_NOHUGEPAGE);
    for (size_t page = 0; page < pages; page++, done[0]++) write_page(page);
    double filled = now();
    for (size_t i = 0; i < changes; i++, done[1]++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        size_t page = (random >> 8) % pages;
        verify(page);
        times[page]++;
        write_page(page);
        if (n > 3 && i == changes / 2) puts(argument[3]), fflush(stdout);
    }
    for (size_t page = 0; page < pages; page++, done[2]++) verify(page);
    printf("  %zu MiB: %ld words wrong, filled in %.1f s, %zu changes and all verified in %.1f s\n", pages >> 8, wrong,
           filled - begun, changes, now() - filled);
    return wrong != 0;
}
