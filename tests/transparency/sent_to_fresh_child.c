/* A signal that is sent to a child of fork arrives, however early: the default action, or the handler that it inherits. */
#include "pressure.h"
static unsigned char *m;
static int is_handled;
static void handler(int signal, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    _exit(signal + 100);
}
static void whole(void *unused)
{
    (void)unused;
    static const int signals[] = { SIGBUS, SIGSEGV, SIGSYS, SIGTERM, SIGUSR1 };
    for (size_t i = 0; i < 5; i++)
        for (int round = 0; round < 12; round++) {
            if (is_handled)
                handle(signals[i], handler, 0);
            pid_t pid = MUST(fork());
            if (pid == 0)
                for (;;)
                    pause();
            if (round % 3 == 1)
                sched_yield();
            if (round % 3 == 2)
                usleep(round * 100);
            MUST(kill(pid, signals[i]));
            int status = 0;
            pid_t ended = 0;
            for (int wait = 0; wait < 20000 && ended == 0; wait++) {
                ended = MUST(waitpid(pid, &status, WNOHANG));
                if (ended == 0)
                    usleep(wait < 100 ? 100 : 1000);
            }
            if (ended == 0) {
                kill(pid, SIGKILL);
                fail("signal %d was lost, round %d", signals[i], round);
            }
            if (is_handled ? !WIFEXITED(status) || WEXITSTATUS(status) != signals[i] + 100
                           : !WIFSIGNALED(status) || WTERMSIG(status) != signals[i])
                fail("signal %d: wait status %#x, round %d", signals[i], status, round);
        }
    check(m, 2 * MIB, 1, "at the end");
}
int main(void)
{
    struct rlimit { unsigned long soft, hard; } none = { 0, 0 };
    MUST(syscall(SYS_setrlimit, 4, &none));
    m = fresh(2 * MIB);
    fill(m, 2 * MIB, 1);
    evict(m, 2 * MIB);
    wait_ok(child_of(whole, NULL));
    is_handled = 1;
    wait_ok(child_of(whole, NULL));
    return ok();
}
