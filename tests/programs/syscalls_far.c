/* System calls whose every argument, and everything that arguments point to,
 * lies in far memory that is absent when the call is made. */
#include "case.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <elf.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/user.h>
#include <sys/utsname.h>
#include <sys/xattr.h>

static char *next_page(void) {
    static char *pool;
    static size_t used = 4096;
    if (used == 4096) pool = far_map(4096 * PAGE), used = 0;
    return pool + PAGE * used++;
}
/* One object of a type, or a string, alone on a far page. */
#define FAR(type) ((type *)next_page())
static char *far_text(const char *text) { return strcpy(next_page(), text); }

static size_t bad;
static void message(int from, int to) {
    struct msghdr *out = FAR(struct msghdr), *in = FAR(struct msghdr);
    struct iovec *iov = FAR(struct iovec), *into = FAR(struct iovec);
    char *a = next_page(), *b = next_page(), *c = next_page(), *d = next_page();
    fill(a, PAGE, 1), fill(b, PAGE, 2);
    iov[0] = (struct iovec){a, PAGE}, iov[1] = (struct iovec){b, PAGE};
    into[0] = (struct iovec){c, 1000}, into[1] = (struct iovec){d, PAGE}, into[2] = (struct iovec){next_page(), PAGE};
    struct cmsghdr *control = (struct cmsghdr *)next_page();
    control->cmsg_level = SOL_SOCKET, control->cmsg_type = SCM_RIGHTS, control->cmsg_len = CMSG_LEN(sizeof(int));
    *(int *)CMSG_DATA(control) = from;
    *out = (struct msghdr){.msg_iov = iov, .msg_iovlen = 2, .msg_control = control, .msg_controllen = CMSG_SPACE(sizeof(int))};
    *in = (struct msghdr){.msg_iov = into, .msg_iovlen = 3, .msg_control = next_page(), .msg_controllen = 64};
    squeeze();
    printf("sendmsg %zd\n", sendmsg(from, out, 0));
    squeeze();
    printf("recvmsg %zd", recvmsg(to, in, 0));
    printf(" control %zu flags %x\n", in->msg_controllen, in->msg_flags);
    close(*(int *)CMSG_DATA(CMSG_FIRSTHDR(in)));
    bad += memcmp(c, a, 1000) + memcmp(d, a + 1000, 3096) + memcmp(d + 3096, b, 1000);
    bad += memcmp(into[2].iov_base, b + 1000, 3096);
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    int *fds = FAR(int);
    squeeze();
    MUST(pipe(fds) == 0);
    char *a = next_page(), *b = next_page();
    fill(a, PAGE, 1);
    squeeze();
    printf("write %zd", write(fds[1], a, PAGE));
    squeeze();
    printf(" read %zd\n", read(fds[0], b, PAGE));
    bad += wrong(b, PAGE, 1);

    struct iovec *iov = FAR(struct iovec);
    for (int i = 0; i < 100; i++) {
        iov[i] = (struct iovec){next_page() + 100, 300 + i};
        for (size_t k = 0; k < iov[i].iov_len; k++) ((uint8_t *)iov[i].iov_base)[k] = i + k;
    }
    squeeze();
    printf("writev %zd", writev(fds[1], iov, 100));
    struct iovec *into = FAR(struct iovec);
    for (int i = 0; i < 100; i++) into[i] = (struct iovec){next_page() + 200, 300 + i};
    squeeze();
    printf(" readv %zd\n", readv(fds[0], into, 100));
    for (int i = 0; i < 100; i++) bad += memcmp(iov[i].iov_base, into[i].iov_base, 300 + i) != 0;
    printf("bad %zu\n", bad);

    int *pair = FAR(int);
    squeeze();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    message(pair[0], pair[1]);
    struct mmsghdr *many = FAR(struct mmsghdr), *back = FAR(struct mmsghdr);
    int *dgram = FAR(int);
    squeeze();
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, dgram) == 0);
    for (int i = 0; i < 4; i++) {
        struct iovec *v = FAR(struct iovec), *w = FAR(struct iovec);
        *v = (struct iovec){far_text("datagram"), 8};
        *w = (struct iovec){next_page(), 64};
        many[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}};
        back[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = w, .msg_iovlen = 1}};
    }
    squeeze();
    printf("sendmmsg %d", sendmmsg(dgram[0], many, 4, 0));
    squeeze();
    printf(" recvmmsg %d", recvmmsg(dgram[1], back, 4, MSG_DONTWAIT, NULL));
    printf(" %u %.8s\n", back[3].msg_len, (char *)back[3].msg_hdr.msg_iov->iov_base);

    /* TCP with addresses and options in far memory. */
    struct sockaddr_in *addr = FAR(struct sockaddr_in), *peer = FAR(struct sockaddr_in);
    socklen_t *len = FAR(socklen_t);
    *addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    squeeze();
    MUST(bind(server, (void *)addr, sizeof *addr) == 0 && listen(server, 4) == 0);
    *len = sizeof *addr;
    squeeze();
    MUST(getsockname(server, (void *)addr, len) == 0);
    squeeze();
    MUST(connect(client, (void *)addr, sizeof *addr) == 0);
    *len = sizeof *peer;
    squeeze();
    int accepted = accept(server, (void *)peer, len);
    printf("accepted %d family %d len %u\n", accepted >= 0, peer->sin_family, *len);
    int *opt = FAR(int);
    *opt = 1, *len = sizeof *opt;
    squeeze();
    printf("setsockopt %d", setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, opt, sizeof *opt));
    squeeze();
    printf(" getsockopt %d", getsockopt(client, SOL_SOCKET, SO_KEEPALIVE, opt, len));
    printf(" %d\n", *opt);
    squeeze();
    printf("sendto %zd", sendto(client, a, PAGE, 0, NULL, 0));
    squeeze();
    printf(" FIONREAD %d", ioctl(accepted, FIONREAD, opt));
    printf(" %d", *opt);
    squeeze();
    printf(" recvfrom %zd\n", recvfrom(accepted, b, PAGE, MSG_WAITALL, NULL, NULL));
    bad += wrong(b, PAGE, 1);

    struct epoll_event *ev = FAR(struct epoll_event);
    int ep = epoll_create1(0);
    *ev = (struct epoll_event){.events = EPOLLIN, .data.u64 = 0x1234567890};
    squeeze();
    MUST(epoll_ctl(ep, EPOLL_CTL_ADD, accepted, ev) == 0);
    MUST(write(client, "x", 1) == 1);
    ev->data.u64 = 0;
    squeeze();
    printf("epoll_wait %d", epoll_wait(ep, ev, 8, 1000));
    printf(" %lx\n", (long)ev->data.u64);
    struct pollfd *pfd = FAR(struct pollfd);
    *pfd = (struct pollfd){accepted, POLLIN, 0};
    squeeze();
    printf("poll %d", poll(pfd, 1, 1000));
    printf(" %x\n", pfd->revents);
    fd_set *set = FAR(fd_set);
    struct timeval *tv = FAR(struct timeval);
    FD_SET(accepted, set);
    tv->tv_sec = 1;
    squeeze();
    printf("select %d", select(accepted + 1, set, NULL, NULL, tv));
    printf(" %d\n", FD_ISSET(accepted, set) != 0);
    char *big = far_map(2 * MIB), *got = far_map(2 * MIB);
    fill(big, 2 * MIB, 44);
    pid_t child = fork();
    if (child == 0) {
        for (size_t n = 0; n < 2 * MIB;) n += send(client, big + n, 2 * MIB - n, 0);
        _exit(0);
    }
    MUST(read(accepted, b, 1) == 1);
    for (size_t n = 0; n < 2 * MIB;) n += recv(accepted, got + n, 2 * MIB - n, 0);
    waitpid(child, NULL, 0);
    printf("stream bad %zu\n", bad += wrong(got, 2 * MIB, 44));

    /* Files and paths. */
    char *dir = far_text("/tmp/syscalls_far_XXXXXX");
    squeeze();
    MUST(mkdtemp(dir));
    squeeze();
    MUST(chdir(dir) == 0);
    char *name = far_text("file"), *other = far_text("other"), *link_ = far_text("link");
    squeeze();
    int fd = open(name, O_RDWR | O_CREAT, 0640);
    MUST(fd >= 0);
    squeeze();
    printf("pwrite %zd", pwrite(fd, a, PAGE, 4096));
    squeeze();
    printf(" pread %zd", pread(fd, b, PAGE, 4096));
    for (int i = 0; i < 2; i++) iov[i] = (struct iovec){i ? b : a, PAGE};
    squeeze();
    printf(" pwritev %zd", pwritev(fd, iov, 2, 100));
    squeeze();
    printf(" preadv %zd\n", preadv(fd, iov, 2, 100));
    bad += wrong(a, PAGE, 1) + wrong(b, PAGE, 1);
    struct stat *st = FAR(struct stat);
    squeeze();
    printf("stat %d", stat(name, st));
    printf(" %ld %o", (long)st->st_size, st->st_mode);
    squeeze();
    printf(" fstat %d", fstat(fd, st));
    struct statx *sx = FAR(struct statx);
    squeeze();
    printf(" statx %d", statx(AT_FDCWD, name, 0, STATX_SIZE, sx));
    printf(" %llu\n", sx->stx_size);
    squeeze();
    printf("link %d", link(name, other));
    squeeze();
    printf(" symlink %d", symlink(name, link_));
    char *third = far_text("third");
    squeeze();
    printf(" rename %d", rename(other, third));
    squeeze();
    printf(" access %d", access(name, R_OK));
    char *where = next_page();
    squeeze();
    printf(" readlink %zd", readlink(link_, where, PAGE));
    printf(" %s", where);
    squeeze();
    printf(" getcwd %d", getcwd(where, PAGE) == where && strcmp(where, dir) == 0);
    squeeze();
    printf(" unlink %d", unlink(link_));
    squeeze();
    printf(" %d\n", unlink(third));
    squeeze();
    printf("truncate %d", truncate(name, 1000));
    squeeze();
    printf(" mkdir %d", mkdir(other, 0700));
    squeeze();
    printf(" rmdir %d", rmdir(other));
    squeeze();
    printf(" chmod %d", chmod(name, 0600));
    struct timespec *stamps = FAR(struct timespec);
    squeeze();
    printf(" utimensat %d\n", utimensat(AT_FDCWD, name, stamps, 0));
    char *entries = next_page();
    int dfd = open(".", O_RDONLY | O_DIRECTORY);
    squeeze();
    printf("getdents %d\n", syscall(SYS_getdents64, dfd, entries, PAGE) > 0);
    struct statvfs *vfs = FAR(struct statvfs);
    squeeze();
    printf("statvfs %d\n", statvfs(name, vfs));
    off_t *offset = FAR(off_t);
    int copy = open("copy", O_RDWR | O_CREAT, 0600);
    *offset = 100;
    squeeze();
    printf("sendfile %zd", sendfile(copy, fd, offset, 500));
    printf(" at %ld\n", (long)*offset);
    lseek(copy, 0, SEEK_SET);
    *offset = 0;
    squeeze();
    printf("copy_file_range %zd", copy_file_range(fd, offset, copy, NULL, 100, 0));
    printf(" at %ld\n", (long)*offset);
    struct flock *lock = FAR(struct flock);
    *lock = (struct flock){.l_type = F_WRLCK};
    squeeze();
    printf("fcntl F_SETLK %d", fcntl(fd, F_SETLK, lock));
    squeeze();
    printf(" F_GETLK %d", fcntl(fd, F_GETLK, lock));
    printf(" %d\n", lock->l_type == F_UNLCK);
    int direct = open("copy", O_RDWR | O_DIRECT);
    if (direct >= 0) {
        fill(big, 2 * MIB, 45);
        squeeze();
        MUST(pwrite(direct, big, 2 * MIB, 0) == 2 * MIB);
        squeeze();
        MUST(pread(direct, got, 2 * MIB, 0) == 2 * MIB);
        bad += wrong(got, 2 * MIB, 45);
    }
    squeeze();
    FILE *f = fopen("copy", "w+");
    setvbuf(f, far_map(MIB), _IOFBF, MIB);
    for (int i = 0; i < 200000; i++) fprintf(f, "%d\n", i);
    squeeze();
    rewind(f);
    long sum = 0;
    for (int i, n = 0; fscanf(f, "%d", &i) == 1; n++) sum += i;
    printf("stdio %ld\n", sum);
    unlink("copy"), unlink("file"), chdir("/"), rmdir(dir);

    /* What the kernel says about the process. */
    squeeze();
    printf("getrandom %zd", getrandom(a, PAGE, 0));
    bad += nonzero(a, PAGE) < 3000;
    struct utsname *un = FAR(struct utsname);
    squeeze();
    printf(" uname %d", uname(un));
    printf(" %s", un->sysname);
    struct sysinfo *si = FAR(struct sysinfo);
    squeeze();
    printf(" sysinfo %d", sysinfo(si));
    struct rlimit *rl = FAR(struct rlimit);
    squeeze();
    printf(" getrlimit %d", getrlimit(RLIMIT_STACK, rl));
    squeeze();
    printf(" setrlimit %d", setrlimit(RLIMIT_STACK, rl));
    struct rusage *ru = FAR(struct rusage);
    squeeze();
    printf(" getrusage %d", getrusage(RUSAGE_SELF, ru));
    struct tms *tms = FAR(struct tms);
    squeeze();
    printf(" times %d", times(tms) != -1);
    cpu_set_t *cpus = FAR(cpu_set_t);
    squeeze();
    printf(" affinity %d\n", sched_getaffinity(0, sizeof *cpus, cpus));
    struct timespec *ts = FAR(struct timespec);
    squeeze();
    printf("clock_gettime %d", clock_gettime(CLOCK_MONOTONIC, ts));
    ts->tv_sec = 0, ts->tv_nsec = 1000;
    squeeze();
    printf(" nanosleep %d", nanosleep(ts, FAR(struct timespec)));
    struct timeval *now = FAR(struct timeval);
    squeeze();
    printf(" gettimeofday %d time %d\n", gettimeofday(now, NULL), time(FAR(time_t)) > 0);
    sigset_t *ss = FAR(sigset_t), *oldset = FAR(sigset_t);
    sigaddset(ss, SIGUSR2);
    squeeze();
    printf("sigprocmask %d", sigprocmask(SIG_BLOCK, ss, oldset));
    squeeze();
    printf(" %d", sigprocmask(SIG_SETMASK, oldset, ss));
    printf(" %d", sigismember(ss, SIGUSR2));
    struct sigaction *sa = FAR(struct sigaction), *oldsa = FAR(struct sigaction);
    sa->sa_handler = SIG_IGN;
    squeeze();
    printf(" sigaction %d", sigaction(SIGUSR2, sa, oldsa));
    squeeze();
    printf(" %d", sigaction(SIGUSR2, oldsa, sa));
    printf(" %d\n", sa->sa_handler == SIG_IGN);
    struct itimerval *it = FAR(struct itimerval);
    squeeze();
    printf("getitimer %d", getitimer(ITIMER_REAL, it));
    struct sigevent *se = FAR(struct sigevent);
    timer_t *timer = FAR(timer_t);
    se->sigev_notify = SIGEV_NONE;
    squeeze();
    printf(" timer_create %d", timer_create(CLOCK_MONOTONIC, se, timer));
    struct itimerspec *its = FAR(struct itimerspec);
    its->it_value.tv_sec = 5;
    squeeze();
    printf(" timer_settime %d\n", timer_settime(*timer, 0, its, FAR(struct itimerspec)));
    child = fork();
    if (child == 0) _exit(9);
    int *status = FAR(int);
    squeeze();
    printf("wait4 %d", wait4(child, status, 0, FAR(struct rusage)) == child);
    printf(" %d\n", WEXITSTATUS(*status));
    child = fork();
    if (child == 0) _exit(11);
    siginfo_t *si2 = FAR(siginfo_t);
    squeeze();
    printf("waitid %d", waitid(P_PID, child, si2, WEXITED));
    printf(" %d\n", si2->si_status);
    struct iovec *l = FAR(struct iovec), *r = FAR(struct iovec);
    fill(a, PAGE, 70);
    *l = (struct iovec){b, PAGE}, *r = (struct iovec){a, PAGE};
    squeeze();
    printf("process_vm_readv %zd\n", process_vm_readv(getpid(), l, 1, r, 1, 0));
    bad += wrong(b, PAGE, 70);
    /* Far memory behind structures that lie on the stack. */
    child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        _exit(12);
    }
    MUST(waitpid(child, NULL, 0) == child);
    struct user_regs_struct *regs = FAR(struct user_regs_struct), *again = FAR(struct user_regs_struct);
    struct iovec kept = {again, sizeof *again};
    squeeze();
    printf("ptrace %ld", ptrace(PTRACE_GETREGS, child, 0, regs));
    printf(" %ld", ptrace(PTRACE_GETREGSET, child, (void *)NT_PRSTATUS, &kept));
    squeeze();
    printf(" %ld", ptrace(PTRACE_SETREGSET, child, (void *)NT_PRSTATUS, &kept));
    printf(" equal %d %d", memcmp(regs, again, sizeof *regs) == 0, regs->rip != 0);
    printf(" peek %d", ptrace(PTRACE_PEEKDATA, child, squeeze, 0) == *(long *)squeeze);
    MUST(ptrace(PTRACE_CONT, child, 0, 0) == 0 && waitpid(child, status, 0) == child);
    printf(" %d\n", WEXITSTATUS(*status));
    /* Of several pages. An older kernel has neither. */
    struct mount { uint32_t size, descriptor; uint64_t id, wanted; } *mount = FAR(struct mount);
    *mount = (struct mount){sizeof *mount, 0, UINT64_MAX, 0};
    uint64_t *mounts = far_map(MIB);
    squeeze();
    long listed = syscall(458, mount, mounts, 4096, 0);
    printf("listmount %d", listed > 0 ? 0 : errno);
    mount->id = listed > 0 ? mounts[0] : 0, mount->wanted = 2 | 16;
    char *told = far_map(MIB);
    squeeze();
    printf(" statmount %ld\n", syscall(457, mount, told, 3 * PAGE, 0));
    struct ifconf interfaces = {.ifc_len = 20 * sizeof(struct ifreq), .ifc_buf = next_page()};
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    squeeze();
    printf("SIOCGIFCONF %d", ioctl(udp, SIOCGIFCONF, &interfaces));
    printf(" %s\n", interfaces.ifc_len > 0 ? interfaces.ifc_req->ifr_name : "none");
    struct sock_filter *all = FAR(struct sock_filter);
    *all = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {1, all};
    squeeze();
    printf("SO_ATTACH_FILTER %d", setsockopt(udp, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter));
    squeeze();
    printf(" prctl %d", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    printf(" %d", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
    squeeze();
    printf(" seccomp %ld\n", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter));
    /* A ring may be served or refused; a program falls back when it is refused. */
    struct io_uring_params *ring = FAR(struct io_uring_params);
    squeeze();
    int ring_fd = syscall(SYS_io_uring_setup, 8, ring);
    printf("io_uring served or refused %d\n", ring_fd >= 0 || errno == ENOSYS || errno == EPERM);
    printf("bad %zu\n", bad);
}
