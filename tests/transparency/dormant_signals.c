/* A small process grows with signals in every state: handlers, masks, pending signals, alternate stacks; also within a
 * handler, and on an alternate stack. All of it stays as the program set it. */
#include "pressure.h"
#include <sys/time.h>
static unsigned char stack[96 << 10];
static volatile sig_atomic_t bus, sys, segv, usr1, usr2, alarms;
static void on_bus(int s) { (void)s; bus++; }
static void on_sys(int s) { (void)s; sys++; }
static void on_segv(int s, siginfo_t *i, void *u)
{
    (void)s, (void)i;
    segv++;
    /* Skips `movb (rax), cl`, two bytes. */
    ((ucontext_t *)u)->uc_mcontext.gregs[REG_RIP] += 2;
}
static void on_usr1(int s) { (void)s; usr1++; }
static void on_alarm(int s) { (void)s; alarms++; }
static unsigned char *grown;
static void grow(void)
{
    grown = MUST(mmap(NULL, 24 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}
static void on_usr2(int s)
{
    int here;
    (void)s;
    usr2++;
    REQUIRE((unsigned char *)&here > stack && (unsigned char *)&here < stack + sizeof stack);
    stack_t old;
    ZERO(sigaltstack(NULL, &old));
    REQUIRE(old.ss_flags == SS_ONSTACK);
    grow();
    ZERO(sigaltstack(NULL, &old));
    REQUIRE(old.ss_flags == SS_ONSTACK && old.ss_sp == stack && old.ss_size == sizeof stack);
    /* The mask of the handler. */
    sigset_t mask;
    ZERO(sigprocmask(SIG_SETMASK, NULL, &mask));
    REQUIRE(sigismember(&mask, SIGUSR2) && sigismember(&mask, SIGWINCH) && sigismember(&mask, SIGBUS));
}
static void install(int sig, void (*handler)(int), int flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    sigaddset(&action.sa_mask, SIGWINCH);
    ZERO(sigaction(sig, &action, NULL));
}
int main(void)
{
    stack_t alt = { .ss_sp = stack, .ss_size = sizeof stack };
    ZERO(sigaltstack(&alt, NULL));
    install(SIGBUS, on_bus, 0);
    install(SIGSYS, on_sys, SA_RESTART);
    install(SIGUSR1, on_usr1, SA_RESETHAND);
    install(SIGUSR2, on_usr2, SA_ONSTACK);
    install(SIGALRM, on_alarm, SA_RESTART);
    struct sigaction fault = { .sa_sigaction = on_segv, .sa_flags = SA_SIGINFO };
    ZERO(sigaction(SIGSEGV, &fault, NULL));
    signal(SIGHUP, SIG_IGN);
    sigset_t blocked, now;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGBUS);
    sigaddset(&blocked, SIGSYS);
    sigaddset(&blocked, SIGUSR1);
    ZERO(sigprocmask(SIG_SETMASK, &blocked, NULL));
    raise(SIGBUS);
    raise(SIGSYS);
    raise(SIGUSR1);
    struct itimerval soon = { .it_value = { .tv_usec = 20000 }, .it_interval = { .tv_usec = 20000 } };
    ZERO(setitimer(ITIMER_REAL, &soon, NULL));

    raise(SIGUSR2);
    REQUIRE(usr2 == 1 && grown);
    REQUIRE(bus == 0 && sys == 0 && usr1 == 0);
    ZERO(sigprocmask(SIG_SETMASK, NULL, &now));
    for (int s = 1; s < 32; s++)
        REQUIRE(sigismember(&now, s) == sigismember(&blocked, s));
    sigset_t waiting;
    ZERO(sigpending(&waiting));
    REQUIRE(sigismember(&waiting, SIGBUS) && sigismember(&waiting, SIGSYS) && sigismember(&waiting, SIGUSR1));
    fill(grown, 24 * MIB, 1);
    evict(grown, 24 * MIB);
    check(grown, 24 * MIB, 1, "memory under signals");
    sigemptyset(&now);
    ZERO(sigprocmask(SIG_SETMASK, &now, NULL));
    REQUIRE(bus == 1 && sys == 1 && usr1 == 1);
    struct sigaction old;
    ZERO(sigaction(SIGUSR1, NULL, &old));
    REQUIRE(old.sa_handler == SIG_DFL);
    ZERO(sigaction(SIGBUS, NULL, &old));
    REQUIRE(old.sa_handler == on_bus && sigismember(&old.sa_mask, SIGWINCH) && (old.sa_flags & ~0x4000000) == 0);
    ZERO(sigaction(SIGSYS, NULL, &old));
    REQUIRE(old.sa_handler == on_sys && (old.sa_flags & ~0x4000000) == SA_RESTART);
    ZERO(sigaction(SIGHUP, NULL, &old));
    REQUIRE(old.sa_handler == SIG_IGN);
    raise(SIGBUS);
    REQUIRE(bus == 2);
    __asm__ volatile("movb (%0), %%cl" : : "a"(8L) : "rcx", "memory");
    REQUIRE(segv == 1);
    while (alarms < 2)
        pause();
    ZERO(sigaltstack(NULL, &alt));
    REQUIRE(alt.ss_flags == 0 && alt.ss_sp == stack && alt.ss_size == sizeof stack);
    return ok();
}
