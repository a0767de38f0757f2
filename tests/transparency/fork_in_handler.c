/* fork is allowed in a handler: the child finds evicted memory there too. */
#include "pressure.h"
static unsigned char *m;
static volatile int forked;
static void handler(int signal)
{
    (void)signal;
    pid_t pid = MUST(fork());
    if (pid == 0) {
        check(m, MIB, 1, "in a child forked in a handler");
        _exit(0);
    }
    wait_ok(pid);
    forked++;
}
int main(void)
{
    m = fresh(MIB);
    fill(m, MIB, 1);
    signal(SIGUSR1, handler);
    for (int i = 0; i < 3; i++) {
        evict(m, MIB);
        raise(SIGUSR1);
        check(m, MIB, 1, "after a fork in a handler");
    }
    REQUIRE(forked == 3);
    return ok();
}
