/* A filter that refuses nothing of what Ebb needs, and then the program once more: it is managed. */
#include "pressure.h"
#include "filter.h"
int main(int count, char **arguments)
{
    if (count == 1) {
        if (!answer_with(SYS_getppid, SECCOMP_RET_ERRNO | EPERM))
            return skip("seccomp filters are not allowed here");
        char *again[] = { arguments[0], "again", NULL };
        MUST(execv(arguments[0], again));
    }
    REQUIRE(syscall(SYS_getppid) == -1 && errno == EPERM);
    unsigned char *m = fresh(MIB);
    fill(m, MIB, 5);
    evict(m, MIB);
    check(m, MIB, 5, "under a filter");
    REQUIRE(!budget() || pages_evicted > 0);
    return ok();
}
