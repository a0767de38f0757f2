/* Threads made by the clone system call alone, with thread-local storage of their own. */
#include "clone_common.h"
static unsigned char *m;
static volatile int result;
static void body(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    unsigned char local[PAGE];
    check(m, MIB, 1, "in a raw thread");
    fill(local, sizeof local, seed);
    fill(m + MIB, MIB, seed);
    check(local, sizeof local, seed, "a raw thread's stack");
    __atomic_fetch_add(&result, 1, __ATOMIC_SEQ_CST);
}
int main(void)
{
    m = fresh(2 * MIB);
    fill(m, MIB, 1);
    for (unsigned i = 1; i <= 6; i++) {
        unsigned char *stack = fresh(STACK_SIZE);
        static int id;
        id = 1;
        evict(m, 2 * MIB);
        long tid = raw_clone(THREAD_FLAGS | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, stack + STACK_SIZE, &id,
                             &id, new_tls(), body, (void *)(uintptr_t)(i + 10));
        REQUIRE(tid > 0);
        if (i % 2)
            evict(m, 2 * MIB);
        wait_cleared(&id);
        REQUIRE(result == (int)i);
        check(m + MIB, MIB, i + 10, "what a raw thread wrote");
        MUST(munmap(stack, STACK_SIZE));
    }
    return ok();
}
