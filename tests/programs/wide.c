/* The x87 registers, and what AVX-512 adds to a thread's (the upper sixteen and the upper halves of the others, masks),
 * over faults that read and write, without signals and with handlers between that use them too. Where the processor has
 * none of it, the pages are looked at alone. */
#define _GNU_SOURCE
#include "case.h"
#include <sys/time.h>

enum { BYTES = 8 * MIB };

/* What a thread holds before an access, and after it. */
struct wide {
    uint64_t zmm[256], got[256];
    uint64_t k[8], got_k[8];
    double x87[8], got_x87[8];
    uint16_t control, got_control;
};
static struct wide here, *const w = &here;

#define EACH8(m) m(0) m(1) m(2) m(3) m(4) m(5) m(6) m(7)
#define EACH32(m)                                                                                                      \
    EACH8(m) m(8) m(9) m(10) m(11) m(12) m(13) m(14) m(15) m(16) m(17) m(18) m(19) m(20) m(21) m(22) m(23) m(24)       \
        m(25) m(26) m(27) m(28) m(29) m(30) m(31)
#define LOAD_Z(i) "vmovdqu64 64*" #i "(%[in]), %%zmm" #i "\n"
#define SAVE_Z(i) "vmovdqu64 %%zmm" #i ", 64*" #i "(%[out])\n"
#define LOAD_K(i) "kmovq 8*" #i "(%[k]), %%k" #i "\n"
#define SAVE_K(i) "kmovq %%k" #i ", 8*" #i "(%[gk])\n"
#define LOAD_X(i) "fldl 8*" #i "(%[x])\n"
#define SAVE_X(i) "fstpl 56-8*" #i "(%[gx])\n"

__attribute__((noinline)) static void access512(volatile uint8_t *far, int store) {
    __asm__ volatile("fldcw (%[c])\n" EACH8(LOAD_X) EACH32(LOAD_Z) EACH8(LOAD_K)
                     "test %[store], %[store]\n jz 1f\n incb (%[far])\n jmp 2f\n1: cmpb $0, (%[far])\n2:\n"
                     EACH8(SAVE_K) EACH32(SAVE_Z) EACH8(SAVE_X) "fnstcw 2(%[c])\n fninit\n vzeroupper\n"
                     : : [far] "r"(far), [store] "r"(store), [in] "r"(w->zmm), [out] "r"(w->got), [k] "r"(w->k),
                       [gk] "r"(w->got_k), [x] "r"(w->x87), [gx] "r"(w->got_x87), [c] "r"(&w->control)
                     : "memory", "cc");
}

static int differs(uint64_t x, volatile uint8_t *far, int store) {
    for (int i = 0; i < 256; i++) w->zmm[i] = mix(x * 300 + i);
    for (int i = 0; i < 8; i++) {
        w->k[i] = mix(x * 300 + 260 + i);
        w->x87[i] = (double)(mix(x * 300 + 280 + i) >> 12);
    }
    w->control = 0x037f ^ (x % 4) << 10;
    access512(far, store);
    return memcmp(w->zmm, w->got, sizeof w->zmm) != 0 || memcmp(w->k, w->got_k, sizeof w->k) != 0 ||
           memcmp(w->x87, w->got_x87, sizeof w->x87) != 0 || w->control != w->got_control;
}

static int has;
static volatile sig_atomic_t ticks;

static void tick(int signal) {
    (void)signal;
    ticks++;
    if (has)
        __asm__ volatile("vpxorq %%zmm0, %%zmm0, %%zmm0\n vpxorq %%zmm20, %%zmm20, %%zmm20\n"
                         "kxorq %%k1, %%k1, %%k1\n fninit\n vzeroupper\n" ::: "memory");
}

int main(void) {
    has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    uint8_t *far = far_map(BYTES);
    memset(far, 7, BYTES);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    MUST(!sigaction(SIGALRM, &action, NULL));
    uint64_t wrong = 0;
    for (int timed = 0; timed < 2; timed++) {
        struct itimerval timer = {{0, timed ? 200 : 0}, {0, timed ? 200 : 0}};
        squeeze();
        MUST(!setitimer(ITIMER_REAL, &timer, NULL));
        for (int round = 0; round < 4; round++)
            for (size_t i = 0; i < BYTES / PAGE; i++) {
                uint8_t *at = far + i * 769 % (BYTES / PAGE) * PAGE;
                if (has)
                    wrong += differs(round * 10000 + i, at, round & 1);
                else
                    *at += round & 1;
            }
        timer = (struct itimerval){0};
        MUST(!setitimer(ITIMER_REAL, &timer, NULL));
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < BYTES; i += PAGE) sum += far[i];
    printf("%lu accesses after which registers differ; sum %lu\n", wrong, sum);
    fprintf(stderr, "AVX-512 %d, %d signals\n", has, (int)ticks);
    return 0;
}
