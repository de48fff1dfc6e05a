/* One call's buffer is far memory with a file, shared memory or a gap in its middle: what is behind them is used, too,
 * though it is absent. */
#include "case.h"
#include <sys/socket.h>
#include <sys/uio.h>

enum { PART = 64 * 4096, PARTS = 48, BYTES = PART * PARTS };

static int kind_of(int part) { return part % 3; }

/* Lays a file (private or shared) or shared memory into each part, and what it holds is known. */
static void lay(uint8_t *m, int fd) {
    for (int part = 0; part < PARTS; part++) {
        uint8_t *at = m + part * PART + PAGE;
        int flags = MAP_FIXED | (kind_of(part) == 0 ? MAP_PRIVATE : MAP_SHARED);
        int from = kind_of(part) == 2 ? -1 : fd;
        flags |= from < 0 ? MAP_ANONYMOUS : 0;
        MUST(mmap(at, 5 * PAGE, PROT_READ | PROT_WRITE, flags, from, from < 0 ? 0 : part * 5 * PAGE) == at);
    }
}

static void check(const char *what, const uint8_t *m, uint64_t key) {
    printf("%s: %zu wrong\n", what, wrong(m, BYTES, key));
    squeeze();
}

int main(void) {
    int file = memfd_create("laid", 0), out = memfd_create("out", 0);
    MUST(file >= 0 && out >= 0 && ftruncate(file, PARTS * 5 * PAGE) == 0);
    uint8_t *m = far_map(BYTES), *back = far_map(BYTES);
    lay(m, file);
    fill(m, BYTES, 1);
    squeeze();

    MUST(write(out, m, BYTES) == BYTES);
    MUST(pread(out, back, BYTES, 0) == BYTES);
    check("write", back, 1);
    fill(back, BYTES, 2);
    squeeze();
    MUST(pwrite(out, back, BYTES, 0) == BYTES);
    MUST(pread(out, m, BYTES, 0) == BYTES);
    check("pread", m, 2);

    /* Short calls, too: one part each, from the far page before the file to behind it. */
    for (int part = 0; part < PARTS; part++) MUST(pwrite(out, m + part * PART, 20 * PAGE, 0) == 20 * PAGE);
    squeeze();

    struct iovec parts[2] = {{m, BYTES / 2}, {m + BYTES / 2, BYTES / 2}};
    MUST(pwritev(out, parts, 2, 0) == BYTES);
    memset(m, 0, BYTES);
    squeeze();
    MUST(preadv(out, parts, 2, 0) == BYTES);
    check("preadv", m, 2);

    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        for (size_t n = 0; n < BYTES;) {
            ssize_t r = write(ends[0], m + n, BYTES - n);
            MUST(r > 0);
            n += r;
        }
        _exit(0);
    }
    close(ends[0]);
    memset(back, 0, BYTES);
    MUST(recv(ends[1], back, BYTES, MSG_WAITALL) == BYTES);
    check("socket", back, 2);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);

    /* A gap ends the call. */
    MUST(munmap(m + BYTES / 2, PAGE) == 0);
    printf("up to a gap: %zd\n", pwrite(out, m, BYTES, 0));

    /* Words and their array across the edge of a file. */
    char *words = (char *)m + PAGE - 3;
    memcpy(words, "echo", 5);
    char **list = (char **)(m + PART + PAGE) - 1;
    list[0] = words, list[1] = "far and near", list[2] = NULL;
    fflush(stdout);
    squeeze();
    child = fork();
    if (child == 0) {
        execv("/bin/echo", list);
        _exit(1);
    }
    MUST(waitpid(child, &status, 0) == child);
    printf("echo: %d\n", status);
}
