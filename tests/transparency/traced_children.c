/* A child that asks to be traced (PTRACE_TRACEME) stops for what it does itself, and first of all at its exec: also where its
 * parent waits for that in vfork, and where what the exec reads is out of memory. */
#include "pressure.h"
#include <sys/ptrace.h>
static unsigned char *m;
static char **argv;
/* Arguments in memory that goes out. */
static void prepare(const char *program, const char *argument)
{
    char *page = (char *)m + MIB / 2;
    argv = (char **)page;
    argv[0] = strcpy(page + 100, program);
    argv[1] = argument ? strcpy(page + 2 * PAGE, argument) : NULL;
    argv[2] = NULL;
}
static int next_stop(pid_t pid)
{
    int status;
    REQUIRE(waitpid(pid, &status, __WALL) == pid);
    if (!WIFSTOPPED(status))
        fail("no stop, but wait status %#x", status);
    return WSTOPSIG(status);
}
static void finish(pid_t pid, int expected)
{
    int status;
    MUST(ptrace(PTRACE_CONT, pid, 0, 0));
    do {
        REQUIRE(waitpid(pid, &status, __WALL) == pid);
        if (WIFSTOPPED(status))
            MUST(ptrace(PTRACE_CONT, pid, 0, WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status)));
    } while (WIFSTOPPED(status));
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == expected);
}
static void exec_after_vfork(int tries)
{
    evict(m, MIB);
    pid_t pid = vfork();
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
            _exit(99);
        setpgid(0, 0);
        /* As execvp does along PATH. */
        for (int i = 0; i < tries; i++)
            if (execv(i % 2 ? "/no such/file" : "/", argv) == 0 || (errno != ENOENT && errno != EACCES))
                _exit(98);
        execv(argv[0], argv);
        _exit(97);
    }
    REQUIRE(pid > 0);
    REQUIRE(next_stop(pid) == SIGTRAP);
    finish(pid, 1);
}
static void failed_exec_after_vfork(void)
{
    /* A directory entry that is no program; then arguments that are too long. */
    char path[] = "/tmp/ebb-no-program-XXXXXX";
    int fd = MUST(mkstemp(path));
    REQUIRE(write(fd, "\1\2\3\4", 4) == 4);
    MUST(fchmod(fd, 0700));
    close(fd);
    int report[2], told = 0;
    MUST(pipe2(report, O_CLOEXEC));
    evict(m, MIB);
    pid_t pid = vfork();
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
            _exit(99);
        execv(path, argv);
        int why = errno;
        if (write(report[1], &why, sizeof why) != sizeof why)
            _exit(96);
        _exit(97);
    }
    int status;
    REQUIRE(waitpid(pid, &status, __WALL) == pid);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 97);
    REQUIRE(read(report[0], &told, sizeof told) == sizeof told && told == ENOEXEC);
    close(report[0]);
    close(report[1]);
    unlink(path);
}
static void exec_after_fork(void)
{
    evict(m, MIB);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        MUST(ptrace(PTRACE_TRACEME, 0, 0, 0));
        check(m, MIB / 2, 1, "memory of a child that asked to be traced");
        void *more = fresh(MIB);
        fill(more, MIB, 2);
        execv(argv[0], argv);
        _exit(97);
    }
    REQUIRE(next_stop(pid) == SIGTRAP);
    finish(pid, 1);
}
/* What the child does that stops it, and with what. */
static void raises(void) { raise(SIGSTOP); }
static void traps(void) { __asm__ volatile("int3"); }
static void aborts(void) { abort(); }
static void faults(void) { *(volatile char *)8 = 1; }
static void is_sent(void) { for (;;) pause(); }
static void stops_first_for(void (*act)(void), int signal, int sent)
{
    int ready[2];
    char byte;
    MUST(pipe2(ready, O_CLOEXEC));
    pid_t pid = MUST(fork());
    if (pid == 0) {
        MUST(ptrace(PTRACE_TRACEME, 0, 0, 0));
        REQUIRE(write(ready[1], "r", 1) == 1);
        act();
        _exit(97);
    }
    REQUIRE(read(ready[0], &byte, 1) == 1);
    if (sent)
        MUST(kill(pid, sent));
    int stop = next_stop(pid);
    if (stop != signal)
        fail("stopped by %d, not by %d", stop, signal);
    MUST(kill(pid, SIGKILL));
    int status;
    REQUIRE(waitpid(pid, &status, __WALL) == pid);
    close(ready[0]);
    close(ready[1]);
}
static void whole(void *unused)
{
    (void)unused;
    m = fresh(12 * MIB);
    fill(m, 12 * MIB, 1);
    prepare("/bin/sh", "-c");
    prepare("/bin/false", NULL);
    exec_after_vfork(0);
    exec_after_vfork(4);
    failed_exec_after_vfork();
    exec_after_fork();
    stops_first_for(raises, SIGSTOP, 0);
    stops_first_for(traps, SIGTRAP, 0);
    stops_first_for(aborts, SIGABRT, 0);
    stops_first_for(faults, SIGSEGV, 0);
    stops_first_for(is_sent, SIGUSR1, SIGUSR1);
    stops_first_for(is_sent, SIGTERM, SIGTERM);
    check(m, MIB / 2, 1, "at the end");
}
static void probe(void *unused)
{
    (void)unused;
    if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
        _exit(77);
    raise(SIGKILL);
}
int main(void)
{
    int status;
    pid_t pid = child_of(probe, NULL);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        return skip("tracing is not allowed here");
    wait_ok(child_of(whole, NULL));
    return ok();
}
