/* Advice about fork on a range with a hole: the kernel answers ENOMEM and gives the advice to what is mapped. */
#include "pressure.h"
#define LEN (MIB / 2)
static unsigned char *wiped, *kept;
static void body(void *argument)
{
    (void)argument;
    check(kept, LEN, 3, "kept memory in a child");
    check_zero(wiped, LEN, "wiped memory before the hole, in a child");
    check_zero(wiped + LEN + PAGE, LEN, "wiped memory behind the hole, in a child");
    fill(wiped, LEN, 7);
    evict(wiped, LEN);
    check(wiped, LEN, 7, "wiped memory used by a child");
}
int main(void)
{
    kept = fresh(LEN);
    wiped = fresh(2 * LEN + PAGE);
    fill(kept, LEN, 3);
    fill(wiped, LEN, 1);
    fill(wiped + LEN + PAGE, LEN, 2);
    MUST(munmap(wiped + LEN, PAGE));
    REQUIRE(madvise(wiped, 2 * LEN + PAGE, MADV_WIPEONFORK) == -1 && errno == ENOMEM);
    wait_ok(child_of(body, NULL));
    evict(wiped, LEN);
    wait_ok(child_of(body, NULL));
    check(wiped, LEN, 1, "wiped memory in the parent");
    check(wiped + LEN + PAGE, LEN, 2, "wiped memory in the parent");
    return ok();
}
