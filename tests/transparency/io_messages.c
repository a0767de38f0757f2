/* Many messages in one call, with more room for them than a call may pin: none is lost. */
#include "pressure.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#define MESSAGES 64
#define ROOM ((size_t)65536)

static int udp(struct sockaddr_in *address)
{
    int fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    socklen_t len = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(bind(fd, (struct sockaddr *)address, sizeof *address));
    MUST(getsockname(fd, (struct sockaddr *)address, &len));
    return fd;
}

int main(void)
{
    struct sockaddr_in to, from;
    int in = udp(&to), out = udp(&from);
    struct timeval patience = {.tv_sec = 20};
    MUST(setsockopt(in, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
    static struct iovec vectors[MESSAGES];
    static struct mmsghdr headers[MESSAGES];
    for (int round = 0; round < 4; round++) {
        unsigned char *room = mmap(0, MESSAGES * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(room != MAP_FAILED);
        /* Never touched, evicted, and in memory as far as that goes. */
        if (round > 0)
            fill(room, MESSAGES * ROOM, round);
        if (round == 2)
            evict(room, MESSAGES * ROOM);
        for (int i = 0; i < MESSAGES; i++) {
            unsigned char text[5] = {'m', i, i, i, round};
            REQUIRE(sendto(out, text, sizeof text, 0, (struct sockaddr *)&to, sizeof to) == sizeof text);
            vectors[i] = (struct iovec){room + i * ROOM, ROOM};
            headers[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = vectors + i, .msg_iovlen = 1}};
        }
        int n = recvmmsg(in, headers, MESSAGES, round == 3 ? 0 : MSG_DONTWAIT, NULL);
        if (n != MESSAGES)
            fail("round %d: %d of %d messages came", round, n, MESSAGES);
        for (int i = 0; i < MESSAGES; i++) {
            unsigned char *text = room + i * ROOM;
            REQUIRE(headers[i].msg_len == 5 && text[0] == 'm' && text[1] == i && text[4] == round);
            REQUIRE(headers[i].msg_hdr.msg_flags == 0);
        }
        unsigned char byte;
        REQUIRE(recv(in, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        MUST(munmap(room, MESSAGES * ROOM));
    }
    return ok();
}
