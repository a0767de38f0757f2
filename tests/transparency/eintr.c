/* Which calls a signal interrupts, and which go on: exactly as Linux says, with and without SA_RESTART. */
#include "pressure.h"
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/socket.h>
static volatile int ran;
static int ends[2], let_go[2];
static unsigned char *m;
static pthread_t thread;
/* The call in which the first thread is to be interrupted. */
static struct {
    long number, or_number;
    uintptr_t argument;
} sleeps_in;

static void handler(int signal)
{
    (void)signal;
    ran++;
}
static void *interrupt(void *argument)
{
    wait_asleep(getpid(), sleeps_in.number, sleeps_in.or_number, sleeps_in.argument);
    MUST(syscall(SYS_tgkill, getpid(), getpid(), SIGALRM));
    /* What has been interrupted and goes on gets what it waits for. */
    while (!ran)
        sleep_ms(5);
    sleep_ms(40);
    if (argument)
        REQUIRE(write(*(int *)argument, "later", 5) == 5);
    return NULL;
}
static void arm(int flags, long number, long or_number, uintptr_t argument, int *to)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    MUST(sigaction(SIGALRM, &action, NULL));
    evict(m, MIB);
    ran = 0;
    sleeps_in.number = number;
    sleeps_in.or_number = or_number;
    sleeps_in.argument = argument;
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    ZERO(pthread_sigmask(SIG_BLOCK, &set, &old));
    ZERO(pthread_create(&thread, NULL, interrupt, to));
    ZERO(pthread_sigmask(SIG_SETMASK, &old, NULL));
}
static void disarm(void)
{
    ZERO(pthread_join(thread, NULL));
    REQUIRE(ran == 1);
}
#define ENDS_WITH_EINTR(flags, call, number, or_number, argument) \
    do { \
        arm(flags, number, or_number, argument, NULL); \
        REQUIRE((call) == -1 && errno == EINTR && ran == 1); \
        disarm(); \
    } while (0)
#define INTERRUPTED(call, number, or_number) ENDS_WITH_EINTR(0, call, number, or_number, 0)
#define NEVER_RESTARTED(call, number, or_number) ENDS_WITH_EINTR(SA_RESTART, call, number, or_number, 0)
int main(void)
{
    m = fresh(MIB);
    fill(m, MIB, 1);
    MUST(pipe(ends));
    MUST(pipe(let_go));
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    INTERRUPTED(read(ends[0], m, 100), SYS_read, -1);
    INTERRUPTED(recv(pair[0], m + PAGE, 100, 0), SYS_recvfrom, -1);
    INTERRUPTED(pause(), SYS_pause, SYS_ppoll);
    struct timespec *time = (struct timespec *)m, *left = (struct timespec *)(m + 8 * PAGE);
    *time = (struct timespec){ PATIENCE_S, 0 };
    double start = now_s();
    INTERRUPTED(nanosleep(time, left), SYS_clock_nanosleep, SYS_nanosleep);
    require_left(left->tv_sec + left->tv_nsec / 1e9, PATIENCE_S, start);
    *time = (struct timespec){ PATIENCE_S, 0 };
    arm(SA_RESTART, SYS_clock_nanosleep, SYS_nanosleep, 0, NULL);
    start = now_s();
    REQUIRE(clock_nanosleep(CLOCK_MONOTONIC, 0, time, left) == EINTR);
    require_left(left->tv_sec + left->tv_nsec / 1e9, PATIENCE_S, start);
    disarm();
    struct pollfd *poll_fd = (struct pollfd *)(m + 2 * PAGE - 4);
    *poll_fd = (struct pollfd){ .fd = ends[0], .events = POLLIN };
    NEVER_RESTARTED(poll(poll_fd, 1, PATIENCE_S * 1000), SYS_poll, SYS_ppoll);
    fd_set *set = (fd_set *)(m + 3 * PAGE - 64);
    FD_ZERO(set);
    FD_SET(ends[0], set);
    struct timeval limit = { PATIENCE_S, 0 };
    NEVER_RESTARTED(select(ends[0] + 1, set, NULL, NULL, &limit), SYS_pselect6, SYS_select);
    int epoll = MUST(epoll_create1(0));
    struct epoll_event *events = (struct epoll_event *)(m + 4 * PAGE - 8);
    NEVER_RESTARTED(epoll_wait(epoll, events, 4, PATIENCE_S * 1000), SYS_epoll_wait, SYS_epoll_pwait);
    sem_t *semaphore = (sem_t *)(m + 5 * PAGE);
    MUST(sem_init(semaphore, 0, 0));
    ENDS_WITH_EINTR(0, sem_wait(semaphore), SYS_futex, -1, (uintptr_t)semaphore);
    limit = (struct timeval){ PATIENCE_S, 0 };
    MUST(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    NEVER_RESTARTED(recv(pair[0], m + PAGE, 100, 0), SYS_recvfrom, -1);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        char byte;
        _exit(read(let_go[0], &byte, 1) != 1);
    }
    int *status = (int *)(m + 6 * PAGE);
    INTERRUPTED(waitpid(pid, status, 0), SYS_wait4, SYS_waitid);
    /* SA_RESTART: the wait and the read go on after the handler and get what comes later. */
    arm(SA_RESTART, SYS_wait4, SYS_waitid, 0, &let_go[1]);
    REQUIRE(waitpid(pid, status, 0) == pid && *status == 0 && ran == 1);
    disarm();
    arm(SA_RESTART, SYS_read, -1, 0, &ends[1]);
    REQUIRE(read(ends[0], m + 7 * PAGE - 2, 100) == 5 && ran == 1 && memcmp(m + 7 * PAGE - 2, "later", 5) == 0);
    disarm();
    return ok();
}
