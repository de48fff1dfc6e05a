/* Files and shared memory with a hint for their address. They lie there if nothing else does, and elsewhere otherwise.
 * So a file with pointers into itself is found where it was: gawk keeps its variables in one. */
#include "case.h"

enum { BYTES = 4 << 20 };
struct node {
    struct node *next;
    uint64_t value;
};

static char *hint;
static void *map(int fd, int flags) { return mmap(hint, BYTES, PROT_READ | PROT_WRITE, flags, fd, 0); }

/* The sum of the list in the file, which is mapped where it was. */
static uint64_t sum(int fd) {
    struct node *first = map(fd, MAP_SHARED);
    MUST((char *)first == hint);
    squeeze();
    uint64_t all = 0;
    for (struct node *at = first; at; at = at->next) all += at->value;
    MUST(munmap(first, BYTES) == 0);
    return all;
}

int main(void) {
    int fd = memfd_create("list", 0), ends[2];
    MUST(fd >= 0 && ftruncate(fd, BYTES) == 0 && pipe(ends) == 0);
    hint = far_map(BYTES);
    MUST(munmap(hint, BYTES) == 0);
    struct node *at = map(fd, MAP_SHARED);
    printf("at the hint: %d\n", (char *)at == hint);
    size_t step = PAGE / sizeof *at, n = BYTES / PAGE;
    for (size_t i = 0; i < n; i++) at[i * step] = (struct node){i + 1 < n ? at + (i + 1) * step : NULL, mix(i)};
    MUST(write(ends[1], at, 2 * PAGE) == 2 * PAGE && read(ends[0], at + step / 2, PAGE) == PAGE);
    printf("by calls: %d\n", memcmp(at, at + step / 2, sizeof *at) == 0);

    char *other = map(fd, MAP_SHARED);
    printf("elsewhere, where it is: %d\n", other != MAP_FAILED && other != hint);
    printf("the same: %d\n", memcmp(at, other, BYTES) == 0);
    MUST(munmap(other, BYTES) == 0 && munmap(at, BYTES) == 0);

    printf("again: %d\n", sum(fd) == sum(fd));
    pid_t child = fork();
    if (!child) _exit(sum(fd) == 0);
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("in a child: %d\n", status);

    char *copy = map(fd, MAP_PRIVATE);
    printf("a copy: %d\n", copy == hint);
    memset(copy, 1, BYTES);
    squeeze();
    size_t bad = 0;
    for (size_t i = 0; i < BYTES; i++) bad += copy[i] != 1;
    MUST(munmap(copy, BYTES) == 0);
    char *shared = map(-1, MAP_SHARED | MAP_ANONYMOUS);
    printf("shared memory: %d\n", shared == hint);
    memset(shared, 2, BYTES);
    if (!(child = fork())) {
        memset(shared, 3, BYTES);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    for (size_t i = 0; i < BYTES; i++) bad += shared[i] != 3;
    MUST(munmap(shared, BYTES) == 0);

    char *far = far_map(8 * MIB);
    fill(far, 8 * MIB, 1);
    hint = far + 2 * MIB;
    other = map(fd, MAP_SHARED);
    printf("over memory: %d\n", other != MAP_FAILED && (other + BYTES <= far || other >= far + 8 * MIB));
    squeeze();
    printf("wrong: %zu, %zu\n", bad, wrong(far, 8 * MIB, 1));
}
