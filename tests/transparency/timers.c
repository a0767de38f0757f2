/* Timers that notify by a new thread, by signal to one thread, and by CPU time, while memory comes and goes. */
#include "pressure.h"
#include <sys/time.h>
static unsigned char *m;
static volatile int by_thread, by_signal, by_cpu;
static void notify(union sigval value)
{
    REQUIRE(value.sival_int == 33);
    for (size_t i = 0; i < MIB; i += PAGE)
        REQUIRE(m[i] == pattern(i, 1));
    by_thread++;
}
static void handler(int signal, siginfo_t *info, void *context)
{
    (void)context;
    if (signal == SIGPROF)
        by_cpu++;
    else if (info->si_code == SI_TIMER && info->si_value.sival_int == 44)
        by_signal++;
}
int main(void)
{
    timer_t threads, signals;
    struct itimerspec every = { { 0, 20000000 }, { 0, 20000000 } }, off = { { 0, 0 }, { 0, 0 } };
    struct sigevent event = { .sigev_notify = SIGEV_THREAD, .sigev_notify_function = notify, .sigev_value = { 33 } };
    m = fresh(MIB);
    fill(m, MIB, 1);
    handle(SIGRTMIN + 4, handler, SA_RESTART);
    handle(SIGPROF, handler, SA_RESTART);
    MUST(timer_create(CLOCK_MONOTONIC, &event, &threads));
    event = (struct sigevent){ .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 4, .sigev_value = { 44 } };
    MUST(timer_create(CLOCK_MONOTONIC, &event, &signals));
    MUST(timer_settime(threads, 0, &every, NULL));
    MUST(timer_settime(signals, 0, &every, NULL));
    MUST(setitimer(ITIMER_PROF, &(struct itimerval){ { 0, 4000 }, { 0, 4000 } }, NULL));
    double start = now_s();
    while (now_s() - start < PATIENCE_S && (by_thread < 3 || by_signal < 5 || by_cpu < 5)) {
        evict(m, MIB);
        check(m, MIB, 1, "while timers run");
    }
    MUST(timer_settime(threads, 0, &off, NULL));
    MUST(timer_settime(signals, 0, &off, NULL));
    MUST(setitimer(ITIMER_PROF, &(struct itimerval){ { 0, 0 }, { 0, 0 } }, NULL));
    REQUIRE(by_thread >= 3 && by_signal >= 5 && by_cpu >= 5);
    return ok();
}
