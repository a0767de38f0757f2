/* A second thread in a small process; and growth in small steps, by malloc and realloc. */
#include "pressure.h"
static unsigned char *heap[200];
static void *work(void *arg)
{
    for (int i = 0; i < 200; i++)
        check(heap[i], 5000, i, "the heap, seen by a thread");
    unsigned char *own = malloc(4 * MIB);
    fill(own, 4 * MIB, (int)(intptr_t)arg);
    check(own, 4 * MIB, (int)(intptr_t)arg, "a thread's memory");
    free(own);
    return arg;
}
int main(void)
{
    for (int i = 0; i < 200; i++) {
        heap[i] = malloc(5000);
        fill(heap[i], 5000, i);
    }
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++)
        ZERO(pthread_create(&threads[i], NULL, work, (void *)i));
    for (intptr_t i = 0; i < 4; i++) {
        void *answer;
        ZERO(pthread_join(threads[i], &answer));
        REQUIRE((intptr_t)answer == i);
    }
    size_t bytes = 64 << 10;
    unsigned char *m = malloc(bytes);
    fill(m, bytes, 7);
    while (bytes < 24 * MIB) {
        m = realloc(m, 2 * bytes);
        check(m, bytes, 7, "memory that was made larger");
        bytes *= 2;
        fill(m, bytes, 7);
    }
    evict(m, bytes);
    check(m, bytes, 7, "large memory");
    for (int i = 0; i < 200; i++)
        check(heap[i], 5000, i, "the heap at the end");
    return ok();
}
