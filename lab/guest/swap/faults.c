/* faults MIB COUNT NAME: what a fault of a swapped page takes. Fills memory, reads pages of it at random, and says the
 * median, the mean and the 99th of 100 of those reads that had to wait for the device, in microseconds. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#define WORDS 512

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static long major(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_majflt;
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int n, char **argument) {
    if (n != 4) return 2;
    size_t pages = strtoul(argument[1], NULL, 10) << 8, count = strtoul(argument[2], NULL, 10), waited = 0;
    uint64_t random = 88172645463325252ull;
    long wrong = 0;
    double *took = calloc(count, sizeof *took), sum = 0;
    uint64_t *memory = mmap(NULL, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || !took) return 2;
    madvise(memory, pages << 12, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < pages * WORDS; i++) memory[i] = i * 0x9e3779b97f4a7c15ull;
    for (size_t i = 0; i < count; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        size_t at = (random >> 8) % pages * WORDS;
        long before = major();
        double begun = now();
        wrong += *(volatile uint64_t *)(memory + at) != at * 0x9e3779b97f4a7c15ull;
        double end = now();
        if (major() > before) took[waited++] = end - begun;
    }
    qsort(took, waited, sizeof *took, order);
    for (size_t i = 0; i < waited; i++) sum += took[i];
    if (!waited) return 1;
    printf("  FAULT %-8s median %6.0f mean %6.0f p99 %7.0f us, %zu faults, %ld wrong\n", argument[3], took[waited / 2],
           sum / waited, took[waited * 99 / 100], waited, wrong);
    return wrong != 0;
}
