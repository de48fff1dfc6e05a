/* What natively fails with EFAULT, or stops short at the end of what is
 * mapped, fails and stops the same. */
#include "case.h"
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

static void say(const char *what, long r) {
    int e = errno;
    printf("%s %ld", what, r);
    if (r < 0) printf(" errno %d", e);
    printf("\n");
}

int main(void) {
    uint8_t *m = far_map(64 * PAGE);
    fill(m, 64 * PAGE, 1);
    /* 8 pages, then a hole. */
    MUST(munmap(m + 8 * PAGE, 8 * PAGE) == 0);
    MUST(mprotect(m + 24 * PAGE, 8 * PAGE, PROT_NONE) == 0);
    MUST(mprotect(m + 40 * PAGE, 8 * PAGE, PROT_READ) == 0);
    squeeze();
    int p[2];
    MUST(pipe(p) == 0);
    char path[] = "/tmp/bad_pointers_XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    say("write up to a hole", pwrite(fd, m, 12 * PAGE, 0));
    say("write from a hole", pwrite(fd, m + 8 * PAGE, PAGE, 0));
    say("write up to PROT_NONE", pwrite(fd, m + 16 * PAGE, 12 * PAGE, 0));
    say("write from PROT_NONE", pwrite(fd, m + 24 * PAGE, PAGE, 0));
    say("write from read-only", pwrite(fd, m + 40 * PAGE, 8 * PAGE, 0));
    MUST(ftruncate(fd, 64 * PAGE) == 0);
    say("read up to a hole", pread(fd, m + 4 * PAGE, 8 * PAGE, 0));
    say("read into a hole", pread(fd, m + 8 * PAGE, PAGE, 0));
    say("read up to read-only", pread(fd, m + 36 * PAGE, 8 * PAGE, 0));
    say("read into read-only", pread(fd, m + 40 * PAGE, PAGE, 0));
    say("read into null", syscall(SYS_pread64, fd, NULL, PAGE, 0));
    say("pipe from a hole", write(p[1], m + 9 * PAGE, 10));
    say("stat of a hole", stat((char *)m + 9 * PAGE, (struct stat *)m));
    say("stat into a hole", stat("/", (struct stat *)(m + 9 * PAGE)));
    say("open of a hole", open((char *)m + 9 * PAGE, O_RDONLY));
    /* A path that runs up to a hole without an end. */
    memset(m + 7 * PAGE, 'a', PAGE);
    say("open of an endless path", open((char *)m + 8 * PAGE - 20, O_RDONLY));
    struct iovec v[3] = {{m, 100}, {m + 8 * PAGE, 100}, {m + 16 * PAGE, 100}};
    say("writev over a hole", pwritev(fd, v, 3, 0));
    say("readv over a hole", preadv(fd, v, 3, 0));
    say("iovec in a hole", pwritev(fd, (struct iovec *)(m + 9 * PAGE), 1, 0));
    say("nanosleep of a hole", nanosleep((struct timespec *)(m + 9 * PAGE), NULL));
    say("sigaction from a hole", syscall(SYS_rt_sigaction, SIGUSR1, m + 9 * PAGE, NULL, 8));
    say("socketpair into a hole", socketpair(AF_UNIX, SOCK_STREAM, 0, (int *)(m + 9 * PAGE)));
    say("getrandom to a hole", syscall(SYS_getrandom, m + 9 * PAGE, 10, 0));
    say("zero bytes from a hole", pwrite(fd, m + 9 * PAGE, 0, 0));
    say("huge length", syscall(SYS_read, p[0], m, -1ul));
    /* A protection that fails at a hole holds up to there. */
    for (int way = 0; way < 4; way++) {
        const int rw = PROT_READ | PROT_WRITE;
        uint8_t *half = mmap(NULL, 64 * PAGE, way & 1 ? PROT_NONE : rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(half != MAP_FAILED && munmap(half + 32 * PAGE, PAGE) == 0);
        if (way & 2) MUST(mprotect(half + 8 * PAGE, PAGE, PROT_READ) == 0);
        say("protection over a hole", mprotect(half, 64 * PAGE, way & 1 ? rw : PROT_NONE));
        say("read before it", pread(fd, half, PAGE, 0));
        say("up to it", pread(fd, half + 24 * PAGE, 16 * PAGE, 0));
        say("behind it", pread(fd, half + 33 * PAGE, PAGE, 0));
        say("write from it", pwrite(fd, half + 8 * PAGE, PAGE, 0));
        squeeze();
        if (way & 1) printf("nonzero %d\n", nonzero(half + 8 * PAGE, 32 * PAGE - 8 * PAGE) > 0);
        MUST(munmap(half, 64 * PAGE) == 0);
    }
    /* Ranges that leave the address space are refused, and nothing of them is done. */
    for (size_t at = 0; at <= PAGE; at += PAGE) {
        const size_t lengths[] = {-1ul, -PAGE, 1ul << 63, 1ul << 47, (1ul << 47) - PAGE + 1};
        for (int i = 0; i < 5; i++) {
            int unmapped = munmap((void *)at, lengths[i]), why = errno;
            int changed = mprotect((void *)at, lengths[i], PROT_READ);
            printf("range %zu %d: munmap %d %d mprotect %d %d\n", at, i, unmapped, why, changed, errno);
        }
    }
}
