/* A program uses more memory than it may, and then loads a filter that kills for asynchronous transfers (io_submit and
 * its kin), which Ebb uses where it may. Threads go on using memory meanwhile, and afterwards. */
#include "pressure.h"
#include "filter.h"
#include <sys/syscall.h>
enum { EACH = 24 };
static volatile int is_over;
static void *beside(void *unused)
{
    unsigned seed = 10;
    (void)unused;
    while (!is_over) {
        unsigned char *own = fresh(EACH * MIB);
        fill(own, EACH * MIB, ++seed);
        check(own, EACH * MIB, seed, "beside");
        ZERO(munmap(own, EACH * MIB));
    }
    return NULL;
}
static void use(void *unused)
{
    (void)unused;
    pthread_t thread;
    unsigned char *before = fresh(EACH * MIB), *after = fresh(EACH * MIB);
    fill(before, EACH * MIB, 2);
    evict(before, EACH * MIB);
    ZERO(pthread_create(&thread, NULL, beside, NULL));
    if (!answer_with(SYS_io_submit, SECCOMP_RET_KILL_PROCESS) || !answer_with(SYS_io_getevents, SECCOMP_RET_KILL_PROCESS) ||
        !answer_with(SYS_io_setup, SECCOMP_RET_KILL_PROCESS))
        _exit(77);
    fill(after, EACH * MIB, 3);
    evict(after, EACH * MIB);
    check(before, EACH * MIB, 2, "from before the filter");
    check(after, EACH * MIB, 3, "from after it");
    is_over = 1;
    ZERO(pthread_join(thread, NULL));
}
int main(void)
{
    int status;
    pid_t pid = child_of(use, NULL);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        return skip("seccomp filters are not allowed here");
    if (status != 0)
        fail("the child ended with wait status %#x", status);
    return ok();
}
