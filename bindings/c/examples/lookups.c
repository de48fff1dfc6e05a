/* What hints are worth: lookups of 64-byte records at random, in a table that does not fit.
 *
 *     cc -O2 -I.. lookups.c -o lookups
 *     farmem run --local 32M -- ./lookups 16 hint
 *
 * Arguments: lookups that are known ahead (1: a chain, each record tells the next), and `plain` or `hint`. Prints a
 * checksum, and on standard error the nanoseconds of one lookup. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "farmem.h"

enum { RECORDS = 1 << 21, LOOKUPS = 1 << 17, MOST = 64 };

struct record {
    uint64_t next, value[7];
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

int main(int argc, char **argv) {
    size_t ahead = argc > 1 ? strtoul(argv[1], NULL, 10) : 16;
    int hint = argc < 3 || strcmp(argv[2], "plain") != 0;
    if (ahead < 1 || ahead > MOST) return fprintf(stderr, "1 to %d lookups can be known ahead\n", MOST), 2;
    size_t bytes = sizeof(struct record) * RECORDS;
    struct record *table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED) return perror("mmap"), 1;
    for (uint64_t i = 0; i < RECORDS; i++) table[i] = (struct record){mix(i + 1) % RECORDS, {i}};
    uint64_t sum = 0, at = 7;
    double begun = now();
    for (uint64_t done = 0; done < LOOKUPS; done += ahead) {
        const void *next[MOST];
        for (size_t i = 0; i < ahead; i++) next[i] = &table[ahead == 1 ? at : mix(done + i + 1) % RECORDS];
        if (hint) farmem_read_each(next, ahead);
        for (size_t i = 0; i < ahead; i++) {
            const struct record *one = next[i];
            sum += one->value[0];
            at = mix(one->next + done) % RECORDS;
        }
    }
    fprintf(stderr, "%.0f ns\n", (now() - begun) / LOOKUPS);
    printf("%lu\n", (unsigned long)sum);
    return 0;
}
