/* Built with AddressSanitizer, whose runtime is in the program: it replaces malloc and much of libc, and is not
 * initialized when the first library is. */
#include "case.h"

enum { THREADS = 4, ROUNDS = 40 };

static void *works(void *number) {
    uint64_t sum = 0, key = (uintptr_t)number;
    for (int round = 0; round < ROUNDS; round++) {
        size_t bytes = (round % 7 + 1) * 100000;
        uint8_t *held = malloc(bytes);
        for (size_t i = 0; i < bytes; i++) held[i] = mix(key + i / 64 + round);
        held = realloc(held, bytes * 2);
        memcpy(held + bytes, held, bytes);
        for (size_t i = 0; i < bytes * 2; i += 61) sum = sum * 31 + held[i];
        free(held);
    }
    return (void *)(uintptr_t)sum;
}

int main(void) {
    pthread_t threads[THREADS];
    for (uintptr_t n = 0; n < THREADS; n++) MUST(pthread_create(&threads[n], NULL, works, (void *)n) == 0);
    for (int n = 0; n < THREADS; n++) {
        void *sum;
        MUST(pthread_join(threads[n], &sum) == 0);
        printf("%lx\n", (unsigned long)(uintptr_t)sum);
    }
    /* Its malloc takes addresses of its own choice; this is far. */
    uint8_t *far = far_map(16 * MIB);
    fill(far, 16 * MIB, 7);
    printf("wrong: %zu\n", wrong(far, 16 * MIB, 7));
    char *text = strdup("a heap of its own");
    printf("%s, %zu\n", text, strlen(text));
    free(text);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        void *sum = works((void *)9);
        _exit(sum == works((void *)9) ? 0 : 1);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("child: %d\n", status);
    return 0;
}
