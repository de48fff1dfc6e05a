/* Long transfers that Linux makes as one: several processes and threads append to a file, and each call has its turn,
 * also after one that was left by a jump out of a signal handler. What comes from a device, or is a message, is not cut. */
#define _GNU_SOURCE
#include "case.h"
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { RECORD = 4 << 20, THREADS = 3, ROUNDS = 3, RECORDS = 2 * THREADS * ROUNDS };
static int file;

static int put(const uint8_t *record, int by_vectors) {
    struct iovec parts[3] = {
        {(void *)record, MIB + 5}, {(void *)(record + MIB + 5), 2 * MIB}, {(void *)(record + 3 * MIB + 5), RECORD - 3 * MIB - 5}};
    return by_vectors ? writev(file, parts, 3) : write(file, record, RECORD);
}

static void *writer(void *which) {
    uint8_t *record = far_map(RECORD);
    for (int round = 0; round < ROUNDS; round++) {
        memset(record, (uintptr_t)which * ROUNDS + round + 1, RECORD);
        MUST(put(record, round & 1) == RECORD);
    }
    munmap(record, RECORD);
    return NULL;
}

/* Bytes that are not as the first. */
static size_t torn(const uint8_t *record) {
    size_t n = 0;
    for (size_t i = 0; i < RECORD; i++) n += record[i] != record[0];
    return n > 0;
}

/* In two processes with three threads each. */
static void all(void) {
    fflush(stdout);
    pid_t child = fork();
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        MUST(pthread_create(&t[i], NULL, writer, (void *)(i + (child ? 0 : THREADS))) == 0);
    for (int i = 0; i < THREADS; i++) MUST(pthread_join(t[i], NULL) == 0);
    if (!child) _exit(0);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

/* Handlers that interrupt long writes of the same thread, and write as long: every other one leaves the first by a jump. */
enum { HANDLED = 40 };
static sigjmp_buf back;
static uint8_t *other;
static atomic_int handled;
static volatile int inside;
static void interrupts(int unused) {
    (void)unused;
    if (!inside) return;
    inside = 0;
    MUST(write(file, other, RECORD) == RECORD);
    if (++handled % 2) siglongjmp(back, 1);
    inside = 1;
}

static void *sends(void *to) {
    for (uint64_t i = 0; handled < HANDLED; i++) {
        struct timespec while_it_writes = {0, mix(i) % 4000000};
        nanosleep(&while_it_writes, NULL);
        MUST(pthread_kill(*(pthread_t *)to, SIGUSR1) == 0);
    }
    return NULL;
}

static void interrupted(void) {
    uint8_t *record = far_map(RECORD);
    pthread_t self = pthread_self(), t;
    other = far_map(RECORD);
    signal(SIGUSR1, interrupts);
    MUST(pthread_create(&t, NULL, sends, &self) == 0);
    while (handled < HANDLED) {
        sigsetjmp(back, 1);
        MUST(lseek(file, 0, SEEK_SET) == 0);
        inside = 1;
        ssize_t n = write(file, record, RECORD);
        inside = 0;
        MUST(n == RECORD);
    }
    MUST(pthread_join(t, NULL) == 0);
    munmap(record, RECORD);
    munmap(other, RECORD);
}

static void checked(const char *how) {
    uint8_t *record = far_map(RECORD);
    size_t bad = 0;
    int seen[RECORDS + 1] = {0}, missing = 0;
    MUST(lseek(file, 0, SEEK_END) == (off_t)RECORD * RECORDS);
    for (int i = 0; i < RECORDS; i++) {
        MUST(pread(file, record, RECORD, (off_t)i * RECORD) == RECORD);
        bad += torn(record);
        seen[record[0] % (RECORDS + 1)]++;
    }
    for (int i = 1; i <= RECORDS; i++) missing += seen[i] != 1;
    printf("%s: torn %zu missing %d\n", how, bad, missing);
    munmap(record, RECORD);
}

int main(void) {
    alarm(200);
    uint8_t *m = far_map(40 * MIB);
    fill(m, 40 * MIB, 1);
    char path[] = "/tmp/one_call_XXXXXX";
    file = mkstemp(path);
    interrupted();
    MUST(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
    all();
    checked("one position");
    MUST(ftruncate(file, 0) == 0);
    close(file);
    file = open(path, O_RDWR | O_APPEND);
    all();
    checked("appended");
    /* A buffer that is longer than what is left of the file, and than local memory; from a position, and by vectors. */
    struct iovec parts[2] = {{m, 20 * MIB + 1}, {m + 20 * MIB + 1, 20 * MIB - 1}};
    off_t end = (off_t)RECORD * RECORDS;
    for (int left = 1; left < 40; left += 7) {
        MUST(lseek(file, end - left * (off_t)MIB - 3, SEEK_SET) > 0);
        ssize_t n = read(file, m, 40 * MIB);
        printf("left %zd %zd", n, preadv(file, parts, 2, end - left * (off_t)MIB));
        printf(" %zd, then %zd\n", pread(file, m, 3 * MIB, end - left * (off_t)MIB), read(file, m, 2 * MIB));
    }
    unlink(path);
    for (int i = 0; i < 2; i++) {
        int device = open(i ? "/dev/urandom" : "/dev/zero", O_RDONLY);
        fill(m, 40 * MIB, 2);
        ssize_t n = read(device, m, 40 * MIB);
        printf("device %zd, kept %d\n", n, wrong(m, 40 * MIB, 2) < 40 * MIB / 8 - 2);
        close(device);
    }
    int pair[2], room = 8 << 20;
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    fill(m, 2 * MIB, 3);
    ssize_t sent = write(pair[0], m, MIB + MIB / 2), came = sent > 0 ? read(pair[1], m + 2 * MIB, 2 * MIB) : 0;
    printf("message %zd %zd wrong %zu\n", sent, came, sent > 0 ? wrong(m + 2 * MIB, MIB + MIB / 2, 3) : 0);
}
