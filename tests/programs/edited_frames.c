/* Handlers that change the mask in their frame, on which the thread goes on: the two signals that far memory needs are
 * among it. And signal stacks that disarm themselves while a handler is on them, which may leave it by a
 * switch. */
#include "case.h"
#include <ucontext.h>

static uint8_t *memory;
static volatile int sent, seen;
static volatile uint64_t set, cleared;

static void on_user(int signal, siginfo_t *info, void *context) {
    uint64_t *mask = (uint64_t *)&((ucontext_t *)context)->uc_sigmask;
    seen = (*mask >> (SIGBUS - 1) & 1) | (*mask >> (SIGSYS - 1) & 1) << 1;
    *mask = (*mask | set) & ~cleared;
}
static void on_sent(int signal) { sent += signal == SIGBUS ? 1 : 100; }

static void now(const char *what) {
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    printf("%s: saw %d, blocked %d %d %d, sent %d, wrong %zu\n", what, seen, sigismember(&mask, SIGBUS),
           sigismember(&mask, SIGSYS), sigismember(&mask, SIGTERM), sent, wrong(memory, 8 * MIB, 1));
}

static void edits(void) {
    sent = 0;
    set = ~0ull, cleared = 0;
    raise(SIGUSR1);
    now("all blocked");
    raise(SIGBUS);
    raise(SIGSYS);
    now("sent in vain");
    squeeze();
    set = 0, cleared = ~0ull;
    sigset_t user;
    sigemptyset(&user);
    sigaddset(&user, SIGUSR1);
    sigprocmask(SIG_UNBLOCK, &user, NULL);
    raise(SIGUSR1);
    now("none blocked");
    raise(SIGBUS);
    now("sent");
    squeeze();
}

static ucontext_t ended, inside;
static char *other;

static void beneath(int signal) {
    volatile char big[4096];
    memset((char *)big, 0x55, sizeof big);
}
static void within(void) {
    raise(SIGUSR2);
    setcontext(&ended);
}
static void leaves(int signal) {
    volatile unsigned char mark[8192];
    stack_t stack;
    memset((char *)mark, 0xaa, sizeof mark);
    sigaltstack(NULL, &stack);
    printf("in it: flags %x size %zu\n", stack.ss_flags, stack.ss_size);
    getcontext(&inside);
    inside.uc_stack.ss_sp = other, inside.uc_stack.ss_size = MIB, inside.uc_link = NULL;
    makecontext(&inside, within, 0);
    swapcontext(&ended, &inside);
    int damaged = 0;
    for (unsigned i = 0; i < sizeof mark; i++) damaged += mark[i] != 0xaa;
    printf("damaged %d\n", damaged);
}

static void disarms(char *at) {
    stack_t stack = {.ss_sp = at, .ss_size = MIB, .ss_flags = 1u << 31}, back;
    MUST(sigaltstack(&stack, NULL) == 0 && sigaltstack(NULL, &back) == 0);
    printf("flags %x, there %d\n", back.ss_flags, back.ss_sp == at && back.ss_size == MIB);
    struct sigaction action = {.sa_flags = SA_ONSTACK, .sa_handler = leaves};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_handler = beneath;
    sigaction(SIGUSR2, &action, NULL);
    for (int i = 0; i < 3; i++) {
        squeeze();
        raise(SIGUSR1);
        MUST(sigaltstack(NULL, &back) == 0);
        printf("armed again: flags %x, there %d, wrong %zu\n", back.ss_flags, back.ss_sp == at, wrong(memory, 8 * MIB, 1));
    }
    stack.ss_flags = SS_DISABLE;
    MUST(sigaltstack(&stack, NULL) == 0);
}

int main(void) {
    memory = far_map(8 * MIB);
    fill(memory, 8 * MIB, 1);
    squeeze();
    struct sigaction action = {.sa_handler = on_sent};
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGSYS, &action, NULL);
    char *far = far_map(MIB), *near = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    for (int way = 0; way < 3; way++) {
        stack_t stack = {.ss_sp = way == 1 ? near : far, .ss_size = MIB, .ss_flags = way == 0 ? SS_DISABLE : 0};
        MUST(sigaltstack(&stack, NULL) == 0);
        action = (struct sigaction){.sa_flags = SA_SIGINFO | (way ? SA_ONSTACK : 0), .sa_sigaction = on_user};
        sigaction(SIGUSR1, &action, NULL);
        printf("way %d\n", way);
        edits();
    }
    other = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    disarms(near);
    disarms(far);
    other = far_map(MIB);
    disarms(near);
}
