/* slots FILE: what the kernel does to the slots of a swap device, in few bytes. Reads lines of tracefs, of the events
 * block_bio_queue and freed (compute/swap/src/freed.rs), up to the mark "the record ends". lab/swap/src/recorded.rs reads
 * the file:
 *
 *   W first length    slots are in use now       numbers are base 128, low digits first; first is the distance from the
 *   F first length    slots are freed            end of the last run of the same kind, folded: 0, -1, 1, -2, 2…
 *   T first length    slots are trimmed
 *   M milliseconds    time goes on
 *
 * A page that leaves to a slot in use is left out: it changes nothing of what is held. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *out;
static char kind;
static int64_t first, after, ends[128];

static void number(uint64_t n) {
    for (; n >= 128; n >>= 7) putc((int)(n & 127) | 128, out);
    putc((int)n, out);
}

/* Writes the run that was collected. */
static void run(void) {
    if (!kind) return;
    int64_t distance = first - ends[(int)kind];
    putc(kind, out);
    number(distance < 0 ? ~((uint64_t)distance << 1) : (uint64_t)distance << 1);
    number((uint64_t)(after - first));
    ends[(int)kind] = after;
    kind = 0;
}

static void event(char of, int64_t at, int64_t length) {
    if (kind != of || at != after) run(), kind = of, first = at;
    after = at + length;
}

#define SLOTS (1 << 20)
static unsigned char used[SLOTS / 8];

/* Of each slot, if it was not so before. */
static void mark(char of, int64_t at, int64_t length) {
    for (int64_t slot = at; slot < at + length && slot < SLOTS; slot++) {
        unsigned char bit = (unsigned char)(1 << slot % 8), *byte = used + slot / 8;
        if ((of == 'W') == !!(*byte & bit)) continue;
        *byte ^= bit;
        event(of, slot, 1);
    }
}

static void time_goes_on(double now) {
    static double last;
    if (!last) last = now;
    if (now < last + 0.05) return;
    run();
    putc('M', out);
    uint64_t passed = (uint64_t)((now - last) * 1000);
    number(passed);
    last += (double)passed / 1000;
}

int main(int n, char **argument) {
    if (n != 2 || !(out = fopen(argument[1], "w"))) return 2;
    char line[1024];
    int ended = 0;
    while (!ended && fgets(line, sizeof line, stdin)) {
        ended = strstr(line, ": the record ends") != NULL;
        unsigned long at, length, last;
        char how[16], *bio = strstr(line, ": block_bio_queue: "), *freed = strstr(line, ": freed: (");
        char *name = bio ? bio : freed;
        if (!name) continue;
        while (name > line && name[-1] != ' ') name--;
        time_goes_on(atof(name));
        if (bio && sscanf(bio, ": block_bio_queue: %*d,%*d %15s %lu + %lu", how, &at, &length) == 3) {
            if (strchr(how, 'D')) {
                mark('F', (int64_t)at / 8, (int64_t)length / 8);
                event('T', (int64_t)at / 8, (int64_t)length / 8);
            } else if (strchr(how, 'W')) {
                mark('W', (int64_t)at / 8, (int64_t)length / 8);
            }
        } else if (freed && (freed = strstr(freed, "first=")) && sscanf(freed, "first=%lu last=%lu", &at, &last) == 2) {
            mark('F', (int64_t)at, (int64_t)(last - at + 1));
        }
    }
    run();
    return fclose(out) != 0 || !ended;
}
