/* Memory that the kernel holds beside the program, for longer than a call: sockets of AF_XDP at both ends of a veth pair, pipes that
 * were given pages, asynchronous and direct reads in flight, packets on their way. All at random and under pressure, with forks in
 * between. What arrives is what was written last, byte by byte.
 *
 * TORTURE_SEED repeats a run, TORTURE_SECONDS makes it longer. Without the right to make a network of its own it goes without
 * AF_XDP, and says so. */
#include "pressure.h"
#include <arpa/inet.h>
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#ifndef SOL_XDP
#define SOL_XDP 283
#endif
#ifndef AF_XDP
#define AF_XDP 44
#endif
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
#define FRAMES 256
#define RING 256
#define ETHERTYPE 0x88b5
#define BLOCK (16 * PAGE)
#define BLOCKS 32
/* However busy the machine is. */
#define TURNS_MIN 40

static uint64_t seed, state;

static __attribute__((noreturn, format(printf, 1, 2))) void fail_seeded(const char *format, ...)
{
    char text[500];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fail("seed %llu: %s", (unsigned long long)seed, text);
}
#define fail fail_seeded

static uint64_t draw(uint64_t below)
{
    state = mix(state + 0x9e3779b97f4a7c15u);
    return state % below;
}

/* Packets: a ring of descriptors or addresses of AF_XDP. */
struct ring {
    uint32_t *producer, *consumer;
    void *entries;
};

struct end {
    int fd;
    unsigned char *area;
    struct ring fill, done, packets;
};

static struct ring ring_of(int fd, const struct xdp_ring_offset *at, size_t entry, uint64_t offset)
{
    unsigned char *map = MUST(mmap(NULL, at->desc + RING * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset));
    return (struct ring){ (uint32_t *)(map + at->producer), (uint32_t *)(map + at->consumer), map + at->desc };
}

/* An end of the pair, with memory in the midst of a mapping. */
static struct end end_of(const char *name, int sends)
{
    struct end end = { .fd = MUST(socket(AF_XDP, SOCK_RAW, 0)), .area = fresh(2 * FRAMES * PAGE) + FRAMES / 2 * PAGE };
    struct xdp_umem_reg area = { .addr = (uintptr_t)end.area, .len = FRAMES * PAGE, .chunk_size = PAGE };
    struct xdp_mmap_offsets at;
    socklen_t length = sizeof at;
    int entries = RING;
    fill(end.area, FRAMES * PAGE, 1);
    evict(end.area, FRAMES * PAGE);
    MUST(setsockopt(end.fd, SOL_XDP, XDP_UMEM_REG, &area, sizeof area));
    MUST(setsockopt(end.fd, SOL_XDP, XDP_UMEM_FILL_RING, &entries, sizeof entries));
    MUST(setsockopt(end.fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, &entries, sizeof entries));
    MUST(setsockopt(end.fd, SOL_XDP, sends ? XDP_TX_RING : XDP_RX_RING, &entries, sizeof entries));
    MUST(getsockopt(end.fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &length));
    end.fill = ring_of(end.fd, &at.fr, sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING);
    end.done = ring_of(end.fd, &at.cr, sizeof(uint64_t), XDP_UMEM_PGOFF_COMPLETION_RING);
    end.packets = ring_of(end.fd, sends ? &at.tx : &at.rx, sizeof(struct xdp_desc),
                          sends ? XDP_PGOFF_TX_RING : XDP_PGOFF_RX_RING);
    if (!sends) {
        for (uint64_t i = 0; i < RING; i++)
            ((uint64_t *)end.fill.entries)[i] = i * PAGE;
        __atomic_store_n(end.fill.producer, RING, __ATOMIC_RELEASE);
    }
    struct sockaddr_xdp where = { .sxdp_family = AF_XDP, .sxdp_flags = XDP_COPY, .sxdp_ifindex = MUST(if_nametoindex(name)) };
    MUST(bind(end.fd, (struct sockaddr *)&where, sizeof where));
    return end;
}

static void *put(void *at, int kind, const void *data, size_t len)
{
    struct rtattr *attribute = at;
    attribute->rta_type = kind;
    attribute->rta_len = RTA_LENGTH(len);
    memcpy(RTA_DATA(attribute), data, len);
    return (char *)at + RTA_ALIGN(attribute->rta_len);
}

