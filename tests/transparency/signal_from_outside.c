/* A signal that another process sends, while the first thread waits and another is busy with system calls: the first one handles
 * it, with all its details, and its call is interrupted. Python relies on it for its interrupts. When the first thread has ended,
 * the other one handles it, and none is lost. */
#include "pressure.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

enum { TIMES = 60, MOST = TIMES - TIMES / 20 };

static atomic_int by_first, by_other, done, wrong;
static pid_t sender;

static void handler(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)context;
    if (syscall(SYS_gettid) == getpid())
        by_first++;
    else
        by_other++;
    if (info->si_pid != sender || info->si_uid != getuid() || info->si_code != SI_USER)
        wrong++;
}

static void pause_us(long us)
{
    struct timespec time = { us / 1000000, us % 1000000 * 1000 };
    nanosleep(&time, NULL);
}

static void *busy(void *unused)
{
    (void)unused;
    while (!done)
        getppid();
    return NULL;
}

/* Sends one each time it reads a byte. A byte of 1 means: at once. */
static void send_all(int from, pid_t to)
{
    char byte;
    while (read(from, &byte, 1) == 1) {
        if (byte == 0)
            pause_us(2000);
        ZERO(kill(to, SIGUSR1));
    }
}

static int pipes[2];

/* Runs when the first thread has ended. */
static void *rest(void *first)
{
    ZERO(pthread_join(*(pthread_t *)first, NULL));
    for (int i = 0; i < TIMES; i++) {
        int before = by_other;
        REQUIRE(write(pipes[1], "\1", 1) == 1);
        for (int ms = 0; by_other == before; ms++) {
            if (ms == 10000)
                fail("signal %d of those after the first thread's end is lost", i);
            pause_us(1000);
        }
    }
    done = 1;
    close(pipes[1]);
    int status;
    REQUIRE(waitpid(sender, &status, 0) == sender && status == 0);
    if (wrong)
        fail("%d with wrong details", atomic_load(&wrong));
    exit(ok());
}

int main(void)
{
    unsigned char *m = fresh(20 * MIB);
    fill(m, 20 * MIB, 3);
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
    ZERO(sigaction(SIGUSR1, &action, NULL));
    ZERO(pipe(pipes));
    sender = fork();
    REQUIRE(sender >= 0);
    if (sender == 0) {
        close(pipes[1]);
        send_all(pipes[0], getppid());
        _exit(0);
    }
    close(pipes[0]);
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, busy, NULL));
    int interrupted = 0;
    for (int i = 0; i < TIMES; i++) {
        REQUIRE(write(pipes[1], "\0", 1) == 1);
        struct timespec time = { 1, 0 };
        if (nanosleep(&time, NULL) != 0) {
            REQUIRE(errno == EINTR);
            interrupted++;
        }
    }
    /* A busy machine may keep the first thread from its wait now and then. */
    if (by_first < MOST || interrupted < MOST || by_first + by_other > TIMES)
        fail("by the first thread %d, by the other %d, interrupted %d of %d", atomic_load(&by_first),
             atomic_load(&by_other), interrupted, TIMES);
    check(m, 20 * MIB, 3, "after the signals");
    pthread_t self = pthread_self();
    ZERO(pthread_create(&thread, NULL, rest, &self));
    pthread_exit(NULL);
}
