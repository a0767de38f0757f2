/* Populating memory that is out, and more than fits: holes, and what may not be read or written, are told as Linux tells them,
 * and nothing else is refused. */
#include "pressure.h"
#define POPULATE_READ 22
#define POPULATE_WRITE 23
#define HOLE (8 * PAGE)
static int populate(unsigned char *at, size_t len, int advice)
{
    return madvise(at, len, advice) == 0 ? 0 : errno;
}
int main(void)
{
    /* By the time that its end is in its beginning is out. */
    size_t large = budget() ? budget() * 3 / 2 : 24 * MIB;
    unsigned char *m = fresh(large);
    if (populate(m, PAGE, POPULATE_READ) == EINVAL)
        return skip("no MADV_POPULATE_READ");
    fill(m, large, 7);
    for (int advice = POPULATE_READ; advice <= POPULATE_WRITE; advice++) {
        REQUIRE(populate(m, large, advice) == 0);
        REQUIRE(populate(m, large - 1, advice) == 0);
        REQUIRE(populate(m + 1, PAGE, advice) == EINVAL);
        REQUIRE(populate(m, ~(size_t)0 - 2 * PAGE, advice) == EINVAL);
    }
    MUST(mprotect(m + large - HOLE, HOLE, PROT_READ));
    REQUIRE(populate(m, large, POPULATE_READ) == 0);
    REQUIRE(populate(m, large, POPULATE_WRITE) == EINVAL);
    MUST(mprotect(m + large - HOLE, HOLE, PROT_NONE));
    REQUIRE(populate(m, large, POPULATE_READ) == EINVAL);
    MUST(mprotect(m + large - HOLE, HOLE, PROT_READ | PROT_WRITE));
    check(m, large, 7, "populated memory");
    MUST(munmap(m + large - 2 * HOLE, HOLE));
    for (int advice = POPULATE_READ; advice <= POPULATE_WRITE; advice++) {
        REQUIRE(populate(m, large, advice) == ENOMEM);
        REQUIRE(populate(m, large - 2 * HOLE, advice) == 0);
        REQUIRE(populate(m + large - 2 * HOLE, HOLE, advice) == ENOMEM);
        REQUIRE(populate(m + large - HOLE, HOLE, advice) == 0);
    }
    check(m, large - 2 * HOLE, 7, "memory before a hole");
    return ok();
}
