/* A small program loads a filter that refuses ioctl, which Ebb needs; then it uses memory, forks and makes a thread. A
 * process that is managed already cannot load it, and says so. */
#include "pressure.h"
#include "filter.h"
#include <sys/ioctl.h>
static void *in_thread(void *memory)
{
    check(memory, MIB, 2, "in a thread");
    return NULL;
}
static void in_child(void *memory)
{
    unsigned char *own = fresh(20 * MIB);
    fill(own, 20 * MIB, 4);
    check(memory, MIB, 2, "in a child");
    check(own, 20 * MIB, 4, "a child's own");
}
static void use(void *unused)
{
    (void)unused;
    int available = 0;
    REQUIRE(answer_with(SYS_ioctl, SECCOMP_RET_ERRNO | ENOSYS));
    REQUIRE(ioctl(0, FIONREAD, &available) == -1 && errno == ENOSYS);
    unsigned char *small = fresh(MIB);
    fill(small, MIB, 2);
    wait_ok(child_of(in_child, small));
    /* What it is told about that is not this program's own. */
    int silent = MUST(open("/dev/null", O_WRONLY | O_CLOEXEC));
    MUST(dup2(silent, 2));
    unsigned char *much = fresh(40 * MIB);
    fill(much, 40 * MIB, 3);
    evict(small, MIB);
    check(small, MIB, 2, "under a filter");
    check(much, 40 * MIB, 3, "much under a filter");
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, in_thread, small));
    ZERO(pthread_join(thread, NULL));
}
static void probe(void *unused)
{
    (void)unused;
    _exit(answer_with(SYS_getppid, SECCOMP_RET_ALLOW) ? 0 : 77);
}
int main(void)
{
    int status, saved = MUST(dup(2)), silent = MUST(open("/dev/null", O_WRONLY | O_CLOEXEC));
    pid_t pid = child_of(probe, NULL);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    if (status != 0)
        return skip("seccomp filters are not allowed here");
    MUST(dup2(silent, 2));
    pid = child_of(use, NULL);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    MUST(dup2(saved, 2));
    const char *force = getenv("EBB_FORCE");
    int is_small = !budget() || force == NULL || strcmp(force, "") == 0;
    /* One that is managed ends before it loads the filter. */
    if (status != 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == 125 && !is_small))
        fail("the child ended with wait status %#x", status);
    return ok();
}
