/* A library that replaces functions by ones with a thread-local, as clocks, allocators and tracers do.
 *
 * A thread that has no thread-locals faults in any of them. -DREPLACED='R(name, "VERSION") ...' says
 * which functions, with the versions that libraries are linked to. */
#define _GNU_SOURCE
#include <stdio.h>

extern void *dlvsym(void *, const char *, const char *);
#define NEXT ((void *)-1)

static __thread long calls;
static long all;

/* The functions that are replaced. Their look-up calls some of them: these do nothing meanwhile. */
#define R(name, version) static void *real_##name;
REPLACED
#undef R
static void *nothing(void) { return 0; }

static void look_up(void) {
    static int begun;
    if (__atomic_exchange_n(&begun, 1, __ATOMIC_ACQ_REL)) return;
#define R(name, version) real_##name = dlvsym(NEXT, #name, version);
    REPLACED
#undef R
}

/* Any function: its arguments are kept while it counts, then the one that is replaced is jumped to. */
#define R(name, version)                                                                           \
    __attribute__((used)) static void *find_##name(void) {                                         \
        calls++;                                                                                   \
        __atomic_add_fetch(&all, 1, __ATOMIC_RELAXED);                                             \
        if (!real_##name) look_up();                                                               \
        return real_##name ? real_##name : (void *)nothing;                                        \
    }                                                                                              \
    __asm__(".globl " #name "\n.type " #name ",@function\n" #name ":\n"                            \
            "push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\npush %rax\n"          \
            "call find_" #name "\nmov %rax, %r11\n"                                                \
            "pop %rax\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\njmp *%r11\n");

REPLACED

__attribute__((destructor)) static void tell(void) { fprintf(stderr, "replaced: %ld calls\n", all); }
