/* Many threads fault on the same evicted pages at once; each sees them whole, and no write is lost. */
#include "pressure.h"
#define LEN (4 * MIB)
#define THREADS 6
static unsigned char *m;
static pthread_barrier_t barrier;
static void *body(void *argument)
{
    size_t mine = (uintptr_t)argument;
    for (int round = 0; round < 4; round++) {
        int result = pthread_barrier_wait(&barrier);
        REQUIRE(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
        /* Every page at once with the others; eight bytes of each page are this thread's. */
        for (size_t page = 0; page < LEN / PAGE; page++) {
            unsigned char *at = m + page * PAGE;
            uint64_t *own = (uint64_t *)(at + 64 * mine);
            if (*own != (uint64_t)round * 1000 + page + mine)
                fail("thread %zu, page %zu: %#lx", mine, page, *own);
            *own = (uint64_t)(round + 1) * 1000 + page + mine;
            REQUIRE(at[4000] == (unsigned char)page);
        }
        result = pthread_barrier_wait(&barrier);
        REQUIRE(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
        if (result == PTHREAD_BARRIER_SERIAL_THREAD)
            evict(m, LEN);
    }
    return NULL;
}
int main(void)
{
    pthread_t threads[THREADS];
    m = fresh(LEN);
    for (size_t page = 0; page < LEN / PAGE; page++) {
        memset(m + page * PAGE, (int)page, PAGE);
        for (size_t mine = 0; mine < THREADS; mine++)
            *(uint64_t *)(m + page * PAGE + 64 * mine) = page + mine;
    }
    evict(m, LEN);
    ZERO(pthread_barrier_init(&barrier, NULL, THREADS));
    for (uintptr_t i = 0; i < THREADS; i++)
        ZERO(pthread_create(&threads[i], NULL, body, (void *)i));
    for (int i = 0; i < THREADS; i++)
        ZERO(pthread_join(threads[i], NULL));
    return ok();
}
