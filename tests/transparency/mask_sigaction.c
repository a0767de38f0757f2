/* A handler whose mask is full still reaches memory, and sees its own mask. */
#include "pressure.h"
static unsigned char *m;
static int ran;
static void handler(int signal)
{
    sigset_t now;
    (void)signal;
    MUST(sigprocmask(SIG_BLOCK, NULL, &now));
    REQUIRE(sigismember(&now, SIGBUS) == 1 && sigismember(&now, SIGUSR2) == 1);
    check(m, MIB, 1, "in a handler with a full mask");
    ran++;
}
int main(void)
{
    struct sigaction action = { .sa_handler = handler }, old;
    m = fresh(MIB);
    fill(m, MIB, 1);
    sigfillset(&action.sa_mask);
    MUST(sigaction(SIGUSR1, &action, NULL));
    MUST(sigaction(SIGUSR1, NULL, &old));
    REQUIRE(sigismember(&old.sa_mask, SIGBUS) == 1 && sigismember(&old.sa_mask, SIGSYS) == 1 && old.sa_handler == handler);
    for (int i = 0; i < 3; i++) {
        evict(m, MIB);
        raise(SIGUSR1);
    }
    sigset_t now;
    MUST(sigprocmask(SIG_BLOCK, NULL, &now));
    REQUIRE(ran == 3 && sigismember(&now, SIGBUS) == 0);
    return ok();
}
