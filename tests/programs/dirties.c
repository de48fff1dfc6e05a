// Dirties its memory in a known way, until SIGTERM; then says whether it was harmed ("unharmed", status 0). Says "ready"
// when everybody has been through all of it once. Without whoever started it, as when a test is killed, it ends.
//
//   dirties lines K PAGES      K lines of each page, over and over
//   dirties threads N PAGES    N threads, one line of each of their pages; others that come and go
//   dirties exec PAGES         one line of each page for a while, then becomes "lines 8 PAGES", from a thread
//   dirties fork PAGES         a child does "lines 8", the parent "lines 1"
//   dirties remap PAGES        two lines of every other page; the array moves ten times a second
//   dirties leader PAGES       its first thread has ended; a second does "lines 4"
//   dirties silent PAGES       stores what is there already
//   dirties ends HOW PAGES     one line of each page for a while, nothing for a while, then three lines once, and ends
//                              at once: by return, exit (of a thread), signal or exec
//   dirties filtered ...       as the rest says, with a seccomp filter that allows everything
//   dirties calls              sleeps, polls and reads that nothing may interrupt, under signals that it counts
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t over;
static void end(int signal) { over = 1; }

static void harmed(const char *how) {
    fprintf(stderr, "harmed: %s (%s)\n", how, strerror(errno));
    exit(3);
}

static volatile uint64_t *array(size_t pages) {
    // Between two pages that nobody may touch, so that the kernel joins it to no other mapping.
    char *at = mmap(0, (pages + 2) * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + 4096, pages * 4096, PROT_READ | PROT_WRITE)) harmed("mmap");
    return (volatile uint64_t *)(at + 4096);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static pid_t starter;

// Writers that have not been through their memory yet.
static int unready = 1;
static void ready(void) {
    if (__atomic_sub_fetch(&unready, 1, __ATOMIC_SEQ_CST)) return;
    puts("ready");
    fflush(stdout);
}

// Rounds of stores to `lines` lines of each page, each checked in the round after.
static void write_lines(volatile uint64_t *a, int lines, size_t pages, double seconds) {
    double until = now() + seconds;
    for (uint64_t round = 1; !over && (seconds == 0 || now() < until); round++) {
        if (getppid() != starter) _exit(4);
        for (size_t page = 0; page < pages; page++)
            for (int line = 0; line < lines; line++) {
                if (a[page * 512 + line * 8] != round - 1) harmed("a word is not what was stored");
                a[page * 512 + line * 8] = round;
            }
        if (round == 1) ready();
    }
}

static size_t pages;
static void *writer(void *lines) {
    write_lines(array(pages), (int)(intptr_t)lines, pages, 0);
    return 0;
}
static void *brief(void *unused) {
    volatile char buffer[4096];
    for (int n = 0; n < 4096; n += 64) buffer[n] = n;
    return (void *)(intptr_t)buffer[64];
}
static char **program;
static void *other_program(void *unused) {
    execv(program[0], program);
    harmed("exec");
    return 0;
}

// Three lines of each page, each with what was not there.
static volatile uint64_t *last_array;
static void last_lines(volatile uint64_t *a) {
    for (size_t page = 0; page < pages; page++)
        for (int line = 0; line < 3; line++) a[page * 512 + line * 8] = ~a[page * 512 + line * 8];
}
static void *last_then_exit(void *unused) {
    usleep(1200000);
    last_lines(last_array);
    _exit(0);
}
static void *last_then_exec(void *unused) {
    usleep(1200000);
    last_lines(last_array);
    return other_program(0);
}

static volatile sig_atomic_t alarms;
static void alarmed(int signal) { alarms++; }

static void calls(void) {
    int ends[2];
    struct itimerval often = {{0, 5000}, {0, 5000}};
    struct sigaction action = {.sa_handler = alarmed, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    if (pipe(ends)) harmed("pipe");
    setitimer(ITIMER_REAL, &often, 0);
    ready();
    int rounds = 0;
    for (; !over; rounds++) {
        // Long enough for a signal to come meanwhile: it is delivered at the end of each round, and perhaps another.
        // With the signal blocked nothing but tracing could interrupt these.
        pthread_sigmask(SIG_BLOCK, &set, 0);
        struct timespec brief = {0, 3000000}, left = {0, 0};
        if (nanosleep(&brief, &left) && !over) harmed("nanosleep");
        struct pollfd none = {ends[0], POLLIN, 0};
        if (poll(&none, 1, 3) != 0 && !over) harmed("poll");
        pthread_sigmask(SIG_UNBLOCK, &set, 0);
    }
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, 0);
    // The last round may have been cut short.
    if (alarms < rounds - 1) harmed("signals were lost");
}

