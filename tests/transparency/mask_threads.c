/* Threads that start with every signal blocked: inherited, or by an attribute. */
#include "pressure.h"
static void *body(void *argument)
{
    unsigned char *m = fresh(MIB);
    sigset_t now;
    (void)argument;
    ZERO(pthread_sigmask(SIG_BLOCK, NULL, &now));
    REQUIRE(sigismember(&now, SIGBUS) == 1 && sigismember(&now, SIGUSR1) == 1);
    fill(m, MIB, 1);
    evict(m, MIB);
    check(m, MIB, 1, "in a thread with all signals blocked");
    return NULL;
}
int main(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    ZERO(pthread_attr_init(&attributes));
    ZERO(pthread_attr_setsigmask_np(&attributes, &all));
    ZERO(pthread_create(&thread, &attributes, body, NULL));
    ZERO(pthread_join(thread, NULL));
    ZERO(pthread_sigmask(SIG_SETMASK, &all, NULL));
    ZERO(pthread_create(&thread, NULL, body, NULL));
    ZERO(pthread_join(thread, NULL));
    ZERO(pthread_sigmask(SIG_SETMASK, &none, NULL));
    return ok();
}
