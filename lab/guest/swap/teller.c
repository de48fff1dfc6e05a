/* teller PROGRAM WATCHER: says every 20 s how far the program and the devices are, and how the connections are doing, in a
 * machine that has no memory left. All that it needs is in memory and open before: it waits for no page. When no request has
 * ended for 8 s, or for a minute, the kernel says which tasks are blocked. Ends with the program. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static char text[65536];
/* What the kernel says: errors alone. */
#define ERRORS "4"

static int console, key, level;

static void say(const char *line, size_t n) {
    if (write(console, line, n) < 0) return;
}

/* The file's content, whose buffer in the kernel is there since the first time. */
static char *content(int fd) {
    ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof text - 1, 0);
    text[n < 0 ? 0 : n] = 0;
    return text;
}

static void blocked(void) {
    if (pwrite(level, "8", 1, 0) < 0 || pwrite(key, "w", 1, 0) < 0 || pwrite(level, ERRORS, 1, 0) < 0) return;
}

int main(int n, char **argument) {
    char path[64], line[256];
    struct sched_param first = {.sched_priority = 2};
    int stat[4], tcp, snmp, wchan, vm, up;
    long ended, before = -1, quiet = 0;
    if (n < 3) return 2;
    pid_t program = atoi(argument[1]);
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "/sys/block/nbd%d/stat", i);
        stat[i] = open(path, O_RDONLY);
    }
    snprintf(path, sizeof path, "/proc/%s/wchan", argument[2]);
    wchan = open(path, O_RDONLY);
    tcp = open("/proc/net/tcp", O_RDONLY), snmp = open("/proc/net/snmp", O_RDONLY), up = open("/proc/uptime", O_RDONLY);
    vm = open("/proc/vmstat", O_RDONLY);
    console = open("/dev/console", O_WRONLY), key = open("/proc/sysrq-trigger", O_WRONLY);
    level = open("/proc/sys/kernel/printk", O_RDWR);
    int all[] = {stat[0], stat[1], stat[2], stat[3], wchan, tcp, snmp, up, vm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) content(all[i]);
    if (mlockall(MCL_CURRENT | MCL_FUTURE) || sched_setscheduler(0, SCHED_FIFO, &first)) perror("teller");
    if (pwrite(level, ERRORS, 1, 0) < 0) perror("teller: printk");
    for (int tick = 1;; tick++) {
        struct timespec second = {1, 0};
        nanosleep(&second, NULL);
        if (kill(program, 0)) return 0;
        ended = 0;
        long way = 0;
        for (int i = 0; i < 4; i++) {
            long in = 0, out = 0, under = 0;
            if (stat[i] >= 0 && sscanf(content(stat[i]), "%ld %*d %*d %*d %ld %*d %*d %*d %ld", &in, &out, &under) == 3)
                ended += in + out, way += under;
        }
        quiet = ended == before ? quiet + 1 : 0;
        before = ended;
        /* Requests that wait for another stream are not counted as under way. */
        if ((quiet == 8 && way) || quiet == 60) blocked();
        if (tick % 20) continue;
        double at = atof(content(up));
        say(line, snprintf(line, sizeof line, "  at %.1f s: %ld requests have ended, %ld are under way; for %ld s none has\n",
                           at, ended, way, quiet));
        char *name = content(wchan);
        say(line, snprintf(line, sizeof line, "  the watcher is in %.60s\n", name));
        content(tcp);
        for (char *at = strtok(text, "\n"); at; at = strtok(NULL, "\n")) {
            char there[24], state[4], queues[24], timer[16], again[12], here[24];
            if (sscanf(at, " %*s %23s %23s %3s %23s %15s %11s", here, there, state, queues, timer, again) == 6 &&
                strcmp(state, "0A") && strcmp(state, "06") && strcmp(state, "st"))
                say(line, snprintf(line, sizeof line, "  TCP %s %s: %s queues %s timer %s again %s\n", here, there, state,
                                   queues, timer, again));
        }
        char *found = strstr(content(snmp), "\nTcp: 1");
        if (found) {
            char *end = strchr(found + 1, '\n');
            say("  ", 2), say(found + 1, end ? (size_t)(end - found) : strlen(found + 1));
        }
        kill(program, SIGUSR1);
    }
}
