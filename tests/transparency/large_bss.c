/* A program whose memory is its own variables: more than the budget, and it never asks for any. */
#include "pressure.h"
#define BYTES (40 * MIB)
#define ALLOWED (16 * MIB)
static unsigned char memory[BYTES];
static struct { long counts[200000]; unsigned char stack[256 << 10]; } other;
static volatile sig_atomic_t signalled;
static void on_signal(int sig)
{
    unsigned char local[4096];
    memset(local, sig, sizeof local);
    signalled += local[17] == sig;
}
int main(void)
{
    size_t limit = budget();
    /* A stack for signals that goes out with the rest. */
    stack_t stack = { .ss_sp = other.stack, .ss_size = sizeof other.stack };
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
    MUST(sigaltstack(&stack, NULL));
    MUST(sigaction(SIGUSR1, &action, NULL));
    check_zero(memory, sizeof memory, "at the start");
    for (int round = 1; round < 4; round++) {
        fill(memory, sizeof memory, round);
        if (limit && managed())
            REQUIRE(held() <= limit + ALLOWED);
        for (size_t i = 0; i < 200000; i++)
            other.counts[i]++;
        MUST(raise(SIGUSR1));
        pid_t pid = MUST(fork());
        if (pid == 0) {
            check(memory, sizeof memory, round, "in a child");
            fill(memory, 4 * MIB, 7);
            _exit(0);
        }
        wait_ok(pid);
        check(memory, sizeof memory, round, "the program's variables");
        REQUIRE(other.counts[0] == round && other.counts[199999] == round && signalled == round);
    }
    int ends[2];
    MUST(pipe(ends));
    fill(memory, sizeof memory, 9);
    for (size_t i = 0; i < sizeof memory; i += 64 * PAGE) {
        unsigned char back[PAGE];
        REQUIRE(write(ends[1], memory + i, PAGE) == (ssize_t)PAGE);
        REQUIRE(read(ends[0], back, PAGE) == (ssize_t)PAGE);
        for (size_t k = 0; k < PAGE; k++)
            REQUIRE(back[k] == pattern(i + k, 9));
    }
    pages_evicted = sizeof memory / PAGE;
    return ok();
}
