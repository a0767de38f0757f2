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
    fill(holed, MIB, 4);
    MUST(mlock(holed, MIB / 2));
    REQUIRE(mlock(holed, 4 * MIB) == -1 && errno == ENOMEM);
    /* The kernel has done the first part. */
    evict(m, 2 * MIB);
    REQUIRE(absent(holed, MIB) == 0);
    check(holed, MIB, 4, "locked by a call that failed");
    MUST(munlock(holed, MIB));
    evict(holed, MIB);
    REQUIRE(!budget() || absent(holed, MIB) > 0);
    check(holed, MIB, 4, "unlocked after that");
    /* One that lets all go, and one of what nobody locked. */
    MUST(mlock(holed, MIB));
    MUST(munlockall());
    MUST(munlock(m, MIB));
    evict(holed, MIB);
    REQUIRE(!budget() || absent(holed, MIB) > 0);
    check(holed, MIB, 4, "unlocked by munlockall");
    /* Under a limit that forbids it, as an ordinary user. */
    if (geteuid() != 0) {
        MUST(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ 64 * 1024, limit.rlim_max }));
        MUST(mlock(m, 8 * PAGE));
        REQUIRE(mlock(m, MIB) == -1 && (errno == ENOMEM || errno == EAGAIN || errno == EPERM));
        evict(m + 8 * PAGE, 2 * MIB - 8 * PAGE);
        REQUIRE(absent(m, 8 * PAGE) == 0);
        REQUIRE(!budget() || absent(m, MIB) > 0);
        check(m, 2 * MIB, 1, "after a refused lock");
        MUST(munlock(m, 8 * PAGE));
        MUST(setrlimit(RLIMIT_MEMLOCK, &limit));
    }
    MUST(mlock(m, MIB));
    pid_t pid = MUST(fork());
    if (pid == 0) {
        /* Locks are not inherited; locking all future memory then is the child's own. */
        evict(m, 2 * MIB);
        REQUIRE(!budget() || absent(m, MIB) > 0);
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
    REQUIRE(absent(m, MIB) == 0);
    MUST(munlock(m, MIB));
    evict(m, 2 * MIB);
    check(m, 2 * MIB, 1, "unlocked by the parent");
    return ok();
}
