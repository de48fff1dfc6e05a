/* One access to memory, with known values in all registers, in the flags and below the stack pointer: the code
 * around it sees whether they survive, a signal handler whether its context has them. */
#include <stddef.h>
#include <ucontext.h>

enum { RED = 16 };

/* Offsets are the assembly's. */
struct state {
    uint8_t *far;              /* 0 */
    uint64_t pad0;             /* 8 */
    uint64_t flags, got_flags; /* 16 */
    uint32_t mxcsr, got_mxcsr; /* 32 */
    uint64_t pad1[3];          /* 40 */
    uint64_t in[16], out[16];  /* 64, 192: rax rbx rcx rdx rsi rbp r8..r15, rdi only out */
    uint64_t red[RED];         /* 320 */
    uint64_t vec[64], got[64]; /* 448, 960 */
    uint64_t sp;               /* 1472 */
};
_Static_assert(offsetof(struct state, in) == 64 && offsetof(struct state, sp) == 1472, "");

int probe(struct state *);
extern char probe_loaded[], probe_read[], probe_write[], probe_end[];

#define EACH(m) m(0) m(1) m(2) m(3) m(4) m(5) m(6) m(7) m(8) m(9) m(10) m(11) m(12) m(13) m(14) m(15)
#define LOAD_V(i) "vmovdqu 448+32*" #i "(%rdi), %ymm" #i "\n"
#define SAVE_V(i) "vmovdqu %ymm" #i ", 960+32*" #i "(%rdi)\n"
#define RED_ON(i) "mov 64(%rdi), %rax\n lea " #i "(%rax), %rax\n mov %rax, -8-8*" #i "(%rsp)\n"
#define RED_OFF(i) "mov -8-8*" #i "(%rsp), %rax\n mov %rax, 320+8*" #i "(%rdi)\n"
#define REGISTERS(m)                                                                                                   \
    m(0, rax) m(1, rbx) m(2, rcx) m(3, rdx) m(4, rsi) m(5, rbp) m(6, r8) m(7, r9) m(8, r10) m(9, r11) m(10, r12)       \
        m(11, r13) m(12, r14) m(13, r15)
#define LOAD_R(i, r) "mov 64+8*" #i "(%rdi), %" #r "\n"
#define SAVE_R(i, r) "mov %" #r ", 192+8*" #i "(%rdi)\n"

__asm__(".text\n.globl probe, probe_loaded, probe_read, probe_write, probe_end\nprobe:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "sub $32, %rsp\n mov %rdi, (%rsp)\n mov %rsp, 1472(%rdi)\n"
        "stmxcsr 16(%rsp)\n" EACH(LOAD_V) "ldmxcsr 32(%rdi)\n"
        "mov 16(%rdi), %rax\n mov %rax, -8(%rsp)\n sub $8, %rsp\n popfq\n" EACH(RED_ON) REGISTERS(LOAD_R)
        "mov (%rdi), %rdi\n"
        "probe_loaded:\n"
        "jrcxz 2f\n"
        "probe_write: mov %rax, (%rdi)\n"
        "jmp 3f\n"
        "2:\n"
        "probe_read: mov (%rdi), %rax\n"
        "3:\n"
        "probe_end:\n"
        "mov %rdi, 8(%rsp)\n mov (%rsp), %rdi\n" REGISTERS(SAVE_R) EACH(RED_OFF)
        "mov 8(%rsp), %rax\n mov %rax, 304(%rdi)\n"
        "pushfq\n popq 24(%rdi)\n cld\n"
        "stmxcsr 36(%rdi)\n" EACH(SAVE_V) "vzeroupper\n"
        "ldmxcsr 16(%rsp)\n add $32, %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");

/* What the next probe starts with. A store needs what it writes. */
static inline void prepare(struct state *s, uint8_t *far, uint64_t x, int store, uint64_t value) {
    s->far = far;
    s->flags = 0x202 | (mix(x) & 0xcd5);
    s->mxcsr = 0x1f80 | (x % 4) << 13;
    for (int i = 0; i < 16; i++) s->in[i] = mix(x * 16 + i);
    for (int i = 0; i < 64; i++) s->vec[i] = mix(x * 64 + i);
    s->in[2] = store; /* rcx chooses */
    if (store) s->in[0] = value;
}

/* How much a probe that was to read or write `value` came back with otherwise. */
static inline uint64_t state_differs(const struct state *s, uint64_t value) {
    uint64_t n = s->out[0] != value;
    for (int i = 1; i < 14; i++) n += s->out[i] != s->in[i];
    n += (uint8_t *)s->out[14] != s->far;
    n += (s->got_flags & 0xcd5) != (s->flags & 0xcd5);
    n += s->got_mxcsr != s->mxcsr;
    for (int i = 0; i < RED; i++) n += s->red[i] != s->in[0] + i;
    for (int i = 0; i < 64; i++) n += s->got[i] != s->vec[i];
    return n;
}

static inline int in_probe(const ucontext_t *u) {
    const uintptr_t ip = u->uc_mcontext.gregs[REG_RIP];
    return ip >= (uintptr_t)probe_loaded && ip < (uintptr_t)probe_end;
}

/* How much a handler that has interrupted a probe sees otherwise. */
static inline uint64_t probe_differs(const ucontext_t *u, const struct state *s) {
    static const int order[14] = {REG_RAX, REG_RBX, REG_RCX, REG_RDX, REG_RSI, REG_RBP, REG_R8,
                                  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    const greg_t *g = u->uc_mcontext.gregs;
    const uintptr_t ip = g[REG_RIP];
    const uint64_t status = 0xcd5; /* CF PF AF ZF SF DF OF */
    int after = ip > (uintptr_t)probe_read || (ip > (uintptr_t)probe_write && ip < (uintptr_t)probe_read);
    uint64_t n = 0;
    for (int i = after ? 1 : 0; i < 14; i++) n += (uint64_t)g[order[i]] != s->in[i];
    n += (uint8_t *)g[REG_RDI] != s->far;
    n += (uint64_t)g[REG_RSP] != s->sp;
    n += (g[REG_EFL] & status) != (s->flags & status);
    const uint8_t *f = (const uint8_t *)u->uc_mcontext.fpregs;
    n += *(const uint32_t *)(f + 24) != s->mxcsr;
    for (int i = 0; i < 16; i++) {
        n += memcmp(f + 160 + 16 * i, &s->vec[4 * i], 16) != 0;
        n += memcmp(f + 576 + 16 * i, &s->vec[4 * i + 2], 16) != 0;
    }
    return n;
}
