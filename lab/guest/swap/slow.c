/* slow PORT TO FILE: a relay from loopback's PORT to its port TO. FILE has two numbers, or is not there. Bytes
 * that come back are held for the first number of milliseconds, in their order. If it is -1, connections that have asked
 * for a page get nothing back while it is. When the second number changes, all connections are cut. Serves until it is
 * killed. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct piece { struct piece *next; int64_t due; ssize_t length; char bytes[65536]; };

static const char *file;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The numbers in FILE. It is replaced as a whole. */
static void orders(int64_t *delay, int64_t *cuts) {
    long long ms = 0, n = 0;
    FILE *f = fopen(file, "r");
    if (f && fscanf(f, "%lld %lld", &ms, &n) < 1) ms = 0;
    if (f) fclose(f);
    *delay = ms, *cuts = n;
}

/* Whether bytes of a client's ask for a page, or bring one: an NBD READ or WRITE begins like this. */
static int moves(const char *bytes, ssize_t n) {
    static const char head[7] = {0x25, 0x60, (char)0x95, 0x13, 0, 0, 0};
    for (ssize_t at = 0; at + 8 <= n; at++)
        if (!memcmp(bytes + at, head, sizeof head) && (unsigned char)bytes[at + 7] < 2) return 1;
    return 0;
}

static int put(int s, const char *from, ssize_t n) {
    for (ssize_t at = 0, m; at < n; at += m)
        if ((m = send(s, from + at, n - at, MSG_NOSIGNAL)) <= 0) return 0;
    return 1;
}

/* Until either end closes, or all are cut; then both are closed. */
static void relay(int client, int server) {
    static char bytes[65536];
    struct piece *first = NULL, **last = &first;
    int64_t due = 0, delay, begun, cuts;
    int has_moved = 0;
    for (orders(&delay, &begun);;) {
        orders(&delay, &cuts);
        if (cuts != begun) return;
        int silent = delay < 0 && has_moved;
        for (; !silent && first && first->due <= now();) {
            struct piece *piece = first;
            if (!put(client, piece->bytes, piece->length)) return;
            first = piece->next;
            if (!first) last = &first;
            free(piece);
        }
        struct pollfd both[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
        int64_t left = first && !silent ? first->due - now() : 100;
        if (poll(both, 2, left < 0 ? 0 : left > 100 ? 100 : (int)left) < 0) return;
        if (both[0].revents) {
            ssize_t n = recv(client, bytes, sizeof bytes, 0);
            if (n <= 0 || !put(server, bytes, n)) return;
            has_moved |= moves(bytes, n);
        }
        if (both[1].revents) {
            struct piece *piece = malloc(sizeof *piece);
            if (!piece || (piece->length = recv(server, piece->bytes, sizeof piece->bytes, 0)) <= 0) return;
            int64_t at = now() + (delay < 0 ? 0 : delay);
            piece->due = due = at > due ? at : due;
            piece->next = NULL;
            *last = piece;
            last = &piece->next;
        }
    }
}

int main(int n, char **argument) {
    if (n != 4) return 2;
    file = argument[3];
    struct sockaddr_in here = {AF_INET, htons(atoi(argument[1])), {htonl(INADDR_LOOPBACK)}, {0}}, there = here;
    there.sin_port = htons(atoi(argument[2]));
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    socklen_t length = sizeof here;
    if (bind(listener, (void *)&here, sizeof here) || listen(listener, 8)) return 1;
    if (getsockname(listener, (void *)&here, &length)) return 1;
    printf("%d\n", ntohs(here.sin_port)), fflush(stdout);
    signal(SIGCHLD, SIG_IGN);
    for (int client; (client = accept(listener, NULL, NULL)) >= 0; close(client)) {
        if (fork()) continue;
        close(listener);
        int server = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(server, (void *)&there, sizeof there)) return 1;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        relay(client, server);
        return 0;
    }
    return 1;
}
