/* The kernel writes to pages, by reads of threads, while others force them out: every byte that was read is there. */
#include "pressure.h"
#define LEN (3 * MIB)
static volatile int stop;
static int fd;
static void *reader(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    unsigned char *m = fresh(LEN);
    while (!stop) {
        memset(m, 0, LEN);
        for (size_t at = 0; at < LEN; at += 10000) {
            size_t len = at + 10000 < LEN ? 10000 : LEN - at;
            REQUIRE(pread(fd, m + at, len, at) == (ssize_t)len);
        }
        check(m, LEN, 1, "what was read under pressure");
    }
    (void)seed;
    return NULL;
}
int main(void)
{
    pthread_t threads[3];
    unsigned char *m = fresh(LEN);
    char path[] = "/tmp/ebb-beside-XXXXXX";
    fd = MUST(mkstemp(path));
    unlink(path);
    fill(m, LEN, 1);
    REQUIRE(write(fd, m, LEN) == (ssize_t)LEN);
    for (uintptr_t i = 0; i < 3; i++)
        ZERO(pthread_create(&threads[i], NULL, reader, (void *)i));
    for (int i = 0; i < 6; i++)
        evict(m, LEN);
    stop = 1;
    for (int i = 0; i < 3; i++)
        ZERO(pthread_join(threads[i], NULL));
    check(m, LEN, 1, "at the end");
    return ok();
}
