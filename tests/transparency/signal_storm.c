/* A timer fires every millisecond while the program faults and calls; the handler uses evicted memory as well. */
#include "pressure.h"
#include <sys/time.h>
static unsigned char *m, *h;
static volatile unsigned ticks;
static void handler(int signal)
{
    int saved = errno;
    (void)signal;
    ticks++;
    size_t page = ticks % 256;
    REQUIRE(h[page * PAGE + 9] == pattern(page * PAGE + 9, 2));
    h[page * PAGE + 9] ^= 0xff;
    h[page * PAGE + 9] ^= 0xff;
    errno = saved;
}
int main(void)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    struct itimerval timer = { { 0, 1000 }, { 0, 1000 } }, off = { { 0, 0 }, { 0, 0 } };
    m = fresh(2 * MIB);
    h = fresh(MIB);
    fill(m, 2 * MIB, 1);
    fill(h, MIB, 2);
    MUST(sigaction(SIGALRM, &action, NULL));
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
    int fd = MUST(memfd_create("sink", MFD_CLOEXEC));
    for (int i = 0; i < 5; i++) {
        evict(m, 2 * MIB);
        check(m, MIB, 1, "during a storm of signals");
        REQUIRE(pwrite(fd, m, 2 * MIB, 0) == (ssize_t)(2 * MIB));
        evict(m, 2 * MIB);
        REQUIRE(pread(fd, m, 2 * MIB, 0) == (ssize_t)(2 * MIB));
        check(m, 2 * MIB, 1, "after I/O during a storm of signals");
    }
    MUST(setitimer(ITIMER_REAL, &off, NULL));
    check(h, MIB, 2, "the handler's memory");
    REQUIRE(ticks > 20);
    return ok();
}
