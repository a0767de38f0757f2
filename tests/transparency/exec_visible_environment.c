/* What the program and its children see of the environment: their own settings, in order and complete. */
#include "pressure.h"
extern char **environ;
int main(int argc, char **argv)
{
    if (argc == 2) {
        REQUIRE(getenv("ALPHA") && strcmp(getenv("ALPHA"), "first") == 0 && strcmp(getenv("OMEGA"), "last=value") == 0);
        REQUIRE(getenv("EMPTY") && !*getenv("EMPTY") && !getenv("HOME"));
        const char *preload = getenv("LD_PRELOAD");
        /* What the program itself asked to preload is still asked for. */
        REQUIRE(preload && strstr(preload, "libm.so.6"));
        int dup = 0;
        for (char **at = environ; *at; at++)
            dup += strncmp(*at, "LD_PRELOAD=", 11) == 0;
        REQUIRE(dup == 1);
        return 0;
    }
    char path[600] = { 0 };
    char *environment[] = { "ALPHA=first", "LD_PRELOAD=libm.so.6", "EMPTY=", "OMEGA=last=value", NULL };
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    (void)argv;
    pid_t pid = MUST(fork());
    if (pid == 0) {
        execle(path, path, "inner", (char *)NULL, environment);
        _exit(126);
    }
    wait_ok(pid);
    return ok();
}
