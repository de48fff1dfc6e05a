/* Signals whose frame does not fit onto the alternate stack: SIGSEGV comes in their place, on the interrupted stack. A
 * process that cannot have SIGSEGV ends by it. Nothing is written below the stack. */
#include <setjmp.h>
#include <sys/auxv.h>

#include "case.h"

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1u << 31)
#endif

enum { ROOM = 32 * 1024, LEAST = 2048 };
static uint8_t *mem;
static sigjmp_buf back;
static volatile int ran, faults, forced, deep_in;

static void on_user(int signal) { (void)signal, ran++; }

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    faults++, forced += info->si_code == SI_KERNEL && !info->si_addr;
    siglongjmp(back, 1);
}

static void on_again(int signal) {
    deep_in++;
    raise(signal);
}

static void set(int signal, void *handler, int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    MUST(sigaction(signal, &action, NULL) == 0);
}

static void stack(size_t bytes, int flags) {
    stack_t it = {.ss_sp = mem + ROOM, .ss_size = bytes, .ss_flags = flags};
    MUST(sigaltstack(&it, NULL) == 0);
}

static void try(const char *what) {
    ran = faults = forced = 0;
    fill(mem, ROOM, 7);
    if (!sigsetjmp(back, 1)) raise(SIGUSR1);
    printf("%s: ran %d, faults %d, forced %d, wrong below %zu\n", what, ran, faults, forced, wrong(mem, ROOM, 7));
    fflush(stdout);
}

static void ends(const char *what, void (*begin)(void)) {
    int status;
    pid_t child = fork();
    if (!child) {
        begin();
        raise(SIGUSR1);
        _exit(1);
    }
    MUST(waitpid(child, &status, 0) == child);
    printf("%s: signal %d, status %d\n", what, WIFSIGNALED(status) ? WTERMSIG(status) : 0, WEXITSTATUS(status));
    fflush(stdout);
}

static void no_handler(void) { set(SIGSEGV, SIG_DFL, 0); }
static void ignored(void) { set(SIGSEGV, SIG_IGN, 0); }
static void handler_there(void) { set(SIGSEGV, on_fault, SA_SIGINFO | SA_ONSTACK); }
static void blocked(void) {
    sigset_t fault;
    sigemptyset(&fault), sigaddset(&fault, SIGSEGV);
    sigprocmask(SIG_BLOCK, &fault, NULL);
}
static void one_in_another(void) {
    set(SIGUSR1, on_again, SA_ONSTACK | SA_NODEFER);
    set(SIGSEGV, SIG_DFL, 0);
    stack(ROOM, 0);
}

static void *all(void *arg) {
    stack(LEAST, 0);
    try("small");
    stack(LEAST, SS_AUTODISARM);
    try("one that disarms itself");
    stack(getauxval(AT_MINSIGSTKSZ) + 8192, 0);
    try("large");
    stack(LEAST, 0);
    return arg;
}

int main(void) {
    mem = far_map(4 * ROOM);
    fill(mem, 4 * ROOM, 7);
    squeeze();
    set(SIGUSR1, on_user, SA_ONSTACK);
    set(SIGSEGV, on_fault, SA_SIGINFO);
    all(NULL);
    ends("no handler", no_handler);
    ends("ignored", ignored);
    ends("a handler on the same stack", handler_there);
    ends("blocked", blocked);
    ends("one handler in another", one_in_another);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, all, NULL) == 0);
    pthread_join(thread, NULL);
}
