/* Vectors of bytes in far memory, from C. Argument: a node. */
#include <assert.h>
#include <farmem_objects.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MANY (3 << 20)

/* An array of Arrow's has its callback in the ninth word, a schema in the eighth. */
static int released;
static void release_array(uint64_t *array) { released++, array[8] = 0; }
static void release_schema(uint64_t *schema) { released++, schema[7] = 0; }

static unsigned char byte_of(size_t at) { return (unsigned char)(at * 2654435761u >> 24); }

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    struct farmem_store_error why;
    const char *nodes[] = {argv[1]};
    assert(!farmem_heap_open(nodes, 0, 0, NULL, &why) && why.code == FARMEM_STORE_INVALID);
    assert(!farmem_heap_open(nodes, 1, 4096, NULL, &why) && why.text[0]);
    /* A quarter of the bytes is local. */
    struct farmem_heap *heap = farmem_heap_open(nodes, 1, MANY / 4, NULL, &why);
    if (!heap) return fprintf(stderr, "%s\n", why.text), 1;
    uint64_t vec = 0, n = 0;
    assert(farmem_vec_new(heap, &vec, &why) == FARMEM_STORE_OK && vec);
    unsigned char *bytes = malloc(MANY);
    for (size_t at = 0; at < MANY; at++) bytes[at] = byte_of(at);
    for (size_t at = 0; at < MANY; at += MANY / 8)
        assert(farmem_vec_append(heap, vec, bytes + at, MANY / 8, &why) == FARMEM_STORE_OK);
    assert(farmem_vec_len(heap, vec, &n, &why) == FARMEM_STORE_OK && n == MANY);
    assert(farmem_vec_write(heap, vec, 100001, "far", 3, &why) == FARMEM_STORE_OK);
    memcpy(bytes + 100001, "far", 3);
    unsigned char *back = malloc(MANY);
    assert(farmem_vec_read(heap, vec, 0, back, MANY, &why) == FARMEM_STORE_OK && !memcmp(bytes, back, MANY));
    assert(farmem_vec_read(heap, vec, MANY - 1, back, 2, &why) == FARMEM_STORE_INVALID && why.text[0]);
    assert(farmem_vec_write(heap, vec, MANY, "x", 1, NULL) == FARMEM_STORE_INVALID);
    assert(farmem_vec_read(heap, 99, 0, back, 1, &why) == FARMEM_STORE_INVALID);
    /* What is wrong at a glance is an error, and changes nothing. */
    assert(farmem_vec_append(heap, vec, bytes, (size_t)-1, &why) == FARMEM_STORE_INVALID);
    assert(farmem_vec_write(heap, vec, 0, bytes, (size_t)-1, &why) == FARMEM_STORE_INVALID);
    assert(farmem_vec_read(heap, vec, UINT64_MAX, back, (size_t)-1, &why) == FARMEM_STORE_INVALID);
    assert(farmem_vec_append(heap, vec, NULL, 1, &why) == FARMEM_STORE_INVALID);
    assert(farmem_vec_read(heap, vec, MANY, NULL, 0, &why) == FARMEM_STORE_OK);
    assert(farmem_vec_new(NULL, &n, &why) == FARMEM_STORE_INVALID);
    assert(farmem_vec_len(heap, vec, &n, &why) == FARMEM_STORE_OK && n == MANY);
    /* An append for which the nodes have no room leaves nothing behind. */
    uint64_t more = 0;
    assert(farmem_vec_new(heap, &more, &why) == FARMEM_STORE_OK);
    int code = FARMEM_STORE_OK;
    uint64_t before = 0;
    while (code == FARMEM_STORE_OK) {
        assert(farmem_vec_len(heap, more, &before, &why) == FARMEM_STORE_OK);
        code = farmem_vec_append(heap, more, bytes, MANY - 5, &why);
    }
    assert(code == FARMEM_STORE_FULL);
    assert(farmem_vec_len(heap, more, &n, &why) == FARMEM_STORE_OK && n == before && n % (MANY - 5) == 0);
    assert(farmem_object_drop(heap, more, &why) == FARMEM_STORE_OK);
    /* Structures that were released, and frames that nobody writes. */
    uint64_t array[10] = {0}, schema[9] = {0}, frame = 0;
    assert(farmem_frame_append(heap, &frame, (struct ArrowArray *)array, (struct ArrowSchema *)schema, &why) ==
           FARMEM_STORE_INVALID);
    assert(strstr(why.text, "released") && frame == 0);
    /* Both are released, whatever else is wrong. */
    for (int wrong = 0; wrong < 4; wrong++) {
        array[8] = (uint64_t)(uintptr_t)release_array, schema[7] = (uint64_t)(uintptr_t)release_schema;
        released = 0;
        assert(farmem_frame_append(wrong == 3 ? NULL : heap, wrong == 0 ? NULL : &frame,
                                   wrong == 1 ? NULL : (struct ArrowArray *)array,
                                   wrong == 2 ? NULL : (struct ArrowSchema *)schema, &why) == FARMEM_STORE_INVALID);
        assert(released == (wrong == 1 || wrong == 2 ? 1 : 2) && frame == 0);
    }
    pid_t child = fork();
    if (!child) _exit(farmem_vec_len(heap, vec, &n, &why) == FARMEM_STORE_FORKED ? 0 : 1);
    int status = 1;
    assert(waitpid(child, &status, 0) == child && status == 0);
    assert(farmem_object_drop(heap, vec, &why) == FARMEM_STORE_OK);
    assert(farmem_object_drop(heap, vec, &why) == FARMEM_STORE_INVALID);
    farmem_heap_close(heap);
    free(bytes);
    free(back);
    puts("all of it");
    return 0;
}
