/* One call that moves more than the whole budget, to and from a file, a pipe and a socket. */
#include "pressure.h"
#include <sys/socket.h>
static size_t len;
static unsigned char *from;
static int out;
static void *sender(void *argument)
{
    (void)argument;
    for (size_t done = 0; done < len;) {
        ssize_t n = write(out, from + done, len - done);
        REQUIRE(n > 0);
        done += n;
    }
    return NULL;
}
/* A checksum that does not keep everything in memory at once for the comparison. */
static void same(unsigned char *to, unsigned seed, const char *what)
{
    for (size_t i = 0; i < len; i += 8)
        if (*(uint64_t *)(to + i) != mix(i + seed))
            fail("%s: offset %zu is %#lx, not %#lx", what, i, *(uint64_t *)(to + i), mix(i + seed));
}
int main(void)
{
    size_t limit = budget();
    len = limit ? limit * 3 / 2 : 32 * MIB;
    from = fresh(len);
    unsigned char *to = fresh(len);
    for (size_t i = 0; i < len; i += 8)
        *(uint64_t *)(from + i) = mix(i + 1);
    char path[] = "/tmp/ebb-large-XXXXXX";
    int fd = MUST(mkstemp(path)), ends[2];
    unlink(path);
    REQUIRE(write(fd, from, len) == (ssize_t)len);
    REQUIRE(pread(fd, to, len, 0) == (ssize_t)len);
    same(to, 1, "a large file");
    same(from, 1, "the source");
    for (int kind = 0; kind < 2; kind++) {
        pthread_t thread;
        MUST(kind ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends));
        out = ends[1];
        memset(to, 0, len);
        ZERO(pthread_create(&thread, NULL, sender, NULL));
        if (kind) {
            REQUIRE(recv(ends[0], to, len, MSG_WAITALL) == (ssize_t)len);
        } else {
            for (size_t done = 0; done < len;) {
                ssize_t n = read(ends[0], to + done, len - done);
                REQUIRE(n > 0);
                done += n;
            }
        }
        ZERO(pthread_join(thread, NULL));
        same(to, 1, kind ? "what came through a socket" : "what came through a pipe");
    }
    pages_evicted = limit ? absent(from, len) : 0;
    return ok();
}
