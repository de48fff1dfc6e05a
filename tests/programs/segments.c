/* System V shared memory where the program says: at addresses that it has taken from the system and given back, over
 * memory that it has, and detached again. What is mapped later comes to lie elsewhere, and both sides see the same. */
#include "case.h"
#include <sys/shm.h>

static size_t bad;
/* Maps, fills and checks as much as may come to lie at addresses of others. */
static void others(uint64_t key) {
    enum { N = 20 };
    uint64_t *at[N];
    for (int i = 0; i < N; i++) at[i] = far_map((1 + i % 8) * MIB), fill(at[i], (1 + i % 8) * MIB, key + i);
    squeeze();
    for (int i = 0; i < N; i++) bad += wrong(at[i], (1 + i % 8) * MIB, key + i), munmap(at[i], (1 + i % 8) * MIB);
}

/* System calls with arguments there. */
static void calls(char *at) {
    int ends[2];
    MUST(pipe(ends) == 0);
    memset(at + 2 * PAGE, 1, 2 * PAGE);
    MUST(write(ends[1], at, 2 * PAGE) == 2 * PAGE && read(ends[0], at + 2 * PAGE, 2 * PAGE) == 2 * PAGE);
    bad += memcmp(at, at + 2 * PAGE, 2 * PAGE) != 0;
    memset(at + 2 * PAGE, 0, 2 * PAGE);
    close(ends[0]), close(ends[1]);
}

int main(void) {
    const size_t bytes = 4 * MIB;
    int id = shmget(IPC_PRIVATE, bytes - 100, 0600 | IPC_CREAT);
    MUST(id >= 0);
    char *other = shmat(id, NULL, 0);
    MUST(other != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);

    /* At free addresses, again and again. */
    char *kept = far_map(8 * MIB);
    MUST(munmap(kept, 8 * MIB) == 0);
    for (int round = 0; round < 3; round++) {
        char *at = shmat(id, kept + 100, SHM_RND);
        MUST(at == kept);
        fill(at, MIB, round);
        others(round * 100);
        calls(at);
        bad += wrong(at, 2 * PAGE, round) + wrong(other, 2 * PAGE, round);
        errno = 0;
        printf("taken %d", shmat(id, kept, 0) == (void *)-1);
        printf(" %d\n", errno);
        MUST(shmdt(at) == 0);
        errno = 0;
        printf("detached again %d", shmdt(at));
        printf(" %d\n", errno);
    }
    errno = 0;
    printf("odd %d", shmat(id, kept + 100, 0) == (void *)-1);
    printf(" %d", errno);
    printf(" unknown %d", shmat(-1, kept, 0) == (void *)-1);
    printf(" %d\n", errno);

    /* Over memory that is there, some of it local, some not. */
    char *mine = far_map(8 * MIB);
    fill(mine, 8 * MIB, 9);
    squeeze();
    bad += wrong(mine, 2 * MIB, 9);
    errno = 0;
    printf("over memory, without leave %d", shmat(id, mine, 0) == (void *)-1);
    printf(" %d\n", errno);
    char *at = shmat(id, mine, SHM_REMAP);
    MUST(at == mine);
    fill(at, MIB, 10);
    squeeze();
    bad += wrong(at, MIB, 10) + wrong(other, MIB, 10) + wrong(mine + bytes, 8 * MIB - bytes, 9 + bytes / 8);
    calls(at);
    pid_t child = fork();
    if (child == 0) {
        size_t n = wrong(at, 2 * PAGE, 10) + wrong(mine + bytes, MIB, 9 + bytes / 8);
        fill(at, MIB, 11);
        squeeze();
        _exit(n != 0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    bad += wrong(at, MIB, 11) + wrong(other, MIB, 11);
    /* Read-only, and in part given back. */
    MUST(shmdt(at) == 0);
    at = shmat(id, mine, SHM_RDONLY);
    MUST(at == mine);
    bad += wrong(at, MIB, 11);
    MUST(munmap(at + MIB, MIB) == 0);
    char *between = mmap(at + MIB, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(between == at + MIB);
    fill(between, MIB, 12);
    MUST(shmdt(at) == 0);
    others(1000);
    bad += wrong(between, MIB, 12) + wrong(mine + bytes, 8 * MIB - bytes, 9 + bytes / 8);
    printf("child %d bad %zu\n", status, bad);
}
