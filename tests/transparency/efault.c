/* Pointers that are wrong stay wrong: the kernel's own error for every kind of them. */
#include "pressure.h"
#include <sys/socket.h>
#include <sys/uio.h>
int main(void)
{
    unsigned char *m = fresh(MIB), *none = fresh(PAGE), *readonly = fresh(PAGE);
    int ends[2];
    struct stat status;
    (void)status;
    fill(m, MIB, 1);
    fill(readonly, PAGE, 2);
    fill(none, PAGE, 3);
    MUST(mprotect(none, PAGE, PROT_NONE));
    MUST(mprotect(readonly, PAGE, PROT_READ));
    MUST(pipe(ends));
    REQUIRE(write(ends[1], m, 1000) == 1000);
    unsigned char *wrong[] = { NULL, (unsigned char *)8, none, (unsigned char *)0x7fffffffe000, (unsigned char *)0xffff800000000000,
                               (unsigned char *)0x800000000000, (unsigned char *)~0ul - 4095, readonly };
    for (int round = 0; round < 2; round++) {
        evict(m, MIB);
        for (int i = 0; i < 8; i++) {
            unsigned char *at = wrong[i];
            int writable_only = i == 7;
#define EFAULTS(call) do { errno = 0; if (!((call) == -1 && errno == EFAULT)) fail("line %d: pointer %d: %s", __LINE__, i, STRING(call)); } while (0)
            EFAULTS(read(ends[0], at, 100));
            EFAULTS(syscall(SYS_stat, "/", at));
            EFAULTS(syscall(SYS_getcwd, at, 4096));
            EFAULTS(syscall(SYS_uname, at));
            EFAULTS(syscall(SYS_pipe2, at, 0));
            EFAULTS(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, at));
            EFAULTS(syscall(SYS_getrandom, at, 16, 0));
            if (!writable_only) {
                EFAULTS(write(ends[1], at, 100));
                EFAULTS(syscall(SYS_open, at, O_RDONLY));
                EFAULTS(syscall(SYS_readlink, at, m, 100));
                EFAULTS(syscall(SYS_bind, socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), at, 20));
                if (at != NULL) {
                    EFAULTS(syscall(SYS_rt_sigprocmask, SIG_BLOCK, at, NULL, 8));
                    EFAULTS(syscall(SYS_rt_sigaction, SIGUSR1, at, NULL, 8));
                    EFAULTS(syscall(SYS_nanosleep, at, NULL));
                }
                struct iovec list[2] = { { at, 10 }, { m, 10 } };
                EFAULTS(writev(ends[1], list, 2));
            }
        }
        check(m, MIB, 1, "after calls with wrong pointers");
    }
    close(ends[1]);
    REQUIRE(read(ends[0], m, MIB) == 1000 && read(ends[0], m, 10) == 0);
    check(m, MIB, 1, "what wrong reads left in the pipe");
    MUST(mprotect(none, PAGE, PROT_READ));
    check(none, PAGE, 3, "the page without access");
    check(readonly, PAGE, 2, "the read-only page");
    return ok();
}
