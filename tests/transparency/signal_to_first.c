/* A signal that a thread sends to its process, while the first thread waits: that one handles it, and its call is interrupted,
 * although the sender goes on with system calls at once. Python relies on it for its interrupts. */
#include "pressure.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

enum { TIMES = 60, MOST = TIMES - TIMES / 20 };

static atomic_int waits, by_first;

static void handler(int sig)
{
    (void)sig;
    if (syscall(SYS_gettid) == getpid())
        by_first++;
}

static void pause_us(long us)
{
    struct timespec time = { us / 1000000, us % 1000000 * 1000 };
    nanosleep(&time, NULL);
}

static void *sender(void *unused)
{
    (void)unused;
    for (int i = 0; i < TIMES; i++) {
        /* The first thread may be ahead: on a busy machine, a wait of its may end before its signal comes. */
        while (waits <= i)
            pause_us(100);
        /* The first thread gets as far as its wait. */
        pause_us(2000);
        /* Every other one to the process's group, which is all its own. */
        ZERO(kill(i % 2 == 0 ? getpid() : -getpid(), SIGUSR1));
        for (int j = 0; j < 50; j++)
            getppid();
    }
    return NULL;
}

int main(void)
{
    if (getpgrp() != getpid())
        ZERO(setpgid(0, 0));
    unsigned char *m = fresh(20 * MIB);
    fill(m, 20 * MIB, 3);
    struct sigaction action = { .sa_handler = handler };
    ZERO(sigaction(SIGUSR1, &action, NULL));
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, sender, NULL));
    int interrupted = 0;
    for (int i = 0; i < TIMES; i++) {
        struct timespec time = { 1, 0 };
        waits++;
        if (nanosleep(&time, NULL) != 0) {
            REQUIRE(errno == EINTR);
            interrupted++;
        }
    }
    ZERO(pthread_join(thread, NULL));
    /* A busy machine may keep the first thread from its wait now and then. */
    if (by_first < MOST || interrupted < MOST)
        fail("by the first thread %d, interrupted %d of %d", atomic_load(&by_first), interrupted, TIMES);
    check(m, 20 * MIB, 3, "after the signals");
    return ok();
}
