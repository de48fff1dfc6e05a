/* Mappings over memory that is there, which the system refuses: what was there stays, wherever its pages are. And such
 * as it makes: a file and shared memory over a part of it, and where nothing is, and near memory that moves
 * there. */
#include "case.h"

enum { BYTES = 1 << 20 };

static uint8_t *lies[64];
static int n;

static uint8_t *fresh(void) {
    MUST(n < 64);
    lies[n] = far_map(BYTES);
    fill(lies[n], BYTES, n);
    return lies[n++];
}

#define TRY(name, call)                                                                            \
    do {                                                                                           \
        uint8_t *p = fresh();                                                                      \
        if (n % 2) squeeze();                                                                      \
        errno = 0;                                                                                 \
        void *r = (call);                                                                          \
        int e = errno;                                                                             \
        printf("%s: %s, errno %d\n", name, r == MAP_FAILED ? "refused" : "mapped", e);             \
        printf("  wrong %zu\n", wrong(p, BYTES, n - 1));                                           \
    } while (0)

int main(void) {
    int fd = open("/proc/self/exe", O_RDONLY), status = open("/proc/self/status", O_RDONLY);
    int rw = PROT_READ | PROT_WRITE;
    MUST(fd >= 0 && status >= 0);
    TRY("file", mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0));
    TRY("shared", mmap(p + BYTES / 2, BYTES, rw, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    TRY("stack", mmap(p, BYTES, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_FIXED_NOREPLACE, -1, 0));
    TRY("private", mmap(p, PAGE, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
    TRY("no descriptor", mmap(p, BYTES, PROT_READ, MAP_PRIVATE | MAP_FIXED, 999, 0));
    TRY("no right to write", mmap(p, PAGE, rw, MAP_SHARED | MAP_FIXED, fd, 0));
    TRY("no device", mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, status, 0));
    TRY("odd offset", mmap(p, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 100));
    TRY("odd address", mmap(p + 100, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0));
    TRY("endless", mmap(NULL, SIZE_MAX, rw, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

    /* Near memory that cannot move there. */
    uint8_t *near = mmap(NULL, BYTES, rw, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    MUST(near != MAP_FAILED);
    memset(near, 5, BYTES);
    TRY("move without leave", mremap(near, BYTES, BYTES, MREMAP_FIXED, p));
    TRY("move nothing", mremap((void *)(16 * PAGE), BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, p));
    TRY("move oddly", mremap(near, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED | 64, p));

    /* Shared memory that lies among it, and cannot move over other memory. */
    uint8_t *shared = fresh();
    MUST(mmap(shared, BYTES / 2, rw, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == shared);
    memset(shared, 6, BYTES / 2);
    TRY("move shared", mremap(shared, BYTES / 2, BYTES / 2, MREMAP_MAYMOVE | MREMAP_FIXED | 64, p));

    /* What is made. */
    uint8_t *p = fresh();
    squeeze();
    MUST(mremap(shared, BYTES / 2, BYTES / 2, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p);
    printf("shared %d %d, wrong %d\n", p[0], p[BYTES / 2 - 1], memcmp(p + BYTES / 2, lies[n - 2] + BYTES / 2, 8) == 0);
    p = fresh();
    squeeze();
    MUST(mremap(near, BYTES, BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, p) == p);
    printf("near %d %d\n", p[0], p[BYTES - 1]);
    p = fresh();
    MUST(mmap(p + PAGE, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED | MAP_POPULATE, fd, 0) == p + PAGE);
    squeeze();
    printf("file %d%c%c%c, around it %zu\n", p[PAGE], p[PAGE + 1], p[PAGE + 2], p[PAGE + 3], wrong(p, PAGE, n - 1));
    p = fresh();
    MUST(mmap(p, 2 * PAGE, rw, MAP_PRIVATE | MAP_FIXED | MAP_LOCKED, fd, 0) == p);
    squeeze();
    printf("locked %d%c%c%c, behind it %zu\n", p[0], p[1], p[2], p[3], wrong(p + 2 * PAGE, BYTES - 2 * PAGE, n - 1 + 2 * PAGE / 8));
    p = fresh();
    MUST(munmap(p, BYTES) == 0);
    MUST(mmap(p, BYTES, rw, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == p);
    fill(p, BYTES, n - 1);
    TRY("where it lies now", mmap(lies[n - 2], PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0));
    /* What comes later comes to lie elsewhere. */
    int kept = n - 1;
    for (int i = 0; i < 20; i++) fresh();
    squeeze();
    size_t bad = wrong(p, BYTES, kept - 1);
    for (int i = kept; i < n; i++) bad += wrong(lies[i], BYTES, i);
    printf("bad %zu\n", bad);
}
