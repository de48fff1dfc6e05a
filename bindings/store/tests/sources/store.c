// Uses a store from C: each function, and its refusals. Argument: a node's address.
#include <farmem_store.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct farmem_store_error why;
static farmem_store *store;

#define WANT(what)                                                                                       \
    do {                                                                                                 \
        if (!(what)) {                                                                                   \
            fprintf(stderr, "%s:%d: %s; last error %d: %s\n", __FILE__, __LINE__, #what, why.code, why.text); \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

static void *adds(void *of) {
    char key[32];
    struct farmem_store_error mine;
    for (int n = 0; n < 50; n++) {
        int bytes = snprintf(key, sizeof key, "thread %d, %d", *(int *)of, n);
        if (farmem_store_put(store, key, bytes, key, bytes, &mine) != FARMEM_STORE_OK) return of;
    }
    return NULL;
}

static void one_at_a_time(void) {
    void *value;
    size_t bytes;
    WANT(farmem_store_get(store, "greeting", 8, &value, &bytes, &why) == FARMEM_STORE_ABSENT && value == NULL);
    WANT(farmem_store_put(store, "greeting", 8, "hello", 5, &why) == FARMEM_STORE_OK);
    WANT(farmem_store_get(store, "greeting", 8, &value, &bytes, &why) == FARMEM_STORE_OK);
    WANT(bytes == 5 && memcmp(value, "hello", 5) == 0);
    farmem_store_free(value);
    char room[5];
    WANT(farmem_store_get_into(store, "greeting", 8, room, 4, &bytes, &why) == FARMEM_STORE_SMALL && bytes == 5);
    WANT(farmem_store_get_into(store, "greeting", 8, NULL, 0, &bytes, &why) == FARMEM_STORE_SMALL && bytes == 5);
    WANT(farmem_store_get_into(store, "greeting", 8, room, 5, &bytes, &why) == 0 && memcmp(room, "hello", 5) == 0);
    WANT(farmem_store_get_into(store, "none", 4, room, 5, &bytes, &why) == FARMEM_STORE_ABSENT && bytes == 0);
    WANT(farmem_store_put(store, "", 0, "", 0, &why) == FARMEM_STORE_OK);
    WANT(farmem_store_remove(store, "", 0, &why) == FARMEM_STORE_OK);
    WANT(farmem_store_remove(store, "", 0, &why) == FARMEM_STORE_ABSENT);
}

static void many_at_once(void) {
    char small[4], large[64];
    struct farmem_store_op ops[] = {
        {FARMEM_STORE_GET, 0, "greeting", 8, small, sizeof small, 0, 0},
        {FARMEM_STORE_GET, 0, "greeting", 8, large, sizeof large, 0, 0},
        {FARMEM_STORE_PUT_NEW, 0, "greeting", 8, "bye", 3, 0, 0},
        {FARMEM_STORE_PUT, 0, "ends", 4, "x", 1, 0, 99999999999999u},
        {FARMEM_STORE_LOOK, 0, "nothing", 7, NULL, 0, 0, 0},
        {FARMEM_STORE_PUT, 0, "large", 5, calloc(3, 1 << 20), 3 << 20, 0, 0},
    };
    WANT(farmem_store_do(store, ops, 6, &why) == FARMEM_STORE_OK);
    WANT(ops[0].status == FARMEM_STORE_SMALL && ops[0].found_bytes == 5);
    WANT(ops[1].status == FARMEM_STORE_OK && ops[1].found_bytes == 5 && memcmp(large, "hello", 5) == 0);
    WANT(ops[2].status == FARMEM_STORE_PRESENT && ops[3].status == FARMEM_STORE_OK);
    WANT(ops[4].status == FARMEM_STORE_ABSENT);
    free(ops[5].value);
    struct farmem_store_op look = {FARMEM_STORE_LOOK, 0, "ends", 4, NULL, 0, 0, 0};
    WANT(farmem_store_do(store, &look, 1, &why) == 0 && look.status == 0);
    WANT(look.found_bytes == 1 && look.expires_ms == 99999999999999u);
}

static void blocks(void) {
    size_t bytes = 3 << 20;
    char *block = malloc(bytes), *back = calloc(1, bytes);
    for (size_t n = 0; n < bytes; n++) block[n] = n * 31 + n / 256;
    struct farmem_store_op put = {FARMEM_STORE_PUT_BLOCK, 0, "b", 1, block, bytes, 0, 0};
    WANT(farmem_store_do(store, &put, 1, &why) == 0 && put.status == FARMEM_STORE_OK);
    WANT(farmem_store_do(store, &put, 1, &why) == 0 && put.status == FARMEM_STORE_PRESENT);
    struct farmem_store_op ops[] = {
        {FARMEM_STORE_GET_BLOCK, 0, "b", 1, back, bytes, 0, 0},
        {FARMEM_STORE_GET_BLOCK, 0, "b", 1, NULL, 0, 0, 0},
        {FARMEM_STORE_LOOK_BLOCK, 0, "b", 1, NULL, 0, 0, 0},
        {FARMEM_STORE_GET_BLOCK, 0, "none", 4, NULL, 0, 0, 0},
    };
    WANT(farmem_store_do(store, ops, 4, &why) == 0 && ops[0].status == 0 && ops[1].status == 0);
    WANT(memcmp(back, block, bytes) == 0 && memcmp(ops[1].value, block, bytes) == 0);
    WANT(ops[2].found_bytes == bytes && ops[3].status == FARMEM_STORE_ABSENT && ops[3].value == NULL);
    farmem_store_free(ops[1].value);
    free(back), free(block);
    struct farmem_store_op remove = {FARMEM_STORE_REMOVE_BLOCK, 0, "b", 1, NULL, 0, 0, 0};
    WANT(farmem_store_do(store, &remove, 1, &why) == 0 && remove.status == 0);
}

static void refusals(const char *const *nodes) {
    struct farmem_store_op wrong = {99, 0, "k", 1, NULL, 0, 0, 0};
    WANT(farmem_store_do(store, &wrong, 1, &why) == FARMEM_STORE_INVALID && why.code == FARMEM_STORE_INVALID);
    WANT(farmem_store_do(NULL, &wrong, 1, &why) == FARMEM_STORE_INVALID);
    WANT(farmem_store_do(store, &wrong, 1, NULL) == FARMEM_STORE_INVALID);
    WANT(farmem_store_open("no such name!", nodes, 1, NULL, &why) == NULL && why.code == FARMEM_STORE_UNREACHED);
    WANT(farmem_store_open("c", nodes, 0, NULL, &why) == NULL && why.code == FARMEM_STORE_INVALID);
    struct farmem_store_options options = {sizeof options, 0, 0, NULL, "pigeon", 0, 0};
    WANT(farmem_store_open("c", nodes, 1, &options, &why) == NULL && strstr(why.text, "pigeon"));
    options.transport = NULL, options.token = "/no/such/token";
    WANT(farmem_store_open("c", nodes, 1, &options, &why) == NULL && strstr(why.text, "/no/such/token"));
    pid_t child = fork();
    if (child == 0) _exit(farmem_store_put(store, "k", 1, "v", 1, &why) == FARMEM_STORE_FORKED ? 0 : 1);
    int status;
    WANT(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    const char *nodes[] = {argc > 1 ? argv[1] : ""};
    store = farmem_store_open("c", nodes, 1, NULL, &why);
    WANT(store != NULL);
    one_at_a_time();
    many_at_once();
    blocks();
    refusals(nodes);
    pthread_t threads[4];
    int numbers[] = {0, 1, 2, 3};
    for (int n = 0; n < 4; n++) WANT(pthread_create(&threads[n], NULL, adds, &numbers[n]) == 0);
    for (int n = 0; n < 4; n++) {
        void *failed;
        WANT(pthread_join(threads[n], &failed) == 0 && failed == NULL);
    }
    uint64_t keys, place = 0;
    WANT(farmem_store_size(store, &keys, &why) == 0 && keys >= 202);
    size_t seen = 0;
    do {
        void *packed;
        size_t bytes;
        WANT(farmem_store_scan(store, &place, 100, &packed, &bytes, &why) == 0);
        for (size_t at = 0; at < bytes; seen++) {
            uint32_t length;
            memcpy(&length, (char *)packed + at, sizeof length);
            at += sizeof length + length;
        }
        farmem_store_free(packed);
    } while (place != 0);
    WANT(seen >= 202);
    WANT(farmem_store_leave(store, &why) == 0);
    WANT(farmem_store_put(store, "k", 1, "v", 1, &why) == FARMEM_STORE_CLOSED);
    WANT(farmem_store_close(store, &why) == 0 && farmem_store_close(NULL, &why) == 0);
    puts("all of it");
    return 0;
}
