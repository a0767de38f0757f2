/* Limits that a program sets for itself do not keep its memory from coming back: address space, data, files. */
#include "pressure.h"
#include <sys/resource.h>
static unsigned char *m;
static int resource;
static rlim_t value;
static void body(void *argument)
{
    (void)argument;
    struct rlimit old;
    MUST(getrlimit(resource, &old));
    MUST(setrlimit(resource, &(struct rlimit){ value, old.rlim_max }));
    struct rlimit now;
    MUST(getrlimit(resource, &now));
    REQUIRE(now.rlim_cur == value);
    for (int i = 0; i < 2; i++) {
        if (resource == RLIMIT_AS || resource == RLIMIT_DATA) {
            REQUIRE(mmap(NULL, 8192 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
        } else {
            evict(m, 2 * MIB);
        }
        check(m, 2 * MIB, 1, "memory under a limit");
        fill(m, 2 * MIB, 1);
    }
    if (resource == RLIMIT_NOFILE) {
        int n = 0;
        while (dup(0) >= 0)
            n++;
        REQUIRE(errno == EMFILE && n <= (int)value);
        evict(m, 2 * MIB);
        check(m, 2 * MIB, 1, "memory without free descriptors");
    }
}
static void try(int which, rlim_t limit)
{
    resource = which;
    value = limit;
    evict(m, 2 * MIB);
    wait_ok(child_of(body, NULL));
}
static rlim_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    REQUIRE(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * PAGE;
}
int main(void)
{
    m = fresh(2 * MIB);
    fill(m, 2 * MIB, 1);
    try(RLIMIT_NOFILE, 12);
    try(RLIMIT_NPROC, 1000);
    try(RLIMIT_STACK, 512 * 1024);
    try(RLIMIT_MEMLOCK, 0);
    try(RLIMIT_CORE, 0);
    try(RLIMIT_SIGPENDING, 0);
    try(RLIMIT_DATA, 256 * MIB);
    try(RLIMIT_AS, address_space() + 64 * MIB);
    check(m, 2 * MIB, 1, "in the parent");
    return ok();
}
