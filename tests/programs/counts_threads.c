/* A program that asks how many threads it has, by each file of /proc that tells and by the listing: as many as it has made.
 * (Its own names are left out: they differ from run to run.) */
#define _GNU_SOURCE
#include "case.h"
#include <dirent.h>
#include <sys/stat.h>

enum { THREADS = 12 };
static pthread_barrier_t begun, over;

static void *waits(void *unused) {
    (void)unused;
    pthread_barrier_wait(&begun);
    pthread_barrier_wait(&over);
    return NULL;
}

/* The twentieth field of a text of stat. */
static int of_stat(char *text) {
    char *at = strrchr(text, ')') + 1;
    for (int field = 2; field < 19; field++) at = strchr(at + 1, ' ');
    return atoi(at);
}

static int of_status(char *text) {
    char *at = strstr(text, "\nThreads:\t");
    return at ? atoi(at + 10) : -1;
}

static int by_file(const char *path, int (*of)(char *)) {
    char text[8192];
    FILE *f = fopen(path, "r");
    MUST(f);
    size_t len = fread(text, 1, sizeof text - 1, f);
    MUST(len > 0);
    text[len] = 0;
    MUST(text[len - 1] == '\n');
    fclose(f);
    return of(text);
}

/* Again and again by one descriptor, into far memory. */
static int by_descriptor(const char *path, int (*of)(char *)) {
    char *text = far_map(3 * PAGE);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    MUST(fd >= 0);
    int said[3];
    for (int i = 0; i < 3; i++) {
        ssize_t len = i == 1 ? pread(fd, text + 100, 2 * PAGE, 0) : read(fd, text + 100, 2 * PAGE);
        MUST(len > 0);
        text[100 + len] = 0;
        said[i] = of(text + 100);
        lseek(fd, 0, SEEK_SET);
    }
    close(fd);
    munmap(text, 3 * PAGE);
    /* Another file by the same number is read as it is. */
    int other = open("/proc/version", O_RDONLY);
    char piece[64];
    MUST(other == fd && read(other, piece, sizeof piece) > 0);
    close(other);
    return said[0] == said[1] && said[1] == said[2] ? said[0] : -1;
}

static int by_listing(const char *path) {
    DIR *d = opendir(path);
    MUST(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* By the links of the directory, of which it has two of its own; asked in each way, near and far. */
static int by_links(const char *path) {
    struct stat near, *far = far_map(PAGE);
    struct statx *extended = far_map(PAGE), near_extended;
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    MUST(fd >= 0 && !stat(path, &near) && !fstat(fd, far));
    MUST(!statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, extended));
    MUST(!statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &near_extended));
    struct stat other;
    MUST(!stat("/proc/1/task", &other) && other.st_nlink >= 3);
    close(fd);
    int n = near.st_nlink, same = far->st_nlink == near.st_nlink && extended->stx_nlink == near.st_nlink &&
                                  near_extended.stx_nlink == near.st_nlink;
    munmap(far, PAGE);
    munmap(extended, PAGE);
    return same ? n - 2 : -1;
}

static void count(const char *when) {
    char path[64];
    printf("%s: %d %d %d", when, by_file("/proc/self/stat", of_stat), by_file("/proc/self/status", of_status),
           by_listing("/proc/self/task"));
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", getpid(), getpid());
    printf(" %d %d", by_file(path, of_stat), by_descriptor(path, of_stat));
    snprintf(path, sizeof path, "/proc/%d/status", getpid());
    printf(" %d %d", by_file(path, of_status), by_descriptor(path, of_status));
    snprintf(path, sizeof path, "/proc/%d/task", getpid());
    printf(" %d", by_listing(path));
    printf(" %d %d\n", by_links("/proc/self/task"), by_links(path));
    fflush(stdout);
}

int main(void) {
    uint8_t *mem = far_map(16 * MIB);
    fill(mem, 16 * MIB, 3);
    squeeze();
    count("alone");
    pthread_barrier_init(&begun, NULL, THREADS + 1);
    pthread_barrier_init(&over, NULL, THREADS + 1);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) MUST(pthread_create(&threads[i], NULL, waits, NULL) == 0);
    pthread_barrier_wait(&begun);
    count("with twelve");
    pid_t child = fork();
    if (child == 0) {
        size_t bad = wrong(mem, 16 * MIB, 3);
        squeeze();
        count("a child");
        _exit(bad != 0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    pthread_barrier_wait(&over);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    printf("child %d, wrong %zu\n", status, wrong(mem, 16 * MIB, 3));
}
