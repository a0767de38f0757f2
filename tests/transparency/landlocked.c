/* A process that may write to no file any more (landlock) when it grows, and its children: what Ebb cannot open for it leaves nothing
 * behind in the directory of spill files, which the driver looks into. */
#include "pressure.h"
#include <linux/landlock.h>
#include <sys/prctl.h>
#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_restrict_self 446
#endif
/* More than a small process has, less than the budget. */
enum { SIZE = 12 * 1024 * 1024 };

static void grow(unsigned seed)
{
    unsigned char *m = fresh(SIZE);
    fill(m, SIZE, seed);
    check(m, SIZE, seed, "after it has grown");
    MUST(munmap(m, SIZE));
}
static void in_child(void (*f)(void))
{
    pid_t child = fork();
    MUST(child);
    if (child == 0) {
        f();
        exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
}
static void grandchild(void)
{
    grow(2);
}
static int give_up_writing(void)
{
    uint64_t writes = LANDLOCK_ACCESS_FS_WRITE_FILE;
    int ruleset = syscall(SYS_landlock_create_ruleset, &writes, sizeof writes, 0);
    if (ruleset < 0)
        return -1;
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(syscall(SYS_landlock_restrict_self, ruleset, 0));
    close(ruleset);
    REQUIRE(open("/dev/null", O_WRONLY) == -1 && errno == EACCES);
    return 0;
}
/* Small when it is restricted, and grown. */
static void small(void)
{
    MUST(give_up_writing());
    grow(1);
    in_child(grandchild);
}
static void grown(void)
{
    grow(1);
    MUST(give_up_writing());
    grow(3);
    in_child(grandchild);
    grow(4);
}
int main(void)
{
    if (syscall(SYS_landlock_create_ruleset, NULL, 0, 1 /* LANDLOCK_CREATE_RULESET_VERSION */) < 0)
        return skip("no landlock");
    in_child(small);
    in_child(grown);
    return ok();
}
