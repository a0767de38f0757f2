/* Calls that a stop and a continuation interrupt go on as if nothing had happened, with the time that was left. */
#include "pressure.h"
#include <poll.h>
static void sleeper(void *argument)
{
    unsigned char *m = fresh(MIB);
    int kind = *(int *)argument;
    fill(m, MIB, 1);
    evict(m, MIB);
    double start = now_s();
    if (kind == 0) {
        struct timespec *time = (struct timespec *)(m + PAGE);
        *time = (struct timespec){ 0, 400000000 };
        MUST(nanosleep(time, time + 1));
    } else if (kind == 1) {
        REQUIRE(poll(NULL, 0, 400) == 0);
    } else {
        int *word = (int *)(m + 2 * PAGE), value = *word;
        struct timespec time = { 0, 400000000 };
        REQUIRE(syscall(SYS_futex, word, 0 /* FUTEX_WAIT */, value, &time, NULL, 0) == -1 && errno == ETIMEDOUT);
    }
    double took = now_s() - start;
    if (took < 0.39)
        fail("the wait %d took %.3f s", kind, took);
    check(m + 4 * PAGE, 0, 1, "");
    for (size_t i = 8 * PAGE; i < MIB; i++)
        REQUIRE(m[i] == pattern(i, 1));
}
int main(void)
{
    for (int kind = 0; kind < 3; kind++) {
        pid_t pid = child_of(sleeper, &kind);
        for (int i = 0; i < 6; i++) {
            sleep_ms(60);
            MUST(kill(pid, SIGSTOP));
            int status;
            REQUIRE(waitpid(pid, &status, WUNTRACED) == pid);
            if (!WIFSTOPPED(status)) {
                REQUIRE(status == 0);
                pid = 0;
                break;
            }
            sleep_ms(20);
            MUST(kill(pid, SIGCONT));
        }
        if (pid)
            wait_ok(pid);
    }
    return ok();
}
