/* Many threads at once (as many as the argument says: 8192 was what the runtime had records for), and as many more, one
 * after the other, each at a place where no thread was before. All of them fault, and what they find must be right. */
#include "case.h"

enum { MOST = 9000, PAGES = 4096, STACK = 64 << 10 };
static uint8_t *shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t near_changed = PTHREAD_COND_INITIALIZER, *changed = &near_changed;
static pthread_cond_t complete = PTHREAD_COND_INITIALIZER;
static int at_once, there, go;

static int right(uintptr_t me) {
    int bad = 0;
    for (uintptr_t i = 0; i < 16; i++) {
        uintptr_t page = (me * 61 + i * 257) % PAGES;
        bad += *(uint64_t *)(shared + page * PAGE) != mix(page);
    }
    return !bad;
}

static void *waits(void *arg) {
    pthread_mutex_lock(&lock);
    if (++there == at_once) pthread_cond_signal(&complete);
    while (!go) pthread_cond_wait(changed, &lock);
    pthread_mutex_unlock(&lock);
    return (void *)(uintptr_t)!right((uintptr_t)arg);
}

static void *passes(void *arg) { return (void *)(uintptr_t)!right((uintptr_t)arg); }

/* Stacks in shared memory, which stays near, one behind the other; or in far memory. */
static int far;
static void stack(pthread_attr_t *attr, size_t i) {
    static uint8_t *stacks;
    size_t all = (size_t)(2 * at_once) * STACK;
    if (!stacks) {
        const int kind = far ? MAP_PRIVATE : MAP_SHARED;
        stacks = mmap(NULL, all, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(stacks != MAP_FAILED);
    }
    MUST(pthread_attr_setstack(attr, stacks + i * STACK, STACK) == 0);
}

int main(int argc, char **argv) {
    MUST(argc >= 2);
    far = argc > 2;
    at_once = atoi(argv[1]);
    MUST(at_once > 0 && at_once <= MOST);
    shared = far_map(PAGES * PAGE);
    for (uint64_t i = 0; i < PAGES; i++) *(uint64_t *)(shared + i * PAGE) = mix(i);
    /* Calls that name far memory are made from a stack of the runtime's. */
    if (far) MUST(pthread_cond_init(changed = far_map(MIB), NULL) == 0);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    size_t bad = 0;
    for (uintptr_t i = 0; i < (uintptr_t)at_once; i++) {
        pthread_t t;
        void *r;
        stack(&attr, at_once + i);
        MUST(pthread_create(&t, &attr, passes, (void *)i) == 0);
        MUST(pthread_join(t, &r) == 0);
        bad += (uintptr_t)r;
    }
    printf("in turn: bad %zu\n", bad);
    static pthread_t t[MOST];
    for (uintptr_t i = 0; i < (uintptr_t)at_once; i++) {
        stack(&attr, i);
        MUST(pthread_create(&t[i], &attr, waits, (void *)i) == 0);
    }
    pthread_mutex_lock(&lock);
    while (there < at_once) pthread_cond_wait(&complete, &lock);
    go = 1;
    pthread_cond_broadcast(changed);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < at_once; i++) {
        void *r;
        MUST(pthread_join(t[i], &r) == 0);
        bad += (uintptr_t)r;
    }
    printf("at once: bad %zu\n", bad);
}
