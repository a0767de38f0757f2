/* A thread sends its process a signal while the first thread waits in a call whose own mask blocks the signal: the sender handles
 * it, before kill returns. */
#include "pressure.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum { TIMES = 20 };

static atomic_int handled;

static void handler(int sig)
{
    (void)sig;
    handled++;
}

static unsigned char *memory;

static void *sender(void *wait)
{
    (void)wait;
    struct timespec time = { 0, 200 * 1000 * 1000 };
    nanosleep(&time, NULL);
    for (int i = 0; i < TIMES; i++) {
        ZERO(kill(getpid(), SIGUSR1));
        if (handled != i + 1)
            fail("after signal %d, %d were handled", i + 1, atomic_load(&handled));
    }
    check(memory, 20 * MIB, 3, "after the signals");
    exit(ok());
}

int main(void)
{
    memory = fresh(20 * MIB);
    fill(memory, 20 * MIB, 3);
    struct sigaction action = { .sa_handler = handler };
    ZERO(sigaction(SIGUSR1, &action, NULL));
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, sender, NULL));
    sigset_t all;
    ZERO(sigfillset(&all));
    ppoll(NULL, 0, &(struct timespec){ 0, 220 * 1000 * 1000 }, &all);
    sigsuspend(&all);
    return 1;
}
