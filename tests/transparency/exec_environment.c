/* What a managed program executes is managed too: with an empty environment, without LD_PRELOAD, with another one. */
#include "pressure.h"
#include <spawn.h>
static int inner(const char *kind, int expected)
{
    unsigned char *m = fresh(2 * MIB);
    if (managed() != expected)
        fail("with %s environment: managed is %d, not %d", kind, managed(), expected);
    fill(m, 2 * MIB, 1);
    evict(m, 2 * MIB);
    check(m, 2 * MIB, 1, "in an executed program");
    size_t missing = absent(m, 2 * MIB);
    (void)missing;
    return 0;
}
int main(int argc, char **argv)
{
    if (argc == 3)
        return inner(argv[1], atoi(argv[2]));
    char path[600] = { 0 }, expected[2] = { (char)('0' + managed()), 0 };
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    char *empty[] = { NULL };
    char *other[] = { "LD_PRELOAD=libm.so.6", "HOME=/", NULL };
    char *plain[] = { "PATH=/bin", "HOME=/", NULL };
    struct {
        const char *kind;
        char **environment;
    } cases[] = { { "an empty", empty }, { "another LD_PRELOAD in the", other }, { "a plain", plain } };
    for (int i = 0; i < 3; i++)
        for (int how = 0; how < 3; how++) {
            char *arguments[] = { path, (char *)cases[i].kind, expected, NULL };
            pid_t pid;
            if (how == 0) {
                pid = MUST(fork());
                if (pid == 0) {
                    execve(path, arguments, cases[i].environment);
                    _exit(126);
                }
            } else if (how == 1) {
                ZERO(posix_spawn(&pid, path, NULL, NULL, arguments, cases[i].environment));
            } else {
                pid = MUST(fork());
                if (pid == 0) {
                    syscall(SYS_execve, path, arguments, cases[i].environment);
                    _exit(126);
                }
            }
            wait_ok(pid);
        }
    /* A null environment is allowed on Linux. */
    pid_t pid = MUST(fork());
    if (pid == 0) {
        char *arguments[] = { path, "no", expected, NULL };
        syscall(SYS_execve, path, arguments, NULL);
        _exit(126);
    }
    wait_ok(pid);
    return ok();
}
