/* A process takes all memory, changes what it may do many times at once, and sleeps: its child, which has none, gets some of it. */
#define NAME "changed_and_waits"
#include "pressure.h"
#include <sys/prctl.h>

static unsigned char *all;
static size_t all_len;
static int go[2];

/* Anonymous memory of a process in KiB. */
static long anonymous(pid_t pid)
{
    char name[64], line[256];
    long kib = -1;
    snprintf(name, sizeof name, "/proc/%d/status", (int)pid);
    FILE *status = fopen(name, "r");
    REQUIRE(status != NULL);
    while (fgets(line, sizeof line, status))
        sscanf(line, "RssAnon: %ld", &kib);
    fclose(status);
    return kib;
}

static void child(void *unused)
{
    (void)unused;
    char byte;
    REQUIRE(read(go[0], &byte, 1) == 1);
    long before = anonymous(getppid());
    size_t len = 3 * MIB;
    unsigned char *own = fresh(len);
    for (unsigned seed = 2;; seed++) {
        fill(own, len, seed);
        check(own, len, seed, "the child's memory");
        if (!budget() || anonymous(getppid()) < before - 1024)
            break;
        if (seed == 1000)
            fail("its parent sleeps, and keeps %ld KiB of %ld", anonymous(getppid()), before);
    }
}

int main(void)
{
    const char *force = getenv("EBB_FORCE");
    if (force && strstr(force, "no-background"))
        return skip("without Ebb's thread nobody gives up what a process holds that sleeps");
    /* More than the budget. */
    all_len = (budget() ? budget() : 16 * MIB) * 5 / 4;
    all = fresh(all_len);
    ZERO(pipe(go));
    pid_t pid = child_of(child, NULL);
    fill(all, all_len, 1);
    fill(all, all_len, 3);
    for (int i = 0; i < 40; i++)
        ZERO(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    REQUIRE(write(go[1], "", 1) == 1);
    wait_ok(pid);
    check(all, all_len, 3, "the parent's memory");
    return ok();
}
