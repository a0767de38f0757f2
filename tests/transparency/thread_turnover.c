/* Hundreds of threads come and go, under pressure; nothing of them is left over that would run out. */
#include "pressure.h"
static unsigned char *m;
static void *body(void *argument)
{
    size_t start = (size_t)(uintptr_t)argument % 128 * PAGE;
    static __thread unsigned char local[2 * PAGE];
    check_zero(local, sizeof local, "thread-local memory");
    for (size_t i = start; i < start + 64 * PAGE; i++)
        REQUIRE(m[i] == pattern(i, 1));
    fill(local, sizeof local, 1);
    unsigned char *more = malloc(100000);
    fill(more, 100000, 2);
    check(more, 100000, 2, "a thread's block");
    free(more);
    check(local, sizeof local, 1, "thread-local memory");
    if ((uintptr_t)argument % 3 == 0)
        pthread_exit(argument);
    return argument;
}
int main(void)
{
    pthread_t threads[8];
    pthread_attr_t detached;
    m = fresh(MIB);
    fill(m, MIB, 1);
    ZERO(pthread_attr_init(&detached));
    ZERO(pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED));
    for (uintptr_t i = 0; i < 100; i++) {
        if (i % 25 == 0)
            evict(m, MIB);
        for (uintptr_t j = 0; j < 8; j++)
            ZERO(pthread_create(&threads[j], j == 7 ? &detached : NULL, body, (void *)(i * 8 + j)));
        for (uintptr_t j = 0; j < 7; j++) {
            void *result;
            ZERO(pthread_join(threads[j], &result));
            REQUIRE(result == (void *)(i * 8 + j));
        }
    }
    sleep_ms(50);
    check(m, MIB, 1, "at the end");
    return ok();
}
