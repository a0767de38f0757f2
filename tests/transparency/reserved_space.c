/* Address space that is reserved and never used costs next to nothing: no memory beside what the program asked for, and no
   work at fork. What is used in the midst of it is like any other memory. */
#include "pressure.h"
#include <sys/resource.h>
#define GIB (1024UL * MIB)
/* Kilobytes of a line of /proc/self/status. */
static long status_kib(const char *key)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    REQUIRE(status);
    while (kib < 0 && fgets(line, sizeof line, status))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = atol(line + strlen(key) + 1);
    fclose(status);
    REQUIRE(kib >= 0);
    return kib;
}
static long faults(int who)
{
    struct rusage usage;
    MUST(getrusage(who, &usage));
    return usage.ru_minflt;
}
static void nothing(void *argument)
{
    (void)argument;
}
static void check_all(void *argument)
{
    unsigned char *base = argument;
    for (size_t i = 0; i < 8; i++)
        check(base + i * 57 * GIB + 3 * PAGE, MIB / 4, i, "a piece in the child");
}
int main(void)
{
    unsigned char *bases[2];
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    wait_ok(child_of(nothing, NULL));
    long anonymous = status_kib("RssAnon"), tables = status_kib("VmPTE");
    bases[0] = MUST(mmap(NULL, 2048 * GIB, PROT_NONE, flags, -1, 0));
    bases[1] = MUST(mmap(NULL, 512 * GIB, PROT_READ | PROT_WRITE, flags, -1, 0));
    REQUIRE(status_kib("RssAnon") - anonymous < 512);
    REQUIRE(status_kib("VmPTE") - tables < 512);
    long before = faults(RUSAGE_SELF);
    for (int i = 0; i < 4; i++)
        wait_ok(child_of(nothing, NULL));
    REQUIRE(faults(RUSAGE_SELF) - before < 2000);
    REQUIRE(faults(RUSAGE_CHILDREN) < 10000);
    for (size_t i = 0; i < 8; i++) {
        unsigned char *at = bases[1] + i * 57 * GIB + 3 * PAGE;
        check_zero(at, MIB / 4, "a piece that is used");
        fill(at, MIB / 4, i);
    }
    evict(bases[1] + 3 * PAGE, MIB / 4);
    wait_ok(child_of(check_all, bases[1]));
    check_all(bases[1]);
    MUST(mprotect(bases[0] + 999 * GIB, MIB, PROT_READ | PROT_WRITE));
    fill(bases[0] + 999 * GIB, MIB, 9);
    MUST(munmap(bases[0], 999 * GIB));
    evict(bases[0] + 999 * GIB, MIB);
    check(bases[0] + 999 * GIB, MIB, 9, "a piece made usable");
    return ok();
}
