/* exec, posix_spawn, vfork, system and popen out of a process whose argument
 * strings and vectors are far and absent. */
#include "case.h"
#include <spawn.h>

extern char **environ;

static char **far_argv(const char *a, const char *b, const char *c) {
    char *m = far_map(4 * PAGE);
    char **v = (char **)m;
    const char *s[] = {a, b, c};
    for (int i = 0; i < 3; i++) v[i] = strcpy(m + (i + 1) * PAGE, s[i]);
    v[3] = NULL;
    squeeze();
    return v;
}

static int status_of(pid_t p) {
    int *status = far_map(PAGE);
    squeeze();
    MUST(waitpid(p, status, 0) == p);
    return *status;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IONBF, 0);
    if (argc > 1 && strcmp(argv[1], "again") == 0) {
        /* After exec the program is far again. */
        uint8_t *m = far_map(16 * MIB);
        fill(m, 16 * MIB, 1);
        squeeze();
        printf("again: %s, wrong %zu\n", getenv("CASE"), wrong(m, 16 * MIB, 1));
        return strcmp(argv[2], "last") == 0 ? 0 : 7;
    }
    setenv("CASE", "inherited", 1);
    uint8_t *m = far_map(16 * MIB);
    fill(m, 16 * MIB, 3);

    char **echo = far_argv("/bin/sh", "-c", "echo from sh $CASE; exit 3");
    pid_t p;
    MUST(posix_spawn(&p, echo[0], NULL, NULL, echo, environ) == 0);
    printf("posix_spawn %d\n", WEXITSTATUS(status_of(p)));
    MUST(posix_spawnp(&p, "sh", NULL, NULL, echo, environ) == 0);
    printf("posix_spawnp %d\n", WEXITSTATUS(status_of(p)));

    char **v = far_argv("/bin/sh", "-c", "exit 4");
    p = vfork();
    if (p == 0) {
        execv(v[0], v);
        _exit(99);
    }
    printf("vfork %d\n", WEXITSTATUS(status_of(p)));

    printf("system %d\n", WEXITSTATUS(system("echo in system; exit 5")));

    char *command = strcpy(far_map(PAGE), "echo popen says $CASE");
    squeeze();
    FILE *f = popen(command, "r");
    char *line = far_map(PAGE);
    MUST(fgets(line, 200, f));
    printf("%spclose %d\n", line, WEXITSTATUS(pclose(f)));

    char **self = far_argv("/proc/self/exe", "again", "x");
    p = fork();
    if (p == 0) {
        execv("/proc/self/exe", self);
        _exit(98);
    }
    printf("fork+exec %d\n", WEXITSTATUS(status_of(p)));
    MUST(posix_spawn(&p, "/proc/self/exe", NULL, NULL, self, environ) == 0);
    printf("spawn self %d\n", WEXITSTATUS(status_of(p)));

    errno = 0;
    char **none = far_argv("/nonexistent/program", "x", "y");
    int r = execv(none[0], none);
    printf("exec of nothing %d errno %d\n", r, errno);
    printf("wrong %zu\n", wrong(m, 16 * MIB, 3));
    execv("/proc/self/exe", far_argv("/proc/self/exe", "again", "last"));
    return 97;
}
