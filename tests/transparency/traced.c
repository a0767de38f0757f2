/* A debugger attaches, looks, steps, follows system calls and leaves: the program goes on unharmed. */
#include "pressure.h"
#include <sys/ptrace.h>
#include <sys/user.h>
static unsigned char *m;
static volatile long marker = 0x4711;
/* Shared with the children: the tracer has attached, and what follows is to be traced. */
static volatile int *is_attached;
static void body(void *argument)
{
    (void)argument;
    for (int i = 0, traced = 0; traced < 5; i++, traced += *is_attached) {
        evict(m, MIB);
        check(m, MIB, 1, "memory of a traced program");
        sleep_ms(10);
    }
}
/* The stop that attaching asked for; a signal that was on its way comes first and is passed on. */
static void expect_attached(pid_t pid)
{
    for (;;) {
        int status;
        REQUIRE(waitpid(pid, &status, __WALL) == pid);
        if (!WIFSTOPPED(status))
            fail("the traced program ended with wait status %#x", status);
        if (WSTOPSIG(status) == SIGSTOP)
            return;
        MUST(ptrace(PTRACE_CONT, pid, 0, WSTOPSIG(status)));
    }
}
int main(void)
{
    m = fresh(MIB);
    fill(m, MIB, 1);
    is_attached = MUST(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (int round = 0; round < 4; round++) {
        *is_attached = 0;
        pid_t pid = child_of(body, NULL);
        sleep_ms(20 * round);
        if (ptrace(PTRACE_ATTACH, pid, 0, 0) != 0) {
            kill(pid, SIGKILL);
            return skip("tracing is not allowed here");
        }
        expect_attached(pid);
        *is_attached = 1;
        struct user_regs_struct registers;
        MUST(ptrace(PTRACE_GETREGS, pid, 0, &registers));
        errno = 0;
        REQUIRE(ptrace(PTRACE_PEEKDATA, pid, &marker, 0) == 0x4711 && errno == 0);
        if (round == 1) {
            for (int i = 0; i < 300; i++) {
                int status;
                MUST(ptrace(PTRACE_SINGLESTEP, pid, 0, 0));
                REQUIRE(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
                if (WSTOPSIG(status) != SIGTRAP) {
                    /* A signal on its way: let it through. */
                    MUST(ptrace(PTRACE_CONT, pid, 0, WSTOPSIG(status)));
                    MUST(kill(pid, SIGSTOP));
                    do {
                        REQUIRE(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
                        if (WSTOPSIG(status) != SIGSTOP)
                            MUST(ptrace(PTRACE_CONT, pid, 0, WSTOPSIG(status)));
                    } while (WSTOPSIG(status) != SIGSTOP);
                }
            }
        }
        if (round >= 2) {
            /* As strace does, to the end; signals are passed on. */
            long deliver = 0;
            for (;;) {
                int status;
                MUST(ptrace(PTRACE_SYSCALL, pid, 0, deliver));
                REQUIRE(waitpid(pid, &status, __WALL) == pid);
                if (WIFEXITED(status)) {
                    REQUIRE(WEXITSTATUS(status) == 0);
                    break;
                }
                REQUIRE(WIFSTOPPED(status));
                deliver = WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
            }
        } else {
            MUST(ptrace(PTRACE_DETACH, pid, 0, 0));
            wait_ok(pid);
        }
    }
    check(m, MIB, 1, "at the end");
    return ok();
}
