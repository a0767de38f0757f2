/* Filters that kill for calls which the program does not make, with transfers and messages that are made in pieces. */
#include "pressure.h"
#include "filter.h"
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#define BIG ((size_t)24 * MIB)
#define MESSAGES 24
#define ROOM ((size_t)512 << 10)

static void kill_for(const unsigned *calls, int n)
{
    for (int i = 0; i < n; i++)
        if (!answer_with(calls[i], SECCOMP_RET_KILL_PROCESS))
            exit(skip("seccomp filters are not allowed here"));
}

/* A peer that reads all, and tells by its end whether it was right. */
static void reads_all(void *fd)
{
    unsigned char *m = fresh(BIG);
    for (size_t at = 0; at < BIG;) {
        ssize_t n = MUST(read((int)(intptr_t)fd, m + at, BIG - at));
        REQUIRE(n > 0);
        at += n;
    }
    check(m, BIG, 1, "what was sent");
    exit(0);
}

static void transfers(void)
{
    unsigned char *m = fresh(BIG);
    fill(m, BIG, 1);
    int file = MUST(open(".", O_TMPFILE | O_RDWR, 0600));
    REQUIRE(pwrite(file, m, BIG, 0) == (ssize_t)BIG);
    memset(m, 0, BIG);
    REQUIRE(pread(file, m, BIG, 0) == (ssize_t)BIG);
    check(m, BIG, 1, "what was read");
    for (int vectored = 0; vectored < 2; vectored++) {
        int ends[2];
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
        pid_t peer = child_of(reads_all, (void *)(intptr_t)ends[1]);
        close(ends[1]);
        struct iovec vectors[2] = {{m, BIG / 2}, {m + BIG / 2, BIG / 2}};
        for (size_t at = 0; at < BIG;) {
            ssize_t n = vectored && at == 0 ? writev(ends[0], vectors, 2) : write(ends[0], m + at, BIG - at);
            REQUIRE(n > 0);
            at += n;
        }
        int status;
        REQUIRE(waitpid(peer, &status, 0) == peer && status == 0);
        close(ends[0]);
    }
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    static struct iovec vectors[MESSAGES];
    static struct mmsghdr headers[MESSAGES];
    evict(m, BIG);
    for (int i = 0; i < 8; i++)
        REQUIRE(write(ends[0], "abc", 3) == 3);
    for (int i = 0; i < MESSAGES; i++) {
        vectors[i] = (struct iovec){m + i * ROOM, ROOM};
        headers[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = vectors + i, .msg_iovlen = 1}};
    }
    REQUIRE(recvmmsg(ends[1], headers, MESSAGES, MSG_DONTWAIT, NULL) == 8);
    for (int i = 0; i < 8; i++)
        REQUIRE(headers[i].msg_len == 3 && !memcmp(m + i * ROOM, "abc", 3));
    MUST(munmap(m, BIG));
    close(file);
}

int main(int count, char **arguments)
{
    static const unsigned all[] = {SYS_getsockopt, SYS_ppoll, SYS_sendto, SYS_sendmsg};
    if (count == 2) {
        /* The filters came with the process. */
        transfers();
        return ok();
    }
    transfers();
    kill_for(all, sizeof all / sizeof *all);
    transfers();
    char *again[] = {arguments[0], "again", NULL};
    MUST(execv(arguments[0], again));
}