static void make_pair(void)
{
    char request[512] = { 0 }, answer[512], *at, *info, *data, *peer;
    struct nlmsghdr *head = (struct nlmsghdr *)request;
    int fd = MUST(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    head->nlmsg_type = RTM_NEWLINK;
    head->nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
    at = put(request + NLMSG_LENGTH(sizeof(struct ifinfomsg)), IFLA_IFNAME, "pins0", 6);
    info = at;
    at = put(info + RTA_LENGTH(0), IFLA_INFO_KIND, "veth", 5);
    data = at;
    peer = data + RTA_LENGTH(0);
    at = put(peer + RTA_LENGTH(0) + sizeof(struct ifinfomsg), IFLA_IFNAME, "pins1", 6);
    *(struct rtattr *)peer = (struct rtattr){ at - peer, 1 /* VETH_INFO_PEER */ };
    *(struct rtattr *)data = (struct rtattr){ at - data, IFLA_INFO_DATA };
    *(struct rtattr *)info = (struct rtattr){ at - info, IFLA_LINKINFO };
    head->nlmsg_len = at - request;
    MUST(send(fd, request, head->nlmsg_len, 0));
    MUST(recv(fd, answer, sizeof answer, 0));
    errno = -((struct nlmsgerr *)NLMSG_DATA(answer))->error;
    REQUIRE(errno == 0);
    close(fd);
    fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (int i = 0; i < 3; i++) {
        struct ifreq up = { .ifr_flags = IFF_UP };
        strcpy(up.ifr_name, (const char *[]){ "lo", "pins0", "pins1" }[i]);
        MUST(ioctl(fd, SIOCSIFFLAGS, &up));
    }
    close(fd);
}

/* Has what arrives at the interface go to the socket. */
static void steer(const char *name, int socket)
{
    union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
    int table = MUST(syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map)), first = 0;
    struct bpf_insn code[] = {
        { .code = BPF_LDX | BPF_W | BPF_MEM, .dst_reg = 2, .src_reg = 1, .off = 16 },
        { .code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = table },
        { 0 },
        { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS },
        { .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
        { .code = BPF_JMP | BPF_EXIT },
    };
    union bpf_attr program = { .prog_type = BPF_PROG_TYPE_XDP, .insn_cnt = sizeof code / sizeof *code,
                               .insns = (uintptr_t)code, .license = (uintptr_t) "GPL" };
    int fd = MUST(syscall(SYS_bpf, BPF_PROG_LOAD, &program, sizeof program));
    union bpf_attr entry = { .map_fd = table, .key = (uintptr_t)&first, .value = (uintptr_t)&socket };
    MUST(syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &entry, sizeof entry));
    union bpf_attr link = { .link_create = { .prog_fd = fd, .target_ifindex = MUST(if_nametoindex(name)), .attach_type = BPF_XDP,
                                             .flags = XDP_FLAGS_SKB_MODE } };
    MUST(syscall(SYS_bpf, BPF_LINK_CREATE, &link, sizeof link));
}

static struct end sender, receiver;
static uint64_t packets;

