/* Long writes that reach the limit on the length of files end there with a short count. Only one that begins there is
 * refused, with a signal. */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/uio.h>

#include "case.h"

enum { LIMIT = 2 << 20, LONG = 3 << 20 };
static volatile sig_atomic_t signals;

static void counts(int number) {
    (void)number;
    signals++;
}

static void told(const char *what, int fd, ssize_t put) {
    printf("%s %zd, %d signals, at %ld, of %ld\n", what, put, (int)signals, (long)lseek(fd, 0, SEEK_CUR),
           (long)lseek(fd, 0, SEEK_END));
    MUST(!ftruncate(fd, 0) && lseek(fd, 0, SEEK_SET) == 0);
    signals = 0;
}

int main(void) {
    char path[] = "/tmp/farmem-limit-XXXXXX", *bytes = far_map(LONG);
    int fd = mkstemp(path);
    int appends = open(path, O_RDWR | O_APPEND);
    MUST(fd >= 0 && appends >= 0 && !unlink(path));
    fill(bytes, LONG, 0);
    struct rlimit limit = {LIMIT, RLIM_INFINITY};
    MUST(!getrlimit(RLIMIT_FSIZE, &limit));
    limit.rlim_cur = LIMIT;
    MUST(!setrlimit(RLIMIT_FSIZE, &limit));
    signal(SIGXFSZ, counts);
    squeeze();
    told("pwrite", fd, pwrite(fd, bytes, LONG, 0));
    told("pwrite further", fd, pwrite(fd, bytes, LONG, MIB));
    told("pwrite at the limit", fd, pwrite(fd, bytes, LONG, LIMIT));
    told("write", fd, write(fd, bytes, LONG));
    struct iovec two[] = {{bytes, MIB + 8}, {bytes + MIB + 8, LONG - MIB - 8}};
    told("pwritev", fd, pwritev(fd, two, 2, 0));
    told("writev", fd, writev(fd, two, 2));
    MUST(pwrite(fd, bytes, MIB, 0) == MIB);
    told("append", appends, write(appends, bytes, LONG));
    MUST(pwrite(fd, bytes, MIB, 0) == MIB);
    told("append by pwrite", appends, pwrite(appends, bytes, LONG, 0));
    MUST(!ftruncate(fd, 0));
    MUST(pwrite(fd, bytes, LONG, 0) == LIMIT);
    char *again = far_map(LIMIT);
    MUST(pread(fd, again, LIMIT, 0) == LIMIT);
    printf("wrong %zu\n", wrong(again, LIMIT, 0));
}
