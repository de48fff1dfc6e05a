/* Stream sockets and far buffers longer than local memory: what one call sends, receives, waits for and says of itself,
 * by send, recv, sendmsg and recvmsg; and a long getrandom, and a search for a key by far names. */
#include "case.h"
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

enum { BYTES = 12 << 20, PARTS = 700, PART = BYTES / PARTS / 8 * 8 };

static uint8_t *from, *to;
static int ends[2];

static void pair(void) { MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0); }

static void shut(void) {
    close(ends[0]);
    close(ends[1]);
}

static void *sends(void *flags) {
    /* One blocking call takes all of it. */
    MUST(send(ends[0], from, BYTES, (int)(intptr_t)flags) == BYTES);
    return NULL;
}

static struct iovec *parts(uint8_t *of) {
    struct iovec *v = far_map(PARTS * sizeof *v);
    for (int i = 0; i < PARTS; i++) v[i] = (struct iovec){of + (size_t)i * PART, PART};
    return v;
}

static void *sends_parts(void *nothing) {
    struct msghdr *m = far_map(sizeof *m);
    *m = (struct msghdr){.msg_iov = parts(from), .msg_iovlen = PARTS};
    MUST(sendmsg(ends[0], m, 0) == PARTS * PART);
    return nothing;
}

static void *drains(void *bytes) {
    for (size_t left = (size_t)bytes; left > 0;) {
        ssize_t n = recv(ends[1], to, left, 0);
        MUST(n > 0);
        left -= n;
    }
    return NULL;
}

int main(void) {
    from = far_map(BYTES);
    to = far_map(BYTES);
    fill(from, BYTES, 1);
    pthread_t other;

    pair();
    MUST(pthread_create(&other, NULL, sends, NULL) == 0);
    for (size_t n = 0; n < BYTES;) {
        ssize_t r = recv(ends[1], to + n, BYTES - n, 0);
        MUST(r > 0);
        n += r;
    }
    pthread_join(other, NULL);
    printf("recv: wrong %zu\n", wrong(to, BYTES, 1));

    memset(to, 0, BYTES);
    MUST(pthread_create(&other, NULL, sends, (void *)(intptr_t)MSG_NOSIGNAL) == 0);
    MUST(recv(ends[1], to, BYTES, MSG_WAITALL) == BYTES);
    pthread_join(other, NULL);
    printf("waitall: wrong %zu\n", wrong(to, BYTES, 1));

    memset(to, 0, BYTES);
    MUST(pthread_create(&other, NULL, sends_parts, NULL) == 0);
    struct sockaddr_un peer;
    struct msghdr m = {.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = parts(to), .msg_iovlen = PARTS};
    m.msg_flags = -1;
    MUST(recvmsg(ends[1], &m, MSG_WAITALL) == PARTS * PART);
    pthread_join(other, NULL);
    printf("parts: wrong %zu, name %u, flags %x, iov %d\n", wrong(to, PARTS * PART, 1), m.msg_namelen, m.msg_flags,
           (int)m.msg_iovlen);

    /* What there is, and no waiting for more; nothing; the end. */
    MUST(send(ends[0], from, 100000, 0) == 100000);
    printf("there: %zd", recv(ends[1], to, BYTES, 0));
    printf(" %zd", recv(ends[1], to, BYTES, MSG_DONTWAIT));
    printf(" %s\n", strerror(errno));
    shutdown(ends[0], SHUT_WR);
    printf("end: %zd\n", recv(ends[1], to, BYTES, 0));
    shut();

    /* Looked at and still there, farther than one piece reaches. */
    pair();
    int room = 512 << 10;
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    int sent = 0;
    for (ssize_t n; (n = send(ends[0], from + sent, 1 << 16, MSG_DONTWAIT)) > 0;) sent += n;
    ssize_t seen = recv(ends[1], to, BYTES, MSG_PEEK), taken = 0;
    for (ssize_t n; (n = recv(ends[1], to + taken, BYTES - taken, MSG_DONTWAIT)) > 0;) taken += n;
    printf("peeked all: %d, taken all: %d\n", seen == sent, taken == sent);
    shut();

    /* A socket that takes no more: a part, then nothing. */
    pair();
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    ssize_t part = send(ends[0], from, BYTES, 0);
    printf("a part: %d, then %zd", part > 0 && part < BYTES, send(ends[0], from, BYTES, 0));
    printf(" %s\n", strerror(errno));
    shut();

    /* The other end goes in the midst of one call: what was sent counts, and no signal says otherwise. */
    signal(SIGPIPE, SIG_DFL);
    pair();
    MUST(pthread_create(&other, NULL, drains, (void *)(3 * MIB)) == 0);
    struct timeval soon = {.tv_sec = 1};
    setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
    part = send(ends[0], from, BYTES, 0);
    pthread_join(other, NULL);
    printf("cut: %d\n", part >= (ssize_t)(3 * MIB) && part < BYTES);
    shut();

    /* Descriptors go along with the first byte. */
    pair();
    char control[CMSG_SPACE(sizeof(int))] = {0}, got[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr with = {.msg_iov = parts(from), .msg_iovlen = 70, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&with);
    *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &ends[0], sizeof(int));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    MUST(sendmsg(ends[0], &with, 0) > 0);
    struct msghdr into = {.msg_iov = parts(to), .msg_iovlen = PARTS, .msg_control = got, .msg_controllen = sizeof got};
    MUST(recvmsg(ends[1], &into, 0) > 0);
    printf("a descriptor: %d\n", CMSG_FIRSTHDR(&into) && CMSG_FIRSTHDR(&into)->cmsg_type == SCM_RIGHTS);
    shut();

    memset(to, 0, BYTES);
    size_t random = 0, zeros = 0;
    while (random < BYTES) {
        ssize_t n = syscall(SYS_getrandom, to + random, BYTES - random, 0);
        MUST(n > 0);
        random += n;
    }
    for (size_t i = 0; i < BYTES / 8; i++) zeros += ((uint64_t *)to)[i] == 0;
    printf("random: %d\n", zeros < 3);

    /* Both names are far, and what lies behind the first is none of its length. */
    strcpy((char *)from, "user");
    strcpy((char *)from + BYTES - 64, "no such key of ours");
    long key = syscall(SYS_keyctl, 10 /* KEYCTL_SEARCH */, -3 /* the process's */, from, from + BYTES - 64, 0);
    printf("key: %d\n", key == -1);
}
