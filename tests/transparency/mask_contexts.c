/* Masks that come back by other ways: from a handler's context, from setcontext, from siglongjmp. */
#include "pressure.h"
static sigjmp_buf jump;
static void handler(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    sigfillset(&((ucontext_t *)context)->uc_sigmask);
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    sigset_t all, none, now;
    volatile int round = 0;
    sigfillset(&all);
    sigemptyset(&none);
    fill(m, MIB, 1);
    handle(SIGUSR1, handler, 0);
    raise(SIGUSR1);
    evict(m, MIB);
    check(m, MIB, 1, "after a handler that blocks all on return");
    MUST(sigprocmask(SIG_BLOCK, NULL, &now));
    REQUIRE(sigismember(&now, SIGUSR2) == 1);

    ucontext_t context;
    MUST(getcontext(&context));
    if (round++ == 0) {
        MUST(sigprocmask(SIG_SETMASK, &none, NULL));
        setcontext(&context);
    }
    evict(m, MIB);
    check(m, MIB, 1, "after setcontext with all blocked");

    MUST(sigprocmask(SIG_SETMASK, &all, NULL));
    if (sigsetjmp(jump, 1) == 0) {
        MUST(sigprocmask(SIG_SETMASK, &none, NULL));
        siglongjmp(jump, 1);
    }
    evict(m, MIB);
    check(m, MIB, 1, "after siglongjmp with all blocked");
    MUST(sigprocmask(SIG_BLOCK, NULL, &now));
    REQUIRE(sigismember(&now, SIGUSR2) == 1);
    return ok();
}
