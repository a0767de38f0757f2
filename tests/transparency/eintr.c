/* Which calls a signal interrupts, and which go on: exactly as Linux says, with and without SA_RESTART. */
#include "pressure.h"
#include <poll.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
static volatile int ran;
static int ends[2];
static unsigned char *m;
static void handler(int signal)
{
    (void)signal;
    ran++;
}
static void arm(int flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    struct itimerval timer = { { 0, 0 }, { 0, 30000 } };
    MUST(sigaction(SIGALRM, &action, NULL));
    evict(m, MIB);
    ran = 0;
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
}
static void *later(void *argument)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    (void)argument;
    while (!ran)
        sleep_ms(5);
    sleep_ms(40);
    REQUIRE(write(ends[1], "later", 5) == 5);
    return NULL;
}
#define INTERRUPTED(call) do { arm(0); REQUIRE((call) == -1 && errno == EINTR && ran == 1); } while (0)
#define NEVER_RESTARTED(call) do { arm(SA_RESTART); REQUIRE((call) == -1 && errno == EINTR && ran == 1); } while (0)
int main(void)
{
    pthread_t thread;
    sem_t *semaphore;
    struct timespec *left;
    struct pollfd *poll_fd;
    m = fresh(MIB);
    fill(m, MIB, 1);
    MUST(pipe(ends));
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    INTERRUPTED(read(ends[0], m, 100));
    INTERRUPTED(recv(pair[0], m + PAGE, 100, 0));
    INTERRUPTED(pause());
    struct timespec *time = (struct timespec *)m;
    left = (struct timespec *)(m + 8 * PAGE);
    *time = (struct timespec){ 20, 0 };
    INTERRUPTED(nanosleep(time, left));
    REQUIRE(left->tv_sec == 19);
    *time = (struct timespec){ 20, 0 };
    arm(SA_RESTART);
    REQUIRE(clock_nanosleep(CLOCK_MONOTONIC, 0, time, left) == EINTR && left->tv_sec == 19);
    poll_fd = (struct pollfd *)(m + 2 * PAGE - 4);
    *poll_fd = (struct pollfd){ .fd = ends[0], .events = POLLIN };
    NEVER_RESTARTED(poll(poll_fd, 1, 20000));
    fd_set *set = (fd_set *)(m + 3 * PAGE - 64);
    FD_ZERO(set);
    FD_SET(ends[0], set);
    NEVER_RESTARTED(select(ends[0] + 1, set, NULL, NULL, &(struct timeval){ 20, 0 }));
    int epoll = MUST(epoll_create1(0));
    NEVER_RESTARTED(epoll_wait(epoll, (struct epoll_event *)(m + 4 * PAGE - 8), 4, 20000));
    semaphore = (sem_t *)(m + 5 * PAGE);
    MUST(sem_init(semaphore, 0, 0));
    INTERRUPTED(sem_wait(semaphore));
    struct timeval limit = { 20, 0 };
    MUST(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    NEVER_RESTARTED(recv(pair[0], m + PAGE, 100, 0));
    pid_t pid = MUST(fork());
    if (pid == 0) {
        sleep_ms(1500);
        _exit(0);
    }
    int *status = (int *)(m + 6 * PAGE);
    INTERRUPTED(waitpid(pid, status, 0));
    arm(SA_RESTART);
    REQUIRE(waitpid(pid, status, 0) == pid && *status == 0 && ran == 1);
    /* SA_RESTART: the read goes on after the handler and gets what is written later. */
    arm(SA_RESTART);
    ZERO(pthread_create(&thread, NULL, later, NULL));
    REQUIRE(read(ends[0], m + 7 * PAGE - 2, 100) == 5 && ran == 1 && memcmp(m + 7 * PAGE - 2, "later", 5) == 0);
    ZERO(pthread_join(thread, NULL));
    return ok();
}
