/* What unwinds a signal handler on a far alternate stack finds what the signal interrupted: a backtrace main, an unwinder
 * the cleanups on its way. Built with -fexceptions -fnon-call-exceptions -rdynamic. */
#include "case.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <setjmp.h>
#include <unwind.h>

static int found(const char *name) {
    void *frames[64];
    int n = backtrace(frames, 64), seen = 0;
    for (int i = 0; i < n; i++) {
        Dl_info info;
        seen += dladdr(frames[i], &info) && info.dli_sname && !strcmp(info.dli_sname, name);
    }
    return seen;
}

static jmp_buf landing;
static struct _Unwind_Exception unwound;
static volatile int cleaned, unwinds;

static _Unwind_Reason_Code step(int version, _Unwind_Action actions, _Unwind_Exception_Class class,
                                struct _Unwind_Exception *exception, struct _Unwind_Context *context, void *until) {
    (void)version, (void)class, (void)exception;
    if (actions & _UA_END_OF_STACK || _Unwind_GetCFA(context) > (uintptr_t)until) longjmp(landing, 1);
    return _URC_NO_REASON;
}

static void *until;
static void handler(int s) {
    (void)s;
    printf("in the backtrace: main %d, touch %d\n", found("main"), found("touch"));
    if (unwinds) _Unwind_ForcedUnwind(&unwound, step, until);
    longjmp(landing, 1);
}

static void cleanup(int *value) { cleaned += *value; }

__attribute__((noinline)) int touch(volatile int *p) {
    int value __attribute__((cleanup(cleanup))) = 7;
    return *p + value;
}

int main(void) {
    void *warm[4];
    backtrace(warm, 4);
    volatile int *none = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t bytes = 256 * 1024;
    stack_t st = {.ss_sp = far_map(bytes), .ss_size = bytes};
    struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_NODEFER | SA_ONSTACK};
    MUST(sigaction(SIGSEGV, &sa, NULL) == 0);
    until = __builtin_frame_address(0);
    for (int round = 0; round < 4; round++) {
        /* By turns on the far stack, and on the one that is interrupted. */
        st.ss_flags = round % 2 ? SS_DISABLE : 0;
        MUST(sigaltstack(&st, NULL) == 0);
        unwinds = round / 2;
        squeeze();
        if (!setjmp(landing)) touch(none);
        printf("cleaned %d\n", cleaned);
    }
    return 0;
}
