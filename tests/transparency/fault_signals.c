/* Threads fault all the time while others send them signals: each signal that is queued arrives once, in order, with its value, and
 * with the mask that it should have. A storm of SIGBUS from outside disturbs no fault. */
#include "pressure.h"
#include <stdatomic.h>

#define THREADS 3
#define SIGNALS 4000
#define PIECE (2 * MIB)

static pthread_t threads[THREADS];
static _Atomic unsigned arrived[THREADS], sent_bus, got_bus;
static _Thread_local int mine = -1;
static _Thread_local volatile int inside;
static _Atomic int stop, begun;

static void queued(int signal, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    REQUIRE(signal == SIGRTMIN + 1 && info->si_code == SI_QUEUE && mine >= 0);
    /* The handler blocks itself, and interrupts code that does not. */
    REQUIRE(!inside && !sigismember(&uc->uc_sigmask, SIGRTMIN + 1) && !sigismember(&uc->uc_sigmask, SIGUSR2));
    inside = 1;
    sigset_t now;
    ZERO(pthread_sigmask(SIG_BLOCK, NULL, &now));
    REQUIRE(sigismember(&now, SIGRTMIN + 1) && sigismember(&now, SIGUSR2) && !sigismember(&now, SIGUSR1));
    REQUIRE(info->si_value.sival_int == (int)arrived[mine]);
    arrived[mine]++;
    inside = 0;
}

static void bus(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    REQUIRE(info->si_code <= 0);
    got_bus++;
}

static void *work(void *argument)
{
    mine = (int)(long)argument;
    begun++;
    unsigned char *m = fresh(PIECE);
    fill(m, PIECE, mine + 1);
    while (!stop) {
        evict(m, PIECE);
        check(m, PIECE, mine + 1, "while signals arrive");
    }
    return NULL;
}

static void *storm(void *argument)
{
    (void)argument;
    while (!stop) {
        sent_bus++;
        ZERO(pthread_kill(threads[0], SIGBUS));
        if (sent_bus % 64 == 0)
            usleep(50);
    }
    return NULL;
}

int main(void)
{
    struct sigaction action = { .sa_sigaction = queued, .sa_flags = SA_SIGINFO | SA_RESTART };
    MUST(sigaddset(&action.sa_mask, SIGUSR2));
    MUST(sigaction(SIGRTMIN + 1, &action, NULL));
    struct sigaction on_bus = { .sa_sigaction = bus, .sa_flags = SA_SIGINFO | SA_RESTART };
    MUST(sigaction(SIGBUS, &on_bus, NULL));
    for (long i = 0; i < THREADS; i++)
        ZERO(pthread_create(&threads[i], NULL, work, (void *)i));
    while (begun < THREADS)
        usleep(100);
    pthread_t stormer;
    ZERO(pthread_create(&stormer, NULL, storm, NULL));
    for (int n = 0; n < SIGNALS; n++) {
        for (int i = 0; i < THREADS; i++) {
            while (pthread_sigqueue(threads[i], SIGRTMIN + 1, (union sigval){ .sival_int = n }) != 0)
                usleep(100);
        }
        if (n % 16 == 0)
            usleep(200);
    }
    for (int i = 0; i < THREADS; i++)
        while (arrived[i] < SIGNALS)
            usleep(1000);
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        ZERO(pthread_join(threads[i], NULL));
    ZERO(pthread_join(stormer, NULL));
    REQUIRE(got_bus > 0);
    return ok();
}
