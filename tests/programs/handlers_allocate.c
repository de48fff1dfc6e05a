/* A handler that maps memory and opens files of /proc, whatever it interrupts: the same. The runtime may not wait in the
 * handler for what it was interrupted at. */
#include "case.h"
#include <dirent.h>
#include <sys/time.h>

enum { HANDLED = 1500 };

static volatile sig_atomic_t handled;

static void maps(int sig) {
    int was = errno;
    /* Many mappings: the lists of mappings grow. */
    void *at[8];
    for (int n = 0; n < 8; n++) {
        at[n] = mmap(NULL, (n + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at[n] == MAP_FAILED) _exit(2);
        *(volatile char *)at[n] = sig;
    }
    for (int n = 0; n < 8; n++) munmap(at[n], (n + 1) * PAGE);
    char text[64];
    int fd = open("/proc/self/stat", O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text) <= 0) _exit(3);
    close(fd);
    handled++;
    errno = was;
}

int main(void) {
    struct sigaction act = {.sa_handler = maps, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &act, NULL) == 0);
    struct itimerval every = {{0, 200}, {0, 200}};
    MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
    uint8_t *far = far_map(8 * MIB);
    fill(far, 8 * MIB, 3);
    int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
    MUST(fd >= 0);
    static char list[4096];
    long listed = 0, read_of = 0;
    while (handled < HANDLED) {
        MUST(lseek(fd, 0, SEEK_SET) == 0);
        listed += syscall(SYS_getdents64, fd, list, sizeof list) > 0;
        DIR *d = opendir("/proc/self/fd");
        MUST(d);
        while (readdir(d)) listed++;
        closedir(d);
        int stat = open("/proc/self/stat", O_RDONLY);
        MUST(stat >= 0);
        read_of += read(stat, list, sizeof list) > 0;
        close(stat);
    }
    every = (struct itimerval){0};
    MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
    printf("listed %d, read %d, wrong %zu\n", listed > 0, read_of > 0, wrong(far, 8 * MIB, 3));
    return 0;
}
