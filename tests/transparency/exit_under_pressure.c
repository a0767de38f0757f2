/* A process that ends while its threads fault and evict ends at once, with its status, by every way of ending. */
#include "pressure.h"
static unsigned char *m;
static void *busy(void *argument)
{
    for (;;) {
        fill(fresh(PAGE), PAGE, 1);
        check(m, MIB, 1, "a busy thread's memory");
        evict(m, MIB);
    }
    return argument;
}
static void *exiting(void *argument)
{
    sleep_ms(30);
    if (argument)
        exit(21);
    syscall(SYS_exit_group, 21);
    return NULL;
}
static void ending(void *argument)
{
    int kind = *(int *)argument;
    pthread_t thread;
    for (int i = 0; i < 3; i++)
        ZERO(pthread_create(&thread, NULL, busy, NULL));
    if (kind < 2) {
        ZERO(pthread_create(&thread, NULL, exiting, kind ? m : NULL));
        pause();
    }
    sleep_ms(30);
    if (kind == 2)
        exit(21);
    if (kind == 3)
        _exit(21);
    abort();
}
int main(void)
{
    m = fresh(MIB);
    fill(m, MIB, 1);
    for (int kind = 0; kind < 5; kind++) {
        pid_t pid = child_of(ending, &kind);
        int status;
        double start = now_s();
        REQUIRE(waitpid(pid, &status, 0) == pid);
        REQUIRE(kind < 4 ? WIFEXITED(status) && WEXITSTATUS(status) == 21 : WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        REQUIRE(now_s() - start < PATIENCE_S);
    }
    check(m, MIB, 1, "at the end");
    return ok();
}
