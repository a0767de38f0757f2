/* Children of vfork fault all the time, and each is ended by SIGTERM. Their parent, which nobody signals, goes on. */
#include "pressure.h"

enum { ROUNDS = 60 };
#define BYTES (4 * MIB)

static _Atomic pid_t child;

static void *kill_them(void *unused)
{
    unsigned seed = 1;
    for (;;) {
        pid_t pid = __atomic_exchange_n(&child, 0, __ATOMIC_SEQ_CST);
        usleep(pid ? 1000 + rand_r(&seed) % 3000 : 50);
        if (pid)
            kill(pid, SIGTERM);
    }
    return unused;
}

int main(void)
{
    unsigned char *m = fresh(BYTES);
    fill(m, BYTES, 1);
    pthread_t killer;
    ZERO(pthread_create(&killer, NULL, kill_them, NULL));
    for (int i = 0; i < ROUNDS; i++) {
        pid_t pid = vfork();
        if (pid == 0) {
            child = getpid();
            for (;;) {
                madvise(m, BYTES, MADV_PAGEOUT);
                for (size_t at = 0; at < BYTES; at += PAGE)
                    ((volatile unsigned char *)m)[at];
            }
        }
        int status;
        REQUIRE(waitpid(MUST(pid), &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    }
    check(m, BYTES, 1, "after its children");
    return ok();
}
