/* Threads cancelled in blocking calls: their cleanup handlers run, nothing is lost that was read, mutexes come back. */
#include "pressure.h"
#include <semaphore.h>
static unsigned char *m;
static int ends[2];
static volatile int cleaned, entered;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;
static void cleanup(void *argument)
{
    (void)argument;
    check(m, MIB / 4, 1, "in a cleanup handler");
    cleaned++;
}
static void unlock(void *argument)
{
    ZERO(pthread_mutex_unlock(argument));
    cleaned++;
}
static void *body(void *argument)
{
    int kind = *(int *)argument;
    struct timespec time = { 30, 0 };
    pthread_cleanup_push(cleanup, NULL);
    entered = 1;
    switch (kind) {
    case 0:
        (void)!read(ends[0], m + MIB / 2, 1000);
        break;
    case 1:
        pause();
        break;
    case 2:
        nanosleep(&time, NULL);
        break;
    case 3:
        sem_wait(&semaphore);
        break;
    case 4:
        ZERO(pthread_mutex_lock(&mutex));
        pthread_cleanup_push(unlock, &mutex);
        for (;;)
            pthread_cond_wait(&condition, &mutex);
        pthread_cleanup_pop(0);
        break;
    case 5:
        for (;;) {
            check(m, MIB / 8, 1, "in a loop with a cancellation point");
            pthread_testcancel();
        }
    case 6:
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
        sleep_ms(60);
        entered = 2;
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
        read(ends[0], m + MIB / 2, 1000);
        break;
    case 7:
        while (write(open("/dev/null", O_WRONLY | O_CLOEXEC), m, MIB / 4) > 0)
            evict(m, PAGE);
    }
    fail("kind %d was not cancelled", kind);
    pthread_cleanup_pop(0);
    return NULL;
}
int main(void)
{
    m = fresh(MIB);
    fill(m, MIB, 1);
    /* The pipe gets a number that a file about this process had. */
    MUST(close(MUST(open("/proc/self/maps", O_RDONLY | O_CLOEXEC))));
    MUST(pipe(ends));
    MUST(sem_init(&semaphore, 0, 0));
    for (int kind = 0; kind < 8; kind++) {
        pthread_t thread;
        void *result;
        entered = cleaned = 0;
        evict(m, MIB);
        ZERO(pthread_create(&thread, NULL, body, &kind));
        while (!entered)
            sleep_ms(1);
        sleep_ms(20);
        ZERO(pthread_cancel(thread));
        ZERO(pthread_join(thread, &result));
        REQUIRE(result == PTHREAD_CANCELED && cleaned == (kind == 4 ? 2 : 1));
        REQUIRE(kind != 6 || entered == 2);
        ZERO(pthread_mutex_lock(&mutex));
        ZERO(pthread_mutex_unlock(&mutex));
    }
    REQUIRE(write(ends[1], "abc", 3) == 3 && read(ends[0], m, 3) == 3 && memcmp(m, "abc", 3) == 0);
    return ok();
}
