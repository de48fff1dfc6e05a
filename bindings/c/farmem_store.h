/* farmem_store.h: farmem's key-value store within a program. Link with -lfarmem_store.
 *
 *     struct farmem_store_error why;
 *     const char *nodes[] = {"bighost:7411"};
 *     farmem_store *store = farmem_store_open("sessions", nodes, 1, NULL, &why);
 *     if (!store) { fprintf(stderr, "%s\n", why.text); return 1; }
 *     farmem_store_put(store, "greeting", 8, "hello", 5, &why);
 *     farmem_store_close(store);
 *
 * The program is one front end of the store, beside others and beside `farmem kv`. Each operation on one
 * key is linearizable among all of them. Keys and values are bytes. A value has 512 MiB at most, and is read
 * as a whole. A block has 256 MiB, and its key 4096 bytes.
 *
 * Any number of threads may use a store at once. A child of fork opens a store of its own.
 * Functions return FARMEM_STORE_OK or an error, and describe an error in `why`, which may be NULL.
 */
#ifndef FARMEM_STORE_H
#define FARMEM_STORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What became of an operation, or of a call. */
enum {
    FARMEM_STORE_OK = 0,
    FARMEM_STORE_ABSENT = 1,      /* there is no such key */
    FARMEM_STORE_PRESENT = 2,     /* there is such a key already: nothing was stored */
    FARMEM_STORE_SMALL = 3,       /* the value does not fit into the buffer: nothing was copied; see found_bytes */
    FARMEM_STORE_INVALID = -1,    /* an argument makes no sense */
    FARMEM_STORE_UNREACHED = -2,  /* the store cannot be opened */
    FARMEM_STORE_LOST = -3,       /* a node is lost, and its keys: close the store, open it when the node is back */
    FARMEM_STORE_FULL = -4,       /* the nodes have no memory left */
    FARMEM_STORE_TOO_LARGE = -5,  /* the value is too large */
    FARMEM_STORE_UNSURE = -6,     /* it may have taken effect, or not */
    FARMEM_STORE_WRONG_TYPE = -7, /* the key holds a list, a hash or the like */
    FARMEM_STORE_FORKED = -8,     /* the store was opened before a fork */
    FARMEM_STORE_CLOSED = -9,     /* the store was closed */
    FARMEM_STORE_FAILED = -10     /* another failure */
};

struct farmem_store_error {
    int code;
    char text[508]; /* one line, ended by a 0 */
};

typedef struct farmem_store farmem_store;

/* Settings of farmem_store_open. Set `bytes` to sizeof, and to 0 what shall be as usual. */
struct farmem_store_options {
    size_t bytes;
    uint64_t local;        /* bytes of the near cache: 64 MiB */
    uint64_t maxmemory;    /* bytes that all front ends may take from the nodes; beyond, keys are evicted: no limit */
    const char *token;     /* the file of a token: the one that FARMEM_TOKEN names, if any */
    const char *transport; /* "auto", "shm", "tcp" or "verbs" */
    uint32_t grace_ms;     /* how long a node may be out of reach: 5 s */
    uint32_t mirror;       /* 1: every key at two nodes, as by `farmem kv --protect mirror`; 0: at one */
};

/* Opens a store, or makes it. `nodes` are "HOST:PORT" or "unix:PATH". NULL: see `why`. */
farmem_store *farmem_store_open(const char *name, const char *const *nodes, size_t n_nodes,
                                const struct farmem_store_options *options, struct farmem_store_error *why);

/* Leaves the store when the calls of other threads have ended. Later calls return FARMEM_STORE_CLOSED. */
int farmem_store_leave(farmem_store *store, struct farmem_store_error *why);

/* Leaves the store if that was not done yet, and frees it. No other call may be under way, or come. NULL is nothing to close. */
int farmem_store_close(farmem_store *store, struct farmem_store_error *why);

