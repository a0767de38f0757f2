/* Paths, argument lists and environments that lie in evicted memory. */
#include "pressure.h"
#include <sys/xattr.h>
static unsigned char *m;
static int turn;
/* A copy of a text that crosses from one evicted page to the next. */
static char *far(const char *text)
{
    size_t length = strlen(text) + 1;
    char *at = (char *)m + (10 + turn++ % 100 * 2) * PAGE - length / 2;
    memcpy(at, text, length);
    evict(at, length);
    return at;
}
int main(void)
{
    char directory[] = "/tmp/ebb-paths-XXXXXX", a[80], b[80];
    struct stat status;
    m = fresh(MIB);
    fill(m, MIB, 1);
    REQUIRE(mkdtemp(directory));
    snprintf(a, sizeof a, "%s/a-file-with-a-name", directory);
    snprintf(b, sizeof b, "%s/another-name", directory);
    int fd = MUST(open(far(a), O_CREAT | O_EXCL | O_RDWR, 0644));
    MUST(stat(far(a), &status));
    MUST(access(far(a), R_OK));
    char *x = far(a), *y = far(b);
    evict(x, 100);
    MUST(rename(x, y));
    MUST(link(far(b), a));
    MUST(unlink(far(a)));
    MUST(symlink(far("target of a link"), a));
    char text[100] = { 0 };
    REQUIRE(readlink(far(a), text, 99) == 16 && strcmp(text, "target of a link") == 0);
    MUST(unlink(a));
    MUST(chmod(far(b), 0600));
    MUST(truncate(far(b), 12345));
    MUST(fstat(fd, &status));
    REQUIRE(status.st_size == 12345 && (status.st_mode & 0777) == 0600);
    MUST(mkdir(far(a), 0755));
    MUST(chdir(far(a)));
    MUST(chdir("/"));
    MUST(rmdir(far(a)));
    MUST(fstatat(AT_FDCWD, far(b), &status, 0));
    struct timespec *times = (struct timespec *)(m + 250 * PAGE - 8);
    times[0] = (struct timespec){ 1000, 0 };
    times[1] = (struct timespec){ 2000, 0 };
    evict(m, MIB);
    MUST(utimensat(AT_FDCWD, b, times, 0));
    MUST(stat(b, &status));
    REQUIRE(status.st_mtime == 2000);
    if (setxattr(far(b), "user.ebb", far("value"), 5, 0) == 0)
        REQUIRE(getxattr(b, far("user.ebb"), text, 99) == 5 && memcmp(text, "value", 5) == 0);
    MUST(unlink(far(b)));
    MUST(rmdir(far(directory)));
    REQUIRE(open(far("/nonexistent/file"), O_RDONLY) == -1 && errno == ENOENT);
    /* A program's path, arguments and environment, and the arrays of pointers to them. */
    for (int i = 0; i < 3; i++) {
        char **arguments = (char **)(m + 230 * PAGE - 16), **environment = (char **)(m + 240 * PAGE - 16);
        int ends[2];
        MUST(pipe(ends));
        pid_t pid = MUST(fork());
        if (pid == 0) {
            MUST(dup2(ends[1], 1));
            char *path = far("/bin/sh");
            arguments[0] = far("sh");
            arguments[1] = far("-c");
            arguments[2] = far("echo \"$0 $GREETING\"; exit 3");
            arguments[3] = far("zeroth argument");
            arguments[4] = NULL;
            environment[0] = far("GREETING=good day");
            environment[1] = far("PATH=/usr/bin:/bin");
            environment[2] = NULL;
            evict(m, MIB);
            if (i == 0)
                execve(path, arguments, environment);
            else if (i == 1)
                syscall(SYS_execve, path, arguments, environment);
            else
                execvpe(arguments[0], arguments, environment);
            _exit(126);
        }
        close(ends[1]);
        int result;
        memset(text, 0, sizeof text);
        REQUIRE(waitpid(pid, &result, 0) == pid && WIFEXITED(result) && WEXITSTATUS(result) == 3);
        REQUIRE(read(ends[0], text, 99) == 25 && strcmp(text, "zeroth argument good day\n") == 0);
        close(ends[0]);
    }
    return ok();
}
