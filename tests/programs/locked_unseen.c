/* Memory is locked by a call that nobody sees, while one thread writes to it, then two: it leaves all the same, what is written to it is
 * kept, and system calls find all of it. */
#include "case.h"

enum { PAGES = 4096 };

static void *writer(void *arg) {
    uint64_t *mem = arg;
    for (uint64_t x = 1, i = 0; i < 30000; i++) x = mix(x), mem[x % PAGES * (PAGE / 8) + 1]++;
    return NULL;
}

int main(void) {
    uint64_t *mem = far_map(PAGES * PAGE);
    fill(mem, PAGES * PAGE, 1);
    long locked;
    /* MCL_CURRENT | MCL_ONFAULT, by an instruction of the program's own. */
    __asm__ volatile("syscall" : "=a"(locked) : "a"(SYS_mlockall), "D"(1 | 4) : "rcx", "r11", "memory");
    if (locked) printf("not locked\n");
    for (uint64_t x = 5, i = 0; i < 10000; i++) x = mix(x), mem[x % PAGES * (PAGE / 8) + 2]++;
    int file = memfd_create("copy", 0);
    MUST(write(file, mem, PAGES * PAGE) == PAGES * PAGE);
    pthread_t t;
    MUST(pthread_create(&t, NULL, writer, mem) == 0);
    for (uint64_t x = 9, i = 0; i < 30000; i++) x = mix(x), mem[x % PAGES * (PAGE / 8)]++;
    MUST(pthread_join(t, NULL) == 0);
    uint64_t sum = 0;
    for (size_t i = 0; i < PAGES * PAGE / 8; i++) sum = mix(sum + mem[i]);
    printf("%lx\n", sum);
    MUST(pread(file, mem, PAGES * PAGE, 0) == PAGES * PAGE);
    for (size_t i = 0; i < PAGES * PAGE / 8; i++) sum = mix(sum + mem[i]);
    printf("%lx\n", sum);
}
