/* vfork: the child runs in the parent's memory, writes there, and executes or ends. Also beside other threads. */
#include "pressure.h"
static unsigned char *m;
static volatile int stop;
static void *busy(void *argument)
{
    (void)argument;
    unsigned char *own = fresh(2 * MIB);
    fill(own, 2 * MIB, 3);
    while (!stop)
        check(own, 2 * MIB, 3, "a busy thread's memory");
    return NULL;
}
int main(void)
{
    volatile int shared = 0;
    pthread_t thread;
    m = fresh(MIB);
    fill(m, MIB, 1);
    for (volatile int i = 0; i < 8; i++) {
        if (i == 4)
            ZERO(pthread_create(&thread, NULL, busy, NULL));
        if (i % 2 == 0)
            evict(m, MIB);
        pid_t pid = vfork();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            shared++;
            m[i * PAGE] ^= 0xff;
            if (i % 3 == 0)
                execl("/bin/true", "true", (char *)NULL);
            else if (i % 3 == 1)
                execl("/nonexistent/program", "program", (char *)NULL);
            _exit(i % 3 == 1 ? 0 : 3);
        }
        int status;
        REQUIRE(waitpid(pid, &status, 0) == pid && status == (i % 3 == 2 ? 3 << 8 : 0));
        REQUIRE(shared == i + 1 && m[i * PAGE] == (pattern(i * PAGE, 1) ^ 0xff));
        m[i * PAGE] ^= 0xff;
        check(m, MIB, 1, "after vfork");
    }
    stop = 1;
    ZERO(pthread_join(thread, NULL));
    return ok();
}
