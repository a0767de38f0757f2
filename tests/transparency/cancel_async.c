/* Asynchronous cancellation of threads that compute on evicted memory, or wait in a call. */
#include "pressure.h"
static unsigned char *m;
static int ends[2];
static volatile int entered;
static volatile unsigned sum;
static void *body(void *argument)
{
    int kind = *(int *)argument;
    ZERO(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL));
    entered = 1;
    if (kind % 2)
        for (;;)
            for (size_t i = 0; i < MIB; i += 64)
                sum += m[i];
    for (;;) {
        char byte;
        syscall(SYS_read, ends[0], &byte, 1);
    }
    return NULL;
}
int main(void)
{
    m = fresh(MIB);
    fill(m, MIB, 1);
    MUST(pipe(ends));
    for (int kind = 0; kind < 12; kind++) {
        pthread_t thread;
        void *result;
        entered = 0;
        if (kind % 4 == 0)
            evict(m, MIB);
        ZERO(pthread_create(&thread, NULL, body, &kind));
        while (!entered)
            sleep_ms(1);
        sleep_ms(kind);
        if (kind % 4 == 1)
            evict(m, MIB);
        ZERO(pthread_cancel(thread));
        ZERO(pthread_join(thread, &result));
        REQUIRE(result == PTHREAD_CANCELED);
    }
    check(m, MIB, 1, "after cancellations");
    return ok();
}
