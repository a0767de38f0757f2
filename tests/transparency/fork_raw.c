/* fork, vfork-like clone and clone by bare system calls, past the C library. */
#include "pressure.h"
int main(void)
{
    unsigned char *m = fresh(2 * MIB);
    fill(m, 2 * MIB, 1);
    for (int i = 0; i < 4; i++) {
        evict(m, 2 * MIB);
        long pid = i % 2 ? syscall(SYS_fork) : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
            check(m, 2 * MIB, 1, "in a child of a raw fork");
            fill(m, MIB, 2);
            evict(m, 2 * MIB);
            check(m, MIB, 2, "what it wrote");
            _exit(0);
        }
        REQUIRE(pid > 0);
        wait_ok((pid_t)pid);
        check(m, 2 * MIB, 1, "in the parent");
    }
    return ok();
}
