/* Visits every page of an array by a pattern whose next page is known, or is not.
 * patterns PATTERN PAGES PASSES [end: sleep | fork] */
#include "case.h"

static uint8_t *array;
static uint64_t pages, sum;

static void visit(uint64_t page) { sum = mix(sum ^ array[page * PAGE]); }

/* Every page once; `pass` changes the order where there is chance in it. */
static void walk(const char *pattern, uint64_t pass) {
    const uint64_t step = 7;
    if (!strcmp(pattern, "up")) {
        for (uint64_t i = 0; i < pages; i++) visit(i);
    } else if (!strcmp(pattern, "down")) {
        for (uint64_t i = pages; i-- > 0;) visit(i);
    } else if (!strcmp(pattern, "stride-up")) {
        for (uint64_t s = 0; s < step; s++)
            for (uint64_t i = s; i < pages; i += step) visit(i);
    } else if (!strcmp(pattern, "stride-down")) {
        for (uint64_t s = 0; s < step; s++)
            for (uint64_t i = pages - 1 - s; i < pages; i -= step) visit(i);
    } else if (!strcmp(pattern, "interleaved")) { /* four scans of a quarter each, in turn */
        for (uint64_t i = 0; i < pages; i++) visit(i % 4 * (pages / 4) + i / 4);
    } else if (!strcmp(pattern, "trend")) { /* a long stride, and after every fourth visit one elsewhere */
        const uint64_t stride = 20, half = pages / 2;
        for (uint64_t s = 0, n = 0; s < stride; s++)
            for (uint64_t i = s; i < half; i += stride, n++) {
                visit(i);
                if (n % 4 == 3) visit(half + mix(pass * pages + n) % half);
            }
    } else if (!strcmp(pattern, "random")) {
        for (uint64_t i = 0; i < pages; i++) visit(mix(pass * pages + i) % pages);
    } else {
        MUST(!"a pattern that is known");
    }
}

int main(int argc, char **argv) {
    MUST(argc >= 4);
    const char *end = argc > 4 ? argv[4] : "";
    pages = strtoul(argv[2], NULL, 10);
    array = far_map(pages * PAGE);
    for (uint64_t i = 0; i < pages; i++) array[i * PAGE] = 1 + i % 255;
    for (uint64_t pass = 0; pass < strtoul(argv[3], NULL, 10); pass++) walk(argv[1], pass);
    printf("%016lx\n", (unsigned long)sum);
    fflush(stdout);
    if (!strcmp(end, "sleep")) sleep(60);
    if (!strcmp(end, "fork")) {
        if (fork() == 0) {
            walk(argv[1], 0);
            _exit(0);
        }
        MUST(wait(NULL) > 0);
    }
    return 0;
}
