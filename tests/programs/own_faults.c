/* A program with a userfaultfd of its own, whose pages take long to come. */
#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "case.h"

static int faults;

static void *brings(void *page) {
    struct uffd_msg message;
    MUST(read(faults, &message, sizeof message) == sizeof message);
    sleep(4);
    static uint8_t bytes[PAGE] __attribute__((aligned(PAGE)));
    memset(bytes, 7, PAGE);
    struct uffdio_copy copy = {.dst = (uintptr_t)page, .src = (uintptr_t)bytes, .len = PAGE};
    MUST(!ioctl(faults, UFFDIO_COPY, &copy));
    return NULL;
}

int main(void) {
    faults = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API};
    MUST(faults >= 0 && !ioctl(faults, UFFDIO_API, &api));
    volatile uint8_t *page = far_map(PAGE);
    struct uffdio_register all = {.range = {(uintptr_t)page, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    MUST(!ioctl(faults, UFFDIO_REGISTER, &all));
    pthread_t thread;
    MUST(!pthread_create(&thread, NULL, brings, (void *)page));
    printf("%d\n", page[5]);
    pthread_join(thread, NULL);
}
