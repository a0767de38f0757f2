/* A filter that refuses userfaultfd, and then the program once more, which needs more memory than it may have. */
#include "pressure.h"
#include "filter.h"
static void in_child(void *memory)
{
    check(memory, 20 * MIB, 5, "in a child");
}
int main(int count, char **arguments)
{
    if (count == 1) {
        if (!answer_with(SYS_userfaultfd, SECCOMP_RET_ERRNO | EPERM))
            return skip("seccomp filters are not allowed here");
        char *again[] = { arguments[0], "again", NULL };
        int silent = MUST(open("/dev/null", O_WRONLY | O_CLOEXEC));
        MUST(dup2(silent, 2));
        MUST(execv(arguments[0], again));
    }
    if (count == 2)
        REQUIRE(syscall(SYS_userfaultfd, 0) == -1 && errno == EPERM);
    unsigned char *m = fresh(20 * MIB);
    fill(m, 20 * MIB, 5);
    wait_ok(child_of(in_child, m));
    check(m, 20 * MIB, 5, "under a filter");
    if (count == 2) {
        /* One that kills, and once more. */
        REQUIRE(answer_with(SYS_userfaultfd, SECCOMP_RET_KILL_PROCESS));
        char *again[] = { arguments[0], "again", "and again", NULL };
        MUST(execv(arguments[0], again));
    }
    return ok();
}
