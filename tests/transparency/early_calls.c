/* The loader asks a program's resolver which function to use, before any constructor runs. The resolver makes calls that Ebb
 * answers in place of libc. */
#include "pressure.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

static int calls;

static int right(void)
{
    return calls;
}

static void count(long is_right)
{
    calls += is_right != 0;
}

static int (*resolve(void))(void)
{
    struct stat stat_of;
    char text[64];
    int fd = open("/proc/self/exe", O_RDONLY), pair[2];
    count(fd >= 0);
    count(read(fd, text, 4) == 4 && text[0] == 0x7f);
    count(pread(fd, text, 3, 1) == 3 && text[0] == 'E');
    count(lseek(fd, 0, SEEK_SET) == 0);
    count(fstat(fd, &stat_of) == 0 && S_ISREG(stat_of.st_mode));
    count(stat("/", &stat_of) == 0 && S_ISDIR(stat_of.st_mode));
    count(fcntl(fd, F_GETFD) == 0);
    count(dup2(fd, 60) == 60 && close(60) == 0);
    count(poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 0) == 1);
    count(prctl(PR_SET_NAME, "early") == 0);
    count(syscall(SYS_getpid) == getpid());
    count(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && send(pair[0], "a", 1, 0) == 1 && recv(pair[1], text, 1, 0) == 1);
    count(readlink("/proc/self/exe", text, sizeof text) > 0);
    count(close(fd) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
    return right;
}

static int asked(void) __attribute__((ifunc("resolve")));

int main(void)
{
    int found = asked();
    if (found != 14)
        fail("%d of 14 calls were right before the program began", found);
    unsigned char *m = fresh(20 * MIB);
    fill(m, 20 * MIB, 3);
    check(m, 20 * MIB, 3, "after early calls");
    return ok();
}
