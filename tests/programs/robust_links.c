/* A thread ends with a list of robust locks in far memory, most of them on pages that have left. As soon as the first is
 * marked it is another's, who links it as he likes: whoever walks the dead one's list must not come this way again. */
#include "case.h"
#include <linux/futex.h>
#include <stddef.h>

enum { LOCKS = 500, ROUNDS = 3 };
struct lock {
    struct robust_list link;
    uint32_t word;
};
static uint8_t *mem;
static struct robust_list_head head;
static struct lock another;
static uint32_t dead;
static struct lock *lock(int i) { return (void *)(mem + i * PAGE + 64); }

static void *dies(void *unused) {
    (void)unused;
    uint32_t own = syscall(SYS_gettid);
    for (int i = 0; i < LOCKS; i++) {
        lock(i)->link.next = i + 1 < LOCKS ? &lock(i + 1)->link : &head.list;
        lock(i)->word = own;
    }
    head.list.next = &lock(0)->link;
    head.futex_offset = offsetof(struct lock, word);
    head.list_op_pending = NULL;
    another.link.next = &head.list;
    another.word = own;
    MUST(syscall(SYS_set_robust_list, &head, sizeof head) == 0);
    squeeze();
    __atomic_store_n(&dead, own, __ATOMIC_RELEASE);
    return NULL;
}

int main(void) {
    alarm(100);
    mem = far_map(LOCKS * PAGE);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        dead = 0;
        MUST(pthread_create(&thread, NULL, dies, NULL) == 0);
        while (!__atomic_load_n(&dead, __ATOMIC_ACQUIRE)) usleep(100);
        while (!(__atomic_load_n(&lock(0)->word, __ATOMIC_ACQUIRE) & FUTEX_OWNER_DIED))
            ;
        __atomic_store_n(&lock(0)->link.next, &another.link, __ATOMIC_RELEASE);
        MUST(pthread_join(thread, NULL) == 0);
        int marked = 0;
        for (int i = 0; i < LOCKS; i++) marked += lock(i)->word == FUTEX_OWNER_DIED;
        printf("marked %d, another's touched %d\n", marked, another.word != dead);
    }
}
