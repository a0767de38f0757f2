/* MLOCK_ONFAULT brings nothing in: what is in memory stays there, and the rest does once it comes. */
#include "pressure.h"
#include <sys/resource.h>
#define ON_FAULT 1
static int has_flag(const void *at, const char *flag)
{
    char line[4200];
    unsigned long start, end;
    int here = 0, found = 0;
    FILE *file = fopen("/proc/self/smaps", "re");
    REQUIRE(file != NULL);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            here = (unsigned long)at >= start && (unsigned long)at < end;
        else if (here && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, flag) != NULL;
    }
    fclose(file);
    return found;
}
int main(void)
{
    unsigned char *other = fresh(MIB);
    fill(other, MIB, 2);
    unsigned char *m = fresh(4 * MIB);
    /* A huge page would come in whole; where there are none, the kernel does not know the advice. */
    (void)madvise(m, 4 * MIB, MADV_NOHUGEPAGE);
    fill(m, MIB, 1);
    MUST(mlock2(m, 4 * MIB, ON_FAULT));
    REQUIRE(has_flag(m, " lo") && has_flag(m, " lf") && has_flag(m + 2 * MIB, " lf"));
    /* But for what a walk through memory brings in ahead of itself. */
    REQUIRE(absent(m + MIB, 3 * MIB) >= 3 * MIB / PAGE - 64);
    fill(m + MIB, MIB / 2, 3);
    evict(other, MIB);
    REQUIRE(absent(m, MIB + MIB / 2) == 0);
    REQUIRE(absent(m + 2 * MIB, 2 * MIB) >= 2 * MIB / PAGE - 64);
    check(m, MIB, 1, "what was there");
    check(m + MIB, MIB / 2, 3, "what came later");
    check_zero(m + 2 * MIB, 2 * MIB, "what never came");
    MUST(munlock(m, 4 * MIB));
    REQUIRE(!has_flag(m, " lo"));
    fill(m, MIB, 4);
    /* What is out when it is locked. */
    evict(m, MIB);
    MUST(mlock2(m, MIB, ON_FAULT));
    check(m, MIB, 4, "what was out");
    evict(other, MIB);
    REQUIRE(absent(m, MIB) == 0);
    check(m, MIB, 4, "what came back");
    MUST(munlock(m, MIB));
    evict(m, MIB);
    check(m, MIB, 4, "what was locked");
    check(other, MIB, 2, "other memory");
    /* Much more than fits, of which little is used. */
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit));
    if (geteuid() == 0 || limit.rlim_cur > 512 * MIB) {
        unsigned char *much = fresh(256 * MIB);
        MUST(mlock2(much, 256 * MIB, ON_FAULT));
        fill(much + 100 * MIB, MIB, 5);
        evict(other, MIB);
        REQUIRE(absent(much + 100 * MIB, MIB) == 0);
        check(much + 100 * MIB, MIB, 5, "a part of much");
    }
    REQUIRE(mlock2(m, MIB, 2) == -1 && errno == EINVAL);
    REQUIRE(mlock2(m, MIB, 0x100) == -1 && errno == EINVAL);
    return ok();
}
