/* System calls made while registers that are no arguments of theirs hold what looks like far addresses,
 * as compiled code and the loader leave them. Run as a static program started from one on far memory, it
 * has the filter and no handler. */
#include "case.h"
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

static long call(long number, long a, long b, long c, long d, long e, long f)
{
    long ret;
    register long r10 asm("r10") = d;
    register long r8 asm("r8") = e;
    register long r9 asm("r9") = f;
    asm volatile("syscall"
                 : "=a"(ret)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return ret;
}

int main(void)
{
    const long left = 0x211800000000;
    char here[64];
    printf("getppid %d\n", call(SYS_getppid, left, left, left, left, left, left) > 0);
    printf("access %ld\n", call(SYS_access, (long)"/", R_OK, left, left, left, left));
    int fd = call(SYS_openat, AT_FDCWD, (long)"/", O_RDONLY, 0, left, left);
    printf("openat %d\n", fd >= 0);
    printf("close %ld\n", call(SYS_close, fd, left, left, left, left, left));
    printf("getcwd %d\n", call(SYS_getcwd, (long)here, sizeof here, left, left, left, left) > 0);
    return 0;
}
