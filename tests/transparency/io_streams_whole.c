/* One read of a stream takes all that is there, and one write all that it has room for: epoll(7) lets who waits for edges
 * take less for the end. Compared with what the kernel answers for memory that is not Ebb's, for each call, each kind of
 * stream, with and without O_NONBLOCK, while memory is short. */
#include "pressure.h"
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <netinet/in.h>
#include <termios.h>
#define PARTS 128
#define LEN (2 * MIB)
#define READS 6

enum kind { UNIX, TCP, PIPE, TERMINAL, KINDS };
static const char *const names[] = { "a local socket", "a TCP socket", "a pipe", "a terminal" };
static const char *const calls[] = { "read", "readv", "preadv2", "recv", "recvmsg", "recvmsg with room for control data" };

/* A connection: [0] reads what [1] writes. */
static void connect_two(enum kind kind, int ends[2], int flags)
{
    int size = 16 << 20;
    if (kind == UNIX) {
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    } else if (kind == TCP) {
        struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof address;
        int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
        MUST(bind(listener, (struct sockaddr *)&address, len));
        MUST(listen(listener, 1));
        MUST(getsockname(listener, (struct sockaddr *)&address, &len));
        ends[1] = MUST(socket(AF_INET, SOCK_STREAM, 0));
        MUST(connect(ends[1], (struct sockaddr *)&address, len));
        ends[0] = MUST(accept(listener, NULL, NULL));
        close(listener);
    } else if (kind == PIPE) {
        MUST(pipe(ends));
        fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    } else {
        struct termios raw;
        ends[1] = MUST(posix_openpt(O_RDWR | O_NOCTTY));
        MUST(grantpt(ends[1]));
        MUST(unlockpt(ends[1]));
        ends[0] = MUST(open(ptsname(ends[1]), O_RDWR | O_NOCTTY));
        MUST(tcgetattr(ends[0], &raw));
        cfmakeraw(&raw);
        MUST(tcsetattr(ends[0], TCSANOW, &raw));
    }
    if (kind == UNIX) {
        setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        setsockopt(ends[1], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
    }
    MUST(fcntl(ends[0], F_SETFL, flags));
    MUST(fcntl(ends[1], F_SETFL, O_NONBLOCK));
}

static int waiting(int fd)
{
    int bytes = 0;
    MUST(ioctl(fd, FIONREAD, &bytes));
    return bytes;
}

/* Bytes of one of so many parts. TCP and terminals are given no more than they hold without a reader: more would come while
 * they are read. */
static size_t part_of(enum kind kind, int n)
{
    size_t all = kind == TCP ? PARTS * 256 : kind == TERMINAL ? PARTS * 16 : LEN;
    return (n == 1 ? LEN : all) / n;
}

/* As much as goes in, and is there to be read then. */
static ssize_t put(enum kind kind, int ends[2], const unsigned char *from)
{
    size_t len = part_of(kind, PARTS) * PARTS;
    size_t done = 0;
    for (ssize_t n; done < len && (n = write(ends[1], from + done, len - done)) > 0;)
        done += n;
    int before = -1, now = 0;
    for (int i = 0; i < 500 && (now = waiting(ends[0])) != (int)done && (kind >= TCP || now != before || i < 5); i++) {
        before = now;
        sleep_ms(1);
    }
    return now;
}

static ssize_t take(int call, int fd, struct iovec *parts, int n)
{
    char control[256];
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = n };
    if (call == 5) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
    }
    switch (call) {
    case 0: return read(fd, parts->iov_base, n == 1 ? parts->iov_len : LEN);
    case 1: return readv(fd, parts, n);
    case 2: return preadv2(fd, parts, n, -1, 0);
    case 3: return recv(fd, parts->iov_base, n == 1 ? parts->iov_len : LEN, 0);
    default: return recvmsg(fd, &message, 0);
    }
}

/* So many parts of a range, with a gap between them. */
static void cut(struct iovec *parts, int n, unsigned char *at, size_t part, size_t gap)
{
    for (int i = 0; i < n; i++)
        parts[i] = (struct iovec){ at + i * (part + gap), part };
}

