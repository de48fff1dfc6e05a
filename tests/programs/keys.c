/* Protection keys: a program that asks for one may be told that there is none, and goes on without, as where processors
 * have none; it loses no page to one. Keys that every page has (0), or that are none (-1), are as mprotect. */
#define _GNU_SOURCE
#include "case.h"
#include <setjmp.h>

enum { BYTES = 8 * MIB };

static sigjmp_buf back;

static void refused(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

static int may_write(volatile uint8_t *at) {
    if (sigsetjmp(back, 1)) return 0;
    *at ^= 0;
    return 1;
}

/* As a library does that makes the call by itself. */
static long by_itself(long nr, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "+a"(nr) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return nr;
}

int main(void) {
    struct sigaction action = {.sa_handler = refused};
    MUST(!sigaction(SIGSEGV, &action, NULL));
    uint8_t *a = far_map(BYTES);
    fill(a, BYTES, 1);
    const int all = PROT_READ | PROT_WRITE;

    const int none[] = {-1, 0};
    for (int i = 0; i < 2; i++) {
        if (pkey_mprotect(a, BYTES, PROT_READ, none[i])) MUST(none[i] == 0 && !mprotect(a, BYTES, PROT_READ));
        squeeze();
        printf("key %d: %zu wrong, ", none[i], wrong(a, BYTES, 1));
        const int read_only = may_write(a + 5 * PAGE);
        if (pkey_mprotect(a, BYTES, all, none[i])) MUST(none[i] == 0 && !mprotect(a, BYTES, all));
        printf("may write %d, then %d\n", read_only, may_write(a + 5 * PAGE));
    }

    int key = pkey_alloc(0, 0);
    if (key > 0) MUST(!pkey_mprotect(a, BYTES, all, key));
    squeeze();
    printf("with a key, if there are any: %zu wrong\n", wrong(a, BYTES, 1));

    key = by_itself(SYS_pkey_alloc, 0, 0, 0, 0);
    if (key > 0) by_itself(SYS_pkey_mprotect, (long)a, BYTES / 2, all, key);
    squeeze();
    printf("by an instruction of its own: %zu wrong\n", wrong(a, BYTES, 1));
    return 0;
}
