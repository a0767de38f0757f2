/* More messages in one call than a vector may have entries: the kernel has no such bound for what is received. */
#include "pressure.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#define MESSAGES 1200
#define ROOM ((size_t)512)
int main(void)
{
    int in = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    int out = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof to;
    MUST(bind(in, (struct sockaddr *)&to, sizeof to));
    MUST(getsockname(in, (struct sockaddr *)&to, &len));
    /* Of an ordinary user's socket the room is bounded by the system's setting; a message takes some of it for itself. */
    int room_of_socket = MESSAGES * 1024;
    if (setsockopt(in, SOL_SOCKET, SO_RCVBUFFORCE, &room_of_socket, sizeof room_of_socket))
        MUST(setsockopt(in, SOL_SOCKET, SO_RCVBUF, &room_of_socket, sizeof room_of_socket));
    static struct iovec vectors[MESSAGES];
    static struct mmsghdr headers[MESSAGES];
    unsigned char *room = fresh(MESSAGES * ROOM);
    for (int round = 0; round < 3; round++) {
        fill(room, MESSAGES * ROOM, round);
        for (int i = 0; i < MESSAGES; i++) {
            int text[2] = {i, round};
            REQUIRE(sendto(out, text, sizeof text, 0, (struct sockaddr *)&to, sizeof to) == sizeof text);
            vectors[i] = (struct iovec){room + i * ROOM, ROOM};
            headers[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = vectors + i, .msg_iovlen = 1}};
        }
        evict(room, MESSAGES * ROOM);
        int n = recvmmsg(in, headers, MESSAGES, MSG_DONTWAIT, NULL);
        REQUIRE(n > 0);
        for (int i = 0; i < n; i++) {
            int text[2];
            memcpy(text, room + i * ROOM, sizeof text);
            if (headers[i].msg_len != sizeof text || text[0] != i || text[1] != round)
                fail("round %d: message %d of %d came where %d was to come", round, text[0], n, i);
        }
        /* What found no room in the socket was not lost by a call: nothing else is there, and no error. */
        int text[2];
        ssize_t more = recv(in, text, sizeof text, MSG_DONTWAIT);
        if (more != -1 || errno != EAGAIN)
            fail("round %d: behind %d messages there is another (%zd)", round, n, more);
        socklen_t known = sizeof room_of_socket;
        int is = 0;
        MUST(getsockopt(in, SOL_SOCKET, SO_RCVBUF, &is, &known));
        if (is >= 2 * MESSAGES * 1024 && n != MESSAGES)
            fail("round %d: %d of %d came", round, n, MESSAGES);
    }
    return ok();
}
