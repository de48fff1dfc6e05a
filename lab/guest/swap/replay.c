/* replay FILE PART: a job with the profile of a program that was recorded (record/slots.c has the format). Where that one
 * swapped a page out, this one fills a page; where its slot was freed, this one verifies the page and gives it back. Of the
 * slots, one in PART is taken. Verifies every word at the end. Ends with 0 if every one was right. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define WORDS 512
#define SLOTS (1 << 20)

static FILE *in;
static uint64_t *memory;
static uint32_t *times;
static unsigned char *used;
static size_t live, most, filled;
static long wrong, part;

static uint64_t number(void) {
    uint64_t value = 0;
    for (int shift = 0, byte = 128; byte >= 128 && shift < 63; shift += 7) {
        if ((byte = getc(in)) == EOF) exit(2);
        value |= (uint64_t)(byte & 127) << shift;
    }
    return value;
}

static uint64_t word(size_t page, size_t at) { return (page * WORDS + at) * 0x9e3779b97f4a7c15ull + times[page]; }

static void fill(size_t page) {
    times[page]++;
    for (size_t at = 0; at < WORDS; at++) memory[page * WORDS + at] = word(page, at);
    filled++;
    if (!used[page]) used[page] = 1, live++;
    if (live > most) most = live;
}

static void verify(size_t page) {
    for (size_t at = 0; at < WORDS; at++) wrong += memory[page * WORDS + at] != word(page, at);
}

static void give(size_t page) {
    if (!used[page]) return;
    verify(page);
    used[page] = 0, live--;
    madvise(memory + page * WORDS, 4096, MADV_DONTNEED);
}

int main(int n, char **argument) {
    if (n != 3 || !(in = fopen(argument[1], "r")) || (part = atol(argument[2])) < 1) return 2;
    int64_t ends[128] = {0};
    memory = mmap(NULL, (size_t)SLOTS << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    times = calloc(SLOTS, sizeof *times), used = calloc(SLOTS, 1);
    if (memory == MAP_FAILED || !times || !used) return 2;
    madvise(memory, (size_t)SLOTS << 12, MADV_NOHUGEPAGE);
    for (int kind; (kind = getc(in)) != EOF;) {
        uint64_t folded = number();
        if (kind == 'M') continue;
        if (kind != 'W' && kind != 'F' && kind != 'T') return 2;
        int64_t first = ends[kind] + ((int64_t)(folded >> 1) ^ -(int64_t)(folded & 1)), length = (int64_t)number();
        ends[kind] = first + length;
        if (first < 0 || length > SLOTS || first + length > SLOTS) return 2;
        for (int64_t slot = first; slot < first + length; slot++) {
            if (slot % part) continue;
            if (kind == 'W') fill((size_t)(slot / part)); else give((size_t)(slot / part));
        }
    }
    for (size_t page = 0; page < SLOTS; page++) if (used[page]) verify(page);
    printf("  %s: %zu KiB at most, %zu pages filled, %ld words wrong\n", argument[1], most << 2, filled, wrong);
    return wrong != 0;
}
