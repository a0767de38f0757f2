/* What runs a program may not know userfaultfd, as valgrind does not: the program runs all the same. */
#include "pressure.h"
int main(int argc, char **argv)
{
    if (argc > 1) {
        unsigned char *m = fresh(12 * MIB);
        fill(m, 12 * MIB, 1);
        check(m, 12 * MIB, 1, "under valgrind");
        return 0;
    }
    if (system("valgrind --version >/dev/null 2>&1") != 0)
        return skip("no valgrind");
    int status, output = MUST(open("/dev/null", O_WRONLY));
    pid_t pid = MUST(fork());
    if (pid == 0) {
        MUST(dup2(output, 1));
        MUST(dup2(output, 2));
        execlp("valgrind", "valgrind", "--tool=none", argv[0], "again", NULL);
        _exit(99);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return ok();
}
