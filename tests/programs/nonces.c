/* Forks, executes and writes from many threads, with pages of which each is one block of 16 bytes, 256 times. A node
 * that sees two such pages under one nonce sees it: neighbouring blocks of both differ by the same bits.
 *
 *   nonces MIB THREADS CHILDREN BURST
 *
 * CHILDREN come in bursts of BURST that live at once. Each reads pages that its parent wrote, writes many of its own,
 * and forks five times. (Each fork of one process may take a slab more of its node.) Some come by an instruction of this program's own, unseen by libc: they may end at
 * their first look at a page, and must not see a wrong one. Then children come by vfork and execute this program anew,
 * small. Says "sound". */
#include "case.h"
#include <stdatomic.h>
#include <spawn.h>

extern char **environ;
enum { MOST = 16, GRANDCHILDREN = 5 };
static uint64_t *map;
static size_t pages, threads, each;
static uint32_t *version; /* of each page: local, as it is small */
static atomic_int stop;

/* `who` tells processes apart, so that none writes the same page as another. */
static uint64_t who;

static void put(size_t page) {
    uint64_t *at = map + page * (PAGE / 8), first = mix(page * MOST + who), second = ++version[page];
    for (size_t i = 0; i < PAGE / 8; i += 2) at[i] = first, at[i + 1] = second;
}

/* Whether the page is what a process of this name wrote last. */
static int is(size_t page, uint64_t writer) {
    const uint64_t *at = map + page * (PAGE / 8), first = mix(page * MOST + writer), second = version[page];
    for (size_t i = 0; i < PAGE / 8; i += 2)
        if (at[i] != first || at[i + 1] != second) return 0;
    return 1;
}

static void *work(void *arg) {
    size_t from = each * (1 + (uintptr_t)arg);
    uint64_t x = from;
    while (!stop) {
        x = mix(x);
        size_t page = from + x % each;
        MUST(is(page, who));
        put(page);
    }
    return NULL;
}

/* What a child does: parts of the map are its parent's as they were. */
static void be_child(uint64_t number) {
    uint64_t parent = who;
    alarm(250);
    who = number << 8 | 1 | (parent & 0xff) << 4;
    /* The first part alone: threads were writing the others. */
    for (size_t i = 0; i < each; i += 3) MUST(is(i, parent));
    for (size_t i = 1; i < each; i += 3) put(i);
    for (int n = 0; n < GRANDCHILDREN; n++) {
        pid_t p = fork();
        MUST(p >= 0);
        if (p == 0) {
            for (size_t i = 1; i < each; i += 3) MUST(is(i, who));
            for (size_t i = 1; i < each; i += 3) put(i);
            _exit(0);
        }
        for (size_t i = 1 + 3 * n; i < each; i += 15) put(i);
        int status;
        MUST(waitpid(p, &status, 0) == p && status == 0);
    }
    for (size_t i = 1; i < each; i += 3) MUST(is(i, who));
    for (size_t i = 0; i < each; i += 3) MUST(is(i, parent));
    _exit(0);
}

/* A child that nothing but the kernel knows of. */
static void fork_unseen(void) {
    long p;
    __asm__ volatile("syscall" : "=a"(p) : "a"(SYS_fork) : "rcx", "r11", "memory");
    MUST(p >= 0);
    if (p == 0) {
        for (size_t i = 0; i < each; i++)
            if (!is(i, who)) syscall(SYS_exit_group, 7);
        syscall(SYS_exit_group, 0);
    }
    int status;
    MUST(waitpid(p, &status, 0) == p);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 7) puts("an unseen child saw a wrong page");
}

int main(int argc, char **argv) {
    pages = strtoul(argv[1], 0, 10) * MIB / PAGE, threads = strtoul(argv[2], 0, 10);
    size_t children = strtoul(argv[3], 0, 10), burst = strtoul(argv[4], 0, 10);
    MUST(argc == 5 && threads < MOST);
    each = pages / (threads + 1);
    map = far_map(pages * PAGE);
    version = calloc(pages, sizeof *version);
    for (size_t i = 0; i < pages; i++) put(i);
    pthread_t t[MOST];
    for (uintptr_t i = 0; i < threads; i++) MUST(pthread_create(&t[i], NULL, work, (void *)i) == 0);
    for (size_t begun = 0; begun < children;) {
        pid_t live[64];
        size_t n = 0;
        for (; n < burst && n < 64 && begun < children; n++) {
            MUST((live[n] = fork()) >= 0);
            if (live[n] == 0) be_child(begun);
            begun++;
            for (size_t i = begun % 7; i < each; i += 7) put(i);
        }
        for (size_t i = 0; i < n; i++) {
            int status;
            MUST(waitpid(live[i], &status, 0) == live[i]);
            if (status) printf("a child ended with %x\n", status);
        }
    }
    for (size_t i = 0; i < children / 6; i++) {
        fork_unseen();
        for (size_t at = i % 5; at < each; at += 5) put(at);
    }
    for (size_t i = 0; i < children / 3; i++) {
        pid_t p;
        char *again[] = {argv[0], "8", "1", "2", "2", NULL};
        MUST(posix_spawn(&p, argv[0], NULL, NULL, again, environ) == 0);
        int status;
        MUST(waitpid(p, &status, 0) == p);
        if (status) printf("an executed program ended with %x\n", status);
    }
    stop = 1;
    for (size_t i = 0; i < threads; i++) pthread_join(t[i], NULL);
    for (size_t i = 0; i < pages; i++) MUST(is(i, who));
    if (argv[1][0] != '8') puts("sound");
    return 0;
}
