/* give MIB FILE SECONDS: fills memory, a text in each page. After so many seconds it gives back three of four pages,
 * drawn at random. Then it writes FILE, and waits until FILE is gone. Verifies every word. Ends with 0 if every one
 * was right. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WORDS 512

static const char text[24] = "a plain page of farmem\n";

int main(int n, char **argument) {
    if (n != 4) return 2;
    size_t pages = strtoul(argument[1], NULL, 10) << 8, stayed = 0;
    uint64_t random = 88172645463325252ull;
    char *given = calloc(pages, 1);
    uint64_t *memory = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || !given) return 2;
    madvise(memory, pages << 12, MADV_NOHUGEPAGE);
    for (size_t page = 0; page < pages; page++) {
        for (size_t i = page * WORDS; i < (page + 1) * WORDS; i++) memory[i] = i * 0x9e3779b97f4a7c15ull;
        memcpy(memory + page * WORDS, text, sizeof text);
    }
    sleep(atoi(argument[3]));
    for (size_t page = 0; page < pages; page++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        given[page] = (random >> 8) % 4 != 0;
        if (given[page]) madvise(memory + page * WORDS, 4096, MADV_DONTNEED);
        stayed += !given[page];
    }
    FILE *file = fopen(argument[2], "w");
    if (!file) return 2;
    fprintf(file, "%zu\n", stayed);
    fclose(file);
    while (!access(argument[2], F_OK)) usleep(10000);
    long wrong = 0;
    for (size_t page = 0; page < pages; page++) {
        wrong += !given[page] && memcmp(memory + page * WORDS, text, sizeof text);
        for (size_t at = sizeof text / 8; at < WORDS; at++) {
            size_t i = page * WORDS + at;
            wrong += memory[i] != (given[page] ? 0 : i * 0x9e3779b97f4a7c15ull);
        }
    }
    printf("  %zu of %zu pages stayed, %ld words wrong\n", stayed, pages, wrong);
    return wrong != 0;
}
