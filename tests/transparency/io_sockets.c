/* Messages on sockets with every part in evicted memory: header, address, pieces, control data with descriptors. */
#include "pressure.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
struct parts {
    char gap0[4090];
    struct msghdr header;
    char gap1[4000];
    struct iovec list[3];
    char gap2[4070];
    struct sockaddr_storage address;
    char gap3[4000];
    _Alignas(8) char control[256];
    char gap4[4096];
    socklen_t length;
    int value;
    struct mmsghdr many[4];
    char tail[5000];
};
static struct parts *p;
static unsigned char *m;
static void prepare(void *address, socklen_t length, size_t control)
{
    memset(&p->header, 0, sizeof p->header);
    p->list[0] = (struct iovec){ m + 5, 3000 };
    p->list[1] = (struct iovec){ m + 3005, 0 };
    p->list[2] = (struct iovec){ m + 3005, 6000 };
    p->header = (struct msghdr){ .msg_name = address, .msg_namelen = length, .msg_iov = p->list, .msg_iovlen = 3,
                                 .msg_control = control ? p->control : NULL, .msg_controllen = control };
    evict(p, sizeof *p);
    evict(m, MIB);
}
int main(void)
{
    int pair[2];
    p = (struct parts *)fresh(16 * PAGE);
    m = fresh(MIB);
    fill(m, MIB, 1);
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
    for (int round = 0; round < 2; round++) {
        /* A descriptor sent along. */
        struct cmsghdr *control = (struct cmsghdr *)p->control;
        int fd = MUST(memfd_create("sent", MFD_CLOEXEC));
        REQUIRE(write(fd, "inside", 6) == 6);
        *control = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(control), &fd, sizeof fd);
        prepare(NULL, 0, CMSG_SPACE(sizeof fd));
        REQUIRE(sendmsg(pair[0], &p->header, 0) == 9000);
        memset(p->control, 0, sizeof p->control);
        memset(m, 0, 10000);
        prepare(NULL, 0, sizeof p->control);
        REQUIRE(recvmsg(pair[1], &p->header, 0) == 9000);
        for (size_t i = 5; i < 9005; i++)
            REQUIRE(m[i] == pattern(i, 1));
        fill(m, MIB, 1);
        int got;
        char text[6];
        REQUIRE(control->cmsg_type == SCM_RIGHTS && p->header.msg_controllen == CMSG_SPACE(sizeof got));
        memcpy(&got, CMSG_DATA(control), sizeof got);
        REQUIRE(got != fd && pread(got, text, 6, 0) == 6 && memcmp(text, "inside", 6) == 0);
        close(got);
        close(fd);
    }
    /* Internet sockets: bind, getsockname, connect, accept, send, receive, options. */
    struct sockaddr_in *address = (struct sockaddr_in *)&p->address;
    int listener = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    *address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    evict(p, sizeof *p);
    MUST(bind(listener, (struct sockaddr *)address, sizeof *address));
    MUST(listen(listener, 4));
    p->length = sizeof p->address;
    evict(p, sizeof *p);
    MUST(getsockname(listener, (struct sockaddr *)address, &p->length));
    REQUIRE(p->length == sizeof *address && address->sin_port != 0);
    int client = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    evict(p, sizeof *p);
    MUST(connect(client, (struct sockaddr *)address, sizeof *address));
    p->length = sizeof p->address;
    memset(address, 0, sizeof *address);
    evict(p, sizeof *p);
    int server = MUST(accept4(listener, (struct sockaddr *)address, &p->length, SOCK_CLOEXEC));
    REQUIRE(address->sin_addr.s_addr == htonl(INADDR_LOOPBACK) && p->length == sizeof *address);
    p->value = 1;
    evict(p, sizeof *p);
    MUST(setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &p->value, sizeof p->value));
    p->value = 0;
    p->length = sizeof p->value;
    evict(p, sizeof *p);
    MUST(getsockopt(server, IPPROTO_TCP, TCP_NODELAY, &p->value, &p->length));
    REQUIRE(p->value != 0 && p->length == sizeof p->value);
    evict(m, MIB);
    REQUIRE(send(client, m, 30000, 0) == 30000);
    memset(m, 0, 30000);
    evict(m, MIB);
    REQUIRE(recv(server, m, 30000, MSG_WAITALL) == 30000);
    check(m, MIB, 1, "what came through a connection");
    /* Datagrams, several in one call. */
    int sender = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)), receiver = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    *address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    MUST(bind(receiver, (struct sockaddr *)address, sizeof *address));
    p->length = sizeof p->address;
    MUST(getsockname(receiver, (struct sockaddr *)address, &p->length));
    evict(m, MIB);
    evict(p, sizeof *p);
    REQUIRE(sendto(sender, m, 5000, 0, (struct sockaddr *)address, sizeof *address) == 5000);
    memset(m, 0, 5000);
    p->length = sizeof p->address;
    evict(m, MIB);
    evict(p, sizeof *p);
    struct sockaddr_in expected = *address;
    memset(address, 0xff, sizeof *address);
    REQUIRE(recvfrom(receiver, m, 9000, 0, (struct sockaddr *)address, &p->length) == 5000 && p->length == sizeof *address);
    check(m, MIB, 1, "a datagram");
    *address = expected;
    struct iovec *lists = (struct iovec *)(p->tail + 100);
    for (int i = 0; i < 4; i++) {
        lists[i] = (struct iovec){ m + i * 3000, 3000 };
        p->many[i] = (struct mmsghdr){ .msg_hdr = { .msg_name = address, .msg_namelen = sizeof *address, .msg_iov = &lists[i], .msg_iovlen = 1 } };
    }
    evict(m, MIB);
    evict(p, sizeof *p);
    REQUIRE(sendmmsg(sender, p->many, 4, 0) == 4 && p->many[3].msg_len == 3000);
    memset(m, 0, 12000);
    for (int i = 0; i < 4; i++)
        p->many[i].msg_hdr.msg_name = NULL;
    evict(m, MIB);
    evict(p, sizeof *p);
    REQUIRE(recvmmsg(receiver, p->many, 4, MSG_WAITFORONE, NULL) == 4 && p->many[0].msg_len == 3000);
    check(m, MIB, 1, "datagrams received in one call");
    p->length = sizeof p->address;
    evict(p, sizeof *p);
    MUST(getpeername(client, (struct sockaddr *)address, &p->length));
    return ok();
}
