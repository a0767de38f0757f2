/* A program that forbids itself to read the time stamp counter still reaches its memory, and gets its own faults. */
#include "pressure.h"
#include <sys/prctl.h>
static volatile int caught;
static void handler(int signal, siginfo_t *info, void *context)
{
    const unsigned char *code = (const unsigned char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    REQUIRE(signal == SIGSEGV && info->si_code == SI_KERNEL && code[0] == 0x0f && code[1] == 0x31);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
    caught++;
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    fill(m, MIB, 1);
    handle(SIGSEGV, handler, 0);
    evict(m, MIB);
    MUST(prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0));
    check(m, MIB, 1, "with the time stamp counter forbidden");
    for (int i = 0; i < 3; i++) {
        evict(m, MIB);
        check(m, MIB, 1, "with the time stamp counter forbidden");
        REQUIRE(getppid() > 0);
        __asm__ volatile("rdtsc" : : : "rax", "rdx");
        REQUIRE(caught == i + 1);
    }
    int mode = 0;
    MUST(prctl(PR_GET_TSC, &mode, 0, 0, 0));
    REQUIRE(mode == PR_TSC_SIGSEGV);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        check(m, MIB, 1, "in a child with the time stamp counter forbidden");
        _exit(0);
    }
    wait_ok(pid);
    return ok();
}
