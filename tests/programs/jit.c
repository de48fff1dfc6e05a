/* Code written into fresh memory and run: W^X by mprotect, all at once by RWX,
 * patched in place, after it has been paged out, and by several threads. */
#include "case.h"

typedef uint64_t (*function)(uint64_t);

/* rax = rdi * k + c */
static size_t emit(uint8_t *at, uint32_t k, uint32_t c) {
    uint8_t code[] = {0x48, 0x69, 0xc7, 0, 0, 0, 0, 0x48, 0x05, 0, 0, 0, 0, 0xc3};
    memcpy(code + 3, &k, 4);
    memcpy(code + 9, &c, 4);
    memcpy(at, code, sizeof code);
    return sizeof code;
}

static uint8_t *code;
enum { FUNCTIONS = 2000 };

static void *call_all(void *arg) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < FUNCTIONS; i++) sum += ((function)(code + i * PAGE))(i);
    *(uint64_t *)arg = sum;
    return NULL;
}

/* Whether a little memory can be had beside a stated address, to be reached by relative jumps. */
static int beside(void) {
    const uintptr_t here = (uintptr_t)&code & ~(PAGE - 1);
    for (uintptr_t hint = here + 64 * MIB; hint < here + 1024 * MIB; hint += 64 * MIB) {
        void *p = mmap((void *)hint, 64 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(p != MAP_FAILED);
        if ((uintptr_t)p - here < 2048 * MIB) return 1;
    }
    return 0;
}

int main(void) {
    printf("beside %d\n", beside());
    code = far_map(FUNCTIONS * PAGE);
    for (int i = 0; i < FUNCTIONS; i++) emit(code + i * PAGE, i, 7 * i);
    MUST(mprotect(code, FUNCTIONS * PAGE, PROT_READ | PROT_EXEC) == 0);
    uint64_t sum;
    call_all(&sum);
    printf("sum %lu\n", sum);
    squeeze();
    pthread_t t[4];
    uint64_t sums[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, call_all, &sums[i]);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL), printf("thread %lu\n", sums[i]);
    MUST(mprotect(code, FUNCTIONS * PAGE, PROT_READ | PROT_WRITE) == 0);
    for (int i = 0; i < FUNCTIONS; i += 2) emit(code + i * PAGE, 3, 1);
    MUST(mprotect(code, FUNCTIONS * PAGE, PROT_READ | PROT_EXEC) == 0);
    call_all(&sum);
    printf("patched %lu\n", sum);
    squeeze();
    call_all(&sum);
    printf("paged out %lu\n", sum);
    uint8_t *rwx = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(rwx != MAP_FAILED);
    uint64_t total = 0;
    for (int i = 0; i < 1000; i++) {
        emit(rwx + i * 4096, i, i);
        total += ((function)(rwx + i * 4096))(3);
        emit(rwx + i * 4096, 1, i);
        total += ((function)(rwx + i * 4096))(3);
    }
    printf("rwx %lu\n", total);
}
