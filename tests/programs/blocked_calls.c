/* Many threads asleep in the kernel with far buffers, while others need the
 * local memory; then interrupted, cancelled, or served. */
#include "case.h"
#include <semaphore.h>

enum { READERS = 32, BUFFER = 64 << 10 };
static int pipes[READERS][2];
static volatile int interrupted, entered;
static size_t bad[READERS];

static void *reader(void *arg) {
    uintptr_t me = (uintptr_t)arg;
    uint8_t *buf = far_map(BUFFER);
    fill(buf, BUFFER, me);
    __atomic_fetch_add(&entered, 1, __ATOMIC_SEQ_CST);
    size_t n = 0;
    while (n < BUFFER) {
        ssize_t r = read(pipes[me][0], buf + n, BUFFER - n);
        if (r < 0 && errno == EINTR) {
            __atomic_fetch_add(&interrupted, 1, __ATOMIC_SEQ_CST);
            continue;
        }
        MUST(r > 0);
        n += r;
    }
    bad[me] = wrong(buf, BUFFER, 1000 + me);
    return NULL;
}

static void on_signal(int s) { (void)s; }

static void *cancelled(void *arg) {
    uint8_t *buf = far_map(BUFFER);
    read(*(int *)arg, buf, BUFFER);
    return (void *)1;
}

int main(void) {
    struct sigaction a = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &a, NULL);
    pthread_t t[READERS];
    for (uintptr_t i = 0; i < READERS; i++) {
        MUST(pipe(pipes[i]) == 0);
        pthread_create(&t[i], NULL, reader, (void *)i);
    }
    while (entered < READERS) usleep(1000);
    usleep(50000);
    uint8_t *mine = far_map(32 * MIB);
    fill(mine, 32 * MIB, 3);
    squeeze();
    size_t wrongs = wrong(mine, 32 * MIB, 3);
    while (!interrupted) {
        pthread_kill(t[0], SIGUSR1);
        usleep(1000);
    }
    uint8_t *data = far_map(BUFFER);
    for (int i = 0; i < READERS; i++) {
        fill(data, BUFFER, 1000 + i);
        for (size_t n = 0; n < BUFFER;) n += write(pipes[i][1], data + n, BUFFER - n);
    }
    for (int i = 0; i < READERS; i++) pthread_join(t[i], NULL), wrongs += bad[i];
    printf("interrupted %d wrong %zu\n", interrupted > 0, wrongs);
    pthread_t c;
    pthread_create(&c, NULL, cancelled, &pipes[0][0]);
    usleep(20000);
    pthread_cancel(c);
    void *r;
    pthread_join(c, &r);
    printf("cancelled %d\n", r == PTHREAD_CANCELED);
    squeeze();
    printf("still wrong %zu\n", wrong(mine, 32 * MIB, 3));
}
