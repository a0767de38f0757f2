/* Signals are queued for a thread whose own faults end in its handler of SIGBUS, which blocks them: each arrives once, in order. */
#include "pressure.h"

enum { SECONDS = 2, AHEAD_MAX = 3 };

static _Atomic int next, wrong, stop;
static int sent;
static pthread_t target;
static sigjmp_buf again;

static void queued(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    wrong += info->si_value.sival_int != next;
    next++;
}

static void bus(int signal)
{
    siglongjmp(again, signal);
}

static void *send_all(void *unused)
{
    while (!stop)
        if (sent - next <= AHEAD_MAX
            && pthread_sigqueue(target, SIGRTMIN + 1, (union sigval){ .sival_int = sent }) == 0)
            sent++;
    return unused;
}

int main(void)
{
    struct sigaction on_queued = { .sa_sigaction = queued, .sa_flags = SA_SIGINFO | SA_RESTART };
    MUST(sigaction(SIGRTMIN + 1, &on_queued, NULL));
    struct sigaction on_bus = { .sa_handler = bus };
    MUST(sigaddset(&on_bus.sa_mask, SIGRTMIN + 1));
    MUST(sigaction(SIGBUS, &on_bus, NULL));
    int fd = MUST(memfd_create("short", MFD_CLOEXEC));
    MUST(ftruncate(fd, PAGE));
    /* Its second page is beyond the end of the file. */
    volatile char *m = MUST(mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    target = pthread_self();
    pthread_t sender;
    ZERO(pthread_create(&sender, NULL, send_all, NULL));
    for (time_t end = time(NULL) + SECONDS; time(NULL) < end;)
        for (volatile int i = 0; i < 100; i++)
            if (sigsetjmp(again, 1) == 0)
                m[PAGE] = 1;
    stop = 1;
    ZERO(pthread_join(sender, NULL));
    while (next < sent)
        usleep(1000);
    REQUIRE(wrong == 0 && sent > 0);
    return ok();
}
