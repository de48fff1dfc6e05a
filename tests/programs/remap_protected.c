/* Memory moves to near addresses, or leaves an empty mapping behind, and keeps its protection: code, memory that
 * may only be read, and memory that nobody may touch. */
#include "case.h"
#include <setjmp.h>

enum { BYTES = 1 << 20 };

static sigjmp_buf out;
static void caught(int signal) { siglongjmp(out, signal); }

/* Whether an access is refused: by a signal, whichever. */
static int refused(volatile uint8_t *at, int write) {
    if (sigsetjmp(out, 1)) return 1;
    if (write) *at = *at;
    else (void)*at;
    return 0;
}

static void is(const char *name, uint8_t *at) { printf("%s: read %d write %d\n", name, refused(at, 0), refused(at, 1)); }

static const uint8_t code[] = {0xb8, 42, 0, 0, 0, 0xc3}; /* mov eax, 42; ret */

int main(void) {
    int rw = PROT_READ | PROT_WRITE, fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
    struct sigaction action = {.sa_handler = caught};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    /* Near addresses, because it is a stack; at most 128 KiB of it is more than is needed at a time. */
    uint8_t *near = mmap(NULL, 8 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    MUST(near != MAP_FAILED);
    for (int round = 0; round < 2; round++) {
        uint8_t *at = far_map(BYTES);
        memcpy(at, code, sizeof code);
        MUST(mprotect(at, BYTES, PROT_READ | PROT_EXEC) == 0);
        if (round) squeeze();
        MUST(mremap(at, BYTES, BYTES, fixed, near) == near);
        printf("code %d\n", ((int (*)(void))near)());
        is("code", near);
        is("where it was", at);

        at = far_map(BYTES);
        fill(at, BYTES, round);
        MUST(mprotect(at, BYTES, PROT_NONE) == 0);
        if (round) squeeze();
        MUST(mremap(at, BYTES, BYTES, fixed, near + BYTES) == near + BYTES);
        is("barred", near + BYTES);
        MUST(mprotect(near + BYTES, BYTES, PROT_READ) == 0);
        printf("wrong %zu\n", wrong(near + BYTES, BYTES, round));

        at = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(mremap(at, BYTES, 2 * BYTES, fixed, near + 2 * BYTES) == near + 2 * BYTES);
        is("reserved", near + 2 * BYTES);
        is("its end", near + 4 * BYTES - 1);

        at = far_map(BYTES);
        fill(at, BYTES, round + 5);
        MUST(mprotect(at, BYTES, PROT_READ) == 0);
        if (round) squeeze();
        uint8_t *moved = mremap(at, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        MUST(moved != MAP_FAILED);
        is("moved", moved);
        is("left behind", at);
        printf("wrong %zu, left %zu\n", wrong(moved, BYTES, round + 5), nonzero(at, BYTES));
        MUST(mprotect(moved, BYTES, rw) == 0 && mprotect(at, BYTES, rw) == 0);
        memset(at, 1, BYTES);
        printf("wrong %zu\n", wrong(moved, BYTES, round + 5));
        errno = 0;
        void *over = mremap(at, BYTES, BYTES, fixed | MREMAP_DONTUNMAP, at + BYTES / 2);
        printf("over itself %d errno %d\n", over == MAP_FAILED, errno);
        munmap(at, BYTES);
        munmap(moved, BYTES);
    }
    squeeze();
}
