/* A process that shares its parent's memory but is no thread of it, and runs at the same time. */
#include "clone_common.h"
static unsigned char *m;
static void body(void *argument)
{
    (void)argument;
    for (int round = 0; round < 4; round++)
        for (size_t i = 0; i < MIB; i++)
            if (m[i] != pattern(i, 1)) {
                __asm__ volatile("syscall" : : "a"(SYS_exit_group), "D"(9) : "rcx", "r11", "memory");
            }
    fill(m + MIB, MIB, 2);
}
int main(void)
{
    m = fresh(2 * MIB);
    fill(m, MIB, 1);
    for (int i = 0; i < 3; i++) {
        unsigned char *stack = fresh(STACK_SIZE);
        memset(m + MIB, 0, MIB);
        evict(m, 2 * MIB);
        long pid = raw_clone(CLONE_VM | CLONE_SETTLS | SIGCHLD, stack + STACK_SIZE, NULL, NULL, new_tls(), body, NULL);
        REQUIRE(pid > 0);
        if (i)
            evict(m, 2 * MIB);
        wait_ok((pid_t)pid);
        check(m + MIB, MIB, 2, "what the process wrote to the shared memory");
        check(m, MIB, 1, "shared memory");
    }
    return ok();
}
