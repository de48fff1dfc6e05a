/* What a program finds that looks for open descriptors: by every number, and by the listings of /proc. The same numbers
 * as natively, and no call takes one of the runtime's. */
#include "case.h"
#include <dirent.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { NUMBERS = 65536 };

static void list(const char *path) {
    DIR *d = opendir(path);
    MUST(d);
    int n = 0, sum = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.' || atoi(e->d_name) == dirfd(d)) continue;
        n++, sum += atoi(e->d_name);
    }
    rewinddir(d);
    int again = 0;
    while (readdir(d)) again++;
    closedir(d);
    printf("listed: %d, their sum %d, and again %d\n", n, sum, again);
}

static int by(int (*call)(int)) {
    int n = 0, last = -1;
    for (int fd = 0; fd < NUMBERS; fd++)
        if (call(fd) >= 0) n++, last = fd;
    return n * 100000 + last;
}

static int stats(int fd) {
    struct stat about;
    return fstat(fd, &about);
}
static int flags(int fd) { return fcntl(fd, F_GETFD); }
static int empty_path(int fd) {
    struct stat about;
    return fstatat(fd, "", &about, AT_EMPTY_PATH);
}
static int reads_nothing(int fd) { return read(fd, NULL, 0) < 0 && errno == EBADF ? -1 : 0; }
static int socket_type(int fd) {
    int type;
    socklen_t len = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0 && errno == EBADF ? -1 : 0;
}
static int copies(int fd) {
    int copy = dup(fd);
    return copy < 0 ? -1 : close(copy);
}
static int by_syscall(int fd) { return syscall(SYS_fcntl, fd, F_GETFD); }

static void look(const char *when) {
    printf("%s: %d %d %d %d %d %d %d\n", when, by(stats), by(flags), by(empty_path), by(reads_nothing), by(socket_type),
           by(copies), by(by_syscall));
    char path[64];
    list("/proc/self/fd");
    list("/proc/self/fdinfo");
    snprintf(path, sizeof path, "/proc/%d/task/%d/fd", getpid(), getpid());
    list(path);
    fflush(stdout);
}

int main(void) {
    for (int fd = 3; fd < NUMBERS; fd++) close(fd);
    uint8_t *mem = far_map(16 * MIB);
    fill(mem, 16 * MIB, 3);
    look("at start");
    /* Far buffers, and more numbers than a listing has room for at once. */
    int opened = 0;
    while (opened < 200 && open("/dev/null", O_RDONLY) >= 0) opened++;
    look("with many");
    pid_t child = fork();
    if (child == 0) {
        look("in a child");
        _exit(wrong(mem, 16 * MIB, 3) != 0);
    }
    int status;
    waitpid(child, &status, 0);
    squeeze();
    printf("child %d, wrong %zu\n", status, wrong(mem, 16 * MIB, 3));
}