static void reads(enum kind kind, int call, int flags, int n, size_t gap)
{
    if (call > 2 && kind > TCP)
        return;
    /* Memory that Ebb does not manage, and memory that it does. */
    size_t part = part_of(kind, n), bytes = (part + gap) * n;
    unsigned char *plain = MUST(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    unsigned char *managed = fresh(bytes), *source = fresh(LEN);
    struct iovec parts[PARTS];
    fill(source, LEN, 7 * kind + call);
    int ends[2];
    connect_two(kind, ends, flags);
    ssize_t answers[2];
    unsigned char *const buffers[2] = { plain, managed };
    for (int which = 0; which < 2; which++) {
        ssize_t there = put(kind, ends, source);
        REQUIRE(there > 0);
        cut(parts, n, buffers[which], part, gap);
        answers[which] = MUST(take(call, ends[0], parts, n));
        int left = waiting(ends[0]);
        if (which == 1 && (answers[0] != answers[1] || (left > 0 && answers[1] < (ssize_t)part * n)))
            fail("%s from %s in %d parts, flags %#x: %zd bytes, %d left, where the kernel takes %zd", calls[call],
                 names[kind], n, flags, answers[1], left, answers[0]);
        for (ssize_t i = 0; i < answers[which]; i++) {
            size_t at = call == 0 || call == 3 ? (size_t)i : i / part * (part + gap) + i % part;
            if (buffers[which][at] != pattern(i, 7 * kind + call))
                fail("%s from %s: byte %zd is wrong", calls[call], names[kind], i);
        }
        /* What is left is taken away. */
        MUST(fcntl(ends[0], F_SETFL, O_NONBLOCK));
        while (read(ends[0], plain, bytes) > 0)
            ;
        MUST(fcntl(ends[0], F_SETFL, flags));
    }
    close(ends[0]);
    close(ends[1]);
    munmap(plain, bytes);
    munmap(managed, bytes);
    munmap(source, LEN);
}

/* A write that comes back short leaves no room. */
static void writes(enum kind kind, int call)
{
    unsigned char *managed = fresh(2 * LEN);
    struct iovec parts[PARTS];
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = PARTS };
    cut(parts, PARTS, managed, LEN / PARTS / PAGE * PAGE, 5 * PAGE);
    size_t total = LEN / PARTS / PAGE * PAGE * PARTS;
    fill(managed, 2 * LEN, 3);
    int ends[2];
    connect_two(kind, ends, 0);
    ssize_t n = call == 0 ? write(ends[1], managed, total) : call == 1 ? writev(ends[1], parts, PARTS)
        : kind <= TCP ? sendmsg(ends[1], &message, 0) : pwritev2(ends[1], parts, PARTS, -1, 0);
    REQUIRE(n > 0);
    /* Of these two no room comes by itself. */
    if (n < (ssize_t)total && (kind == UNIX || kind == PIPE)) {
        ssize_t more = write(ends[1], "x", 1);
        if (more != -1 || errno != EAGAIN)
            fail("a write of call %d to %s is short, %zd of %zu, though there is room", call, names[kind], n, total);
    }
    close(ends[0]);
    close(ends[1]);
    munmap(managed, 2 * LEN);
}

