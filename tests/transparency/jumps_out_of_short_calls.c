/* Calls that take a microsecond, left at any instruction by a handler that jumps, thousands of times. What such a call
 * pinned is let go later: its buffers can be moved out again, and calls go on to work. */
#include "pressure.h"
#include <sys/time.h>
#define JUMPS 4000
static sigjmp_buf place;
static volatile sig_atomic_t armed;
static void on_alarm(int signal)
{
    (void)signal;
    if (armed) {
        armed = 0;
        siglongjmp(place, 1);
    }
}
int main(void)
{
    size_t len = 2 * MIB;
    unsigned char *m = fresh(len);
    int sink = MUST(open("/dev/null", O_WRONLY)), source = MUST(open("/dev/zero", O_RDONLY));
    volatile long calls = 0, jumps = 0;
    fill(m, len, 5);
    signal(SIGALRM, on_alarm);
    while (jumps < JUMPS) {
        if (sigsetjmp(place, 1)) {
            jumps++;
            continue;
        }
        struct itimerval soon = { { 0, 400 }, { 0, 60 + mix(jumps) % 200 } };
        MUST(setitimer(ITIMER_REAL, &soon, NULL));
        armed = 1;
        for (;;) {
            unsigned char *at = m + mix(calls) % (len - PAGE);
            calls++;
            if (write(sink, at, 500) != 500 || pread(source, m + len - PAGE, 8, 0) != 8)
                fail("a call after %ld jumps", (long)jumps);
        }
    }
    struct itimerval never = { { 0, 0 }, { 0, 0 } };
    MUST(setitimer(ITIMER_REAL, &never, NULL));
    for (int round = 0; round < 3; round++) {
        evict(m, len);
        if (managed() && absent(m, len) < len / PAGE / 2)
            fail("only %zu of %zu pages can be moved out", absent(m, len), len / PAGE);
        REQUIRE(write(sink, m, len) == (ssize_t)len);
    }
    check(m, len - PAGE, 5, "the buffer");
    return ok();
}
