// A program that takes memory at addresses of its own choice, all over the address space, and elsewhere where it is not
// to be had, as Go's runtime, whose heap begins at a random address. Linked statically it has no runtime of farmem's,
// only the filter that the run's first program had.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

int main(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const size_t len = 1 << 20;
    for (size_t hint = 1ul << 32; hint < 1ul << 47; hint += (1ul << 40) + (7ul << 22)) {
        char *at = mmap((void *)hint, len, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (at == MAP_FAILED && errno == ENOMEM)
            at = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (at == MAP_FAILED) {
            perror("mmap");
            return 1;
        }
        memset(at, 7, len);
        if (madvise(at, len, MADV_DONTNEED) != 0 || at[5] != 0 || munmap(at, len) != 0) {
            perror("what was mapped");
            return 1;
        }
    }
    puts("unharmed");
    return 0;
}