int main(int n, char **arguments) {
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, 0);
    starter = getppid();
    const char *mode = arguments[1];
    if (!strcmp(mode, "filtered")) {
        struct sock_filter all = {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
        struct sock_fprog filter = {1, &all};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) harmed("prctl");
        arguments++;
        n--;
        mode = arguments[1];
    }
    pages = strtoul(arguments[n - 1], 0, 10);
    if (!strcmp(mode, "lines")) {
        write_lines(array(pages), atoi(arguments[2]), pages, 0);
    } else if (!strcmp(mode, "threads")) {
        pthread_t thread, writers[64];
        int count = atoi(arguments[2]);
        unready = count;
        for (int i = 0; i < count; i++) pthread_create(&writers[i], 0, writer, (void *)1);
        while (!over) {
            if (pthread_create(&thread, 0, brief, 0)) harmed("pthread_create");
            pthread_join(thread, 0);
            usleep(300);
        }
        for (int i = 0; i < count; i++) pthread_join(writers[i], 0);
    } else if (!strcmp(mode, "exec")) {
        pthread_t thread;
        write_lines(array(pages), 1, pages, 0.7);
        char *next[] = {arguments[0], "lines", "8", arguments[2], 0};
        program = next;
        pthread_create(&thread, 0, other_program, 0);
        pthread_join(thread, 0);
    } else if (!strcmp(mode, "fork")) {
        pid_t parent = getpid(), child = fork();
        if (child == 0) starter = parent, unready = 0;
        write_lines(array(pages), child == 0 ? 8 : 1, pages, 0);
        if (child > 0) kill(child, SIGTERM);
        if (getpid() != parent) _exit(0);
    } else if (!strcmp(mode, "remap")) {
        volatile uint64_t *a = array(pages);
        for (size_t word = 0; word < pages * 512; word++) a[word] = word % 8 ? word : 0;
        ready();
        for (uint64_t round = 1; !over; round++) {
            for (size_t page = 0; page < pages; page++) {
                if (a[page * 512 + 7] != page * 512 + 7) harmed("a move lost bytes");
                // One page in two, so that the others show where they were.
                if (page % 2) continue;
                if (a[page * 512] != round - 1) harmed("a move lost a word");
                a[page * 512] = a[page * 512 + 8] = round;
            }
            usleep(100000);
            void *there = (void *)array(pages);
            a = mremap((void *)a, pages * 4096, pages * 4096, MREMAP_MAYMOVE | MREMAP_FIXED, there);
            if (a == MAP_FAILED) harmed("mremap");
        }
    } else if (!strcmp(mode, "leader")) {
        pthread_t thread;
        pthread_create(&thread, 0, writer, (void *)4);
        pthread_exit(0);
    } else if (!strcmp(mode, "ends")) {
        volatile uint64_t *a = array(pages);
        const char *how = arguments[2];
        write_lines(a, 1, pages, 0.7);
        // The kernel's own words, and libc's, are written before: the last look sees the three lines alone.
        if (!strcmp(how, "exit") || !strcmp(how, "exec")) {
            pthread_t thread;
            char *next[] = {"/bin/true", 0};
            program = next;
            last_array = a;
            pthread_create(&thread, 0, !strcmp(how, "exec") ? last_then_exec : last_then_exit, 0);
            pthread_join(thread, 0);
        }
        usleep(1200000);
        last_lines(a);
        if (!strcmp(how, "signal")) raise(SIGKILL);
        return 0;
    } else if (!strcmp(mode, "silent")) {
        volatile uint64_t *a = array(pages);
        for (size_t word = 0; word < pages * 512; word++) a[word] = 7;
        ready();
        while (!over)
            for (size_t page = 0; page < pages; page++) a[page * 512] = 7;
    } else {
        calls();
    }
    puts("unharmed");
    return 0;
}
