/* Threads that wait in calls with large buffers: together these are more than fits, and what waits must not keep the others from
 * going on. */
#include "pressure.h"
#include <stdatomic.h>
#include <sys/uio.h>
#define READERS 40
#define LEN (900 * (size_t)1024)

static int pipes[READERS][2];
static unsigned char *buffers[READERS];
static atomic_int waiting;

static size_t get(int i, unsigned char *at, size_t len)
{
    /* One large buffer, two, or many none of which is large. */
    int count = (int[]){ 1, 2, 15 }[i % 3];
    struct iovec pieces[15];
    for (int k = 0; k < count; k++)
        pieces[k] = (struct iovec){ at + len * k / count, len * (k + 1) / count - len * k / count };
    ssize_t n = count == 1 ? read(pipes[i][0], at, len) : readv(pipes[i][0], pieces, count);
    REQUIRE(n > 0);
    return n;
}

static void *reader(void *argument)
{
    int i = (int)(intptr_t)argument;
    size_t done = 0;
    /* Resident, for some, so that nothing but the pin is needed. */
    if (i % 2 == 0)
        memset(buffers[i], 1, LEN);
    waiting++;
    while (done < LEN)
        done += get(i, buffers[i] + done, LEN - done);
    check(buffers[i], LEN, i, "what was read");
    return NULL;
}

int main(void)
{
    pthread_t threads[READERS];
    unsigned char *source = fresh(LEN);
    for (int i = 0; i < READERS; i++) {
        buffers[i] = fresh(LEN);
        MUST(pipe2(pipes[i], O_CLOEXEC));
        ZERO(pthread_create(&threads[i], NULL, reader, (void *)(intptr_t)i));
    }
    while (waiting < READERS)
        sleep_ms(1);
    sleep_ms(200);
    /* Memory is needed while all of them wait. */
    fill(source, LEN, 99);
    evict(source, LEN);
    check(source, LEN, 99, "what was evicted");
    for (int i = 0; i < READERS; i++) {
        fill(source, LEN, i);
        for (size_t done = 0; done < LEN;)
            done += MUST(write(pipes[i][1], source + done, LEN - done));
    }
    for (int i = 0; i < READERS; i++)
        ZERO(pthread_join(threads[i], NULL));
    return ok();
}
