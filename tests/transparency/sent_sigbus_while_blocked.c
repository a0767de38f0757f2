/* A SIGBUS or SIGSYS that somebody sends waits while the program blocks it, and comes when it unblocks it. */
#include "pressure.h"
static volatile int ran, code;
static void handler(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    ran++;
    code = info->si_code;
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    static const int signals[] = { SIGBUS, SIGSYS };
    fill(m, MIB, 1);
    for (int i = 0; i < 2; i++) {
        sigset_t set, pending;
        ran = 0;
        handle(signals[i], handler, 0);
        sigemptyset(&set);
        sigaddset(&set, signals[i]);
        MUST(sigprocmask(SIG_BLOCK, &set, NULL));
        MUST(kill(getpid(), signals[i]));
        evict(m, MIB);
        check(m, MIB, 1, "with a signal pending");
        REQUIRE(ran == 0);
        MUST(sigpending(&pending));
        REQUIRE(sigismember(&pending, signals[i]) == 1);
        MUST(sigprocmask(SIG_UNBLOCK, &set, NULL));
        REQUIRE(ran == 1 && code == SI_USER);
    }
    return ok();
}
