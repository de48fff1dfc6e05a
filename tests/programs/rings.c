/* Asynchronous I/O begun by system calls that libc knows nothing of, as liburing makes them: whoever has none goes on
 * without. Either way a file holds what was written, from memory that was squeezed out, and is read back. */
#include "case.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>

enum { BYTES = 8 << 20, PIECE = 64 << 10 };

static long raw(long nr, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long ret;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
}

typedef long transfer(int file, uint8_t *at, size_t len, size_t offset, int writes);

static struct io_uring_params ring;
static int ring_fd;
static uint8_t *sq, *cq;
static struct io_uring_sqe *sqes;

static long by_ring(int file, uint8_t *at, size_t len, size_t offset, int writes) {
    unsigned *tail = (unsigned *)(sq + ring.sq_off.tail), *mask = (unsigned *)(sq + ring.sq_off.ring_mask);
    unsigned slot = *tail & *mask;
    sqes[slot] = (struct io_uring_sqe){.opcode = writes ? IORING_OP_WRITE : IORING_OP_READ,
                                       .fd = file, .addr = (uintptr_t)at, .len = len, .off = offset};
    ((unsigned *)(sq + ring.sq_off.array))[slot] = slot;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    MUST(raw(__NR_io_uring_enter, ring_fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
    unsigned *head = (unsigned *)(cq + ring.cq_off.head);
    MUST(__atomic_load_n((unsigned *)(cq + ring.cq_off.tail), __ATOMIC_ACQUIRE) != *head);
    unsigned last = *head & *(unsigned *)(cq + ring.cq_off.ring_mask);
    long done = ((struct io_uring_cqe *)(cq + ring.cq_off.cqes))[last].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return done;
}

static int has_ring(void) {
    ring_fd = (int)raw(__NR_io_uring_setup, 4, (long)&ring, 0, 0, 0, 0);
    if (ring_fd < 0) return 0;
    int shared = MAP_SHARED | MAP_POPULATE, both = PROT_READ | PROT_WRITE;
    sq = mmap(NULL, ring.sq_off.array + ring.sq_entries * 4, both, shared, ring_fd, IORING_OFF_SQ_RING);
    cq = mmap(NULL, ring.cq_off.cqes + ring.cq_entries * sizeof(struct io_uring_cqe), both, shared, ring_fd,
              IORING_OFF_CQ_RING);
    sqes = mmap(NULL, ring.sq_entries * sizeof *sqes, both, shared, ring_fd, IORING_OFF_SQES);
    MUST(sq != MAP_FAILED && cq != MAP_FAILED && (void *)sqes != MAP_FAILED);
    return 1;
}

static aio_context_t aio;

static long by_aio(int file, uint8_t *at, size_t len, size_t offset, int writes) {
    struct iocb one = {.aio_lio_opcode = writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD,
                       .aio_fildes = file, .aio_buf = (uintptr_t)at, .aio_nbytes = len, .aio_offset = offset};
    struct iocb *all[] = {&one};
    struct io_event done;
    long given = raw(__NR_io_submit, aio, 1, (long)all, 0, 0, 0);
    if (given != 1) return given;
    MUST(raw(__NR_io_getevents, aio, 1, 1, (long)&done, 0, 0) == 1);
    return done.res;
}

static int has_aio(void) {
    return raw(__NR_io_setup, 4, (long)&aio, 0, 0, 0, 0) == 0;
}

static long by_call(int file, uint8_t *at, size_t len, size_t offset, int writes) {
    return writes ? pwrite(file, at, len, offset) : pread(file, at, len, offset);
}

static void round_trip(const char *name, int has, transfer *way) {
    transfer *how = has ? way : by_call;
    FILE *f = tmpfile();
    MUST(f != NULL);
    int file = fileno(f);
    uint8_t *mem = far_map(BYTES);
    fill(mem, BYTES, 7);
    squeeze();
    size_t short_of = 0;
    for (size_t at = 0; at < BYTES; at += PIECE) short_of += how(file, mem + at, PIECE, at, 1) != PIECE;
    memset(mem, 0, BYTES);
    squeeze();
    for (size_t at = 0; at < BYTES; at += PIECE) short_of += how(file, mem + at, PIECE, at, 0) != PIECE;
    squeeze();
    printf("%s: short %zu, wrong %zu\n", name, short_of, wrong(mem, BYTES, 7));
    munmap(mem, BYTES);
    fclose(f);
}

int main(void) {
    round_trip("ring", has_ring(), by_ring);
    round_trip("aio", has_aio(), by_aio);
    return 0;
}
