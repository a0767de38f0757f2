/* The first thread ends by pthread_exit; the others go on, also as the process; the last one's end is exit(0). */
#include "pressure.h"
static unsigned char *m;
static pthread_t first;
static void at_exit(void)
{
    check(m, MIB, 1, "at exit");
    ok();
}
static void *body(void *argument)
{
    (void)argument;
    ZERO(pthread_join(first, NULL));
    for (int i = 0; i < 3; i++) {
        evict(m, MIB);
        check(m, MIB, 1, "after the first thread has ended");
        pid_t pid = MUST(fork());
        if (pid == 0) {
            check(m, MIB, 1, "in a child of a process without its first thread");
            _exit(0);
        }
        wait_ok(pid);
    }
    evict(m, MIB);
    return NULL;
}
int main(void)
{
    pthread_t thread;
    m = fresh(MIB);
    fill(m, MIB, 1);
    first = pthread_self();
    atexit(at_exit);
    ZERO(pthread_create(&thread, NULL, body, NULL));
    pthread_exit(NULL);
}