/* Sends a packet from a frame that is written now, and looks at the frame that it arrives in. */
static void exchange(void)
{
    uint64_t frame = draw(FRAMES), number = ++packets;
    size_t len = 64 + draw(1300);
    unsigned char *at = sender.area + frame * PAGE;
    memset(at, 0xff, 6);
    memset(at + 6, 2, 6);
    at[12] = ETHERTYPE >> 8;
    at[13] = ETHERTYPE & 0xff;
    memcpy(at + 14, &number, 8);
    for (size_t i = 22; i < len; i++)
        at[i] = pattern(i, (unsigned)number);
    uint32_t slot = *sender.packets.producer;
    ((struct xdp_desc *)sender.packets.entries)[slot % RING] = (struct xdp_desc){ .addr = frame * PAGE, .len = len };
    __atomic_store_n(sender.packets.producer, slot + 1, __ATOMIC_RELEASE);
    for (int arrived = 0, turns = 0; !arrived; turns++) {
        if (turns > 200)
            fail("packet %llu does not arrive", (unsigned long long)number);
        if (sendto(sender.fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0)
            REQUIRE(errno == EAGAIN || errno == EBUSY || errno == ENOBUFS);
        uint32_t done = __atomic_load_n(sender.done.producer, __ATOMIC_ACQUIRE);
        __atomic_store_n(sender.done.consumer, done, __ATOMIC_RELEASE);
        struct pollfd wait = { .fd = receiver.fd, .events = POLLIN };
        poll(&wait, 1, 50);
        uint32_t seen = *receiver.packets.consumer;
        while (seen != __atomic_load_n(receiver.packets.producer, __ATOMIC_ACQUIRE)) {
            struct xdp_desc *got = &((struct xdp_desc *)receiver.packets.entries)[seen++ % RING];
            unsigned char *from = receiver.area + got->addr;
            /* What the system says by itself when an interface comes up is not ours. */
            if (got->len >= 22 && from[12] == ETHERTYPE >> 8 && from[13] == (ETHERTYPE & 0xff)) {
                uint64_t found;
                memcpy(&found, from + 14, 8);
                if (found != number || got->len != len)
                    fail("packet %llu of %zu bytes arrives as %llu of %u", (unsigned long long)number, len,
                         (unsigned long long)found, got->len);
                for (size_t i = 22; i < len; i++)
                    if (from[i] != pattern(i, (unsigned)number))
                        fail("packet %llu: byte %zu is %#x, not %#x", (unsigned long long)number, i, from[i],
                             pattern(i, (unsigned)number));
                arrived = 1;
            }
            uint32_t free_slot = *receiver.fill.producer;
            ((uint64_t *)receiver.fill.entries)[free_slot % RING] = got->addr / PAGE * PAGE;
            __atomic_store_n(receiver.fill.producer, free_slot + 1, __ATOMIC_RELEASE);
        }
        __atomic_store_n(receiver.packets.consumer, seen, __ATOMIC_RELEASE);
    }
}

/* What is under way: pages in a pipe, requests, bytes on a connection. */
static unsigned char *lent, *asked, *direct, *sent, *walk;
static size_t walk_len;
static int pipe_ends[2], file, connection[2];
static unsigned lent_as, sent_as;
static aio_context_t context;
static unsigned asked_for[4];
static int nr_asked;

static void pipe_step(void)
{
    static unsigned char back[BLOCK];
    if (lent_as == 0) {
        struct iovec piece = { lent, BLOCK };
        fill(lent, BLOCK, lent_as = 1 + draw(1 << 20));
        REQUIRE(vmsplice(pipe_ends[1], &piece, 1, 0) == (ssize_t)BLOCK);
        return;
    }
    for (size_t got = 0; got < BLOCK;)
        got += MUST(read(pipe_ends[0], back + got, BLOCK - got));
    check(back, BLOCK, lent_as, "what was in the pipe");
    check(lent, BLOCK, lent_as, "what was lent");
    lent_as = 0;
}

static void aio_step(void)
{
    if (nr_asked == 0) {
        struct iocb blocks[4] = { 0 }, *list[4];
        for (int i = 0; i < 4; i++) {
            asked_for[i] = draw(BLOCKS);
            blocks[i].aio_lio_opcode = IOCB_CMD_PREAD;
            blocks[i].aio_fildes = file;
            blocks[i].aio_buf = (uintptr_t)(asked + i * BLOCK);
            blocks[i].aio_nbytes = BLOCK;
            blocks[i].aio_offset = asked_for[i] * BLOCK;
            list[i] = &blocks[i];
        }
        long n = syscall(SYS_io_submit, context, 4, list);
        REQUIRE(n > 0 || (n < 0 && errno == EAGAIN));
        nr_asked = n > 0 ? n : 0;
        return;
    }
    for (int left = nr_asked; left > 0;) {
        struct io_event events[4];
        long got = MUST(syscall(SYS_io_getevents, context, 1, left, events, NULL));
        for (long i = 0; i < got; i++)
            REQUIRE(events[i].res == (long)BLOCK);
        left -= got;
    }
    for (int i = 0; i < nr_asked; i++)
        check(asked + i * BLOCK, BLOCK, 10 + asked_for[i], "what was asked for");
    nr_asked = 0;
}

static void direct_step(void)
{
    unsigned block = draw(BLOCKS);
    unsigned char *at = direct + draw(8) * BLOCK;
    REQUIRE(pread(file, at, BLOCK, block * BLOCK) == (ssize_t)BLOCK);
    check(at, BLOCK, 10 + block, "what was read directly");
}

static void connection_step(void)
{
    static unsigned char back[BLOCK];
    if (sent_as == 0) {
        fill(sent, BLOCK, sent_as = 1 + draw(1 << 20));
        ssize_t n = send(connection[0], sent, BLOCK, MSG_ZEROCOPY);
        if (n < 0 && errno == ENOBUFS)
            n = send(connection[0], sent, BLOCK, 0);
        REQUIRE(n == (ssize_t)BLOCK);
        return;
    }
    for (size_t got = 0; got < BLOCK;)
        got += MUST(recv(connection[1], back + got, BLOCK - got, 0));
    check(back, BLOCK, sent_as, "what was sent");
    sent_as = 0;
    /* What the kernel has to say of what it is done with. */
    char control[512];
    struct msghdr message = { .msg_control = control, .msg_controllen = sizeof control };
    while (recvmsg(connection[0], &message, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0)
        message.msg_controllen = sizeof control;
}

/* Changes pages of more memory than there is, in order or at random. */
static void press(void)
{
    static uint64_t rounds[1 << 16];
    size_t pages = walk_len / PAGE, n = pages / 4, first = draw(pages);
    int in_order = draw(2);
    for (size_t i = 0; i < n; i++) {
        size_t page = in_order ? (first + i) % pages : draw(pages);
        uint64_t *word = (uint64_t *)(walk + page * PAGE);
        if (*word != rounds[page])
            fail("page %zu is at %llu, not %llu", page, (unsigned long long)*word, (unsigned long long)rounds[page]);
        *word = ++rounds[page];
        word[1 + draw(500)] = state;
    }
}

static void connect_both(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t length = sizeof address;
    int one = 1, much = 4 * BLOCK, listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(listener, (struct sockaddr *)&address, sizeof address));
    MUST(listen(listener, 1));
    MUST(getsockname(listener, (struct sockaddr *)&address, &length));
    connection[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(connection[0], SOL_SOCKET, SO_SNDBUF, &much, sizeof much));
    MUST(setsockopt(connection[0], SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one));
    MUST(connect(connection[0], (struct sockaddr *)&address, sizeof address));
    connection[1] = MUST(accept(listener, NULL, NULL));
    close(listener);
}

int main(void)
{
    const char *wanted = getenv("TORTURE_SEED"), *time = getenv("TORTURE_SECONDS");
    seed = state = wanted ? strtoull(wanted, NULL, 10) : mix((uint64_t)(now_s() * 1e9)) >> 32;
    int has_network = unshare(CLONE_NEWNET) == 0;
    REQUIRE(has_network || errno == EPERM);
    /* Page by page: what it is about is scattered, and larger than what stays as it is. */
    lent = fresh(BLOCK);
    asked = fresh(4 * BLOCK);
    direct = fresh(8 * BLOCK);
    sent = fresh(BLOCK);
    walk_len = budget() ? budget() * 3 / 2 : 32 * MIB;
    if (walk_len > (size_t)(1 << 16) * PAGE)
        walk_len = (size_t)(1 << 16) * PAGE;
    walk = fresh(walk_len);
    file = open("blocks", O_RDWR | O_CREAT | O_DIRECT, 0600);
    if (file < 0)
        file = MUST(open("blocks", O_RDWR | O_CREAT, 0600));
    MUST(unlink("blocks"));
    for (unsigned block = 0; block < BLOCKS; block++) {
        fill(direct, BLOCK, 10 + block);
        REQUIRE(pwrite(file, direct, BLOCK, block * BLOCK) == (ssize_t)BLOCK);
    }
    MUST(pipe2(pipe_ends, O_CLOEXEC));
    MUST(fcntl(pipe_ends[1], F_SETPIPE_SZ, (int)BLOCK));
    MUST(syscall(SYS_io_setup, 8, &context));
    if (has_network) {
        make_pair();
        sender = end_of("pins0", 1);
        receiver = end_of("pins1", 0);
        steer("pins1", receiver.fd);
        connect_both();
    }
    pid_t child = 0;
    double end = now_s() + (time ? atof(time) : 1);
    for (int turn = 0; turn < TURNS_MIN || now_s() < end; turn++) {
        press();
        for (int i = 0; i < 8; i++)
            switch (draw(has_network ? 7 : 3)) {
            case 0: pipe_step(); break;
            case 1: aio_step(); break;
            case 2: direct_step(); break;
            case 3: connection_step(); break;
            default: exchange(); break;
            }
        if (child == 0 && draw(8) == 0) {
            child = MUST(fork());
            if (child == 0) {
                /* It has what its parent had, and goes or is killed while that goes on. */
                for (size_t page = 0; page < walk_len / PAGE; page += 3)
                    (void)*(volatile uint64_t *)(walk + page * PAGE);
                sleep_ms(draw(60));
                _exit(0);
            }
        } else if (child != 0 && draw(4) == 0) {
            if (draw(2))
                kill(child, SIGKILL);
            MUST(waitpid(child, NULL, 0));
            child = 0;
        }
    }
    if (child != 0)
        MUST(waitpid(child, NULL, 0));
    if (nr_asked)
        aio_step();
    if (lent_as)
        pipe_step();
    REQUIRE(!has_network || packets > TURNS_MIN);
    pages_evicted += absent(walk, walk_len);
    char line[200];
    int n = snprintf(line, sizeof line, "ok %s evicted=%zu packets=%llu seed=%llu\n", NAME, pages_evicted,
                     (unsigned long long)packets, (unsigned long long)seed);
    return write(1, line, n) == n ? 0 : 2;
}
