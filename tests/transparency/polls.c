/* poll, select and epoll with their arrays in evicted memory, waiting while others evict. */
#include "pressure.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
static int ends[2];
static unsigned char *m;
static void *later(void *argument)
{
    sleep_ms(30);
    evict(m, MIB);
    REQUIRE(write(ends[1], "x", 1) == 1);
    return argument;
}
int main(void)
{
    m = fresh(MIB);
    fill(m, MIB, 1);
    MUST(pipe(ends));
    int epoll = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event *add = (struct epoll_event *)(m + 30 * PAGE - 4);
    *add = (struct epoll_event){ .events = EPOLLIN, .data.u64 = 0x1122334455667788 };
    evict(m, MIB);
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], add));
    for (int kind = 0; kind < 6; kind++) {
        struct pollfd *list = (struct pollfd *)(m + 40 * PAGE - 12);
        fd_set *set = (fd_set *)(m + 50 * PAGE - 64);
        struct timespec *limit = (struct timespec *)(m + 60 * PAGE - 8);
        struct epoll_event *events = (struct epoll_event *)(m + 70 * PAGE - 6);
        struct timeval *limit_us = (struct timeval *)(m + 80 * PAGE - 8);
        pthread_t thread;
        char byte;
        for (int i = 0; i < 3; i++)
            list[i] = (struct pollfd){ .fd = i ? -1 : ends[0], .events = POLLIN };
        FD_ZERO(set);
        FD_SET(ends[0], set);
        *limit = (struct timespec){ PATIENCE_S, 0 };
        *limit_us = (struct timeval){ PATIENCE_S, 0 };
        evict(m, MIB);
        ZERO(pthread_create(&thread, NULL, later, NULL));
        double start = now_s();
        int n = kind == 0   ? poll(list, 3, PATIENCE_S * 1000)
                : kind == 1 ? ppoll(list, 3, limit, NULL)
                : kind == 2 ? select(ends[0] + 1, set, NULL, NULL, limit_us)
                : kind == 3 ? pselect(ends[0] + 1, set, NULL, NULL, limit, NULL)
                : kind == 4 ? epoll_wait(epoll, events, 8, PATIENCE_S * 1000)
                            : (int)syscall(441 /* epoll_pwait2 */, epoll, events, 8, limit, NULL, 8);
        if (kind == 5 && n == -1 && errno == ENOSYS)
            n = epoll_wait(epoll, events, 8, PATIENCE_S * 1000);
        REQUIRE(n == 1);
        REQUIRE(kind > 1 || list[0].revents == POLLIN);
        REQUIRE(kind < 2 || kind > 3 || FD_ISSET(ends[0], set));
        REQUIRE(kind < 4 || events[0].data.u64 == 0x1122334455667788);
        if (kind == 2)
            require_left(limit_us->tv_sec + limit_us->tv_usec / 1e6, PATIENCE_S, start);
        ZERO(pthread_join(thread, NULL));
        REQUIRE(read(ends[0], &byte, 1) == 1);
    }
    return ok();
}
