/* madvise, partial munmap, mprotect by pieces, mincore and mapping over. */
#include "case.h"

enum { PAGES = 4096 };

int main(void) {
    size_t bad = 0;
    uint8_t *m = far_map(PAGES * PAGE);
    fill(m, PAGES * PAGE, 1);
    for (int i = 0; i < PAGES; i += 8) MUST(madvise(m + i * PAGE, 3 * PAGE, MADV_DONTNEED) == 0);
    squeeze();
    for (int i = 0; i < PAGES; i++) {
        uint64_t *w = (uint64_t *)(m + i * PAGE);
        if (i % 8 < 3)
            bad += nonzero(w, PAGE);
        else
            for (int k = 0; k < 512; k++) bad += w[k] != mix(1 + i * 512ul + k);
    }
    printf("dontneed bad %zu\n", bad);

    fill(m, PAGES * PAGE, 2);
    MUST(madvise(m, PAGES * PAGE / 2, MADV_FREE) == 0);
    for (int i = 0; i < PAGES / 2; i += 2) *(uint64_t *)(m + i * PAGE) = 77;
    squeeze();
    for (int i = 0; i < PAGES / 2; i++) {
        uint64_t *w = (uint64_t *)(m + i * PAGE);
        if (i % 2 == 0) bad += w[0] != 77;
        else bad += w[0] != 0 && w[0] != mix(2 + i * 512ul);
        for (int k = 1; k < 512; k++) bad += w[k] != 0 && w[k] != mix(2 + i * 512ul + k);
    }
    printf("free bad %zu\n", bad);

    int advices[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_COLD, MADV_HUGEPAGE,
                     MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_DODUMP};
    fill(m, PAGES * PAGE, 3);
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
        /* Whether huge pages can be advised is the kernel's configuration. */
        int r = madvise(m, PAGES * PAGE, advices[i]);
        if (advices[i] != MADV_HUGEPAGE && advices[i] != MADV_NOHUGEPAGE) printf("advice %d: %d\n", advices[i], r);
    }
    squeeze();
    printf("advised bad %zu\n", bad += wrong(m, PAGES * PAGE, 3));

    /* MADV_DONTNEED_LOCKED, of Linux 5.18. */
    uint8_t *locked = m + (PAGES - 8) * PAGE;
    int r = madvise(locked, 8 * PAGE, 24);
    printf("dontneed, locked or not: %d, left %zu\n", r, r == 0 ? nonzero(locked, 8 * PAGE) : 0);
    fill(m, PAGES * PAGE, 3);

    for (int i = 1; i < PAGES; i += 64) MUST(munmap(m + i * PAGE, 7 * PAGE) == 0);
    unsigned char vec[16];
    errno = 0;
    printf("hole %d", mincore(m + 65 * PAGE, PAGE, vec));
    printf(" errno %d, beside %d\n", errno, mincore(m + 72 * PAGE, PAGE, vec));
    for (int i = 1; i < PAGES; i += 64) {
        uint8_t *at = m + i * PAGE;
        MUST(mmap(at, 7 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == at);
        bad += nonzero(at, 7 * PAGE);
        fill(at, 7 * PAGE, 4);
    }
    errno = 0;
    void *no = mmap(m, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    printf("noreplace %d errno %d\n", no == MAP_FAILED, errno);
    squeeze();
    for (int i = 0; i < PAGES; i++) {
        uint64_t *w = (uint64_t *)(m + i * PAGE);
        if (i % 64 >= 1 && i % 64 < 8)
            for (int k = 0; k < 512; k++) bad += w[k] != mix(4 + (i % 64 - 1) * 512ul + k);
        else
            for (int k = 0; k < 512; k++) bad += w[k] != mix(3 + i * 512ul + k);
    }
    printf("holes refilled bad %zu\n", bad);

    /* A file mapped over the middle of far memory, and unmapped again. */
    char path[] = "/tmp/advise_XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    uint8_t *page = malloc(16 * PAGE);
    fill(page, 16 * PAGE, 9);
    MUST(write(fd, page, 16 * PAGE) == 16 * PAGE);
    uint8_t *at = m + 512 * PAGE;
    MUST(mmap(at, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0) == at);
    bad += wrong(at, 16 * PAGE, 9);
    fill(at, 16 * PAGE, 10);
    squeeze();
    bad += wrong(at, 16 * PAGE, 10);
    MUST(mmap(at, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    printf("file over bad %zu\n", bad += nonzero(at, 16 * PAGE));
    MUST(mmap(at, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    fill(at, 16 * PAGE, 11);
    pid_t p = fork();
    if (p == 0) {
        fill(at, 16 * PAGE, 12);
        _exit(0);
    }
    waitpid(p, NULL, 0);
    printf("shared over bad %zu\n", bad += wrong(at, 16 * PAGE, 12));

    /* Protection by pieces survives being paged out. */
    fill(m, 512 * PAGE, 5);
    for (int i = 0; i < 512; i += 4) MUST(mprotect(m + i * PAGE, PAGE, PROT_READ) == 0);
    for (int i = 1; i < 512; i += 4) MUST(mprotect(m + i * PAGE, PAGE, PROT_NONE) == 0);
    squeeze();
    int pipefd[2];
    MUST(pipe(pipefd) == 0);
    char eight[8];
    int refused = 0;
    for (int i = 0; i < 512; i++) {
        errno = 0;
        if (write(pipefd[1], m + i * PAGE, 8) == 8)
            MUST(read(pipefd[0], eight, 8) == 8);
        else
            refused += errno == EFAULT;
    }
    printf("unreadable %d\n", refused);
    refused = 0;
    for (int i = 0; i < 512; i++) {
        MUST(write(pipefd[1], "12345678", 8) == 8);
        errno = 0;
        if (read(pipefd[0], m + i * PAGE + 8, 8) != 8) {
            refused += errno == EFAULT;
            close(pipefd[0]), close(pipefd[1]);
            MUST(pipe(pipefd) == 0);
        }
    }
    printf("unwritable %d\n", refused);
    MUST(mprotect(m, 512 * PAGE, PROT_READ | PROT_WRITE) == 0);
    for (int i = 0; i < 512; i++)
        for (int k = 0; k < 512; k++)
            bad += k != 1 && ((uint64_t *)m)[i * 512 + k] != mix(5 + i * 512ul + k);
    printf("pieces bad %zu\n", bad);
    errno = 0;
    printf("unaligned munmap %d", munmap(m + 5, PAGE));
    printf(" errno %d\n", errno);
    printf("all gone %d\n", munmap(m, PAGES * PAGE));
    uint8_t *low = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    printf("32 bit %d\n", low != MAP_FAILED && (uintptr_t)low < 1ul << 32);
    uint8_t *pop = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    fill(pop, 8 * MIB, 1);
    squeeze();
    printf("populated %zu, locked %d\n", wrong(pop, 8 * MIB, 1), mlock(pop, PAGE));
}
