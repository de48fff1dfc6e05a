/* Every pthread object, and raw futexes, in far memory that pages out while
 * threads wait on it. */
#include "case.h"
#include <linux/futex.h>
#include <semaphore.h>

enum { THREADS = 8, ROUNDS = 400 };
struct shared {
    char pad0[PAGE];
    pthread_mutex_t mutex;
    char pad1[PAGE];
    pthread_cond_t cond;
    char pad2[PAGE];
    pthread_rwlock_t rw;
    char pad3[PAGE];
    pthread_barrier_t barrier;
    char pad4[PAGE];
    sem_t sem;
    char pad5[PAGE];
    pthread_spinlock_t spin;
    char pad6[PAGE];
    pthread_mutex_t robust;
    char pad7[PAGE];
    pthread_mutex_t inherit;
    char pad8[PAGE];
    uint32_t futex;
    char pad9[PAGE];
    uint64_t turn, under_mutex, under_spin, under_rw, under_sem, under_inherit;
} *s;

static void *work(void *arg) {
    uintptr_t me = (uintptr_t)arg;
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&s->mutex);
        s->under_mutex++;
        pthread_mutex_unlock(&s->mutex);
        pthread_spin_lock(&s->spin);
        s->under_spin++;
        pthread_spin_unlock(&s->spin);
        pthread_rwlock_wrlock(&s->rw);
        s->under_rw++;
        pthread_rwlock_unlock(&s->rw);
        sem_wait(&s->sem);
        s->under_sem++;
        sem_post(&s->sem);
        pthread_mutex_lock(&s->inherit);
        s->under_inherit++;
        pthread_mutex_unlock(&s->inherit);
        if (i % 40 == 0) {
            pthread_barrier_wait(&s->barrier);
            if (me == 0) squeeze();
        }
    }
    /* In turn: each waits until all before it have been. */
    for (int round = 0; round < 20; round++) {
        pthread_mutex_lock(&s->mutex);
        while (s->turn % THREADS != me) {
            struct timespec *t = (struct timespec *)((char *)s + sizeof *s + me * 64);
            clock_gettime(CLOCK_REALTIME, t);
            t->tv_sec += 30;
            MUST(pthread_cond_timedwait(&s->cond, &s->mutex, t) == 0);
        }
        s->turn++;
        pthread_cond_broadcast(&s->cond);
        pthread_mutex_unlock(&s->mutex);
        if (me == 3) squeeze();
    }
    return NULL;
}

static void *dies_holding(void *arg) {
    (void)arg;
    pthread_mutex_lock(&s->robust);
    return NULL;
}

static void *futex_waiter(void *arg) {
    (void)arg;
    while (__atomic_load_n(&s->futex, __ATOMIC_SEQ_CST) == 0)
        syscall(SYS_futex, &s->futex, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    return NULL;
}

int main(void) {
    s = far_map(sizeof *s + PAGE);
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->cond, NULL);
    pthread_rwlock_init(&s->rw, NULL);
    pthread_barrier_init(&s->barrier, NULL, THREADS);
    sem_init(&s->sem, 0, 1);
    pthread_spin_init(&s->spin, 0);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&s->robust, &attr);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&s->inherit, &attr);
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(&t[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    printf("mutex %lu spin %lu rw %lu sem %lu inherit %lu turn %lu\n", s->under_mutex, s->under_spin,
           s->under_rw, s->under_sem, s->under_inherit, s->turn);
    pthread_create(&t[0], NULL, dies_holding, NULL);
    pthread_join(t[0], NULL);
    squeeze();
    printf("robust: owner died %d\n", pthread_mutex_lock(&s->robust) == EOWNERDEAD);
    pthread_create(&t[0], NULL, futex_waiter, NULL);
    usleep(20000);
    squeeze();
    __atomic_store_n(&s->futex, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &s->futex, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    pthread_join(t[0], NULL);
    squeeze();
    errno = 0;
    struct timespec *soon = (struct timespec *)((char *)s + sizeof *s);
    soon->tv_sec = 0, soon->tv_nsec = 1000000;
    squeeze();
    long r = syscall(SYS_futex, &s->futex, FUTEX_WAIT_PRIVATE, 1, soon, NULL, 0);
    printf("futex timeout %ld errno %d\n", r, errno);
    squeeze();
    errno = 0;
    r = syscall(SYS_futex, &s->futex, FUTEX_WAIT_PRIVATE, 5, NULL, NULL, 0);
    printf("futex value %ld errno %d\n", r, errno);
}
