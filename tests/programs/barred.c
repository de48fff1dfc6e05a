/* System calls are given addresses in memory that nobody may read and nothing was written to: names for reservations, and mistakes.
 * Nothing is there afterwards that eviction would have to read. It may not be brought in by advice either. */
#include "case.h"
#include <sys/prctl.h>
#include <sys/stat.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

int main(void) {
    int fd = open("/dev/null", O_WRONLY);
    MUST(fd >= 0);
    for (int i = 0; i < 16; i++) {
        const size_t size = 4 * MIB;
        uint8_t *reserved = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(reserved != MAP_FAILED);
        /* Not every kernel gives names. */
        prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, reserved, size, "a reservation");
        errno = 0;
        struct stat about;
        int r = stat((char *)reserved + 2 * MIB, &about);
        printf("stat %d %d", r, errno);
        int p[2];
        MUST(pipe(p) == 0);
        errno = 0;
        ssize_t n = write(p[1], reserved + 3 * MIB, 100);
        printf(" write %zd %d", n, errno);
        MUST(write(p[1], "x", 1) == 1);
        errno = 0;
        n = read(p[0], reserved + 3 * MIB + PAGE, 1);
        printf(" read %zd %d\n", n, errno);
        close(p[0]);
        close(p[1]);
        /* To be brought in: what may not be read, what may not be written, what ends. */
        for (int advice = 22; advice <= 23; advice++) {
            errno = 0;
            int r = madvise(reserved + MIB, 2 * PAGE, advice);
            printf("%d: %d %d", advice, r, errno);
            MUST(mprotect(reserved + MIB, PAGE, PROT_READ) == 0);
            errno = 0, r = madvise(reserved + MIB, PAGE, advice);
            printf(", readable %d %d", r, errno);
            errno = 0, r = madvise(reserved + MIB, 2 * PAGE, advice);
            printf(", in part %d %d", r, errno);
            MUST(mprotect(reserved + MIB, 2 * PAGE, PROT_READ | PROT_WRITE) == 0);
            errno = 0, r = madvise(reserved + MIB, 2 * PAGE, advice);
            printf(", writable %d %d\n", r, errno);
            MUST(mprotect(reserved + MIB, 2 * PAGE, PROT_NONE) == 0);
        }
        /* What becomes readable then is zero, and can be used. */
        MUST(mprotect(reserved + 3 * MIB, PAGE, PROT_READ | PROT_WRITE) == 0);
        MUST(nonzero(reserved + 3 * MIB, PAGE) == 0);
        reserved[3 * MIB] = i;
        squeeze();
        MUST(reserved[3 * MIB] == i);
    }
    squeeze();
    printf("nothing was read\n");
}
