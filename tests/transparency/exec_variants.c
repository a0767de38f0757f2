/* fexecve, execveat, scripts, exec from a thread that is not the first, exec while others fault; static programs. */
#include "pressure.h"
extern char **environ;
static unsigned char *m;
static int fd;
static void *executing(void *argument)
{
    char *arguments[] = { "true", NULL };
    (void)argument;
    check(m, MIB, 1, "in a thread about to exec");
    execve("/bin/true", arguments, environ);
    _exit(126);
}
static void *busy(void *argument)
{
    for (;;)
        for (size_t i = 0; i < MIB; i += 64)
            *(volatile unsigned char *)(m + i);
    return argument;
}
static void by_thread(void *argument)
{
    pthread_t thread;
    for (int i = 0; i < 3; i++)
        ZERO(pthread_create(&thread, NULL, busy, NULL));
    sleep_ms(20);
    if (argument) {
        ZERO(pthread_create(&thread, NULL, executing, NULL));
        pause();
    }
    executing(NULL);
}
static void by_descriptor(void *argument)
{
    char *arguments[] = { "true", NULL };
    if (argument)
        fexecve(fd, arguments, environ);
    else
        syscall(SYS_execveat, fd, "", arguments, environ, 0x1000 /* AT_EMPTY_PATH */);
    _exit(126);
}
static void script(void *argument)
{
    char *arguments[] = { "name", "6", NULL };
    execve(argument, arguments, environ);
    _exit(126);
}
int main(void)
{
    char path[] = "/tmp/ebb-script-XXXXXX";
    m = fresh(MIB);
    fill(m, MIB, 1);
    fd = MUST(open("/bin/true", O_RDONLY | O_CLOEXEC));
    int file = MUST(mkstemp(path));
    static const char text[] = "#!/bin/sh\nexit $1\n";
    REQUIRE(write(file, text, sizeof text - 1) == sizeof text - 1);
    MUST(fchmod(file, 0755));
    close(file);
    for (int i = 0; i < 3; i++) {
        evict(m, MIB);
        wait_ok(child_of(by_thread, NULL));
        wait_ok(child_of(by_thread, m));
        wait_ok(child_of(by_descriptor, NULL));
        wait_ok(child_of(by_descriptor, m));
        pid_t pid = child_of(script, path);
        int status;
        REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 6);
        check(m, MIB, 1, "after execs of children");
    }
    unlink(path);
    return ok();
}
