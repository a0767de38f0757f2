/* Future memory is locked by a call that no library makes, before the process grows: what comes later is right all the same. */
#include "pressure.h"
#include <sys/resource.h>
#include <sys/wait.h>
#define BIG ((size_t)48 * MIB)

static long call2(long nr, long a, long b)
{
    long ret;
    __asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b) : "rcx", "r11", "memory");
    return ret;
}

/* Kibibytes that are locked of the mapping at `at`. */
static long locked(void *at)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    REQUIRE(maps);
    char line[512];
    long kib = -1;
    for (int is_it = 0; fgets(line, sizeof line, maps);) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            is_it = start <= (uintptr_t)at && (uintptr_t)at < end;
        else if (is_it)
            sscanf(line, "Locked: %ld", &kib);
    }
    fclose(maps);
    return kib;
}

static void grow(int flags)
{
    unsigned char *before = fresh(16 * PAGE), *secret = fresh(PAGE);
    fill(before, 16 * PAGE, 1);
    fill(secret, PAGE, 2);
    REQUIRE(call2(SYS_mlock, (long)secret, PAGE) == 0);
    if (call2(SYS_mlockall, flags, 0) != 0)
        exit(2);
    unsigned char *between = fresh(8 * PAGE);
    fill(between, 8 * PAGE, 3);
    unsigned char *big = fresh(BIG);
    fill(big, BIG, 4);
    unsigned char *more = fresh(4 * MIB);
    fill(more, 4 * MIB, 5);
    check(big, BIG, 4, "what made it grow");
    for (int round = 0; round < 3; round++) {
        unsigned char *m = fresh(4 * MIB);
        check_zero(m, 4 * MIB, "new memory");
        fill(m, 4 * MIB, 10 + round);
        /* Pages that come by way of the books. */
        for (size_t at = 0; at < 4 * MIB; at += 16 * PAGE) {
            /* The kernel discards nothing that is locked. */
            if (madvise(more + at, PAGE, MADV_DONTNEED) == 0)
                check_zero(more + at, PAGE, "discarded");
            else
                REQUIRE(errno == EINVAL && !budget());
            for (size_t i = at; i < at + PAGE; i++)
                more[i] = pattern(i, 5);
        }
        if (budget())
            evict(m, 4 * MIB);
        check(m, 4 * MIB, 10 + round, "new memory");
        check(more, 4 * MIB, 5, "partly discarded");
        MUST(munmap(m, 4 * MIB));
    }
    check(big, BIG, 4, "what made it grow, later");
    check(before, 16 * PAGE, 1, "what was there before");
    check(between, 8 * PAGE, 3, "what was locked as it came");
    check(secret, PAGE, 2, "what was locked");
    REQUIRE(locked(secret) > 0);
    exit(0);
}

int main(void)
{
    static const int flags[] = {MCL_FUTURE, MCL_CURRENT | MCL_FUTURE, MCL_FUTURE | 4 /* MCL_ONFAULT */, MCL_CURRENT | MCL_FUTURE | 4};
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit));
    if (geteuid() != 0 && limit.rlim_cur < (budget() ? MIB : 256 * MIB))
        return skip("RLIMIT_MEMLOCK is too small");
    for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++) {
        pid_t pid = MUST(fork());
        if (pid == 0)
            grow(flags[i]);
        int status;
        REQUIRE(waitpid(pid, &status, 0) == pid);
        if (status != 2 << 8 && status != 0)
            fail("flags %d: status %#x", flags[i], status);
    }
    return ok();
}
