/* What an exec keeps: locks of files (fcntl), which belong to a process's table of descriptors, and the rights of a
 * set-user-ID program, which one gets only if no other process shares the caller's directory. */
#define _GNU_SOURCE
#include <grp.h>
#include <sys/stat.h>

#include "case.h"

enum { BYTES = 24 << 20 };

static void uses_memory(void) {
    uint8_t *mem = far_map(BYTES);
    fill(mem, BYTES, 0);
    printf("wrong %zu\n", wrong(mem, BYTES, 0));
    fflush(stdout);
}

static void copies(const char *from, const char *to) {
    char bytes[1 << 16];
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0700);
    MUST(in >= 0 && out >= 0);
    for (ssize_t n; (n = read(in, bytes, sizeof bytes)) > 0;) MUST(write(out, bytes, n) == n);
    close(in);
    close(out);
}

static void asks_for_lock(int fd) {
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        MUST(!fcntl(fd, F_GETLK, &lock));
        printf("locked by its parent: %d\n", lock.l_type == F_WRLCK && lock.l_pid == getppid());
        fflush(stdout);
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0) == child);
}

/* A nobody executes a copy of `id` that has its owner's rights. */
static void gets_rights(void) {
    char directory[] = "/tmp/farmem-rights-XXXXXX", file[64];
    MUST(mkdtemp(directory) && !chmod(directory, 0755));
    sprintf(file, "%s/id", directory);
    copies("/usr/bin/id", file);
    MUST(!chmod(file, 04755));
    pid_t child = fork();
    if (child == 0) {
        uses_memory();
        if (geteuid() == 0) MUST(!setgroups(0, NULL) && !setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
        execl(file, "id", "-u", NULL);
        MUST(!"execl");
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("status %d\n", status);
    unlink(file);
    rmdir(directory);
}

int main(int argc, char **argv) {
    uses_memory();
    if (argc > 1) {
        asks_for_lock(atoi(argv[1]));
        gets_rights();
        return 0;
    }
    char path[] = "/tmp/farmem-lock-XXXXXX", number[16];
    int fd = mkstemp(path);
    MUST(fd >= 0 && !unlink(path));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    MUST(!fcntl(fd, F_SETLK, &lock));
    asks_for_lock(fd);
    sprintf(number, "%d", fd);
    execl("/proc/self/exe", "exec_rights", number, NULL);
    MUST(!"execl");
}
