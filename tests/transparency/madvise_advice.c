/* Advice that must not change content: every kind of it, on evicted memory. */
#include "pressure.h"
#define LEN (4 * MIB)
int main(void)
{
    static const int advice[] = { MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
                                  MADV_DONTDUMP, MADV_DODUMP, MADV_MERGEABLE, MADV_UNMERGEABLE, 20 /* COLD */, 21 /* PAGEOUT */,
                                  22 /* POPULATE_READ */, 23 /* POPULATE_WRITE */, 25 /* COLLAPSE */, MADV_HUGEPAGE };
    unsigned char *m = fresh(LEN);
    fill(m, LEN, 1);
    for (size_t i = 0; i < sizeof advice / sizeof *advice; i++) {
        evict(m, LEN);
        int result = madvise(m, LEN, advice[i]);
        if (result != 0 && (advice[i] == 22 || advice[i] == 23))
            fail("advice %d", advice[i]);
        check(m, LEN, 1, "advised memory");
        evict(m, LEN);
        madvise(m + PAGE, LEN / 2, advice[i]);
        check(m, LEN, 1, "memory of which a part was advised");
    }
    return ok();
}
