/* Programs that give up what they had at their start, and fork: the node's socket file is gone, the root directory is
 * an empty one, the user is nobody, all of it. What they may not do (not root, no user namespaces) they leave out, and
 * say nothing about: the output is the same. */
#define _GNU_SOURCE
#include <grp.h>
#include <sched.h>
#include <sys/stat.h>

#include "case.h"

enum { BYTES = 12 << 20 };
static uint8_t *mem, *hidden;
static char empty[] = "/tmp/case-root-XXXXXX";

/* Removes the sockets of the run's nodes. */
static void without_socket(void) {
    const char *run = getenv("FARMEM_RUN");
    const char *at = run ? strstr(run, "unix:") : NULL;
    if (!at) return;
    char path[200];
    MUST(sscanf(at + 5, "%199[^,;]", path) == 1);
    unlink(path);
}

static void in_empty_root(void) {
    if (geteuid() != 0) unshare(CLONE_NEWUSER);
    if (chroot(empty) == 0) MUST(chdir("/") == 0);
}

static void as_nobody(void) {
    if (geteuid() != 0) return;
    setgroups(0, NULL);
    if (setresgid(65534, 65534, 65534) == 0) MUST(setresuid(65534, 65534, 65534) == 0);
}

static void all(void) {
    without_socket();
    in_empty_root();
    as_nobody();
}

/* What a process of ours sees of both halves, after it has rewritten one. */
static int sound(uint64_t key, uint64_t half) {
    MUST(mprotect(hidden, BYTES, PROT_NONE) == 0);
    squeeze();
    fill(mem + BYTES / 2, BYTES / 2, key + 1);
    squeeze();
    MUST(mprotect(hidden, BYTES, PROT_READ | PROT_WRITE) == 0);
    return !wrong(mem, BYTES / 2, half) && !wrong(mem + BYTES / 2, BYTES / 2, key + 1) && !wrong(hidden, BYTES, key);
}

static int status_of(pid_t pid) {
    int status;
    MUST(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Each in a child, so that the next still has everything; that child forks, and its child too. */
static void try(const char *what, void (*give_up)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        give_up();
        for (int round = 0; round < 2; round++) {
            fill(hidden, BYTES, 30 + round);
            pid_t child = fork();
            if (child == 0) {
                pid_t grandchild = fork();
                if (grandchild == 0) _exit(!sound(30 + round, 1));
                int ok = sound(30 + round, 1);
                _exit(status_of(grandchild) * 2 + !ok);
            }
            int ok = sound(30 + round, 1);
            int theirs = status_of(child);
            if (!ok || theirs) _exit(10 + theirs);
        }
        _exit(0);
    }
    printf("%s: %d\n", what, status_of(pid));
}

int main(void) {
    mem = far_map(BYTES);
    hidden = far_map(BYTES);
    fill(mem, BYTES, 1);
    MUST(mkdtemp(empty) && chmod(empty, 0755) == 0);
    try("an empty root", in_empty_root);
    try("another user", as_nobody);
    try("no socket", without_socket);
    try("everything", all);
    rmdir(empty);
}
