/* A child with a copy of the memory that asks to share descriptors, on evicted memory; both sides go on. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "pressure.h"
#define LEN (2 * MIB)
int main(void)
{
    unsigned char *memory = fresh(LEN);
    for (int round = 0; round < 3; round++) {
        fill(memory, LEN, 1);
        evict(memory, LEN);
        long pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
        MUST(pid);
        if (pid == 0) {
            check(memory, LEN, 1, "memory in the child");
            fill(memory, LEN, 2);
            evict(memory, LEN);
            check(memory, LEN, 2, "memory that the child wrote");
            _exit(0);
        }
        int status;
        MUST(waitpid(pid, &status, 0));
        if (status != 0)
            fail("the child ended with status %x", status);
        check(memory, LEN, 1, "memory in the parent");
        fill(memory, LEN, 3);
        evict(memory, LEN);
        check(memory, LEN, 3, "memory that the parent wrote");
    }
    return ok();
}
