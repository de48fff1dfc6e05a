/* Programs that close every descriptor they did not open: the runtime's must
 * survive, or not show, and their numbers must not be in the program's way. */
#include "case.h"
#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif

static uint8_t *m;
static void check(const char *what) {
    squeeze();
    printf("%s: wrong %zu\n", what, wrong(m, 16 * MIB, 2));
}

/* A table of descriptors of the program's own: what it closes there is closed for good. */
static void own_table(void) {
    for (int way = 0; way < 4; way++) {
        int ends[2], r;
        MUST(pipe(ends) == 0);
        if (way < 2) {
            r = unshare(CLONE_FILES | (way ? CLONE_FS : 0));
            close(ends[1]);
        } else
            r = close_range(ends[1], way == 2 ? (unsigned)ends[1] : ~0u, CLOSE_RANGE_UNSHARE);
        struct pollfd one = {ends[0], POLLIN, 0};
        int ready = poll(&one, 1, 3000);
        printf("own table %d: %d, ready %d %x, there %d\n", way, r, ready, one.revents, fcntl(ends[1], F_GETFD));
        close(ends[0]);
        check("with it");
    }
}

static void *ends_at_once(void *unused) { return unused; }

int main(void) {
    m = far_map(16 * MIB);
    fill(m, 16 * MIB, 2);
    for (int fd = 3; fd < 65536; fd++) close(fd);
    check("close to 65536");
    close_range(3, ~0u, 0);
    check("close_range");
    closefrom(3);
    check("closefrom");
    printf("lowest free %d\n", open("/dev/null", O_RDONLY));
    for (int fd = 3; fd < 600; fd++) dup2(1, fd);
    check("dup2 over");
    closefrom(3);
    own_table();
    /* One thread again. */
    pthread_t other;
    MUST(pthread_create(&other, NULL, ends_at_once, NULL) == 0 && pthread_join(other, NULL) == 0);
    own_table();
    struct rlimit few = {64, 64};
    setrlimit(RLIMIT_NOFILE, &few);
    check("few descriptors");
    int opened = 0;
    while (open("/dev/null", O_RDONLY) >= 0) opened++;
    printf("opened %d\n", opened);
    check("none left");
    closefrom(3);
    pid_t p = fork();
    if (p == 0) {
        closefrom(0);
        squeeze();
        _exit(wrong(m, 16 * MIB, 2) != 0);
    }
    int status;
    waitpid(p, &status, 0);
    printf("child without any: %d\n", WEXITSTATUS(status));
    /* As daemons do it: walk /proc/self/fd and close what is found. */
    DIR *d = opendir("/proc/self/fd");
    int own = dirfd(d);
    for (struct dirent *e; (e = readdir(d));)
        if (atoi(e->d_name) > 2 && atoi(e->d_name) != own) close(atoi(e->d_name));
    closedir(d);
    check("as /proc says");
    /* daemon(3), twice forked, descriptors redirected: the parent reports. */
    int result[2];
    MUST(pipe(result) == 0);
    p = fork();
    if (p == 0) {
        setsid();
        if (fork()) _exit(0);
        for (int fd = 0; fd < 3; fd++) close(fd);
        open("/dev/null", O_RDWR), dup(0), dup(0);
        squeeze();
        char ok = wrong(m, 16 * MIB, 2) == 0 ? 'y' : 'n';
        write(result[1], &ok, 1);
        _exit(0);
    }
    waitpid(p, &status, 0);
    char ok = '?';
    read(result[0], &ok, 1);
    printf("daemon %c\n", ok);
}
