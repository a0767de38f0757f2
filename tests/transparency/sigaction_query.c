/* What sigaction and signal report for the signals that Ebb uses is what the program set. */
#include "pressure.h"
static void handler(int signal)
{
    (void)signal;
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    static const int signals[] = { SIGBUS, SIGSYS, SIGSEGV, SIGTRAP };
    fill(m, MIB, 1);
    for (int i = 0; i < 4; i++) {
        struct sigaction set = { .sa_handler = handler, .sa_flags = SA_NODEFER | SA_RESTART }, old;
        MUST(sigaction(signals[i], NULL, &old));
        REQUIRE(old.sa_handler == SIG_DFL && !(old.sa_flags & SA_SIGINFO));
        REQUIRE(signal(signals[i], SIG_IGN) == SIG_DFL);
        evict(m, MIB);
        check(m, MIB, 1, "with the signal ignored");
        REQUIRE(kill(getpid(), signals[i]) == 0);
        sigaddset(&set.sa_mask, SIGUSR1);
        MUST(sigaction(signals[i], &set, &old));
        REQUIRE(old.sa_handler == SIG_IGN);
        MUST(sigaction(signals[i], NULL, &old));
        REQUIRE(old.sa_handler == handler && (old.sa_flags & (SA_NODEFER | SA_RESTART | SA_SIGINFO)) == (SA_NODEFER | SA_RESTART));
        REQUIRE(sigismember(&old.sa_mask, SIGUSR1) == 1 && sigismember(&old.sa_mask, SIGUSR2) == 0);
        REQUIRE(signal(signals[i], SIG_DFL) == handler);
    }
    REQUIRE(sigaction(SIGKILL, &(struct sigaction){ .sa_handler = handler }, NULL) == -1 && errno == EINVAL);
    check(m, MIB, 1, "at the end");
    return ok();
}
