/* The program has as many descriptors as it may have. It got them all, it forks, and its children use memory that is out and
 * make children of their own. */
#include "pressure.h"
#include <sys/resource.h>
#define LIMIT 64
static unsigned char *m;
static int open_all(void)
{
    int opened = 0, fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0)
        opened++;
    REQUIRE(errno == EMFILE);
    return opened;
}
static void grandchild(void *argument UNUSED)
{
    check(m, MIB, 1, "a grandchild's memory");
    REQUIRE(open("/dev/null", O_RDONLY) == -1 && errno == EMFILE);
}
static void child(void *argument UNUSED)
{
    check(m, MIB, 1, "a child's memory");
    evict(m, MIB);
    check(m, MIB, 1, "a child's memory that was out");
    REQUIRE(open("/dev/null", O_RDONLY) == -1 && errno == EMFILE);
    wait_ok(child_of(grandchild, NULL));
}
int main(void)
{
    int inherited = 0;
    for (int fd = 0; fd < LIMIT; fd++)
        inherited += fcntl(fd, F_GETFD) != -1;
    struct rlimit old, limit;
    MUST(getrlimit(RLIMIT_NOFILE, &old));
    limit = old;
    limit.rlim_cur = LIMIT;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    m = fresh(MIB);
    fill(m, MIB, 1);
    evict(m, MIB);
    REQUIRE(open_all() == LIMIT - inherited);
    for (int i = 0; i < 3; i++)
        wait_ok(child_of(child, NULL));
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    REQUIRE(limit.rlim_cur == LIMIT && limit.rlim_max == old.rlim_max);
    /* Nor may it have more: a child, or the reason why there is none. */
    limit.rlim_max = LIMIT;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            check(m, MIB, 1, "a child's memory");
            _exit(0);
        }
        if (pid > 0)
            wait_ok(pid);
        else
            REQUIRE(errno == EMFILE);
    }
    MUST(close(LIMIT - 1));
    pid_t pid = MUST(fork());
    if (pid == 0) {
        check(m, MIB, 1, "a child's memory");
        _exit(0);
    }
    wait_ok(pid);
    return ok();
}
