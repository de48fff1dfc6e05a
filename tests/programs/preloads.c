/* Preloaded libraries: what a program executes gets the list that the program gives it, and no other.
 * With LIBRARY this file is the library. */
#ifdef LIBRARY
#include <stdlib.h>
__attribute__((constructor)) static void begins(void) { setenv("PRELOADS_LIBRARY", "there", 1); }
#else
#include "case.h"

static char *library, *self = "/proc/self/exe";

/* Executes this program with an environment that has such a list, or none. */
static void executes(const char *list, const char *says) {
    char text[4096];
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        unsetenv("PRELOADS_LIBRARY");
        if (list) setenv("LD_PRELOAD", list, 1);
        else unsetenv("LD_PRELOAD");
        execl(self, self, "child", library, says, NULL);
        _exit(1);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    /* The same with an environment of its own, and a list in far memory. */
    fflush(stdout);
    child = fork();
    if (child == 0) {
        char *far = far_map(MIB), *environment[] = {"A=1", far, "B=2", NULL};
        snprintf(text, sizeof text, "LD_PRELOAD=%s", list ? list : "");
        strcpy(far, list ? text : "C=3");
        squeeze();
        execle(self, self, "child", library, says, NULL, environment);
        _exit(1);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    MUST(argc >= 3);
    library = argv[2];
    uint8_t *p = far_map(8 * MIB);
    fill(p, 8 * MIB, 1);
    squeeze();
    printf("%s: library %s, wrong %zu\n", argv[argc - 1], getenv("PRELOADS_LIBRARY") ? "there" : "not there", wrong(p, 8 * MIB, 1));
    /* Where the memory lies, for the test alone. */
    fprintf(stderr, "far %d\n", (uintptr_t)p >> 45 == 1);
    if (strcmp(argv[1], "child") == 0) return 0;
    executes(library, "a list of its own");
    executes(NULL, "none");
    executes("", "an empty one");
    const char *now = getenv("LD_PRELOAD");
    char list[8192];
    snprintf(list, sizeof list, "%s:%s", library, now ? now : "");
    executes(list, "before the present one");
    snprintf(list, sizeof list, "%s:%s", now ? now : "", library);
    executes(list, "behind the present one");
}
#endif
