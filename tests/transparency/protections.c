/* Protections of evicted memory: changes keep content, and accesses they forbid fault as ever. */
#include "pressure.h"
#define LEN (2 * MIB)
static sigjmp_buf jump;
static void handler(int signal)
{
    siglongjmp(jump, signal);
}
static int faults(unsigned char *at, int write)
{
    int signal = sigsetjmp(jump, 1);
    if (signal == 0) {
        if (write)
            *(volatile unsigned char *)at = *(volatile unsigned char *)at;
        else
            (void)*(volatile unsigned char *)at;
    }
    return signal;
}
int main(void)
{
    unsigned char *m = fresh(LEN);
    signal(SIGSEGV, handler);
    signal(SIGBUS, handler);
    fill(m, LEN, 1);
    static const int prots[] = { PROT_NONE, PROT_READ, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE, PROT_WRITE };
    for (int round = 0; round < 10; round++) {
        int prot = prots[round % 5];
        if (round < 5)
            evict(m, LEN);
        for (int part = 0; part < 4; part++)
            MUST(mprotect(m + part * (LEN / 4), LEN / 4 - PAGE, prot));
        if (round >= 5)
            evict(m, LEN);
        for (size_t page = 0; page < LEN / PAGE; page += 41) {
            int edge = page % (LEN / PAGE / 4) == LEN / PAGE / 4 - 1;
            int readable = edge || prot != PROT_NONE, writable = edge || (prot & PROT_WRITE);
            int read_fault = faults(m + page * PAGE + 50, 0), write_fault = faults(m + page * PAGE + 60, 1);
            REQUIRE(read_fault == (readable ? 0 : SIGSEGV));
            REQUIRE(write_fault == (writable ? 0 : SIGSEGV));
        }
        MUST(mprotect(m, LEN, PROT_READ | PROT_WRITE));
        check(m, LEN, 1, "memory after changes of its protection");
    }
    REQUIRE(mprotect(m + 1, PAGE, PROT_READ) == -1 && errno == EINVAL);
    MUST(munmap(m + MIB, PAGE));
    REQUIRE(mprotect(m, LEN, PROT_READ) == -1 && errno == ENOMEM);
    REQUIRE(faults(m, 0) == 0 && faults(m, 1) == SIGSEGV && faults(m + MIB + PAGE, 1) == 0);
    return ok();
}
