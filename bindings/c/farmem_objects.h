/*
 * Far vectors of bytes and frames: data in the memory of nodes, of which a part is local.
 *
 *     struct farmem_store_error why;
 *     const char *nodes[] = {"bighost:7411"};
 *     struct farmem_heap *heap = farmem_heap_open(nodes, 1, 512 << 20, NULL, &why);
 *     uint64_t vec;
 *     farmem_vec_new(heap, &vec, &why);
 *     farmem_vec_append(heap, vec, bytes, n, &why);
 *     farmem_vec_read(heap, vec, 4096, buffer, 100, &why);
 *     farmem_heap_close(heap);
 *
 * Link with libfarmem_store.so. Calls may come from any thread; a heap carries out one at a time.
 * A forked child gets FARMEM_STORE_FORKED. Functions return FARMEM_STORE_OK, or a code below 0 and its text in
 * `why`, which may be NULL.
 */
#ifndef FARMEM_OBJECTS_H
#define FARMEM_OBJECTS_H

#include <farmem_store.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Far memory for objects. */
struct farmem_heap;

/* Arrow's C data interface: https://arrow.apache.org/docs/format/CDataInterface.html */
struct ArrowSchema;
struct ArrowArray;

/* Opens a heap with `local` bytes of local memory (0: 64 MiB). `transport`: "auto", "shm", "tcp" or
 * "verbs"; NULL is "auto". NULL after an error. */
struct farmem_heap *farmem_heap_open(const char *const *nodes, size_t n_nodes, uint64_t local,
                                     const char *transport, struct farmem_store_error *why);

/* Ends a heap, and all objects of it. No other call may use it, now or later. */
void farmem_heap_close(struct farmem_heap *heap);

/* An empty vector of bytes. Its number is used in the calls below. A single value is a vector of
 * its bytes. */
int farmem_vec_new(const struct farmem_heap *heap, uint64_t *vec, struct farmem_store_error *why);

/* Appends bytes: all of them, or none after an error. */
int farmem_vec_append(const struct farmem_heap *heap, uint64_t vec, const void *bytes, size_t n,
                      struct farmem_store_error *why);

/* Copies `n` bytes out, from `at` on. Those that are away come by one round trip for many. */
int farmem_vec_read(const struct farmem_heap *heap, uint64_t vec, uint64_t at, void *into, size_t n,
                    struct farmem_store_error *why);

/* Replaces `n` bytes that are there. */
int farmem_vec_write(const struct farmem_heap *heap, uint64_t vec, uint64_t at, const void *bytes, size_t n,
                     struct farmem_store_error *why);

/* The bytes that a vector has. */
int farmem_vec_len(const struct farmem_heap *heap, uint64_t vec, uint64_t *n, struct farmem_store_error *why);

/* Drops a vector or a frame: its memory goes back to the nodes. */
int farmem_object_drop(const struct farmem_heap *heap, uint64_t number, struct farmem_store_error *why);

/* Appends the rows of a struct array to a frame that is being written, which begins where `*frame`
 * is 0. Both structures are released, also after an error. */
int farmem_frame_append(const struct farmem_heap *heap, uint64_t *frame, struct ArrowArray *array,
                        struct ArrowSchema *schema, struct farmem_store_error *why);

/* A frame that was being written is whole, and can be asked. */
int farmem_frame_finish(const struct farmem_heap *heap, uint64_t frame, struct farmem_store_error *why);

/* Asks something of a frame, by JSON. The answer is a new frame, whose number `*made` is; or `*made`
 * is 0, and the answer is a struct array, which the caller releases.
 *
 *     {"op": "len"}  {"op": "rows", "from": 0, "until": 9}
 *     {"op": "count"}  {"op": "totals", "column": "fare"}  {"op": "head", "n": 5}  {"op": "collect"}
 *     {"op": "group", "keys": ["day"], "aggs": [["sum", "fare"], ["rows"]]}
 *     {"op": "take", "rows": [7, 1]}  {"op": "sort", "by": ["day"], "descending": false}
 *     {"op": "join", "right": 2, "on": "day", "how": "left"}
 *
 * "filter" names a condition for count, totals, head, collect and group:
 *     ["lt", "day", 90]   also le, gt, ge, eq, ne; ["is_null", "tip"]; ["and", a, b], ["or", a, b], ["not", a]
 */
int farmem_frame_query(const struct farmem_heap *heap, uint64_t frame, const char *query, uint64_t *made,
                       struct ArrowArray *array, struct ArrowSchema *schema, struct farmem_store_error *why);

#ifdef __cplusplus
}
#endif

#endif
