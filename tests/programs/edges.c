/* What system calls use lies at the edge of a far page that is absent, and goes on at the next one: messages with their
 * type, structures of unknown size, arrays behind a head. And what is behind them in turn. */
#include "case.h"
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/socket.h>

static void told(const char *what, long ret) { printf("%s %ld %d\n", what, ret, ret == -1 ? errno : 0); }
#define TOLD(what, call) (squeeze(), errno = 0, told(what, call))

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    char *all = far_map(4 * MIB);
    fill(all, 4 * MIB, 1);
    /* Between two pages, and words and strings on others. */
    char *edge = all + MIB, *word = all + 2 * MIB, *text = all + 3 * MIB;

    int queue = msgget(IPC_PRIVATE, 0600);
    MUST(queue >= 0);
    struct {
        long type;
        char text[64];
    } near = {5, "hello"}, *across = (void *)(edge - 64);
    MUST(msgsnd(queue, &near, 64, 0) == 0);
    TOLD("msgrcv", msgrcv(queue, across, 64, 0, IPC_NOWAIT));
    printf("%ld %s\n", across->type, across->text);
    across->type = 3;
    TOLD("msgsnd", msgsnd(queue, across, 64, IPC_NOWAIT));
    printf("%zd %ld\n", msgrcv(queue, &near, 64, 0, IPC_NOWAIT), near.type);
    msgctl(queue, IPC_RMID, NULL);

    enum { SEMAPHORES = 200 };
    int set = semget(IPC_PRIVATE, SEMAPHORES, 0600);
    MUST(set >= 0);
    unsigned short *values = (void *)(edge - SEMAPHORES);
    for (int i = 0; i < SEMAPHORES; i++) values[i] = i;
    TOLD("SETALL", semctl(set, 0, SETALL, values));
    memset(values, 0, 2 * SEMAPHORES);
    TOLD("GETALL", semctl(set, 0, GETALL, values));
    TOLD("GETVAL", semctl(set, 150, GETVAL));
    printf("%d\n", values[SEMAPHORES - 1]);
    semctl(set, 0, IPC_RMID);

    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq *interface = (void *)(edge - 20);
    memset(interface, 0, sizeof *interface);
    strcpy(interface->ifr_name, "lo");
    TOLD("SIOCGIFADDR", ioctl(udp, SIOCGIFADDR, interface));

    FILE *file = tmpfile();
    MUST(file && fputs("something", file) >= 0 && fflush(file) == 0 && fsync(fileno(file)) == 0);
    struct fiemap *map = (void *)(edge - sizeof *map);
    memset(map, 0, sizeof *map);
    map->fm_length = FIEMAP_MAX_OFFSET, map->fm_extent_count = 100;
    TOLD("FIEMAP", ioctl(fileno(file), FS_IOC_FIEMAP, map));
    printf("extents %u\n", map->fm_mapped_extents);

    strcpy(text, "name");
    squeeze();
    errno = 0;
    int named = prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, word, PAGE, text);
    printf("a name is read %d\n", named == 0 || errno == EINVAL);

    void **pages = (void *)(edge - 16);
    for (int i = 0; i < 4; i++) pages[i] = all;
    squeeze();
    errno = 0;
    long moved = syscall(SYS_move_pages, 0, 4ul, pages, NULL, (int *)(word + PAGE - 8), 0);
    printf("move_pages %d\n", moved == 0 || errno == ENOSYS || errno == EPERM);

    struct {
        uint64_t value, word, flags;
    } near_one = {9, (uint64_t)word, 2 | 128}, *one = (void *)(edge - 8);
    *(uint32_t *)word = 7;
    memcpy(one, &near_one, sizeof *one);
    TOLD("futex_waitv", syscall(449, one, 1, 0, NULL, 0));
    TOLD("futex_waitv, near", syscall(449, &near_one, 1, 0, NULL, 0));

    /* A pair that lies near, and names words that are away. */
    struct {
        uint64_t value, word, flags;
    } pair[2] = {{7, (uint64_t)word, 2 | 128}, {0, (uint64_t)(word + MIB / 2), 2 | 128}};
    TOLD("futex_requeue, near", syscall(456, pair, 0, 0, 0));

    /* Whether memory is there at all, as those ask who look before they read. */
    char *hole = far_map(4 * MIB);
    MUST(munmap(hole + MIB, MIB) == 0);
    TOLD("msync", msync(hole, MIB, MS_ASYNC));
    TOLD("msync of nothing", msync(hole + MIB, PAGE, MS_ASYNC));
    TOLD("msync askew", msync(hole + 5, PAGE, MS_ASYNC));
    TOLD("mlock", mlock(hole + 5, PAGE));
    TOLD("mlock2 of an unknown kind", syscall(SYS_mlock2, hole + 5, PAGE, 8));
    TOLD("munlock", munlock(hole, PAGE));
    TOLD("mlock of nothing", mlock(hole + MIB - PAGE, 2 * PAGE));

    /* A program that is executed with its libraries mapped from below. */
    MUST(personality(ADDR_COMPAT_LAYOUT) >= 0);
    printf("status %d\n", system("exec sh -c 'exit 7'") >> 8);
    printf("unharmed %d\n", wrong(all + 64 * PAGE, 64 * PAGE, 1 + 64 * PAGE / 8) == 0);
}
