/* mlock, mlock2, mlockall and their opposites on evicted memory, within the limits. */
#include "pressure.h"
#include <sys/resource.h>
int main(void)
{
    unsigned char *m = fresh(2 * MIB);
    struct rlimit limit;
    fill(m, 2 * MIB, 1);
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit));
    if (limit.rlim_cur < 4 * MIB)
        return skip("RLIMIT_MEMLOCK is too small");
    evict(m, 2 * MIB);
    MUST(mlock(m, MIB));
    REQUIRE(absent(m, MIB) == 0);
    evict(m + MIB, MIB);
    REQUIRE(absent(m, MIB) == 0);
    check(m, 2 * MIB, 1, "locked memory");
    MUST(munlock(m, MIB));
    evict(m, 2 * MIB);
    check(m, 2 * MIB, 1, "unlocked memory");
    MUST(mlock2(m + MIB, MIB, 1 /* MLOCK_ONFAULT */));
    check(m, 2 * MIB, 1, "memory locked on fault");
    MUST(munlock(m + MIB, MIB));
    unsigned char *holed = fresh(4 * MIB);
    MUST(munmap(holed + MIB, MIB));
    REQUIRE(mlock(holed, 4 * MIB) == -1 && errno == ENOMEM);
    MUST(munlock(holed, MIB));
    /* Under a limit that forbids it, as an ordinary user. */
    if (geteuid() != 0) {
        MUST(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ 64 * 1024, limit.rlim_max }));
        REQUIRE(mlock(m, MIB) == -1 && (errno == ENOMEM || errno == EAGAIN || errno == EPERM));
        check(m, 2 * MIB, 1, "after a refused lock");
        MUST(setrlimit(RLIMIT_MEMLOCK, &limit));
    }
    pid_t pid = MUST(fork());
    if (pid == 0) {
        /* Locks are not inherited; locking all future memory then is the child's own. */
        evict(m, 2 * MIB);
        check(m, 2 * MIB, 1, "memory in a child of a process that locked it");
        if (mlockall(MCL_FUTURE) == 0) {
            unsigned char *more = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (more != MAP_FAILED) {
                check_zero(more, MIB, "locked new memory");
                fill(more, MIB, 2);
                check(more, MIB, 2, "locked new memory");
                REQUIRE(absent(more, MIB) == 0);
            }
            MUST(munlockall());
        }
        evict(m, 2 * MIB);
        check(m, 2 * MIB, 1, "memory after munlockall");
        _exit(0);
    }
    wait_ok(pid);
    return ok();
}
