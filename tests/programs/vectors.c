/* Vectors longer than what is local, of a file and a stream; and of what keeps messages apart, which are one call's
 * however many vectors they have. */
#include "case.h"
#include <sys/socket.h>
#include <sys/uio.h>

enum { BYTES = 12 << 20, HALF = BYTES / 2, MANY = 164, SMALL = 1 << 10, LARGE = 32 << 10 };
static uint8_t *mem, *copy;

/* 100 short vectors and then long ones: 2 MiB. */
static size_t scatter(struct iovec *v, uint8_t *at) {
    size_t all = 0;
    for (int i = 0; i < MANY; i++) {
        v[i] = (struct iovec){at + all, i < 100 ? SMALL : LARGE};
        all += v[i].iov_len;
    }
    return all;
}

static void messages(int kind) {
    struct iovec v[MANY];
    int s[2];
    MUST(socketpair(AF_UNIX, kind, 0, s) == 0);
    size_t all = scatter(v, mem);
    squeeze();
    errno = 0;
    ssize_t sent = writev(s[0], v, MANY);
    printf("kind %d: %zu as one message: %zd, errno %d\n", kind, all, sent, sent < 0 ? errno : 0);
    MUST(send(s[0], mem, 150000, 0) == 150000);
    MUST(send(s[0], mem, 10, 0) == 10);
    memset(copy, 0, all);
    scatter(v, copy);
    squeeze();
    ssize_t first = readv(s[1], v, MANY), second = readv(s[1], v, 1);
    printf("received %zd, wrong %zu, then %zd\n", first, wrong(copy, 150000, 1), second);
    close(s[0]);
    close(s[1]);
}

static void *sends(void *s) {
    struct iovec v[MANY];
    size_t all = scatter(v, mem);
    MUST(writev((int)(intptr_t)s, v, MANY) == (ssize_t)all);
    close((int)(intptr_t)s);
    return NULL;
}

static void stream(void) {
    int s[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0);
    pthread_t t;
    squeeze();
    MUST(pthread_create(&t, NULL, sends, (void *)(intptr_t)s[0]) == 0);
    size_t all = 0;
    for (ssize_t n; (n = read(s[1], copy + all, 64 << 10)) > 0;) all += n;
    MUST(pthread_join(t, NULL) == 0);
    printf("stream: %zu, wrong %zu\n", all, wrong(copy, all, 1));
}

int main(void) {
    alarm(200);
    mem = far_map(BYTES);
    copy = far_map(BYTES);
    fill(mem, BYTES, 1);
    squeeze();
    char name[] = "/tmp/vectors-XXXXXX";
    int fd = mkstemp(name);
    MUST(fd >= 0 && unlink(name) == 0);
    struct iovec v[4] = {{mem, HALF}, {mem + HALF, 1000}, {NULL, 0}, {mem + HALF + 1000, HALF - 1000}};
    MUST(writev(fd, v, 4) == BYTES);
    MUST(pwritev(fd, v, 4, BYTES + 1) == BYTES);
    for (int i = 0; i < 4; i++) v[i].iov_base = v[i].iov_base ? copy + ((uint8_t *)v[i].iov_base - mem) : NULL;
    memset(copy, 0, BYTES);
    MUST(preadv(fd, v, 4, BYTES + 1) == BYTES);
    printf("preadv: wrong %zu\n", wrong(copy, BYTES, 1));
    memset(copy, 0, BYTES);
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    MUST(readv(fd, v, 4) == BYTES);
    printf("readv: wrong %zu, then %zd\n", wrong(copy, BYTES, 1), (ssize_t)lseek(fd, 0, SEEK_CUR));
    printf("end: %zd\n", preadv(fd, v, 4, 2 * BYTES - 99));
    struct iovec *volatile absent = (struct iovec *)8;
    ssize_t ret = readv(fd, absent, 4);
    printf("nowhere: %zd %d\n", ret, errno);
    messages(SOCK_SEQPACKET);
    messages(SOCK_DGRAM);
    stream();
}
