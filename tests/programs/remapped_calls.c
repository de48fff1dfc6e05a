/* A call waits with a buffer whose page another thread unmaps and maps anew, as another call's: when the first returns, the
 * second's stays where the kernel finds it. (By `mmap`, `mremap`, `madvise`.) */
#include "case.h"

enum { PAGES = 32, ROUNDS = 4 };

struct call {
    pthread_t thread;
    int pipe[2];
    uint8_t *at;
    volatile ssize_t got;
    volatile int failed;
};

static void *reads(void *of) {
    struct call *c = of;
    c->got = read(c->pipe[0], c->at, PAGES * PAGE);
    c->failed = c->got < 0 ? errno : 0;
    return NULL;
}

static void begin(struct call *c, uint8_t *at) {
    c->at = at;
    MUST(pipe(c->pipe) == 0 && pthread_create(&c->thread, NULL, reads, c) == 0);
    usleep(20000);
}

static void end(struct call *c, uint8_t with) {
    uint8_t bytes[100];
    memset(bytes, with, sizeof bytes);
    MUST(write(c->pipe[1], bytes, sizeof bytes) == sizeof bytes && pthread_join(c->thread, NULL) == 0);
    close(c->pipe[0]);
    close(c->pipe[1]);
}

static void anew(uint8_t *at, int how) {
    const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    uint8_t *other;
    switch (how) {
    case 0: MUST(munmap(at, PAGES * PAGE) == 0 && mmap(at, PAGES * PAGE, prot, flags, -1, 0) == at); break;
    case 1: MUST(mmap(at, PAGES * PAGE, prot, flags, -1, 0) == at); break;
    case 2: MUST(madvise(at, PAGES * PAGE, MADV_DONTNEED) == 0); break;
    default:
        other = far_map(PAGES * PAGE);
        memset(other, 9, PAGES * PAGE);
        MUST(mremap(other, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at);
    }
    for (int i = 0; i < PAGES; i++) at[i * PAGE] += 1;
}

/* Pages that a call waits with are given up, and nobody touches them: the call writes to them all the same. */
static uint64_t given_up(void) {
    uint64_t bad = 0;
    for (int round = 0; round < 2 * ROUNDS; round++) {
        uint8_t *at = far_map(PAGES * PAGE);
        memset(at, 9, PAGES * PAGE);
        struct call call;
        begin(&call, at);
        MUST(madvise(at, PAGES * PAGE, round % 2 ? MADV_DONTNEED : MADV_FREE) == 0);
        if (round % 4 > 1) squeeze();
        end(&call, 3);
        if (call.failed) printf("given up, round %d: %s\n", round, strerror(call.failed));
        for (int i = 0; i < 100; i++) bad += at[i] != 3;
        if (round % 2) bad += nonzero(at + 100, PAGES * PAGE - 100);
        squeeze();
        for (int i = 0; i < 100; i++) bad += at[i] != 3;
        if (round % 2) bad += nonzero(at + 100, PAGES * PAGE - 100);
        MUST(munmap(at, PAGES * PAGE) == 0);
    }
    return bad;
}

int main(void) {
    uint64_t bad = given_up();
    printf("given up bad %lu\n", bad);
    for (int round = 0; round < ROUNDS * 4; round++) {
        uint8_t *at = far_map(PAGES * PAGE), *other = far_map(PAGES * PAGE);
        struct call first, second, beside;
        begin(&beside, other);
        begin(&first, at);
        anew(at, round % 4);
        begin(&second, at);
        end(&first, 3);
        for (int i = 0; i < 3; i++) squeeze();
        end(&second, 5);
        end(&beside, 7);
        bad += first.got != 100 || second.got != 100 || beside.got != 100;
        if (second.failed) printf("round %d: %s\n", round, strerror(second.failed));
        for (int i = 0; i < 100; i++) bad += at[i] != 5 || other[i] != 7;
        MUST(munmap(at, PAGES * PAGE) == 0 && munmap(other, PAGES * PAGE) == 0);
    }
    printf("bad %lu\n", bad);
    return 0;
}
