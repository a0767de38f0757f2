/* ioctl and fcntl whose argument points to evicted memory, nested pointers too; System V and POSIX messages. */
#include "pressure.h"
#include <net/if.h>
#include <pty.h>
#include <sys/inotify.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <termios.h>
int main(void)
{
    unsigned char *m = fresh(MIB);
    void *at = m + 9 * PAGE - 4;
    int ends[2];
    fill(m, MIB, 1);
    MUST(pipe(ends));
    REQUIRE(write(ends[1], m, 777) == 777);
    evict(m, MIB);
    MUST(ioctl(ends[0], FIONREAD, at));
    REQUIRE(*(int *)at == 777);
    *(int *)at = 1;
    evict(m, MIB);
    MUST(ioctl(ends[0], FIONBIO, at));
    char path[] = "/tmp/ebb-control-XXXXXX";
    int fd = MUST(mkstemp(path)), watched = MUST(inotify_init1(IN_NONBLOCK));
    struct flock *lock = at;
    *lock = (struct flock){ .l_type = F_WRLCK, .l_start = 10, .l_len = 20 };
    evict(m, MIB);
    MUST(fcntl(fd, F_SETLK, lock));
    pid_t pid = MUST(fork());
    if (pid == 0) {
        *lock = (struct flock){ .l_type = F_WRLCK, .l_len = 100 };
        evict(m, MIB);
        MUST(fcntl(fd, F_GETLK, lock));
        REQUIRE(lock->l_type == F_WRLCK && lock->l_start == 10 && lock->l_len == 20 && lock->l_pid == getppid());
        _exit(0);
    }
    wait_ok(pid);
    /* A terminal, if there may be one. */
    int leader, follower;
    if (openpty(&leader, &follower, NULL, NULL, NULL) == 0) {
        struct winsize *size = at;
        *size = (struct winsize){ 33, 77, 0, 0 };
        evict(m, MIB);
        MUST(ioctl(leader, TIOCSWINSZ, size));
        memset(size, 0, sizeof *size);
        evict(m, MIB);
        MUST(ioctl(follower, TIOCGWINSZ, size));
        REQUIRE(size->ws_row == 33 && size->ws_col == 77);
        struct termios *terminal = at;
        evict(m, MIB);
        MUST(tcgetattr(follower, terminal));
        cfmakeraw(terminal);
        evict(m, MIB);
        MUST(tcsetattr(follower, TCSANOW, terminal));
    }
    /* The list of interfaces: a structure that points to a second buffer. */
    int sock = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifconf *list = at;
    *list = (struct ifconf){ .ifc_len = 4000, .ifc_buf = (char *)m + 50 * PAGE - 60 };
    evict(m, MIB);
    MUST(ioctl(sock, SIOCGIFCONF, list));
    if (list->ifc_len >= (int)sizeof(struct ifreq))
        REQUIRE(list->ifc_req->ifr_name[0] != 0 && (unsigned char)list->ifc_req->ifr_name[0] < 128);
    /* Reads of structures: timers, events, notices. */
    int timer = MUST(timerfd_create(CLOCK_MONOTONIC, 0));
    struct itimerspec *spec = at;
    *spec = (struct itimerspec){ { 0, 0 }, { 0, 1000000 } };
    evict(m, MIB);
    MUST(timerfd_settime(timer, 0, spec, spec + 1));
    evict(m, MIB);
    REQUIRE(read(timer, at, 8) == 8 && *(uint64_t *)at == 1);
    int event = MUST(eventfd(0, 0));
    *(uint64_t *)at = 5;
    evict(m, MIB);
    REQUIRE(write(event, at, 8) == 8);
    *(uint64_t *)at = 0;
    evict(m, MIB);
    REQUIRE(read(event, at, 8) == 8 && *(uint64_t *)at == 5);
    strcpy(at, path);
    evict(m, MIB);
    MUST(inotify_add_watch(watched, at, IN_MODIFY));
    REQUIRE(write(fd, "x", 1) == 1);
    evict(m, MIB);
    REQUIRE(read(watched, at, 200) > 0 && ((struct inotify_event *)at)->mask == IN_MODIFY);
    unlink(path);
    /* System V messages and semaphores. */
    int queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    if (queue >= 0) {
        struct { long type; char text[3000]; } *message = (void *)(m + 100 * PAGE - 16);
        message->type = 4;
        fill(message->text, 3000, 2);
        evict(m, MIB);
        MUST(msgsnd(queue, message, 3000, 0));
        memset(message, 0, sizeof *message);
        evict(m, MIB);
        REQUIRE(msgrcv(queue, message, 3000, 4, 0) == 3000);
        check(message->text, 3000, 2, "a message");
        evict(m, MIB);
        MUST(msgctl(queue, IPC_STAT, at));
        MUST(msgctl(queue, IPC_RMID, NULL));
    }
    int set = semget(IPC_PRIVATE, 2, IPC_CREAT | 0600);
    if (set >= 0) {
        struct sembuf *operations = at;
        operations[0] = (struct sembuf){ 0, 3, 0 };
        operations[1] = (struct sembuf){ 1, 4, 0 };
        evict(m, MIB);
        MUST(semop(set, operations, 2));
        evict(m, MIB);
        MUST(semctl(set, 0, GETALL, at));
        REQUIRE(((unsigned short *)at)[0] == 3 && ((unsigned short *)at)[1] == 4);
        MUST(semctl(set, 0, IPC_RMID));
    }
    return ok();
}
