/* What farmem.h and madvise say of pages: right, wrong and hostile. The bytes are the same in any case. */
#include "case.h"

#include "farmem.h"

enum { PAGES = 4096, BATCH = 48 };

static uint8_t *m;

static uint64_t *word(size_t page) { return (uint64_t *)(m + page * PAGE) + page % 512; }

/* Pages at random, so many known ahead: the sum of their words, which are counted up. */
static uint64_t scattered(int hints) {
    uint64_t sum = 0;
    for (int round = 0; round < 100; round++) {
        const void *next[BATCH];
        for (int i = 0; i < BATCH; i++) next[i] = word(mix(round * BATCH + i) % PAGES);
        if (hints && round % 2) farmem_write_each((void *const *)next, BATCH);
        else if (hints) farmem_read_each(next, BATCH);
        for (int i = 0; i < BATCH; i++) sum += round % 2 ? ++*(uint64_t *)next[i] : *(const uint64_t *)next[i];
    }
    return sum;
}

/* Runs of pages at random places. */
static uint64_t runs(int hints) {
    uint64_t sum = 0;
    for (int round = 0; round < 300; round++) {
        size_t from = mix(round) % (PAGES - 16);
        if (hints) farmem_read(word(from), 15);
        for (size_t page = from; page < from + 16; page++) sum += *word(page);
        if (hints && round % 3 == 0) farmem_pageout(m + from * PAGE - (from > 0), 16 * PAGE + 1);
        if (hints && round % 3 == 1) farmem_cold(m + from * PAGE, 16 * PAGE);
    }
    return sum;
}

static void say(const char *what, int result) { printf("%s: %d %d\n", what, result, result ? errno : 0); }

/* What the calls answer, hole or not. */
static void answers(void) {
    static const struct {
        const char *name;
        int advice;
    } all[] = {{"normal", MADV_NORMAL},     {"random", MADV_RANDOM}, {"sequential", MADV_SEQUENTIAL},
               {"willneed", MADV_WILLNEED}, {"cold", MADV_COLD},     {"pageout", MADV_PAGEOUT}};
    uint8_t *hole = far_map(96 * PAGE), *barred = far_map(64 * PAGE);
    fill(hole, 96 * PAGE, 5);
    fill(barred, 64 * PAGE, 6);
    MUST(munmap(hole + 32 * PAGE, 16 * PAGE) == 0);
    MUST(mprotect(barred, 32 * PAGE, PROT_NONE) == 0 && mprotect(barred + 32 * PAGE, 32 * PAGE, PROT_READ) == 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        puts(all[i].name);
        say("mapped", madvise(hole, 32 * PAGE, all[i].advice));
        say("to the end", madvise(hole + 90 * PAGE + 1, PAGE, all[i].advice));
        say("with a hole", madvise(hole, 96 * PAGE, all[i].advice));
        say("hole alone", madvise(hole + 33 * PAGE, 8 * PAGE, all[i].advice));
        say("nothing", madvise(hole + 33 * PAGE, 0, all[i].advice));
        say("part of a page", madvise(hole, 5, all[i].advice));
        say("barred", madvise(barred, 64 * PAGE, all[i].advice));
        say("round the world", madvise(hole, -PAGE, all[i].advice));
    }
    MUST(mprotect(barred, 64 * PAGE, PROT_READ) == 0);
    printf("bad %zu\n", wrong(hole, 32 * PAGE, 5) + wrong(hole + 48 * PAGE, 48 * PAGE, 5 + 48 * 512) + wrong(barred, 64 * PAGE, 6));
    munmap(hole, 96 * PAGE), munmap(barred, 64 * PAGE);
}

static volatile int over;
static uint8_t *volatile shifting;

/* Hints about anything, at any time. */
static void *hostile(void *seed) {
    uint64_t x = (uintptr_t)seed;
    while (!over) {
        x = mix(x);
        uint8_t *at = x % 3 ? m + x / 64 % (PAGES * PAGE) : shifting + x / 64 % (256 * PAGE);
        size_t bytes = x % 7 ? x / 1024 % (64 * PAGE) : ~0ul >> x % 64;
        switch (x / 8 % 8) {
        case 0: farmem_read(at, bytes / PAGE); break;
        case 1: farmem_write(at, bytes / PAGE % 16); break;
        case 2: farmem_cold(at, bytes); break;
        case 3: farmem_pageout(at, bytes); break;
        case 4: farmem_pattern(at, bytes, x / 256 % 3); break;
        case 5: madvise((void *)((uintptr_t)at & -PAGE), bytes % (4096 * PAGE), x % 2 ? MADV_WILLNEED : MADV_PAGEOUT); break;
        default: {
            const void *some[70];
            for (int i = 0; i < 70; i++) some[i] = i % 5 ? m + mix(x + i) % (PAGES * PAGE) : (uint8_t *)mix(x + i);
            farmem_read_each(some, 70);
        }
        }
    }
    return NULL;
}

static void *shifts(void *_) {
    for (int i = 0; !over; i++) {
        uint8_t *was = shifting;
        uint8_t *now = mmap(was, 256 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        fill(now, 256 * PAGE, i);
        MUST(mprotect(now, 64 * PAGE, i % 2 ? PROT_READ : PROT_NONE) == 0);
        MUST(wrong(now + 64 * PAGE, 192 * PAGE, i + 64 * 512) == 0);
        MUST(munmap(now + 128 * PAGE, 64 * PAGE) == 0);
    }
    return _;
}

int main(int argc, char **argv) {
    int hints = argc < 2 || strcmp(argv[1], "plain") != 0;
    m = far_map(PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++) fill(m + page * PAGE, PAGE, page);
    if (argc > 1) {
        if (hints) farmem_pattern(m, PAGES * PAGE, FARMEM_RANDOM);
        printf("scattered %lu\n", scattered(hints));
        if (hints) farmem_pattern(m, PAGES * PAGE, FARMEM_NORMAL);
        printf("runs %lu\n", runs(hints));
        return 0;
    }
    printf("scattered %lu, runs %lu\n", scattered(1), runs(1));
    answers();
    shifting = far_map(256 * PAGE);
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 2; i++) pthread_create(threads + i, NULL, hostile, (void *)i);
    pthread_create(threads + 2, NULL, shifts, NULL);
    uint64_t sum = 0;
    for (int round = 0; round < 4; round++) {
        sum += scattered(round % 2);
        if (round % 4 == 3) {
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                farmem_pageout(m, PAGES * PAGE);
                farmem_read(m, PAGES);
                printf("child %lu\n", scattered(1));
                fflush(stdout);
                _exit(0);
            }
            int status;
            MUST(waitpid(child, &status, 0) == child && status == 0);
        }
    }
    over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    printf("with others %lu, runs %lu\n", sum, runs(0));
    /* No memory of ours, or none at all. */
    farmem_write(NULL, 7), farmem_read((void *)-1, -1), farmem_cold((void *)1, -1), farmem_pageout(m + 1, 10);
    printf("near %d\n", farmem_is_near(&sum) && farmem_is_near(NULL));
    return 0;
}
