/* Single calls that move far more than may be local at once: the kernel's view
 * of a buffer must not need all of it present. */
#include "case.h"
#include <sys/uio.h>

enum { BYTES = 48 << 20 };

int main(void) {
    uint8_t *m = far_map(BYTES), *back = far_map(BYTES);
    fill(m, BYTES, 1);
    char path[] = "/tmp/big_io_XXXXXX";
    int fd = mkstemp(path);
    unlink(path);
    for (size_t n = 0; n < BYTES;) {
        ssize_t r = write(fd, m + n, BYTES - n);
        MUST(r > 0);
        n += r;
    }
    lseek(fd, 0, SEEK_SET);
    for (size_t n = 0; n < BYTES;) {
        ssize_t r = read(fd, back + n, BYTES - n);
        MUST(r > 0);
        n += r;
    }
    printf("read back wrong %zu\n", wrong(back, BYTES, 1));
    FILE *f = fdopen(fd, "r");
    memset(back, 0, BYTES);
    rewind(f);
    printf("fread %zu", fread(back, 1, BYTES, f));
    printf(" wrong %zu\n", wrong(back, BYTES, 1));
    int p[2];
    MUST(pipe(p) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(p[0]);
        /* One blocking write: POSIX lets it be cut short only by a signal. */
        for (size_t n = 0; n < BYTES;) n += write(p[1], m + n, BYTES - n);
        _exit(0);
    }
    close(p[1]);
    memset(back, 0, BYTES);
    for (size_t n = 0; n < BYTES;) {
        ssize_t r = read(p[0], back + n, BYTES - n);
        MUST(r > 0);
        n += r;
    }
    waitpid(child, NULL, 0);
    printf("pipe wrong %zu\n", wrong(back, BYTES, 1));
}
