/* A program that is at work while things happen to it: threads that check and
 * rewrite pages of a map many times the size of local memory, at random.
 *
 *   keeps_checking MIB THREADS [fork] [idle] [few] [noreserve] [crash] [reads]
 *
 * Says "ready PID" when every page is written, and works until SIGUSR1. Then
 * every thread checks all of its pages once more, and the program says "sound",
 * with the mean and the longest time that the work on one page took, and ends with 0. Time for which the thread itself
 * waited for a CPU is not counted. A word that is not what was written last: "WRONG", and 99.
 * With `fork`, a child does the same to its copy, which the parent waits for.
 * With `idle`, nothing is touched between "ready" and SIGUSR1.
 * With `reads`, no page is written after "ready".
 * With `few`, writing a page again changes three of its lines. With `noreserve`, the map is one that nobody promised memory for. With `crash`,
 * a thread writes to address 16 while the others work. SIGINT is counted, and told at once: "interrupted". */
#include "case.h"
#include <stdatomic.h>

enum { MOST = 64 };
static size_t pages, threads;
static uint64_t *map;
static uint32_t *written; /* how often each page was: local, so that nothing far vouches for far */
static volatile sig_atomic_t finish, interrupts;
static _Atomic uint64_t longest, longest_by_clock; /* ns */
static _Atomic uint64_t worked, worked_ns; /* pages, and the time of the work on them */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* How long the calling thread has waited for a CPU, ns; 0 where the kernel does not count it. */
static uint64_t waited_ns(int schedstat) {
    char text[96];
    ssize_t n = pread(schedstat, text, sizeof text - 1, 0);
    if (n <= 0) return 0;
    text[n] = 0;
    char *second = strchr(text, ' ');
    return second ? strtoull(second, NULL, 10) : 0;
}

static void note(_Atomic uint64_t *longest, uint64_t took) {
    uint64_t most = *longest;
    while (took > most && !atomic_compare_exchange_weak(longest, &most, took)) {}
}

static void on_finish(int s) { (void)s, finish = 1; }
static void on_interrupt(int s) {
    (void)s, interrupts++;
    write(1, "interrupted\n", 12);
}

static int few, reads;

static uint64_t word(size_t page, uint32_t generation, size_t i) {
    if (few && i / 8 != 0 && i / 8 != 1 + (page + generation) % 63) generation = 0;
    return mix(page * 0x10001 + ((uint64_t)generation << 40) + i);
}

static void write_page(size_t page) {
    uint64_t *at = map + page * (PAGE / 8);
    uint32_t generation = ++written[page];
    for (size_t i = 0; i < PAGE / 8; i++) at[i] = word(page, generation, i);
}

static void check_page(size_t page) {
    const uint64_t *at = map + page * (PAGE / 8);
    for (size_t i = 0; i < PAGE / 8; i++) {
        uint64_t got = at[i], due = word(page, written[page], i);
        if (got == due) continue;
        printf("WRONG page %zu word %zu: %016lx, not %016lx of generation %u\n", page, i, got, due, written[page]);
        fflush(stdout);
        _exit(99);
    }
}

static void *work(void *arg) {
    size_t me = (uintptr_t)arg, own = pages / threads;
    uint64_t random = mix(me + (uintptr_t)getpid());
    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    uint64_t waited = waited_ns(schedstat);
    while (!finish) {
        random = mix(random);
        size_t page = (random >> 20) % own;
        /* One page, or a few in a row, so that there is something to fetch ahead. */
        size_t end = page + (random % 4 ? 1 : random >> 8 & 63);
        for (; page < end && page < own; page++) {
            uint64_t begun = now_ns();
            check_page(me * own + page);
            if (random % 3 == 0 && !reads) write_page(me * own + page);
            uint64_t took = now_ns() - begun, before = waited;
            waited = waited_ns(schedstat);
            worked++, worked_ns += took;
            note(&longest_by_clock, took);
            note(&longest, took - (waited - before < took ? waited - before : took));
        }
    }
    for (size_t i = 0; i < own; i++) check_page(me * own + i);
    if (schedstat >= 0) close(schedstat);
    return NULL;
}

static void *crash(void *arg) {
    usleep(100000);
    *(volatile int *)16 = 1;
    return arg;
}

static void work_until_told(int crashes) {
    pthread_t t[MOST];
    if (crashes) pthread_create(&t[0], NULL, crash, NULL);
    for (uintptr_t i = 0; i < threads; i++) pthread_create(&t[i], NULL, work, (void *)i);
    for (size_t i = 0; i < threads; i++) pthread_join(t[i], NULL);
}

int main(int argc, char **argv) {
    MUST(argc >= 3);
    pages = strtoul(argv[1], NULL, 10) * MIB / PAGE, threads = strtoul(argv[2], NULL, 10);
    MUST(threads >= 1 && threads <= MOST);
    int forks = 0, idle = 0, crashes = 0, unpromised = 0;
    for (int i = 3; i < argc; i++) {
        forks |= !strcmp(argv[i], "fork");
        idle |= !strcmp(argv[i], "idle");
        crashes |= !strcmp(argv[i], "crash");
        unpromised |= !strcmp(argv[i], "noreserve");
        few |= !strcmp(argv[i], "few");
        reads |= !strcmp(argv[i], "reads");
    }
    struct sigaction action = {.sa_handler = on_finish, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, NULL);
    written = (uint32_t *)mmap(NULL, pages * sizeof *written, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    map = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | (unpromised ? MAP_NORESERVE : 0), -1, 0);
    MUST(map != MAP_FAILED);
    for (size_t page = 0; page < pages; page++) write_page(page);
    pid_t child = 0;
    if (forks) {
        uint32_t *own = mmap(NULL, pages * sizeof *own, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        memcpy(own, written, pages * sizeof *own);
        child = fork();
        MUST(child >= 0);
        if (child == 0) {
            written = own;
            work_until_told(0);
            _exit(0);
        }
    }
    printf("ready %d %d\n", getpid(), child);
    fflush(stdout);
    while (idle && !finish) usleep(20000);
    work_until_told(crashes);
    int ended = 0;
    if (child) {
        kill(child, SIGUSR1);
        MUST(waitpid(child, &ended, 0) == child);
    }
    printf("sound interrupts %d child %d", (int)interrupts, WIFEXITED(ended) ? WEXITSTATUS(ended) : -WTERMSIG(ended));
    printf(" by_clock_us %llu", (unsigned long long)longest_by_clock / 1000);
    printf(" page_ns %llu", (unsigned long long)(worked ? worked_ns / worked : 0));
    printf(" longest_us %llu\n", (unsigned long long)longest / 1000);
    return 0;
}
