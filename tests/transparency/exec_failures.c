/* An exec that fails leaves the process as it was; every error is the kernel's own. */
#include "pressure.h"
int main(void)
{
    unsigned char *m = fresh(MIB);
    char *arguments[] = { "x", NULL };
    extern char **environ;
    char directory[] = "/tmp/ebb-exec-XXXXXX", path[80];
    fill(m, MIB, 1);
    REQUIRE(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/file", directory);
    int fd = MUST(open(path, O_CREAT | O_WRONLY, 0644));
    REQUIRE(write(fd, "garbage", 7) == 7);
    close(fd);
    for (int i = 0; i < 3; i++) {
        evict(m, MIB);
        REQUIRE(execve("/nonexistent", arguments, environ) == -1 && errno == ENOENT);
        REQUIRE(execve("/etc", arguments, environ) == -1 && errno == EACCES);
        REQUIRE(execve(path, arguments, environ) == -1 && errno == EACCES);
        REQUIRE(execve((char *)8, arguments, environ) == -1 && errno == EFAULT);
        REQUIRE(execve("/bin/true", (char **)8, environ) == -1 && errno == EFAULT);
        REQUIRE(execve("/bin/true", arguments, (char **)8) == -1 && errno == EFAULT);
        MUST(chmod(path, 0755));
        REQUIRE(execve(path, arguments, environ) == -1 && errno == ENOEXEC);
        MUST(chmod(path, 0644));
        check(m, MIB, 1, "after failed execs");
        sigset_t now;
        MUST(sigprocmask(SIG_BLOCK, NULL, &now));
        REQUIRE(sigismember(&now, SIGUSR1) == 0);
    }
    unlink(path);
    rmdir(directory);
    return ok();
}
