/* blocked CALL MODE: holds memory, and its first thread waits in CALL while somebody asks for the control socket. A line
 * on standard input lets it go on; then it says what the call gave, whether it was let go before, and how long it took.
 *
 * MODE says what the program does with SIGBUS: plain, handler, blocked, ignored, everything (all signals blocked). */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_MS 5000 /* whole seconds, as in run.py */
#define MEMORY_BYTES (24 << 20)

static int ends[2], pair[2], queue = -1, semaphores = -1;
static sem_t sem;
static int word;
static volatile int released, handled;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pid_t child;

static void on_sigbus(int sig) {
    (void)sig;
    handled++;
}

static void on_sigusr1(int sig) { (void)sig; }

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static long call(const char *name) {
    char c;
    struct timespec limit = {LIMIT_MS / 1000, LIMIT_MS % 1000 * 1000000L};
    struct pollfd one = {ends[0], POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    fd_set set;
    sigset_t some;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    sigemptyset(&some);
    sigaddset(&some, SIGBUS);
    sigaddset(&some, SIGUSR1);
    if (!strcmp(name, "read"))
        return read(ends[0], &c, 1);
    if (!strcmp(name, "recv"))
        return recv(pair[0], &c, 1, 0);
    if (!strcmp(name, "recv_timed")) {
        struct timeval t = {LIMIT_MS / 1000, LIMIT_MS % 1000 * 1000};
        setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
        return recv(pair[0], &c, 1, 0);
    }
    if (!strncmp(name, "epoll", 5)) {
        int fd = epoll_create1(0);
        epoll_ctl(fd, EPOLL_CTL_ADD, ends[0], &event);
        return epoll_wait(fd, &event, 1, strcmp(name, "epoll") ? LIMIT_MS : -1);
    }
    if (!strncmp(name, "poll", 4))
        return poll(&one, 1, strcmp(name, "poll") ? LIMIT_MS : -1);
    if (!strcmp(name, "ppoll_timed"))
        return ppoll(&one, 1, &limit, NULL);
    if (!strncmp(name, "select", 6)) {
        struct timeval t = {LIMIT_MS / 1000, LIMIT_MS % 1000 * 1000};
        return select(ends[0] + 1, &set, NULL, NULL, strcmp(name, "select") ? &t : NULL);
    }
    if (!strcmp(name, "nanosleep_timed"))
        return nanosleep(&limit, NULL);
    if (!strcmp(name, "nanosleep_rem_timed")) {
        struct timespec rem;
        return nanosleep(&limit, &rem);
    }
    if (!strcmp(name, "clock_timed"))
        return clock_nanosleep(CLOCK_MONOTONIC, 0, &limit, NULL);
    if (!strcmp(name, "sleep_timed")) /* CLOCK_MONOTONIC, to a moment */
    {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        t.tv_sec += LIMIT_MS / 1000;
        return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
    }
    if (!strcmp(name, "sem_timed")) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_sec += LIMIT_MS / 1000;
        return sem_timedwait(&sem, &t);
    }
    if (!strcmp(name, "sem_wait"))
        return sem_wait(&sem);
    if (!strcmp(name, "futex"))
        return syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
    if (!strcmp(name, "futex_timed"))
        return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &limit, NULL, 0);
    if (!strcmp(name, "cond")) {
        pthread_mutex_lock(&lock);
        while (!released)
            pthread_cond_wait(&cond, &lock);
        return 0;
    }
    if (!strcmp(name, "pause"))
        return pause();
    if (!strcmp(name, "sigwait"))
        return sigwaitinfo(&some, NULL);
    if (!strcmp(name, "sigwait_timed"))
        return sigtimedwait(&some, NULL, &limit);
    if (!strcmp(name, "signalfd_timed")) {
        struct pollfd signals = {signalfd(-1, &some, 0), POLLIN, 0};
        return poll(&signals, 1, LIMIT_MS);
    }
    if (!strcmp(name, "signalfd")) {
        struct signalfd_siginfo info;
        long ret = read(signalfd(-1, &some, 0), &info, sizeof info);
        return ret < 0 ? ret : (long)info.ssi_signo;
    }
    if (!strcmp(name, "msgrcv")) {
        struct {
            long type;
            char text[8];
        } message;
        return msgrcv(queue, &message, 8, 0, 0);
    }
    if (!strcmp(name, "semop")) {
        struct sembuf down = {0, -1, 0};
        return semop(semaphores, &down, 1);
    }
    if (!strcmp(name, "wait"))
        return waitpid(child, NULL, 0) == child ? 0 : -1;
    if (!strcmp(name, "spin")) {
        while (!released)
            ;
        return 0;
    }
    printf("no such call\n");
    exit(2);
}