/* What an operation does with its key. */
enum {
    FARMEM_STORE_GET = 1,     /* copies the value to `value`, which has room for value_bytes; or to memory of the
                                 library's, if `value` is NULL: give it back by farmem_store_free */
    FARMEM_STORE_PUT = 2,     /* stores value_bytes from `value` */
    FARMEM_STORE_PUT_NEW = 3, /* … if there is no such key */
    FARMEM_STORE_REMOVE = 4,
    FARMEM_STORE_LOOK = 5,    /* whether there is such a key; its bytes and its end */
    FARMEM_STORE_EXPIRE = 6,  /* changes its end */
    /* Blocks: large values that are written once. Their keys are apart from the others. */
    FARMEM_STORE_GET_BLOCK = 7,
    FARMEM_STORE_PUT_BLOCK = 8, /* if there is no such block. Its bytes are sent from where they lie, and must not
                                   change before the call returns: it would be stored damaged, and be absent */
    FARMEM_STORE_REMOVE_BLOCK = 9,
    FARMEM_STORE_LOOK_BLOCK = 10,
    FARMEM_STORE_PIN_BLOCK = 11 /* keeps it from being evicted until expires_ms; 0: no longer */
};

struct farmem_store_op {
    int what;
    int status; /* set by the call */
    const void *key;
    size_t key_bytes;
    void *value; /* of PUTs only read */
    size_t value_bytes;
    size_t found_bytes;  /* set by GET, LOOK: bytes of the value */
    uint64_t expires_ms; /* milliseconds since 1970, 0: never. Given to PUT, EXPIRE, PIN; set by GET, LOOK */
};

/* Carries out n operations side by side, in the time of one; those on one key in any order. Memory that one of
 * them writes is used by no other. An error of one of them is in its status, and the first of these in `why`. The
 * call itself fails if a node is lost: then no operation has memory of the library's. */
int farmem_store_do(farmem_store *store, struct farmem_store_op *ops, size_t n, struct farmem_store_error *why);

/* Some keys, about `count`, from a place on: 0 is the start, and the end. They come one after the other, each behind its
 * length, a uint32_t. Give `keys` back by farmem_store_free. */
int farmem_store_scan(farmem_store *store, uint64_t *place, size_t count, void **keys, size_t *bytes,
                      struct farmem_store_error *why);

/* Number of keys. */
int farmem_store_size(farmem_store *store, uint64_t *keys, struct farmem_store_error *why);

/* Gives memory back that the library allocated. */
void farmem_store_free(void *memory);

/* One operation each. */
static inline int farmem_store_put(farmem_store *store, const void *key, size_t key_bytes, const void *value,
                                   size_t value_bytes, struct farmem_store_error *why) {
    struct farmem_store_op op = {FARMEM_STORE_PUT, 0, key, key_bytes, (void *)value, value_bytes, 0, 0};
    int code = farmem_store_do(store, &op, 1, why);
    return code ? code : op.status;
}

/* The value is at *value then, and is given back by farmem_store_free. */
static inline int farmem_store_get(farmem_store *store, const void *key, size_t key_bytes, void **value, size_t *value_bytes,
                                   struct farmem_store_error *why) {
    struct farmem_store_op op = {FARMEM_STORE_GET, 0, key, key_bytes, NULL, 0, 0, 0};
    int code = farmem_store_do(store, &op, 1, why);
    *value = op.value;
    *value_bytes = op.found_bytes;
    return code ? code : op.status;
}

/* The value is copied to `buffer`, which has room for `room` bytes. *value_bytes is its length, also if it does not fit. */
static inline int farmem_store_get_into(farmem_store *store, const void *key, size_t key_bytes, void *buffer, size_t room,
                                        size_t *value_bytes, struct farmem_store_error *why) {
    char none; /* an empty buffer may be NULL */
    struct farmem_store_op op = {FARMEM_STORE_GET, 0, key, key_bytes, buffer ? buffer : &none, room, 0, 0};
    int code = farmem_store_do(store, &op, 1, why);
    *value_bytes = op.found_bytes;
    return code ? code : op.status;
}

static inline int farmem_store_remove(farmem_store *store, const void *key, size_t key_bytes, struct farmem_store_error *why) {
    struct farmem_store_op op = {FARMEM_STORE_REMOVE, 0, key, key_bytes, NULL, 0, 0, 0};
    int code = farmem_store_do(store, &op, 1, why);
    return code ? code : op.status;
}

#ifdef __cplusplus
}
#endif
#endif
