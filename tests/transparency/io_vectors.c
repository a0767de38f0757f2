/* readv and its kin: the list and every piece in evicted memory, pieces of all sizes, some empty. */
#include "pressure.h"
#include <sys/uio.h>
#define LEN (800 * 1024)
static struct iovec *cut(struct iovec *list, unsigned char *base, unsigned seed, int *count)
{
    size_t at = 0;
    int n = 0;
    while (at < LEN) {
        size_t len = mix(seed + n) % (n % 5 == 0 ? 3 : 9000);
        if (n == 900 || len > LEN - at)
            len = LEN - at;
        list[n++] = (struct iovec){ base + at, len };
        at += len;
    }
    *count = n;
    return list;
}
int main(void)
{
    unsigned char *from = fresh(LEN), *to = fresh(LEN);
    struct iovec *list = (struct iovec *)fresh(8 * PAGE);
    char path[] = "/tmp/ebb-vectors-XXXXXX";
    int fd = MUST(mkstemp(path)), n;
    unlink(path);
    for (int round = 0; round < 6; round++) {
        fill(from, LEN, round);
        memset(to, 0, LEN);
        cut(list, from, round, &n);
        evict(from, LEN);
        evict(list, 8 * PAGE);
        MUST(lseek(fd, 0, SEEK_SET));
        ssize_t done = round % 3 == 0 ? writev(fd, list, n) : round % 3 == 1 ? pwritev(fd, list, n, 0) : pwritev2(fd, list, n, 0, 0);
        REQUIRE(done == LEN);
        cut(list, to, round + 99, &n);
        evict(to, LEN);
        evict(list, 8 * PAGE);
        MUST(lseek(fd, 0, SEEK_SET));
        done = round % 3 == 0 ? readv(fd, list, n) : round % 3 == 1 ? preadv(fd, list, n, 0) : preadv2(fd, list, n, 0, 0);
        REQUIRE(done == LEN);
        check(to, LEN, round, "what was read in pieces");
        check(from, LEN, round, "what was written in pieces");
        cut(list, from, round, &n);
        struct iovec remote = { from, LEN }, local = { to, LEN };
        memset(to, 0, LEN);
        evict(from, LEN);
        evict(to, LEN);
        done = round % 2 ? process_vm_readv(getpid(), &local, 1, &remote, 1, 0) : process_vm_writev(getpid(), list, n, &local, 1, 0);
        REQUIRE(done == LEN || (done == -1 && errno == EPERM));
        if (done == LEN)
            check(to, LEN, round, "what process_vm_* moved");
    }
    REQUIRE(readv(fd, list, -1) == -1 && errno == EINVAL);
    REQUIRE(writev(fd, list, 5000) == -1 && errno == EINVAL);
    REQUIRE(writev(fd, (struct iovec *)8, 1) == -1 && errno == EFAULT);
    return ok();
}
