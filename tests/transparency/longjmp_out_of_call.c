/* A handler jumps out of a blocking call: the classic timeout by alarm. The next call works as if nothing was. */
#include "pressure.h"
#include <sys/time.h>
static sigjmp_buf jump;
static void handler(int signal)
{
    (void)signal;
    siglongjmp(jump, 1);
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    int ends[2];
    MUST(pipe(ends));
    fill(m, MIB, 1);
    struct itimerval timer = { { 0, 0 }, { 0, 20000 } };
    for (volatile int i = 0; i < 12; i++) {
        signal(SIGALRM, handler);
        if (i % 4 == 0)
            evict(m, MIB);
        if (sigsetjmp(jump, 1) == 0) {
            MUST(setitimer(ITIMER_REAL, &timer, NULL));
            if (i % 3 == 0)
                (void)!read(ends[0], m, MIB);
            else if (i % 3 == 1)
                pause();
            else
                for (;;)
                    for (size_t at = 0; at < MIB; at += 64)
                        REQUIRE(m[at] == pattern(at, 1));
            fail("the wait ended by itself");
        }
        unsigned char byte = 'y';
        REQUIRE(write(ends[1], &byte, 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == 'y');
    }
    check(m, MIB, 1, "after jumps out of calls");
    return ok();
}
