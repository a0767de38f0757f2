/* Threads send one that faults nothing but SIGBUS, as fast as they can. */
#include "pressure.h"

enum { SENDERS = 3, SECONDS = 3 };
#define BYTES (2 * MIB)

static _Atomic unsigned arrived, stop;
static pthread_t target;

static void bus(int signal)
{
    (void)signal;
    arrived++;
}

static void *send_all(void *to_process)
{
    while (!stop)
        if (to_process) {
            MUST(kill(getpid(), SIGBUS));
        } else {
            ZERO(pthread_kill(target, SIGBUS));
        }
    return NULL;
}

int main(void)
{
    struct sigaction action = { .sa_handler = bus, .sa_flags = SA_RESTART };
    MUST(sigaction(SIGBUS, &action, NULL));
    target = pthread_self();
    unsigned char *m = fresh(BYTES);
    fill(m, BYTES, 1);
    pthread_t senders[SENDERS];
    for (int i = 0; i < SENDERS; i++)
        ZERO(pthread_create(&senders[i], NULL, send_all, i == SENDERS - 1 ? &action : NULL));
    for (time_t end = time(NULL) + SECONDS; time(NULL) < end;) {
        MUST(madvise(m, BYTES, MADV_PAGEOUT));
        check(m, BYTES, 1, "in a storm");
    }
    stop = 1;
    for (int i = 0; i < SENDERS; i++)
        ZERO(pthread_join(senders[i], NULL));
    REQUIRE(arrived > 0);
    return ok();
}
