/* process_madvise(MADV_PAGEOUT and MADV_COLD): the caller's own memory, and a child's. What it answers is the kernel's, and what
 * is in the memory stays the same. */
#include "pressure.h"
#include <sys/uio.h>
#define LEN (6 * MIB)
#define COLD 20
#define PAGEOUT 21
static unsigned char *m;
static int go[2], told[2];
static long advise(int pidfd, const struct iovec *ranges, size_t count, int advice, unsigned flags)
{
    return syscall(SYS_process_madvise, pidfd, ranges, count, advice, flags);
}
static size_t resident(void)
{
    unsigned char there[LEN / PAGE];
    size_t n = 0;
    MUST(mincore(m, LEN, there));
    for (size_t i = 0; i < LEN / PAGE; i++)
        n += there[i] & 1;
    return n;
}
/* Tells how much is in memory whenever it is asked. */
static void body(void *argument)
{
    unsigned seed = *(unsigned *)argument;
    char byte;
    /* Written to once more, so that none of it is shared. */
    fill(m, LEN, seed);
    size_t n = resident();
    if (write(told[1], &n, sizeof n) < 0)
        fail("pipe");
    while (read(go[0], &byte, 1) == 1 && byte != 'e') {
        if (byte == 'c')
            check(m, LEN, seed, "the child's memory");
        n = resident();
        if (write(told[1], &n, sizeof n) < 0)
            fail("pipe");
    }
}
static size_t ask(char what)
{
    size_t n;
    if (write(go[1], &what, 1) != 1 || read(told[0], &n, sizeof n) != sizeof n)
        fail("pipe");
    return n;
}
int main(void)
{
    static unsigned seed = 7;
    const char *force = getenv("EBB_FORCE");
    int managed = getenv("EBB_STATS_FD") != NULL;
    /* A process without a background thread does not follow advice from others. */
    int follows = managed && (!force || !strstr(force, "no-background"));
    size_t n;
    m = fresh(LEN);
    fill(m, LEN, 1);
    MUST(pipe(go));
    MUST(pipe(told));
    pid_t child = child_of(body, &seed);
    if (read(told[0], &n, sizeof n) != sizeof n)
        fail("pipe");
    int own = (int)MUST(syscall(SYS_pidfd_open, getpid(), 0)), other = (int)MUST(syscall(SYS_pidfd_open, child, 0));
    struct iovec all = { m, LEN }, two[2] = { { m, LEN / 2 }, { m + LEN / 2, LEN / 2 } };
    /* Mistakes. */
    REQUIRE(advise(-1, &all, 1, PAGEOUT, 0) == -1 && errno == EBADF);
    REQUIRE(advise(0, &all, 1, PAGEOUT, 0) == -1 && errno == EBADF);
    REQUIRE(advise(own, &all, 1, PAGEOUT, 1) == -1 && errno == EINVAL);
    REQUIRE(advise(own, &all, 4000, PAGEOUT, 0) == -1 && errno == EINVAL);
    REQUIRE(advise(own, (void *)8, 1, PAGEOUT, 0) == -1 && errno == EFAULT);
    REQUIRE(advise(own, NULL, 0, PAGEOUT, 0) == 0);
    struct iovec odd = { m + 1, PAGE };
    REQUIRE(advise(own, &odd, 1, PAGEOUT, 0) == -1 && errno == EINVAL);
    /* The caller's own, which it no longer shares. */
    fill(m, LEN, 1);
    REQUIRE(advise(own, two, 2, COLD, 0) == (long)LEN);
    REQUIRE(advise(own, two, 2, PAGEOUT, 0) == (long)LEN);
    if (managed)
        REQUIRE(resident() < LEN / PAGE / 8);
    check(m, LEN, 1, "the caller's memory");
    /* A child's. An ordinary user may not. */
    if (advise(other, &all, 1, COLD, 0) == -1) {
        REQUIRE(errno == EPERM);
        REQUIRE(advise(other, &all, 1, PAGEOUT, 0) == -1 && errno == EPERM);
        ask('c');
    } else {
        for (int round = 0; round < 3; round++) {
            ask('c');
            REQUIRE(advise(other, two, 2, PAGEOUT, 0) == (long)LEN);
            n = ask('n');
            if (follows && n >= LEN / PAGE / 8)
                fail("%zu pages of the child's are in memory", n);
            ask('c');
            REQUIRE(advise(other, &all, 1, COLD, 0) == (long)LEN);
        }
        /* Part of it is not there: the bytes before it count. */
        unsigned char *hole = fresh(3 * PAGE);
        MUST(munmap(hole + PAGE, PAGE));
        struct iovec part[2] = { { m, PAGE }, { hole + PAGE, PAGE } };
        long result = advise(own, part, 2, PAGEOUT, 0);
        REQUIRE(result == (long)PAGE);
    }
    if (write(go[1], "e", 1) != 1)
        fail("pipe");
    wait_ok(child);
    /* It is gone. */
    REQUIRE(advise(other, &all, 1, PAGEOUT, 0) == -1 && errno == ESRCH);
    check(m, LEN, 1, "the caller's memory");
    return ok();
}
