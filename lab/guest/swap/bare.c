/* bare PORT MIB: an NBD server of the plainest kind, to compare with: one export in one piece of memory, a thread for each
 * connection, no table, no lock. Serves until it is killed. */
#include <arpa/inet.h>
#include <endian.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct __attribute__((packed)) request { uint32_t magic; uint16_t flags, type; uint64_t cookie, at; uint32_t length; };
struct __attribute__((packed)) reply { uint32_t magic, error; uint64_t cookie; };
struct __attribute__((packed)) option { uint64_t magic; uint32_t option, length; };
struct __attribute__((packed)) refusal { uint64_t magic; uint32_t option, type, length; };

static char *memory;
static uint64_t size;

static int get(int s, void *into, size_t n) { return !n || recv(s, into, n, MSG_WAITALL) == (ssize_t)n; }
static int put(int s, const void *from, size_t n) { return send(s, from, n, MSG_NOSIGNAL) == (ssize_t)n; }

/* The client asks for the export by its oldest option; newer ones are refused, which it takes. */
static int agree(int s) {
    struct __attribute__((packed)) { char magic[16]; uint16_t flags; } hello = {"NBDMAGICIHAVEOPT", htobe16(3)};
    struct __attribute__((packed)) { uint64_t size; uint16_t flags; } export = {htobe64(size), htobe16(1 | 1 << 5)};
    struct option asked;
    char name[4096];
    if (!put(s, &hello, sizeof hello) || !get(s, name, 4)) return 0;
    while (get(s, &asked, sizeof asked) && be32toh(asked.length) <= sizeof name && get(s, name, be32toh(asked.length))) {
        if (be32toh(asked.option) == 1) return put(s, &export, sizeof export);
        struct refusal no = {htobe64(0x3e889045565a9), asked.option, htobe32(0x80000001), 0};
        if (!put(s, &no, sizeof no)) return 0;
    }
    return 0;
}

static void *serve(void *socket) {
    int s = (int)(intptr_t)socket;
    struct request q;
    for (int goes_on = agree(s); goes_on && get(s, &q, sizeof q);) {
        uint64_t at = be64toh(q.at), length = be32toh(q.length), type = be16toh(q.type);
        int within = type > 1 || (at <= size && length <= size - at);
        struct reply a = {htobe32(0x67446698), htobe32(within ? 0 : 22), q.cookie};
        struct iovec parts[2] = {{&a, sizeof a}, {memory + at, type == 0 && within ? length : 0}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        if (type == 2 || (type == 1 && (!within || !get(s, memory + at, length)))) break;
        goes_on = sendmsg(s, &message, MSG_NOSIGNAL) == (ssize_t)(sizeof a + parts[1].iov_len);
    }
    close(s);
    return NULL;
}

int main(int n, char **argument) {
    if (n != 3) return 2;
    struct sockaddr_in here = {AF_INET, htons(atoi(argument[1])), {htonl(INADDR_LOOPBACK)}, {0}};
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    size = strtoull(argument[2], NULL, 10) << 20;
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (memory == MAP_FAILED || bind(listener, (void *)&here, sizeof here) || listen(listener, 8)) return 1;
    for (int s; (s = accept(listener, NULL, NULL)) >= 0;) {
        pthread_t thread;
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)s)) return 1;
    }
    return 1;
}
