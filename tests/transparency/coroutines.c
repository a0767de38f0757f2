/* Contexts on stacks in ordinary memory: switched to when the whole stack is evicted; signals arrive on them too. */
#include "pressure.h"
#include <sys/time.h>
#define COUNT 12
#define SIZE (64 * 1024)
static ucontext_t main_context, contexts[COUNT];
static unsigned char *stacks;
static volatile int steps[COUNT], ticks;
static void handler(int signal)
{
    (void)signal;
    volatile char local[3000];
    memset((char *)local, 1, sizeof local);
    ticks++;
}
static void body(int index)
{
    unsigned char local[20000];
    for (unsigned round = 0;; round++) {
        fill(local, sizeof local, index * 100 + round);
        steps[index]++;
        MUST(swapcontext(&contexts[index], &main_context));
        check(local, sizeof local, index * 100 + round, "a coroutine's frame");
    }
}
int main(void)
{
    struct itimerval timer = { { 0, 2000 }, { 0, 2000 } };
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    MUST(sigaction(SIGALRM, &action, NULL));
    stacks = fresh(COUNT * SIZE);
    for (int i = 0; i < COUNT; i++) {
        MUST(getcontext(&contexts[i]));
        contexts[i].uc_stack.ss_sp = stacks + i * SIZE;
        contexts[i].uc_stack.ss_size = SIZE;
        makecontext(&contexts[i], (void (*)(void))body, 1, i);
    }
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
    for (int round = 0; round < 6; round++) {
        evict(stacks, COUNT * SIZE);
        for (int i = 0; i < COUNT; i++)
            MUST(swapcontext(&main_context, &contexts[i]));
    }
    for (int i = 0; i < COUNT; i++)
        REQUIRE(steps[i] == 6);
    REQUIRE(ticks > 0);
    return ok();
}
