/* Threads, as many as the argument says, one after the other, each at a place where no thread was before, and each faults. What the runtime keeps of a
 * thread it gives back: no descriptors are left of them. */
#include "case.h"
#include <dirent.h>

enum { PAGES = 4096, TOUCHED = 4, STACK = 64 << 10 };
static uint8_t *mem;

static void *passes(void *arg) {
    uintptr_t me = (uintptr_t)arg, bad = 0;
    for (uintptr_t i = 0; i < TOUCHED; i++) {
        uintptr_t page = mix(me * TOUCHED + i) % PAGES;
        bad += *(uint64_t *)(mem + page * PAGE) != mix(page);
    }
    return (void *)bad;
}

static int descriptors(void) {
    DIR *dir = opendir("/proc/self/fd");
    MUST(dir);
    int n = 0;
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

int main(int argc, char **argv) {
    alarm(250);
    MUST(argc >= 2);
    uintptr_t threads = atoi(argv[1]);
    mem = far_map(PAGES * PAGE);
    for (uint64_t i = 0; i < PAGES; i++) *(uint64_t *)(mem + i * PAGE) = mix(i);
    /* Shared memory, which stays near; or far memory. */
    const int kind = argc > 2 ? MAP_PRIVATE : MAP_SHARED;
    uint8_t *stacks = mmap(NULL, threads * STACK, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(stacks != MAP_FAILED);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    size_t bad = 0;
    int before = descriptors();
    for (uintptr_t i = 0; i < threads; i++) {
        pthread_t t;
        void *r;
        MUST(pthread_attr_setstack(&attr, stacks + i * STACK, STACK) == 0);
        MUST(pthread_create(&t, &attr, passes, (void *)i) == 0);
        MUST(pthread_join(t, &r) == 0);
        bad += (uintptr_t)r;
        if (kind == MAP_SHARED) MUST(madvise(stacks + i * STACK, STACK, MADV_REMOVE) == 0);
    }
    printf("bad %zu, descriptors left %d\n", bad, descriptors() > before + 16);
}