/* Nothing of these is split: they move as much as there is. */
static void moves(void)
{
    unsigned char *source = fresh(LEN);
    fill(source, LEN, 9);
    int file = MUST(memfd_create("moves", 0)), ends[2], stream[2];
    REQUIRE(write(file, source, LEN) == LEN);
    MUST(pipe(ends));
    MUST(fcntl(ends[1], F_SETPIPE_SZ, 1 << 20));
    MUST(fcntl(ends[0], F_SETFL, O_NONBLOCK));
    MUST(fcntl(ends[1], F_SETFL, O_NONBLOCK));
    loff_t *at = (loff_t *)source;
    *at = 0;
    REQUIRE(splice(file, at, ends[1], NULL, LEN, SPLICE_F_NONBLOCK) == 1 << 20 && *at == 1 << 20);
    REQUIRE(waiting(ends[0]) == 1 << 20);
    REQUIRE(splice(file, at, ends[1], NULL, LEN, SPLICE_F_NONBLOCK) == -1 && errno == EAGAIN);
    connect_two(UNIX, stream, O_NONBLOCK);
    *at = PAGE;
    ssize_t sent = sendfile(stream[1], file, at, LEN - PAGE);
    REQUIRE(sent > 0 && *at == (loff_t)(PAGE + sent) && waiting(stream[0]) == sent);
    /* What came by sendfile is read whole, too. */
    unsigned char *managed = fresh(LEN);
    REQUIRE(read(stream[0], managed, LEN) == sent);
    for (ssize_t i = 0; i < sent; i++)
        if (managed[i] != pattern(i + PAGE, 9))
            fail("byte %zd behind sendfile is wrong", i);
    close(file);
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        close(stream[i]);
    }
    munmap(source, LEN);
    munmap(managed, LEN);
}

/* A line ends a terminal's read, and packets and descriptors are where they were. */
static void boundaries(void)
{
    int ends[2];
    unsigned char *managed = fresh(LEN);
    connect_two(TERMINAL, ends, O_NONBLOCK);
    struct termios lines;
    MUST(tcgetattr(ends[0], &lines));
    lines.c_lflag |= ICANON;
    MUST(tcsetattr(ends[0], TCSANOW, &lines));
    REQUIRE(write(ends[1], "one\ntwo\n", 8) == 8);
    REQUIRE(read(ends[0], managed, LEN) == 4 && memcmp(managed, "one\n", 4) == 0);
    REQUIRE(read(ends[0], managed, LEN) == 4 && memcmp(managed, "two\n", 4) == 0);
    REQUIRE(read(ends[0], managed, LEN) == -1 && errno == EAGAIN);
    close(ends[0]);
    close(ends[1]);
    MUST(pipe2(ends, O_DIRECT | O_NONBLOCK));
    REQUIRE(write(ends[1], "first", 5) == 5 && write(ends[1], "second", 6) == 6);
    REQUIRE(read(ends[0], managed, LEN) == 5 && memcmp(managed, "first", 5) == 0);
    REQUIRE(read(ends[0], managed, LEN) == 6 && memcmp(managed, "second", 6) == 0);
    close(ends[0]);
    close(ends[1]);
    /* The end of a stream, and an error, come when all is read. */
    connect_two(TCP, ends, 0);
    struct linger at_once = { 1, 0 };
    REQUIRE(put(TCP, ends, managed) > 0);
    int there = waiting(ends[0]);
    MUST(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    close(ends[1]);
    sleep_ms(20);
    ssize_t n, sum = 0;
    while ((n = read(ends[0], managed, LEN)) > 0)
        sum += n;
    REQUIRE((n == -1 && errno == ECONNRESET) || sum == there);
    close(ends[0]);
    munmap(managed, LEN);
}

int main(void)
{
    unsigned char *cold = fresh(8 * MIB);
    fill(cold, 8 * MIB, 1);
    for (int kind = 0; kind < KINDS; kind++)
        for (int call = 0; call < READS; call++)
            for (int nonblock = 0; nonblock < 2; nonblock++) {
                reads(kind, call, nonblock ? O_NONBLOCK : 0, 1, 0);
                /* Parts far apart, more than can be pinned one by one. A terminal that blocks cannot be read on without
                 * waiting, so it gives less. */
                if (call != 0 && call != 3 && (kind != TERMINAL || nonblock))
                    reads(kind, call, nonblock ? O_NONBLOCK : 0, PARTS, 3 * PAGE);
            }
    for (int kind = 0; kind < KINDS; kind++)
        for (int call = 0; call < 3; call++)
            writes(kind, call);
    moves();
    boundaries();
    evict(cold, 8 * MIB);
    check(cold, 8 * MIB, 1, "at the end");
    return ok();
}
