/* forbids ERRNO NR[,NR...] PROGRAM...: these system calls fail so, from here on, as under a container's
 * seccomp profile. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define STMT(code, k) ((struct sock_filter)BPF_STMT(code, k))
#define UNLESS_EQUAL(k, skip) ((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, k, 0, skip))

int main(int argc, char **argv) {
    struct sock_filter filter[512];
    unsigned short n = 0;
    if (argc < 4) return fprintf(stderr, "forbids ERRNO NR[,NR...] PROGRAM...\n"), 64;
    int error = atoi(argv[1]);
    filter[n++] = STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (char *nr = strtok(argv[2], ","); nr && n < 500; nr = strtok(NULL, ",")) {
        filter[n++] = UNLESS_EQUAL(atoi(nr), 1);
        filter[n++] = STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
    }
    filter[n++] = STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog whole = {n, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole))
        return perror("forbids"), 125;
    execvp(argv[3], argv + 3);
    return perror(argv[3]), 127;
}
