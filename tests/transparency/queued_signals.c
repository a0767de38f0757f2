/* Real-time signals sent while blocked all come, in order, with their values; nested handlers return properly. */
#include "pressure.h"
static volatile int next;
static unsigned char *m;
static void handler(int signal, siginfo_t *info, void *context)
{
    (void)context;
    REQUIRE(signal == SIGRTMIN + 1 && info->si_code == SI_QUEUE && info->si_value.sival_int == next);
    REQUIRE(m[next * 3 * PAGE] == pattern(next * 3 * PAGE, 1));
    next++;
}
static volatile int depth, deepest;
static void nested(int signal, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    unsigned char local[PAGE];
    fill(local, PAGE, depth);
    if (++depth > deepest)
        deepest = depth;
    if (depth < 8)
        raise(signal);
    depth--;
    check(local, PAGE, depth, "a nested handler's frame");
}
int main(void)
{
    sigset_t set;
    m = fresh(MIB);
    fill(m, MIB, 1);
    handle(SIGRTMIN + 1, handler, 0);
    handle(SIGUSR1, nested, SA_NODEFER);
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    MUST(sigprocmask(SIG_BLOCK, &set, NULL));
    for (int i = 0; i < 60; i++)
        MUST(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){ .sival_int = i }));
    evict(m, MIB);
    REQUIRE(next == 0);
    MUST(sigprocmask(SIG_UNBLOCK, &set, NULL));
    REQUIRE(next == 60);
    raise(SIGUSR1);
    REQUIRE(deepest == 8 && depth == 0);
    return ok();
}
