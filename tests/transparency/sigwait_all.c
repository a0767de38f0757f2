/* sigwaitinfo and signalfd on a full set take the signal that was sent, while faults go on. */
#include "pressure.h"
#include <sys/signalfd.h>
int main(void)
{
    unsigned char *m = fresh(MIB);
    sigset_t all;
    siginfo_t *info = (siginfo_t *)(m + 16 * PAGE);
    fill(m, MIB, 1);
    sigfillset(&all);
    MUST(sigprocmask(SIG_SETMASK, &all, NULL));
    union sigval value = { .sival_int = 4711 };
    MUST(sigqueue(getpid(), SIGRTMIN + 3, value));
    evict(m, MIB);
    REQUIRE(sigwaitinfo(&all, info) == SIGRTMIN + 3 && info->si_value.sival_int == 4711);
    int fd = MUST(signalfd(-1, &all, SFD_CLOEXEC));
    MUST(kill(getpid(), SIGUSR2));
    evict(m, MIB);
    struct signalfd_siginfo *got = (struct signalfd_siginfo *)(m + PAGE - 8);
    REQUIRE(read(fd, got, sizeof *got) == sizeof *got && got->ssi_signo == SIGUSR2);
    struct timespec *time = (struct timespec *)(m + 40 * PAGE);
    evict(m, MIB);
    *time = (struct timespec){ 0, 20000000 };
    REQUIRE(sigtimedwait(&all, NULL, time) == -1 && errno == EAGAIN);
    return ok();
}
