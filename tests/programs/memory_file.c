/* /proc/self/mem: a position there is an address, so that what is behind it must be here for the call. The kernel forces its
 * way: what the program may not read is read, what it may not write is written. */
#include "case.h"
#include <sys/uio.h>

#define LEN (8 * MIB)
/* More than may be pinned at once where little is local. */
#define LONG (3 * MIB)

static int self;
static uint8_t *near_buffer;

static void say(const char *what, ssize_t n) {
    printf("%s: %zd %d\n", what, n, n < 0 ? errno : 0);
}

static uint64_t sum(const uint8_t *p, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = h * 31 + p[i];
    return h;
}

static ssize_t get(void *to, const void *at, size_t n) {
    return pread(self, to, n, (off_t)at);
}

static ssize_t put(void *at, const void *from, size_t n) {
    return pwrite(self, from, n, (off_t)at);
}

int main(int argc, char **argv) {
    uint8_t *far = far_map(LEN), *buffer = far_map(LEN);
    near_buffer = malloc(64 << 10);
    fill(far, LEN, 1);
    squeeze();
    char task[64];
    snprintf(task, sizeof task, "/proc/self/task/%d/mem", (int)getpid());
    char process[64];
    snprintf(process, sizeof process, "/proc/%d/mem", (int)getpid());
    const char *names[] = {"/proc/self/mem", process, task};
    for (int i = 0; i < 3; i++) {
        self = open(names[i], O_RDWR);
        MUST(self >= 0);
        squeeze();
        /* Across the edges of pages. */
        for (size_t at = PAGE - 3; at < LEN; at += 777 * 777) {
            MUST(get(near_buffer, far + at, 9000 % (LEN - at) + 1) == (ssize_t)(9000 % (LEN - at) + 1));
            MUST(memcmp(near_buffer, far + at, 9000 % (LEN - at) + 1) == 0);
        }
        close(self);
    }
    self = open("/proc/self/mem", O_RDWR);
    MUST(self >= 0);

    /* What is written is there, also while other pages leave; near and far, long and short. */
    squeeze();
    fill(buffer, LONG, 2);
    say("long", put(far + 5, buffer + 1, LONG - 1));
    squeeze();
    MUST(memcmp(far + 5, buffer + 1, LONG - 1) == 0);
    squeeze();
    say("long back", get(buffer + 7, far, LONG));
    MUST(memcmp(far, buffer + 7, LONG) == 0);
    for (int round = 0; round < 2000; round++) {
        size_t at = mix(round) % (LEN - 8);
        uint64_t value = mix(~round);
        MUST(put(far + at, &value, 8) == 8);
        if (round % 500 == 0) squeeze();
        uint64_t back = 0;
        MUST(get(&back, far + at, 8) == 8);
        MUST(back == value);
    }
    printf("%lx\n", sum(far, LEN));

    /* Vectors, near and far, one of nothing. */
    struct iovec v[4] = {{near_buffer, 5000}, {buffer, 70000}, {near_buffer + 6000, 0}, {buffer + 2 * MIB, LONG}};
    squeeze();
    say("readv", preadv(self, v, 4, (off_t)(far + 11)));
    MUST(memcmp(near_buffer, far + 11, 5000) == 0);
    MUST(memcmp(buffer, far + 5011, 70000) == 0);
    MUST(memcmp(buffer + 2 * MIB, far + 75011, LONG) == 0);
    fill(buffer, LEN, 3);
    squeeze();
    say("writev", pwritev(self, v, 4, (off_t)(far + 13)));
    MUST(memcmp(buffer + 2 * MIB, far + 75013, LONG) == 0);
    say("readv2", preadv2(self, v, 4, (off_t)(far + 17), 0));
    say("readv2, flags", preadv2(self, v, 4, (off_t)(far + 17), 0x40000000));
    say("no vectors", preadv(self, v, 0, (off_t)far));
    volatile int many = 4000;
    say("too many", preadv(self, v, many, (off_t)far));
    v[1].iov_len = (size_t)-1;
    say("too long", preadv(self, v, 4, (off_t)far));
    volatile size_t endless = -1;
    say("too long, one", get(buffer, far, endless));
    say("too long, put", put(far, buffer, endless));
    say("nothing", get(near_buffer, far, 0));

    /* Ranges that end, and buffers that do. Between two holes. */
    MUST(munmap(far + 2 * MIB, PAGE) == 0);
    MUST(munmap(buffer + 2 * MIB, PAGE) == 0);
    squeeze();
    say("to a hole", get(buffer, far + 2 * MIB - 5000, 20000));
    say("to a hole, long", get(buffer + 2 * MIB + PAGE, far + 2 * MIB - 1500 * 1024 - 3, LONG));
    say("into a hole, long", put(far + 2 * MIB - 1500 * 1024 - 3, buffer + 2 * MIB + PAGE, LONG));
    say("in a hole", get(buffer, far + 2 * MIB + 5, 10));
    say("buffer to a hole", get(buffer + 2 * MIB - 5000, far, 20000));
    say("buffer to a hole, long", get(buffer + 2 * MIB - 1500 * 1024, far + 3 * MIB, LONG));
    say("from a buffer to a hole", put(far + 3 * MIB, buffer + 2 * MIB - 1500 * 1024, LONG));
    say("buffer in a hole", put(far + 3 * MIB, buffer + 2 * MIB, 10));
    struct iovec w[3] = {{near_buffer, 3000}, {buffer + 2 * MIB - 10, 20}, {near_buffer, 3000}};
    say("vectors to a hole", preadv(self, w, 3, (off_t)(far + 3 * MIB)));
    w[1] = (struct iovec){near_buffer + 3000, 3000};
    say("vectors of a hole", preadv(self, w, 3, (off_t)(far + 2 * MIB - 4000)));

    /* What may not be written, what may not be read, with bytes and without. */
    MUST(mprotect(far + 4 * MIB, MIB, PROT_READ) == 0);
    MUST(mprotect(far + 5 * MIB, MIB, PROT_NONE) == 0);
    uint8_t *reserved = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(reserved != MAP_FAILED);
    squeeze();
    fill(buffer, MIB, 4);
    say("of PROT_NONE", get(buffer, far + 5 * MIB + 100, 200000));
    printf("%lx\n", sum(buffer, 200000));
    fill(buffer, MIB, 4);
    say("to PROT_READ", put(far + 4 * MIB + 100, buffer, 200000));
    say("to PROT_NONE", put(far + 5 * MIB + 100, buffer, 200000));
    say("of a reservation", get(near_buffer, reserved + MIB - 1, 10000));
    MUST(nonzero(near_buffer, 10000) == 0);
    say("to a reservation", put(reserved + 3 * MIB - 1, buffer, 10000));
    squeeze();
    say("of it", get(near_buffer, reserved + 3 * MIB - 1, 10000));
    MUST(memcmp(near_buffer, buffer, 10000) == 0);
    MUST(memcmp(far + 4 * MIB + 100, buffer, 200000) == 0);
    squeeze();
    MUST(mprotect(far + 5 * MIB, MIB, PROT_READ) == 0);
    MUST(mprotect(reserved, LEN, PROT_READ) == 0);
    MUST(memcmp(far + 5 * MIB + 100, buffer, 200000) == 0);
    printf("%zu %lx\n", nonzero(reserved, LEN), sum(reserved + 3 * MIB - 1, 10000));

    /* A file among it. */
    int program = open(argv[0], O_RDONLY);
    MUST(program >= 0 && argc > 0);
    MUST(mmap(far + 6 * MIB, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, program, 0) == far + 6 * MIB);
    squeeze();
    say("around a file", get(buffer, far + 6 * MIB - 5000, 20000));
    MUST(memcmp(buffer, far + 6 * MIB - 5000, 20000) == 0);
    /* Positions of other files may lie there. */
    int other = memfd_create("other", 0);
    MUST(other >= 0);
    say("another file", pread(other, buffer, 20000, (off_t)far));
    say("another file, vectors", preadv(other, v, 1, (off_t)far));
    say("no file", pread(-1, buffer, 20000, (off_t)far));
    MUST(munmap(far, LEN) == 0);
    say("of nothing", get(near_buffer, far + MIB, 100));
    printf("read and written\n");
}
