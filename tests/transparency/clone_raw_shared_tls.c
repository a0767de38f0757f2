/* A thread by raw clone that shares its creator's thread pointer, as simple run-times make it, while that one works on. */
#include "clone_common.h"
static unsigned char *m;
static volatile int stop, bad;
/* Uses no function of the C library, so nothing of the shared block. */
static void body(void *argument)
{
    (void)argument;
    while (!stop)
        for (size_t i = 0; i < MIB; i += 8 * 61)
            if (m[i] != pattern(i, 1))
                bad = 1;
}
int main(void)
{
    unsigned char *stack = fresh(STACK_SIZE), *own = fresh(MIB);
    static int id = 1;
    m = fresh(MIB);
    fill(m, MIB, 1);
    fill(own, MIB, 2);
    evict(m, MIB);
    long tid = raw_clone(THREAD_FLAGS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, stack + STACK_SIZE, &id, &id, NULL, body, NULL);
    REQUIRE(tid > 0);
    for (int i = 0; i < 6; i++) {
        evict(own, MIB);
        check(own, MIB, 2, "the creator's memory");
    }
    stop = 1;
    wait_cleared(&id);
    REQUIRE(!bad);
    check(m, MIB, 1, "at the end");
    return ok();
}
