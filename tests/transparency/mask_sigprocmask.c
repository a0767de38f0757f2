/* A program that blocks every signal still reaches its memory, and reads back the mask it set. */
#include "pressure.h"
int main(void)
{
    unsigned char *m = fresh(MIB);
    sigset_t all, now, raw;
    fill(m, MIB, 1);
    sigfillset(&all);
    MUST(sigprocmask(SIG_SETMASK, &all, NULL));
    evict(m, MIB);
    check(m, MIB, 1, "with all signals blocked");
    MUST(sigprocmask(SIG_BLOCK, NULL, &now));
    REQUIRE(sigismember(&now, SIGBUS) == 1 && sigismember(&now, SIGSYS) == 1 && sigismember(&now, SIGSEGV) == 1);
    /* The same by the system call alone, and with SIGBUS taken out and put in again. */
    uint64_t set = ~0ull, old = 0;
    MUST(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &set, &old, 8));
    REQUIRE(old >> (SIGBUS - 1) & 1);
    evict(m, MIB);
    check(m, MIB, 1, "with all signals blocked by the bare call");
    sigemptyset(&raw);
    sigaddset(&raw, SIGBUS);
    MUST(sigprocmask(SIG_UNBLOCK, &raw, NULL));
    MUST(sigprocmask(SIG_BLOCK, NULL, &now));
    REQUIRE(sigismember(&now, SIGBUS) == 0 && sigismember(&now, SIGSYS) == 1);
    REQUIRE(syscall(SYS_rt_sigprocmask, SIG_SETMASK, (void *)8, NULL, 8) == -1 && errno == EFAULT);
    REQUIRE(syscall(SYS_rt_sigprocmask, 99, &set, NULL, 8) == -1 && errno == EINVAL);
    REQUIRE(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &set, NULL, 4) == -1 && errno == EINVAL);
    return ok();
}
