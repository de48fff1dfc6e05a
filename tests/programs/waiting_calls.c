/* Threads that wait in calls with large buffers, more than is local, while one works: a server with a thread
 * for each connection. What it touches beside them comes and goes, and an instruction that needs two pages
 * gets both; that it takes longer is no more than that there is less room. */
#include "case.h"
#include <sys/socket.h>

enum { THREADS = 80, BYTES = 64 << 10 };

static uint8_t *buffers;
static int ends[THREADS][2];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double squeezed(void) {
    double begun = now();
    squeeze();
    return now() - begun;
}

static void *waits(void *arg) {
    size_t i = (size_t)arg;
    return (void *)recv(ends[i][0], buffers + i * BYTES, BYTES, 0);
}

int main(void) {
    uint8_t *from = far_map(8 * MIB), *to = far_map(8 * MIB);
    fill(from, 8 * MIB, 3);
    buffers = far_map(THREADS * BYTES);
    memset(buffers, 1, THREADS * BYTES);
    squeezed();
    double alone = squeezed();
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]) == 0);
        MUST(pthread_create(&threads[i], NULL, waits, (void *)i) == 0);
    }
    usleep(200000);
    double beside = squeezed();
    for (size_t at = 0; at < 8 * MIB; at += PAGE) {
        void *d = to + at, *s = from + at;
        size_t n = PAGE;
        __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n) : : "memory");
    }
    printf("wrong %zu\n", wrong(to, 8 * MIB, 3));
    /* What eviction cost each fault was a hundred times as much. */
    printf("%s\n", beside < 30 * alone + 1.5 ? "goes on" : "crawls");
    fprintf(stderr, "alone %.3f s, beside %.3f s\n", alone, beside);
    uint8_t message[1000];
    for (size_t i = 0; i < THREADS; i++) {
        memset(message, i, sizeof message);
        MUST(send(ends[i][1], message, sizeof message, 0) == sizeof message);
    }
    size_t bad = 0;
    for (size_t i = 0; i < THREADS; i++) {
        void *got;
        MUST(pthread_join(threads[i], &got) == 0);
        bad += got != (void *)sizeof message;
        for (size_t at = 0; at < BYTES; at++) bad += buffers[i * BYTES + at] != (at < sizeof message ? i : 1);
    }
    squeeze();
    printf("bad %zu, wrong %zu\n", bad, wrong(from, 8 * MIB, 3));
    return 0;
}
