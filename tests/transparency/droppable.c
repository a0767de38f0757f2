/* Memory that the kernel may drop (MAP_DROPPABLE) stays what it is, in a process that grows around it, too: a fork does not
 * hand it on, and every page holds what was stored or zeros. */
#include "pressure.h"
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 8
#endif
static unsigned char *m;
static void check_page(const unsigned char *at, unsigned seed, size_t i)
{
    if (at[0] || at[PAGE - 1])
        for (size_t j = 0; j < PAGE; j++)
            REQUIRE(at[j] == pattern(i + j, seed));
}
static void child(void *argument UNUSED)
{
    check_zero(m, MIB, "what a child has of it");
}
int main(void)
{
    m = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return skip("this kernel has no memory to drop");
    unsigned char *other = fresh(MIB);
    fill(m, MIB, 1);
    fill(other, MIB, 2);
    for (int round = 0; round < 3; round++) {
        evict(other, MIB);
        for (size_t i = 0; i < MIB; i += PAGE)
            check_page(m + i, 1, i);
        check(other, MIB, 2, "other memory");
        fill(m, MIB, 1);
        wait_ok(child_of(child, NULL));
        REQUIRE(mlock(m, PAGE) == -1 || munlock(m, PAGE) == 0);
    }
    unsigned char *again = MUST(mmap(m, MIB / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    fill(again, MIB / 2, 3);
    evict(again, MIB / 2);
    check(again, MIB / 2, 3, "memory in its place");
    REQUIRE(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == EINVAL);
    return ok();
}
