/* fork while other threads fault, map and unmap: each child finds all memory, and the other threads go on. */
#include "pressure.h"
static unsigned char *m;
static volatile int stop;
static void *busy(void *argument)
{
    unsigned seed = 10 + (unsigned)(uintptr_t)argument;
    unsigned char *own = fresh(2 * MIB);
    fill(own, 2 * MIB, seed);
    while (!stop) {
        check(own, 2 * MIB, seed, "a busy thread's memory");
        unsigned char *more = fresh(3 * MIB);
        for (size_t i = 0; i < 3 * MIB; i += 8)
            *(uint64_t *)(more + i) = mix(i);
        MUST(munmap(more, 3 * MIB));
    }
    return NULL;
}
static void reader(void *argument)
{
    (void)argument;
    check(m, 2 * MIB, 1, "memory in a child of a process with threads");
    m[9] ^= 1;
}
int main(void)
{
    pthread_t threads[3];
    m = fresh(2 * MIB);
    fill(m, 2 * MIB, 1);
    for (uintptr_t i = 0; i < 3; i++)
        ZERO(pthread_create(&threads[i], NULL, busy, (void *)i));
    for (int i = 0; i < 20; i++) {
        if (i % 4 == 0)
            evict(m, 2 * MIB);
        wait_ok(child_of(reader, NULL));
    }
    stop = 1;
    for (int i = 0; i < 3; i++)
        ZERO(pthread_join(threads[i], NULL));
    check(m, 2 * MIB, 1, "at the end");
    return ok();
}
