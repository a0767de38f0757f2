/* Memory that the kernel was lent while the process was small: what it reads there, long after the process has grown and that memory
 * was evicted, is what was lent. By vmsplice, and by MSG_ZEROCOPY without libc on a socket that is closed since. */
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
#define LEN MIB
#define PIECE (256 * (size_t)1024)

/* A TCP connection whose receiver takes little. */
static int connection(int ends[2])
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t length = sizeof address;
    int little = 4096, much = 8 * LEN, one = 1;
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little, sizeof little));
    MUST(bind(listener, (struct sockaddr *)&address, sizeof address));
    MUST(listen(listener, 1));
    MUST(getsockname(listener, (struct sockaddr *)&address, &length));
    ends[1] = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &much, sizeof much));
    if (setsockopt(ends[1], SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) < 0)
        return 0;
    MUST(connect(ends[1], (struct sockaddr *)&address, sizeof address));
    ends[0] = MUST(accept(listener, NULL, NULL));
    close(listener);
    return 1;
}

/* Not by way of libc. */
static ssize_t send_inline(int fd, unsigned char *at, size_t len)
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

/* Lends memory to the other end of `ends`; how much, 0 where that cannot be done here. */
static size_t lend(int ends[2], unsigned char *m, int by_socket)
{
    size_t lent = 0;
    if (!by_socket) {
        struct iovec piece = { m, LEN };
        MUST(pipe2(ends, O_CLOEXEC));
        if (fcntl(ends[1], F_SETPIPE_SZ, (int)LEN) < 0)
            return 0;
        lent = MUST(vmsplice(ends[1], &piece, 1, 0));
    } else if (connection(ends)) {
        ssize_t n;
        while (lent < LEN && (n = send_inline(ends[1], m + lent, PIECE)) > 0)
            lent += n;
    }
    close(ends[1]);
    return lent;
}

static int child(int by_socket)
{
    static unsigned char back[LEN];
    int ends[2];
    size_t got = 0, much = budget() ? budget() * 3 / 2 : 32 * MIB;
    /* Apart from libc's own mappings, of which some stay as they are. */
    unsigned char *m = (unsigned char *)MUST(mmap(NULL, LEN + 2 * 64 * 1024, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) + 64 * 1024;
    MUST(mprotect(m, LEN, PROT_READ | PROT_WRITE));
    fill(m, LEN, 1);
    size_t lent = lend(ends, m, by_socket);
    if (lent == 0)
        return 77;
    churn(much, 6);
    pages_evicted += absent(m, LEN);
    while (got < lent) {
        ssize_t n = MUST(read(ends[0], back + got, lent - got));
        REQUIRE(n > 0);
        got += n;
    }
    check(back, lent, 1, by_socket ? "what was sent" : "what was put into the pipe");
    check(m, LEN, 1, "what was lent");
    return 0;
}

int main(void)
{
    int skipped = 0;
    for (int by_socket = 0; by_socket < 2; by_socket++) {
        int pid = MUST(fork()), status;
        if (pid == 0)
            _exit(child(by_socket));
        MUST(waitpid(pid, &status, 0));
        REQUIRE(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77)
            skipped++;
        else
            REQUIRE(WEXITSTATUS(status) == 0);
    }
    return skipped == 2 ? skip("memory cannot be lent here") : ok();
}
