/* Holds memory, and looks at all of it later: holds MIB HELD GO
 *
 * Fills memory with words that follow from their places, makes the file HELD, and waits for the file GO. Then it looks at
 * each word and changes it, and looks again. It prints how many words were right; at the first wrong one it ends with 1. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t word(uint64_t i) { return (i + 1) * 0x9E3779B97F4A7C15u; }

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    uint64_t n = strtoull(argv[1], 0, 10) << 17;
    volatile uint64_t *words = malloc(n * 8);
    if (!words) return 3;
    for (uint64_t i = 0; i < n; i++) words[i] = word(i);
    if (close(open(argv[2], O_CREAT | O_WRONLY, 0600))) return 4;
    while (access(argv[3], F_OK)) usleep(50000);
    for (uint64_t round = 0; round < 2; round++)
        for (uint64_t i = 0; i < n; i++) {
            if (words[i] != word(i) + round) {
                printf("word %llu is wrong\n", (unsigned long long)i);
                return 1;
            }
            words[i]++;
        }
    printf("%llu words are right\n", (unsigned long long)n);
    return 0;
}
