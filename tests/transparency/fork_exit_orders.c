/* Chains and trees of processes that end in every order; what is shared among them stays right for those who live. */
#include "pressure.h"
#define LEN (2 * MIB)
static unsigned char *m;
static void chain(int depth)
{
    check(m, LEN, depth + 1, "a link's memory");
    if (depth == 5)
        return;
    pid_t pid = MUST(fork());
    if (pid == 0) {
        /* Half of the links end before their children read. */
        fill(m, LEN, depth + 2);
        evict(m, LEN);
        chain(depth + 1);
        _exit(0);
    }
    evict(m, LEN);
    if (depth % 2) {
        wait_ok(pid);
        check(m, LEN, depth + 1, "a link's memory after its child");
    } else {
        check(m, LEN, depth + 1, "a link's memory beside its child");
        wait_ok(pid);
    }
}
int main(void)
{
    m = fresh(LEN);
    fill(m, LEN, 1);
    evict(m, LEN);
    chain(0);
    check(m, LEN, 1, "the first link's memory");
    /* Orphans: the parent of the reader ends first. */
    int ends[2];
    MUST(pipe(ends));
    evict(m, LEN);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        if (MUST(fork()) == 0) {
            while (getppid() != 1 && getppid() == pid)
                sleep_ms(1);
            sleep_ms(100);
            check(m, LEN, 1, "an orphan's memory");
            fill(m, LEN, 3);
            evict(m, LEN);
            check(m, LEN, 3, "what an orphan wrote");
            REQUIRE(write(ends[1], "k", 1) == 1);
        }
        _exit(0);
    }
    wait_ok(pid);
    char byte;
    close(ends[1]);
    REQUIRE(read(ends[0], &byte, 1) == 1 && byte == 'k');
    /* A child that is killed in the midst of its evictions. */
    for (int i = 0; i < 5; i++) {
        pid = MUST(fork());
        if (pid == 0)
            for (unsigned n = 0;; n++) {
                fill(m, LEN, n);
                evict(m, PAGE);
            }
        sleep_ms(20 + i * 37);
        MUST(kill(pid, SIGKILL));
        wait_signal(pid, SIGKILL);
        check(m, LEN, 1, "memory after a child was killed");
        evict(m, LEN);
    }
    return ok();
}
