/* fork under a storm of signals: it is interrupted again and again, and in the end succeeds. */
#include "pressure.h"
#include <sys/time.h>
static volatile unsigned ticks;
static void handler(int signal)
{
    (void)signal;
    ticks++;
}
int main(void)
{
    struct itimerval timer = { { 0, 2000 }, { 0, 2000 } }, off = { { 0, 0 }, { 0, 0 } };
    unsigned char *m = fresh(2 * MIB);
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    fill(m, 2 * MIB, 1);
    MUST(sigaction(SIGALRM, &action, NULL));
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
    for (int i = 0; i < 12; i++) {
        if (i % 4 == 0)
            evict(m, 2 * MIB);
        pid_t pid = MUST(fork());
        if (pid == 0) {
            check(m, 2 * MIB, 1, "in a child");
            _exit(0);
        }
        wait_ok(pid);
    }
    MUST(setitimer(ITIMER_REAL, &off, NULL));
    check(m, 2 * MIB, 1, "at the end");
    REQUIRE(ticks > 5);
    return ok();
}
