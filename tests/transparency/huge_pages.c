/* Memory for which the program wants huge pages has as many as without Ebb, and keeps what is in it: while it is used, when parts
 * of it go, after fork, and when it has been out. */
#include "pressure.h"
#include <sys/prctl.h>
#include <sys/wait.h>
#define UNIT (2 * MIB)
#define UNITS 8
/* Bytes of huge pages that the process has. */
static size_t huge(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[512];
    unsigned long kib = 0;
    REQUIRE(f != NULL);
    while (fgets(line, sizeof line, f) != NULL && sscanf(line, "AnonHugePages: %lu kB", &kib) != 1)
        ;
    fclose(f);
    return kib * 1024;
}
/* New memory that begins with a whole huge page, in place of the last such. */
static unsigned char *units(void)
{
    static unsigned char *all;
    if (all != NULL)
        MUST(munmap(all, (UNITS + 1) * UNIT));
    all = fresh((UNITS + 1) * UNIT);
    return (unsigned char *)(((unsigned long)all + UNIT - 1) & ~(UNIT - 1UL));
}
static void fill_units(unsigned char *m, int first, int end, int seed)
{
    for (int i = first; i < end; i++)
        fill(m + i * UNIT, UNIT, seed);
}
static void check_units(unsigned char *m, int first, int end, int seed, const char *what)
{
    for (int i = first; i < end; i++)
        check(m + i * UNIT, UNIT, seed, what);
}
int main(void)
{
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    char enabled[64] = "";
    if (f == NULL || fgets(enabled, sizeof enabled, f) == NULL || strstr(enabled, "[never]") != NULL)
        return skip("the kernel has no huge pages");
    unsigned char *m = units();
    MUST(madvise(m, UNITS * UNIT, MADV_HUGEPAGE));
    fill_units(m, 0, UNITS, 1);
    /* The kernel may be short of them. */
    REQUIRE(huge() >= UNITS * UNIT * 9 / 10);
    evict(m, UNITS * UNIT);
    check_units(m, 0, UNITS, 1, "out and in again");
    /* A part goes, and is zero when it is touched again. */
    MUST(madvise(m + UNIT / 2, 16 * PAGE, MADV_DONTNEED));
    for (size_t i = 0; i < 16 * PAGE; i++)
        REQUIRE(m[UNIT / 2 + i] == 0);
    check(m, UNIT / 2, 1, "before a part that went");
    check_units(m, 1, UNITS, 1, "behind a part that went");
    fill_units(m, 0, UNITS, 2);
    /* Each side of a fork has its own. */
    pid_t pid = MUST(fork());
    if (pid == 0) {
        check_units(m, 0, UNITS, 2, "in the child");
        fill_units(m, 0, UNITS / 2, 3);
        evict(m, UNITS * UNIT);
        check_units(m, 0, UNITS / 2, 3, "what the child wrote");
        check_units(m, UNITS / 2, UNITS, 2, "what the child left");
        _exit(0);
    }
    fill_units(m, 1, 2, 4);
    int status;
    MUST(waitpid(pid, &status, 0));
    REQUIRE(status == 0);
    check_units(m, 0, 1, 2, "in the parent");
    check_units(m, 1, 2, 4, "what the parent wrote");
    check_units(m, 2, UNITS, 2, "what the parent left");
    /* Memory that is excepted, and a process that wants none. */
    m = units();
    MUST(madvise(m, UNITS * UNIT, MADV_NOHUGEPAGE));
    fill_units(m, 0, UNITS, 5);
    REQUIRE(huge() == 0);
    MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    REQUIRE(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1);
    m = units();
    MUST(madvise(m, UNITS * UNIT, MADV_HUGEPAGE));
    fill_units(m, 0, UNITS, 6);
    REQUIRE(huge() == 0);
    MUST(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0));
    m = units();
    MUST(madvise(m, UNITS * UNIT, MADV_HUGEPAGE));
    fill_units(m, 0, UNITS, 7);
    REQUIRE(huge() >= UNITS * UNIT * 9 / 10);
    return ok();
}
