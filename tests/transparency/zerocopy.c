/* MSG_ZEROCOPY: what was sent arrives as it was, though the kernel reads it long after the call, and the memory was needed. */
#include "pressure.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
#define LEN (2 * MIB)
#define PIECE (256 * 1024)

static ssize_t by_sendto(int fd, unsigned char *at, size_t len)
{
    return sendto(fd, at, len, MSG_ZEROCOPY | MSG_DONTWAIT, NULL, 0);
}

static ssize_t by_sendmmsg(int fd, unsigned char *at, size_t len)
{
    struct iovec piece = { at, len };
    struct mmsghdr message = { .msg_hdr = { .msg_iov = &piece, .msg_iovlen = 1 } };
    int n = sendmmsg(fd, &message, 1, MSG_ZEROCOPY | MSG_DONTWAIT);
    return n == 1 ? (ssize_t)message.msg_len : -1;
}

/* Not by way of libc. */
static ssize_t by_sendmsg_inline(int fd, unsigned char *at, size_t len)
{
    struct iovec piece = { at, len };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
    register long nr __asm__("rax") = SYS_sendmsg;
    register long a __asm__("rdi") = fd;
    register void *b __asm__("rsi") = &message;
    register long c __asm__("rdx") = MSG_ZEROCOPY | MSG_DONTWAIT;
    __asm__ volatile("syscall" : "+r"(nr) : "r"(a), "r"(b), "r"(c) : "rcx", "r11", "memory");
    return nr;
}

/* A TCP connection whose receiver takes little. */
static void connection(int ends[2])
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t length = sizeof address;
    int little = 4096, much = 4 * LEN, one = 1;
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little, sizeof little));
    MUST(bind(listener, (struct sockaddr *)&address, sizeof address));
    MUST(listen(listener, 1));
    MUST(getsockname(listener, (struct sockaddr *)&address, &length));
    ends[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &much, sizeof much));
    if (setsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) < 0)
        _exit(skip("no SO_ZEROCOPY here"));
    MUST(connect(ends[0], (struct sockaddr *)&address, sizeof address));
    ends[1] = MUST(accept(listener, NULL, NULL));
    close(listener);
}

static int child(ssize_t (*send_it)(int, unsigned char *, size_t))
{
    size_t much = budget() * 3 / 2 > 24 * MIB ? budget() * 3 / 2 : 24 * MIB;
    unsigned char *m = fresh(LEN), *walk = fresh(much), *back = fresh(MIB);
    size_t sent = 0, read_back = 0;
    int ends[2];
    connection(ends);
    fill(m, LEN, 1);
    for (size_t at = 0; at < much; at += 8)
        *(uint64_t *)(walk + at) = at / 64;
    evict(m, LEN);
    /* Each page comes in and goes to the network where it is. */
    while (sent < LEN) {
        ssize_t n = send_it(ends[0], m + sent, LEN - sent < PIECE ? LEN - sent : PIECE);
        if (n <= 0)
            break;
        sent += n;
    }
    if (sent == 0 && errno == ENOBUFS)
        return skip("no memory may be locked here");
    REQUIRE(sent >= PIECE);
    /* Written to: what is evicted then makes the frames for what comes in. */
    for (int round = 0; round < 4; round++)
        for (size_t at = 0; at < much; at += PAGE) {
            REQUIRE(*(volatile uint64_t *)(walk + at) == at / 64 + round);
            *(volatile uint64_t *)(walk + at) += 1;
        }
    while (read_back < sent) {
        size_t want = sent - read_back < MIB ? sent - read_back : MIB;
        ssize_t n = MUST(read(ends[1], back, want));
        REQUIRE(n > 0);
        for (ssize_t i = 0; i < n; i++)
            if (back[i] != pattern(read_back + i, 1))
                fail("byte %zu of what was sent arrived as %#x, not %#x", read_back + i, back[i],
                     pattern(read_back + i, 1));
        read_back += n;
    }
    check(m, LEN, 1, "what was sent");
    return 0;
}

int main(void)
{
    ssize_t (*ways[])(int, unsigned char *, size_t) = { by_sendto, by_sendmmsg, by_sendmsg_inline };
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        /* What one has done the next does not know. */
        int pid = MUST(fork()), status;
        if (pid == 0)
            _exit(child(ways[way]));
        MUST(waitpid(pid, &status, 0));
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
            return 77;
        REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return ok();
}
