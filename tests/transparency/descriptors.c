/* Descriptor numbers are the program's: dup2 over any number, high ones too, and lowest-first allocation. */
#include "pressure.h"
#include <sys/ioctl.h>
#include <sys/resource.h>
int main(void)
{
    unsigned char *m = fresh(2 * MIB);
    fill(m, 2 * MIB, 1);
    for (int fd = 3; fd < 20; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            close(fd);
    int ends[2];
    MUST(pipe(ends));
    REQUIRE(ends[0] == 3 && ends[1] == 4);
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    int top = (int)(limit.rlim_cur < 1048576 ? limit.rlim_cur : 1048576);
    evict(m, 2 * MIB);
    /* Every number up to 300, some high ones, and the highest of all. */
    for (int fd = 5; fd < 300; fd++)
        REQUIRE(dup2(0, fd) == fd);
    int high[] = { 500, 511, 512, 900, 1000, 1022, 1023 };
    for (int i = 0; i < 7; i++)
        if (high[i] < top)
            REQUIRE(dup3(0, high[i], O_CLOEXEC) == high[i]);
    for (int fd = top - 1; fd > top - 20; fd--)
        REQUIRE(dup2(0, fd) == fd);
    evict(m, 2 * MIB);
    check(m, 2 * MIB, 1, "memory after dup2 over all numbers");
    /* Those that it cannot have are nobody's to it, and a call that fails takes nothing. */
    rlim_t few = 300;
    for (rlim_t most = limit.rlim_cur;; most = few) {
        MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ most, limit.rlim_max }));
        for (int fd = (int)most; fd < (int)most + 800; fd++)
            REQUIRE(dup2(0, fd) == -1 && errno == EBADF);
        if (most == few)
            break;
    }
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    int closed = 299;
    close(closed);
    for (int fd = 300; fd < top; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            REQUIRE(dup2(top, fd) == -1 && errno == EBADF && dup2(closed, fd) == -1 && errno == EBADF);
    check(m, 2 * MIB, 1, "memory after dup2 that fails");
    /* A number that looks closed cannot be duplicated either. */
    for (int fd = 300; fd < top + 800; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            REQUIRE(dup(fd) == -1 && errno == EBADF && fcntl(fd, F_DUPFD, 0) == -1 && errno == EBADF);
    /* Nor can it be asked anything, such as for another userfaultfd. */
    for (int fd = 3; fd < 4096; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            REQUIRE(ioctl(fd, 0xaa00, O_CLOEXEC) == -1 && errno == EBADF && ioctl(fd, FIONCLEX) == -1 && errno == EBADF);
    int fd = fcntl(0, F_DUPFD, 600);
    REQUIRE(fd == 600);
    REQUIRE(fcntl(0, F_DUPFD_CLOEXEC, 600) == 601);
    for (int n = 5; n < 299; n++)
        close(n);
    REQUIRE(open("/dev/null", O_RDONLY) == 5);
    fill(m, 2 * MIB, 2);
    evict(m, 2 * MIB);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        check(m, 2 * MIB, 2, "memory in a child");
        _exit(0);
    }
    wait_ok(pid);
    check(m, 2 * MIB, 2, "at the end");
    return ok();
}
