/* A call that a filter traps: what the signal says of it, and what it does without a handler. */
#include "pressure.h"
#include "filter.h"
#include <linux/audit.h>
static volatile int trapped;
static volatile int *survived;
static void handler(int signal, siginfo_t *info, void *context)
{
    ucontext_t *state = context;
    REQUIRE(signal == SIGSYS && info->si_code == 1 /* SYS_SECCOMP */ && info->si_errno == 42);
    REQUIRE(info->si_syscall == SYS_getppid && info->si_arch == AUDIT_ARCH_X86_64);
    REQUIRE((uintptr_t)info->si_call_addr == (uintptr_t)state->uc_mcontext.gregs[REG_RIP]);
    REQUIRE(state->uc_mcontext.gregs[REG_RAX] == SYS_getppid);
    const unsigned char *call = info->si_call_addr;
    REQUIRE(call[-2] == 0x0f && call[-1] == 0x05);
    state->uc_mcontext.gregs[REG_RAX] = 4711;
    trapped++;
}
static void unhandled(void *blocked)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGSYS);
    signal(SIGSYS, blocked ? SIG_IGN : SIG_DFL);
    if (blocked)
        MUST(sigprocmask(SIG_BLOCK, &set, NULL));
    getppid();
    *survived = 1;
    fail("a trapped call returned");
}
int main(void)
{
    struct rlimit { unsigned long soft, hard; } none = { 0, 0 };
    MUST(syscall(SYS_setrlimit, 4 /* RLIMIT_CORE */, &none));
    if (!answer_with(SYS_getppid, SECCOMP_RET_TRAP | 42))
        return skip("seccomp filters are not allowed here");
    survived = MUST(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    wait_signal(child_of(unhandled, NULL), SIGSYS);
    wait_signal(child_of(unhandled, ""), SIGSYS);
    REQUIRE(!*survived);
    handle(SIGSYS, handler, 0);
    REQUIRE(getppid() == 4711 && trapped == 1);
    REQUIRE(syscall(SYS_getppid) == 4711 && trapped == 2);
    unsigned char *m = fresh(MIB);
    fill(m, MIB, 1);
    evict(m, MIB);
    REQUIRE(getppid() == 4711 && trapped == 3);
    check(m, MIB, 1, "under a filter");
    /* Sent, it has another meaning. */
    signal(SIGSYS, SIG_IGN);
    MUST(raise(SIGSYS));
    return ok();
}
