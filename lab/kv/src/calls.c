/* NODE get|put CALLS: the CPU time of one call, in ns. See calls.rs. */
#include <farmem_store.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KEYS = 1000, BYTES = 512 };
static char keys[KEYS][16];
static char value[BYTES];

static double ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void call(farmem_store *store, int put, long n) {
    struct farmem_store_error why;
    const char *key = keys[n % KEYS];
    size_t found = BYTES;
    int code = put ? farmem_store_put(store, key, 8, value, BYTES, &why)
                   : farmem_store_get_into(store, key, 8, value, BYTES, &found, &why);
    if (code || found != BYTES) {
        fprintf(stderr, "%s: %d, %zu bytes\n", key, code, found);
        exit(1);
    }
}

int main(int argc, char **argv) {
    struct farmem_store_error why;
    struct timespec lease = {2, 0};
    if (argc != 4) return 64;
    const char *nodes[] = {argv[1]};
    int put = !strcmp(argv[2], "put");
    long calls = atol(argv[3]);
    farmem_store *store = farmem_store_open("calls", nodes, 1, NULL, &why);
    if (!store) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    for (long n = 0; n < KEYS; n++) {
        snprintf(keys[n], sizeof keys[n], "key:%04ld", n);
        call(store, 1, n);
    }
    nanosleep(&lease, NULL);
    for (long n = 0; n < KEYS; n++) call(store, 0, n);
    double begun = ns();
    for (long n = 0; n < calls; n++) call(store, put, n);
    printf("%.1f\n", (ns() - begun) / calls);
    return farmem_store_close(store, &why) ? 1 : 0;
}
