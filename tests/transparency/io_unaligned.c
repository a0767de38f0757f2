/* Buffers that begin and end anywhere, of every small size, at the end of a mapping, and partly missing. */
#include "pressure.h"
int main(void)
{
    unsigned char *m = fresh(65 * PAGE), got[20000];
    int ends[2];
    char path[] = "/tmp/ebb-unaligned-XXXXXX";
    int fd = MUST(mkstemp(path));
    unlink(path);
    MUST(pipe(ends));
    fill(m, 64 * PAGE, 1);
    MUST(munmap(m + 64 * PAGE, PAGE));
    for (size_t start = PAGE - 5; start < PAGE + 6; start++) {
        evict(m, 64 * PAGE);
        for (size_t len = 1; len < 3 * PAGE; len = len * 2 + 1) {
            REQUIRE(write(ends[1], m + start, len) == (ssize_t)len);
            REQUIRE(read(ends[0], got, sizeof got) == (ssize_t)len && memcmp(got, m + start, len) == 0);
        }
        if (start > PAGE - 4)
            start += 3;
    }
    for (size_t len = 1; len < 9000; len = len * 3 + 1) {
        /* At the very end of a mapping. */
        unsigned char *at = m + 64 * PAGE - len;
        evict(m, 64 * PAGE);
        REQUIRE(pwrite(fd, at, len, 100) == (ssize_t)len);
        memset(at, 0, len);
        evict(m, 64 * PAGE);
        REQUIRE(pread(fd, at, len, 100) == (ssize_t)len);
        check(m, 64 * PAGE, 1, "memory at the end of a mapping");
        /* Beyond it: what is there is moved, the rest is an error, as ever. */
        evict(m, 64 * PAGE);
        ssize_t wrote = write(ends[1], at, len + 100);
        REQUIRE(wrote == (ssize_t)len || (wrote == -1 && errno == EFAULT));
        if (wrote > 0)
            REQUIRE(read(ends[0], got, sizeof got) == wrote && memcmp(got, at, wrote) == 0);
        wrote = pwrite(fd, at, len + 100, 0);
        REQUIRE(wrote == (ssize_t)len || (wrote == -1 && errno == EFAULT));
        REQUIRE(write(ends[1], m, len) == (ssize_t)len);
        evict(m, 64 * PAGE);
        ssize_t n = read(ends[0], at, len + 100);
        REQUIRE(n == (ssize_t)len && memcmp(at, m, len) == 0);
        fill(m, 64 * PAGE, 1);
    }
    REQUIRE(write(ends[1], m + 64 * PAGE, 10) == -1 && errno == EFAULT);
    REQUIRE(write(ends[1], m, 0) == 0);
    return ok();
}
