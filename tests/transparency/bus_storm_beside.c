/* Another process sends one that faults nothing but SIGBUS, as fast as its threads can. */
#include "pressure.h"

enum { SENDERS = 3, SECONDS = 2 };
#define BYTES (2 * MIB)

static _Atomic unsigned arrived;
static pid_t target;

static void bus(int signal)
{
    (void)signal;
    arrived++;
}

static void *send_all(void *unused)
{
    while (kill(target, SIGBUS) == 0)
        ;
    return unused;
}

static void faults(int ready)
{
    unsigned char *m = fresh(BYTES);
    fill(m, BYTES, 1);
    MUST(write(ready, "", 1));
    for (time_t end = time(NULL) + SECONDS; time(NULL) < end;) {
        MUST(madvise(m, BYTES, MADV_PAGEOUT));
        check(m, BYTES, 1, "in a storm");
    }
    REQUIRE(arrived > 0);
    _exit(0);
}

int main(void)
{
    struct sigaction action = { .sa_handler = bus, .sa_flags = SA_RESTART };
    MUST(sigaction(SIGBUS, &action, NULL));
    int ready[2];
    MUST(pipe(ready));
    target = MUST(fork());
    if (target == 0)
        faults(ready[1]);
    char byte;
    REQUIRE(MUST(read(ready[0], &byte, 1)) == 1);
    pthread_t senders[SENDERS];
    for (int i = 0; i < SENDERS; i++)
        ZERO(pthread_create(&senders[i], NULL, send_all, NULL));
    int status;
    /* The process stays until all threads know that it has ended. */
    siginfo_t info;
    MUST(waitid(P_PID, target, &info, WEXITED | WNOWAIT));
    MUST(waitpid(target, &status, 0));
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int i = 0; i < SENDERS; i++)
        ZERO(pthread_join(senders[i], NULL));
    return ok();
}
