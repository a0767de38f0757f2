/* A program that dies of its own fault dumps core as far as its limit says, and ends in good time. */
#include "pressure.h"
#include <sys/prctl.h>
#include <sys/resource.h>
static unsigned char *m;
static void body(void *argument)
{
    struct rlimit limit = { argument ? 64 * MIB : 0, RLIM_INFINITY };
    if (setrlimit(RLIMIT_CORE, &limit) != 0) {
        limit.rlim_max = limit.rlim_cur;
        setrlimit(RLIMIT_CORE, &limit);
    }
    evict(m, 4 * MIB);
    *(volatile int *)8 = 1;
}
int main(void)
{
    char directory[] = "/tmp/ebb-core-XXXXXX", command[100];
    m = fresh(4 * MIB);
    fill(m, 4 * MIB, 1);
    REQUIRE(mkdtemp(directory));
    MUST(chdir(directory));
    for (int dump = 0; dump < 2; dump++) {
        double start = now_s();
        int status;
        pid_t pid = child_of(body, dump ? m : NULL);
        REQUIRE(waitpid(pid, &status, 0) == pid);
        REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
        REQUIRE(!WCOREDUMP(status) || dump);
        REQUIRE(now_s() - start < 30);
    }
    check(m, 4 * MIB, 1, "at the end");
    MUST(chdir("/"));
    snprintf(command, sizeof command, "rm -r %s", directory);
    REQUIRE(system(command) == 0);
    return ok();
}
