/* A program that gives up its rights, changes its root, or forbids dumps keeps its memory. */
#include "pressure.h"
#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
static unsigned char *m;
static volatile int stop;
static void *busy(void *argument)
{
    unsigned char *own = fresh(2 * MIB);
    fill(own, 2 * MIB, 5);
    while (!stop)
        check(own, 2 * MIB, 5, "a busy thread's memory");
    return argument;
}
static void use(const char *what)
{
    evict(m, 2 * MIB);
    check(m, 2 * MIB, 1, what);
    fill(m, 2 * MIB, 1);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        check(m, 2 * MIB, 1, what);
        _exit(0);
    }
    wait_ok(pid);
}
static void undumpable(void *argument)
{
    (void)argument;
    MUST(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
    use("memory of a program that forbids dumps");
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_NAME, "another-name", 0, 0, 0));
    use("memory of a program that forbids new rights");
    pid_t pid = MUST(fork());
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(126);
    }
    wait_ok(pid);
}
static void unshared(void *argument)
{
    (void)argument;
    MUST(unshare(CLONE_FILES | CLONE_FS));
    use("memory after unshare of files");
    if (unshare(CLONE_NEWUSER) == 0)
        use("memory in a user namespace of its own");
}
static void dropped(void *argument)
{
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, busy, NULL));
    if (argument) {
        char directory[] = "/tmp/ebb-root-XXXXXX";
        REQUIRE(mkdtemp(directory));
        MUST(chroot(directory));
        MUST(chdir("/"));
        use("memory under another root");
    }
    MUST(setgroups(0, NULL));
    MUST(setresgid(65534, 65534, 65534));
    MUST(setresuid(65534, 65534, 65534));
    use("memory of a program that gave up its rights");
    REQUIRE(setuid(0) == -1 && errno == EPERM);
    stop = 1;
    ZERO(pthread_join(thread, NULL));
}
int main(void)
{
    m = fresh(2 * MIB);
    fill(m, 2 * MIB, 1);
    evict(m, 2 * MIB);
    wait_ok(child_of(undumpable, NULL));
    wait_ok(child_of(unshared, NULL));
    if (geteuid() == 0) {
        wait_ok(child_of(dropped, NULL));
        wait_ok(child_of(dropped, m));
        REQUIRE(system("rmdir /tmp/ebb-root-*") == 0);
    }
    return ok();
}
