/* MADV_DONTFORK, MADV_WIPEONFORK and their opposites on evicted memory. */
#include "pressure.h"
#define LEN MIB
static unsigned char *kept, *wiped, *dropped;
static sigjmp_buf jump;
static void handler(int signal)
{
    (void)signal;
    siglongjmp(jump, 1);
}
static void body(void *argument)
{
    int undone = argument != NULL;
    signal(SIGSEGV, handler);
    check(kept, LEN, 1, "kept memory in a child");
    if (undone) {
        check(wiped, LEN, 2, "memory that is kept again");
        check(dropped, LEN, 3, "memory that is inherited again");
    } else {
        check_zero(wiped, LEN, "wiped memory in a child");
        if (sigsetjmp(jump, 1) == 0)
            fail("memory not inherited reads as %d", *(volatile unsigned char *)(dropped + 5));
    }
    evict(kept, LEN);
    fill(wiped, LEN, 7);
    evict(wiped, LEN);
    check(wiped, LEN, 7, "wiped memory used by a child");
    check(kept, LEN, 1, "kept memory in a child");
}
int main(void)
{
    kept = fresh(LEN);
    wiped = fresh(LEN);
    dropped = fresh(LEN);
    fill(kept, LEN, 1);
    fill(wiped, LEN, 2);
    fill(dropped, LEN, 3);
    MUST(madvise(wiped, LEN, MADV_WIPEONFORK));
    MUST(madvise(dropped, LEN, MADV_DONTFORK));
    for (int i = 0; i < 3; i++) {
        evict(kept, LEN);
        evict(wiped, LEN);
        evict(dropped, LEN);
        wait_ok(child_of(body, NULL));
        check(wiped, LEN, 2, "wiped memory in the parent");
        check(dropped, LEN, 3, "memory the child did not get");
    }
    MUST(madvise(wiped, LEN, MADV_KEEPONFORK));
    MUST(madvise(dropped, LEN, MADV_DOFORK));
    evict(wiped, LEN);
    wait_ok(child_of(body, kept));
    return ok();
}
