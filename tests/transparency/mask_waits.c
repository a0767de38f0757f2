/* ppoll, pselect, epoll_pwait and sigsuspend with every signal but one blocked: the handler of that one reaches memory
 * under the mask of the wait, and the old mask is back afterwards. */
#include "pressure.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
static unsigned char *m;
static int ran;
static void handler(int signal)
{
    (void)signal;
    check(m, 256 * 1024, 1, "in a handler during a wait");
    ran++;
}
int main(void)
{
    struct sigaction action = { .sa_handler = handler };
    struct itimerval timer = { { 0, 0 }, { 0, 30000 } };
    sigset_t wait, alarm_only, now;
    m = fresh(256 * 1024);
    fill(m, 256 * 1024, 1);
    sigfillset(&action.sa_mask);
    MUST(sigaction(SIGALRM, &action, NULL));
    sigfillset(&wait);
    sigdelset(&wait, SIGALRM);
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    MUST(sigprocmask(SIG_SETMASK, &alarm_only, NULL));
    int epoll = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event;
    struct timespec long_time = { 20, 0 };
    for (int kind = 0; kind < 4; kind++) {
        evict(m, 256 * 1024);
        MUST(setitimer(ITIMER_REAL, &timer, NULL));
        int result = kind == 0 ? ppoll(NULL, 0, &long_time, &wait)
                     : kind == 1 ? pselect(0, NULL, NULL, NULL, &long_time, &wait)
                     : kind == 2 ? epoll_pwait(epoll, &event, 1, 20000, &wait)
                                 : sigsuspend(&wait);
        REQUIRE(result == -1 && errno == EINTR && ran == kind + 1);
        MUST(sigprocmask(SIG_BLOCK, NULL, &now));
        REQUIRE(sigismember(&now, SIGALRM) == 1 && sigismember(&now, SIGBUS) == 0 && sigismember(&now, SIGUSR1) == 0);
        check(m, 256 * 1024, 1, "after a wait");
    }
    return ok();
}