static void *let_go(void *first) {
    char line[16];
    if (read(0, line, sizeof line) <= 0)
        _exit(1); /* the test is gone */
    released = 1;
    write(ends[1], "x", 1);
    write(pair[1], "x", 1);
    sem_post(&sem);
    word = 1;
    syscall(SYS_futex, &word, FUTEX_WAKE, 99, NULL, NULL, 0);
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&lock);
    if (first)
        pthread_kill(*(pthread_t *)first, SIGUSR1);
    if (queue >= 0) {
        struct {
            long type;
            char text[8];
        } message = {1, "x"};
        msgsnd(queue, &message, 8, 0);
    }
    if (semaphores >= 0) {
        struct sembuf up = {0, 1, 0};
        semop(semaphores, &up, 1);
    }
    if (child > 0)
        kill(child, SIGKILL);
    return NULL;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "read", *mode = argc > 2 ? argv[2] : "plain";
    int by_signal = !strcmp(name, "pause") || !strcmp(name, "sigwait") || !strcmp(name, "signalfd");
    pthread_t first = pthread_self(), other;
    sigset_t set, pending;
    unsigned char *memory = malloc(MEMORY_BYTES);
    unsigned x = 1;
    if (!memory)
        return 2;
    for (size_t i = 0; i < MEMORY_BYTES; i++)
        memory[i] = (x = x * 1664525 + 1013904223) >> 24;
    if (pipe(ends) || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || sem_init(&sem, 0, 0))
        return 2;
    if (!strcmp(name, "msgrcv"))
        queue = msgget(IPC_PRIVATE, 0600);
    if (!strcmp(name, "semop"))
        semaphores = semget(IPC_PRIVATE, 1, 0600);
    if (!strcmp(name, "wait") && (child = fork()) == 0)
        for (;;)
            pause();
    signal(SIGUSR1, on_sigusr1);
    sigemptyset(&set);
    if (!strcmp(mode, "handler"))
        signal(SIGBUS, on_sigbus);
    if (!strcmp(mode, "ignored"))
        signal(SIGBUS, SIG_IGN);
    if (!strcmp(mode, "blocked"))
        sigaddset(&set, SIGBUS);
    if (!strcmp(mode, "everything"))
        sigfillset(&set);
    if (!strncmp(name, "sig", 3))
        sigaddset(&set, SIGBUS), sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pthread_create(&other, NULL, let_go, by_signal ? &first : NULL))
        return 2;
    printf("ready %s %d\n", name, (int)getpid());
    fflush(stdout);
    long begin = now_ms();
    errno = 0;
    long ret = call(name);
    int error = ret < 0 ? errno : 0, before = released;
    long ms = now_ms() - begin;
    sigpending(&pending);
    printf("result %ld %d released %d ms %ld handled %d pending %d\n", ret, error, before, ms, handled,
           sigismember(&pending, SIGBUS));
    fflush(stdout);
    x = 1;
    for (size_t i = 0; i < MEMORY_BYTES; i++)
        if (memory[i] != (unsigned char)((x = x * 1664525 + 1013904223) >> 24))
            return 3;
    if (queue >= 0)
        msgctl(queue, IPC_RMID, NULL);
    if (semaphores >= 0)
        semctl(semaphores, 0, IPC_RMID);
    pthread_join(other, NULL);
    if (!strcmp(mode, "handler")) {
        raise(SIGBUS); /* its own signal still reaches it */
        union sigval value = {.sival_int = 5};
        sigqueue(getpid(), SIGBUS, value);
        printf("own %d\n", handled);
    }
    return 0;
}
