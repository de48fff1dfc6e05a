/* Threads that end with robust locks in far memory, on pages that have left: the next owner is told, whether it waited
 * already or not; so is whoever wants another lock of the same list. */
#include "case.h"

enum { BYTES = 1 << 20, LOCKS = 3 };
static uint8_t *mem;
static pthread_mutex_t near_lock;
static pthread_mutex_t *lock(int i) { return i == LOCKS - 1 ? &near_lock : (void *)(mem + (8 + 32 * i) * PAGE); }

static int locked[2];

static void *dies(void *slowly) {
    for (int i = 0; i < LOCKS; i++) MUST(pthread_mutex_lock(lock(i)) == 0);
    MUST(write(locked[1], "", 1) == 1);
    /* The other should wait by then; it is right too if it comes later. */
    if (slowly) usleep(100000);
    squeeze();
    return NULL;
}

int main(void) {
    alarm(60);
    MUST(pipe(locked) == 0);
    mem = far_map(BYTES);
    fill(mem, BYTES, 1);
    for (int inherits = 0; inherits < 2; inherits++)
        for (int waits = 0; waits < 2; waits++) {
            pthread_mutexattr_t attr;
            MUST(pthread_mutexattr_init(&attr) == 0);
            MUST(pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST) == 0);
            if (inherits) MUST(pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT) == 0);
            for (int i = 0; i < LOCKS; i++) MUST(pthread_mutex_init(lock(i), &attr) == 0);
            pthread_t thread;
            MUST(pthread_create(&thread, NULL, dies, waits ? mem : NULL) == 0);
            char c;
            MUST(read(locked[0], &c, 1) == 1);
            if (!waits) MUST(pthread_join(thread, NULL) == 0);
            for (int i = 0; i < LOCKS; i++) {
                int ret = pthread_mutex_lock(lock(i));
                printf("inherits %d waits %d lock %d: %s\n", inherits, waits, i, ret == EOWNERDEAD ? "dead" : strerror(ret));
                MUST(pthread_mutex_consistent(lock(i)) == 0);
                MUST(pthread_mutex_unlock(lock(i)) == 0);
            }
            if (waits) MUST(pthread_join(thread, NULL) == 0);
            for (int i = 0; i < LOCKS; i++) MUST(pthread_mutex_destroy(lock(i)) == 0);
        }
    squeeze();
    printf("wrong %d\n", wrong(mem, 8 * PAGE, 1) > 0);
}
