/* A thread sends its process a signal while the first thread waits in a call whose own mask blocks the signal: the sender handles
 * it, before kill returns. */
#include "pressure.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { TIMES = 20 };

static atomic_int handled;

static void handler(int sig)
{
    (void)sig;
    handled++;
}

static unsigned char *memory;

/* Whether the first thread sleeps, and blocks the signal. */
static int is_waiting(void)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", getpid());
    int fd = open(path, O_RDONLY);
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    REQUIRE(bytes > 0);
    text[bytes] = 0;
    const char *state = strstr(text, "State:\t"), *mask = strstr(text, "SigBlk:\t");
    REQUIRE(state && mask);
    return state[7] == 'S' && (strtoull(mask + 8, NULL, 16) >> (SIGUSR1 - 1) & 1);
}

static void *sender(void *unused)
{
    (void)unused;
    while (!is_waiting())
        usleep(1000);
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
    ppoll(NULL, 0, NULL, &all);
    return 1;
}
