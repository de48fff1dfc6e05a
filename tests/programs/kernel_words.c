/* What else programs ask of the kernel about their memory: shared and named memory, locks, advice, limits, other
 * processes. The answers are the kernel's, and nothing is lost. */
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include "case.h"

enum { BYTES = 8 << 20 };
static size_t bad;

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#define MADV_COLLAPSE_ 25
#define PR_SET_VMA_ 0x53564d41

static void shared(void) {
    int fd = memfd_create("words", MFD_CLOEXEC);
    MUST(fd >= 0 && ftruncate(fd, BYTES) == 0);
    uint8_t *file = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *anon = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint8_t *mine = far_map(BYTES);
    fill(mine, BYTES, 1);
    squeeze();
    MUST(pwrite(fd, mine, BYTES, 0) == BYTES);
    bad += wrong(file, BYTES, 1);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        memcpy(anon, mine, BYTES);
        fill(file, BYTES, 2);
        _exit(wrong(mine, BYTES, 1) != 0);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    bad += wrong(anon, BYTES, 1) + wrong(file, BYTES, 2);
    MUST(pread(fd, mine, BYTES, 0) == BYTES);
    squeeze();
    printf("shared, bad %zu\n", bad += wrong(mine, BYTES, 2));
}

static void advised(void) {
    uint8_t *mem = far_map(BYTES);
    fill(mem, BYTES, 3);
    squeeze();
    struct {
        const char *name;
        int advice, told;
    } all[] = {{"pageout", MADV_PAGEOUT, 1},      {"populate read", MADV_POPULATE_READ, 1},
               {"populate write", MADV_POPULATE_WRITE, 1}, {"collapse", MADV_COLLAPSE_, 0},
               {"mergeable", MADV_MERGEABLE, 0},  {"unmergeable", MADV_UNMERGEABLE, 0},
               {"dofork", MADV_DOFORK, 1},        {"keeponfork", MADV_KEEPONFORK, 1},
               {"remove", MADV_REMOVE, 1},        {"nonsense", 4711, 1}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        errno = 0;
        int r = madvise(mem, BYTES, all[i].advice);
        if (all[i].told) printf("%s %d errno %d\n", all[i].name, r, errno);
    }
    /* An advice that the kernel knows, and one that it does not, of no bytes at all. */
    printf("of nothing %d", madvise(mem, 0, MADV_DONTNEED));
    errno = 0;
    printf(" %d errno %d\n", madvise(mem, 0, 4711), errno);
    /* The kernel joins pages or says why not; far ones are never joined. */
    errno = 0;
    int joined = madvise(mem, BYTES, MADV_COLLAPSE_);
    printf("joined %d\n", (uintptr_t)mem >> 45 == 1 ? joined == -1 && errno == EINVAL : joined <= 0);
    squeeze();
    bad += wrong(mem, BYTES, 3);
    /* What a child finds of it. */
    MUST(madvise(mem, BYTES / 4, MADV_WIPEONFORK) == 0);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) _exit((nonzero(mem, BYTES / 4) != 0) | (wrong(mem + BYTES / 4, 8, 3 + BYTES / 32) != 0) << 1);
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    printf("wiped %d, bad %zu\n", status, bad += wrong(mem, BYTES, 3));
    /* Addresses that are not inherited are free in the child. */
    uint8_t *gone = far_map(BYTES);
    fill(gone, BYTES, 7);
    MUST(madvise(gone, BYTES / 2, MADV_DONTFORK) == 0);
    pid = fork();
    if (pid == 0) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
        uint8_t *at = mmap(gone, BYTES / 2, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (at != gone || nonzero(at, BYTES / 2)) _exit(1);
        fill(at, BYTES / 2, 8);
        squeeze();
        _exit((wrong(at, BYTES / 2, 8) || wrong(gone + BYTES / 2, BYTES / 2, 7 + BYTES / 16)) << 1);
    }
    MUST(waitpid(pid, &status, 0) == pid);
    printf("not inherited %d, bad %zu\n", status, bad += wrong(gone, BYTES, 7));
    MUST(madvise(gone, BYTES, MADV_DOFORK) == 0);
    pid = fork();
    if (pid == 0) _exit(wrong(gone, BYTES, 7) != 0);
    MUST(waitpid(pid, &status, 0) == pid);
    printf("inherited again %d\n", status);
    MUST(madvise(mem, BYTES / 4, MADV_KEEPONFORK) == 0);
    prctl(PR_SET_VMA_, 0, mem, BYTES, "words"); /* the kernel may be built without */
    printf("huge pages off %d", prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    printf(" is %d\n", prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0));
    errno = 0;
    printf("set mm %d", prctl(PR_SET_MM, 4711, 0, 0, 0));
    printf(" errno %d\n", errno == EINVAL || errno == EPERM);
    printf("dumpable %d", prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
    squeeze();
    pid = fork();
    if (pid == 0) _exit(wrong(mem, BYTES, 3) != 0);
    MUST(waitpid(pid, &status, 0) == pid);
    printf(" child %d %d\n", status, prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
    printf("personality %d\n", personality(0xffffffff) >= 0 && personality(ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC) >= 0);
    uint8_t *more = far_map(BYTES);
    fill(more, BYTES, 4);
    squeeze();
    printf("bad %zu\n", bad += wrong(more, BYTES, 4));
}

/* A limit on addresses that the program sets itself is one on its own, and is told as it was set. */
static void limited(void) {
    struct rlimit limit, was;
    MUST(getrlimit(RLIMIT_AS, &was) == 0);
    limit = (struct rlimit){1ul << 30, was.rlim_max};
    printf("limited %d", setrlimit(RLIMIT_AS, &limit));
    struct rlimit said = {0, 0};
    MUST(getrlimit(RLIMIT_AS, &said) == 0);
    printf(" to %ld, as before %d", (long)said.rlim_cur, said.rlim_max == was.rlim_max);
    MUST(prlimit(0, RLIMIT_AS, NULL, &said) == 0);
    printf(" again %ld\n", (long)said.rlim_cur);
    uint8_t *mem = malloc(BYTES);
    printf("some %d", mem != NULL);
    if (mem) {
        fill(mem, BYTES, 5);
        squeeze();
        bad += wrong(mem, BYTES, 5);
    }
    void *much = mmap(NULL, 2ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    printf(" much %d errno %d\n", much != MAP_FAILED, errno);
    pthread_t thread;
    printf("thread %d", pthread_create(&thread, NULL, (void *(*)(void *))malloc, (void *)100000));
    void *made = NULL;
    MUST(pthread_join(thread, &made) == 0);
    printf(" made %d\n", made != NULL);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        execlp("sh", "sh", "-c", "ulimit -v", NULL);
        _exit(9);
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    printf("executed %d\n", status);
    printf("lifted %d", setrlimit(RLIMIT_AS, &was));
    much = mmap(NULL, 2ul << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    printf(" much %d\n", much != MAP_FAILED);
    munmap(much, 2ul << 30);
}

/* Data is what is writable: a reservation is none, until it is made so; and a child has its parent's. */
static void limited_data(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, both = PROT_READ | PROT_WRITE;
    struct rlimit limit, was;
    MUST(getrlimit(RLIMIT_DATA, &was) == 0);
    limit = (struct rlimit){512 * MIB, was.rlim_max};
    printf("data limited %d", setrlimit(RLIMIT_DATA, &limit));
    uint8_t *kept = mmap(NULL, 4ul << 30, PROT_NONE, flags, -1, 0);
    MUST(kept != MAP_FAILED);
    printf(" much %d errno %d", mprotect(kept, 1ul << 30, both), errno);
    printf(" over %d errno %d", mmap(kept, 1ul << 30, both, flags | MAP_FIXED, -1, 0) != MAP_FAILED, errno);
    printf(" some %d", mprotect(kept, 256 * MIB, both));
    printf(" again %d\n", mprotect(kept, 256 * MIB, both));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        void *more = mmap(NULL, 300 * MIB, both, flags, -1, 0), *less = mmap(NULL, 100 * MIB, both, flags, -1, 0);
        _exit((more != MAP_FAILED) * 2 + (less != MAP_FAILED));
    }
    int status;
    MUST(waitpid(pid, &status, 0) == pid);
    printf("child %d lifted %d\n", WEXITSTATUS(status), setrlimit(RLIMIT_DATA, &was));
    munmap(kept, 4ul << 30);
}

int main(void) {
    shared();
    advised();
    limited();
    limited_data();
    MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    uint8_t *mem = far_map(BYTES);
    fill(mem, BYTES, 6);
    squeeze();
    printf("locked, bad %zu, %d\n", bad += wrong(mem, BYTES, 6), munlockall());
}
