/* Under a budget the pressure used by all programs here really moves memory out; and it comes back whole. */
#include "pressure.h"
int main(void)
{
    unsigned char *m = fresh(4 * MIB);
    fill(m, 4 * MIB, 1);
    evict(m, 4 * MIB);
    size_t missing = absent(m, 4 * MIB);
    if (budget() && managed() && missing < 4 * MIB / PAGE / 2)
        fail("only %zu of %zu pages were moved out", missing, 4 * MIB / PAGE);
    check(m, 4 * MIB, 1, "evicted memory");
    for (size_t i = 0; i < 4 * MIB; i += PAGE)
        m[i]++;
    evict(m, 4 * MIB);
    for (size_t i = 0; i < 4 * MIB; i += PAGE)
        m[i]--;
    check(m, 4 * MIB, 1, "memory evicted twice");
    return ok();
}
