/* A program that uses SIGSEGV itself, as collectors do: protect, fault, learn the address, unprotect, go on. */
#include "pressure.h"
#define PAGES 256
static unsigned char *m;
static size_t faults;
static void handler(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    unsigned char *at = info->si_addr;
    if (at < m || at >= m + PAGES * PAGE || info->si_code != SEGV_ACCERR)
        fail("fault at %p with code %d", (void *)at, info->si_code);
    REQUIRE((size_t)(at - m) % PAGE == 5);
    MUST(mprotect(m + (at - m) / PAGE * PAGE, PAGE, PROT_READ | PROT_WRITE));
    faults++;
}
int main(void)
{
    m = fresh(PAGES * PAGE);
    fill(m, PAGES * PAGE, 1);
    handle(SIGSEGV, handler, 0);
    static const int prots[] = { PROT_NONE, PROT_READ, PROT_NONE };
    for (int round = 0; round < 3; round++) {
        faults = 0;
        if (round < 2)
            MUST(mprotect(m, PAGES * PAGE, prots[round]));
        evict(m, PAGES * PAGE);
        if (round == 2)
            MUST(mprotect(m, PAGES * PAGE, PROT_NONE));
        for (size_t i = 0; i < PAGES; i++)
            m[i * PAGE + 5] ^= 0xff;
        REQUIRE(faults == PAGES);
        for (size_t i = 0; i < PAGES; i++)
            m[i * PAGE + 5] ^= 0xff;
        check(m, PAGES * PAGE, 1, "after faults of its own");
    }
    return ok();
}
