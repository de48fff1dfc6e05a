/* What most programs do, once each, on far memory and by way of it: threads, forks and execs, sleeps,
 * messages, files, signals, mappings that grow and go. A call that fails is told by its name, and the
 * program goes on. */
#include "case.h"
#include <poll.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

extern char **environ;
enum { FAR = 6 << 20 };

#define TRY(what, x)                                                                               \
    do {                                                                                           \
        errno = 0;                                                                                 \
        if (!(x)) printf("%s: %s\n", what, strerror(errno));                                       \
    } while (0)

static char *far_text(const char *text) {
    return strcpy((char *)malloc(2 << 20), text);
}

static volatile sig_atomic_t seen;
static void on_signal(int nr) {
    (void)nr;
    seen++;
}

static void *thread(void *far) {
    return wrong(far, FAR, 7) ? NULL : far;
}

static void processes(void *far) {
    char **argv = malloc(2 << 20);
    argv[0] = far_text("echo"), argv[1] = far_text("spoken by a child"), argv[2] = NULL;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        size_t bad = wrong(far, FAR, 7);
        fill(far, FAR / 2, 8);
        squeeze();
        bad += wrong(far, FAR / 2, 8);
        if (bad) _exit(9);
        execv(far_text("/bin/echo"), argv);
        _exit(10);
    }
    int status = -1;
    TRY("fork", child > 0);
    if (child > 0) TRY("wait", waitpid(child, &status, 0) == child && status == 0);
    TRY("posix_spawn", posix_spawnp(&child, "echo", NULL, NULL, argv, environ) == 0);
    if (child > 0) TRY("wait", waitpid(child, &status, 0) == child && status == 0);
    TRY("system", system("exit 3") == 3 << 8);
}

static void messages(char *far) {
    int pair[2], pipes[2];
    char *into = far + FAR / 2;
    TRY("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    TRY("send", send(pair[0], far, 40000, 0) == 40000);
    TRY("recv", recv(pair[1], into, 40000, MSG_WAITALL) == 40000 && memcmp(far, into, 40000) == 0);
    struct iovec parts[2] = {{far, 3000}, {far + 70000, 5000}};
    TRY("writev", writev(pair[0], parts, 2) == 8000);
    TRY("read", read(pair[1], into, 8000) == 8000 && memcmp(far + 70000, into + 3000, 5000) == 0);
    struct pollfd *wanted = malloc(2 << 20);
    wanted->fd = pair[1], wanted->events = POLLIN;
    TRY("poll", poll(wanted, 1, 10) == 0);
    TRY("pipe", pipe(pipes) == 0);
    TRY("write", write(pipes[1], far, 5000) == 5000 && read(pipes[0], into, 5000) == 5000);
    int epoll = epoll_create1(0);
    struct epoll_event *event = malloc(2 << 20);
    event->events = EPOLLIN, event->data.u64 = 5;
    TRY("epoll", epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], event) == 0 && epoll_wait(epoll, event, 1, 5) == 0);
    FILE *file = tmpfile();
    TRY("file", file && fwrite(far, 1, 300000, file) == 300000 && fseek(file, 0, SEEK_SET) == 0);
    TRY("file", file && fread(into, 1, 300000, file) == 300000 && memcmp(far, into, 300000) == 0);
}

static void signals(void) {
    struct sigaction *action = malloc(2 << 20);
    memset(action, 0, sizeof *action);
    action->sa_handler = on_signal;
    TRY("sigaction", sigaction(SIGUSR1, action, NULL) == 0 && raise(SIGUSR1) == 0 && seen == 1);
    struct timespec *time = malloc(2 << 20);
    time->tv_sec = 0, time->tv_nsec = 3000000;
    TRY("nanosleep", nanosleep(time, NULL) == 0);
    TRY("usleep", usleep(1000) == 0);
    TRY("clock", clock_gettime(CLOCK_REALTIME, time) == 0);
}

int main(void) {
    char *far = far_map(FAR);
    fill(far, FAR, 7);
    squeeze();
    TRY("memory", wrong(far, FAR, 7) == 0);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        void *good = NULL;
        TRY("thread", (errno = pthread_create(&threads[i], NULL, thread, far)) == 0);
        if (errno == 0) TRY("join", (errno = pthread_join(threads[i], &good)) == 0 && good);
    }
    processes(far);
    TRY("memory", wrong(far, FAR, 7) == 0);
    messages(far);
    signals();
    fill(far, FAR, 9);
    void *grown = mremap(far, FAR, 2 * FAR, MREMAP_MAYMOVE);
    TRY("mremap", grown != MAP_FAILED && wrong(grown, FAR, 9) == 0);
    if (grown != MAP_FAILED) {
        TRY("madvise", madvise(grown, FAR / 2, MADV_DONTNEED) == 0 && nonzero(grown, FAR / 2) == 0);
        TRY("mprotect", mprotect(grown, FAR, PROT_READ) == 0 && wrong((char *)grown + FAR / 2, FAR / 2, 9 + FAR / 16) == 0);
        TRY("munmap", munmap(grown, 2 * FAR) == 0);
    }
    printf("done\n");
    return 0;
}
