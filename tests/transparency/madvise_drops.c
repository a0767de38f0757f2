/* MADV_DONTNEED of evicted memory reads as zero; MADV_FREE keeps it or gives zero; what is beside it stays. */
#include "pressure.h"
#define LEN (2 * MIB)
int main(void)
{
    unsigned char *m = fresh(LEN);
    for (int round = 0; round < 3; round++) {
        fill(m, LEN, 1);
        evict(m, LEN);
        MUST(madvise(m + 64 * PAGE, 128 * PAGE, MADV_DONTNEED));
        if (round == 1)
            evict(m, LEN);
        check(m, 64 * PAGE, 1, "memory in front of dropped memory");
        check_zero(m + 64 * PAGE, 128 * PAGE, "dropped memory");
        for (size_t i = 192 * PAGE; i < LEN; i++)
            REQUIRE(m[i] == pattern(i, 1));
        fill(m, LEN, 2);
        evict(m, LEN);
        check(m, LEN, 2, "memory written after it was dropped");
        /* A length that is no multiple of a page counts as the whole page. */
        evict(m, LEN);
        MUST(madvise(m + PAGE, 100, MADV_DONTNEED));
        check_zero(m + PAGE, PAGE, "a page dropped by a part");
        check(m, PAGE, 2, "the page before it");
        fill(m, LEN, 3);
        evict(m, LEN);
        MUST(madvise(m, LEN, MADV_FREE));
        for (size_t page = 0; page < LEN / PAGE; page++) {
            unsigned char *at = m + page * PAGE;
            int zero = 1, kept = 1;
            for (size_t i = 0; i < PAGE; i++) {
                zero &= at[i] == 0;
                kept &= at[i] == pattern(page * PAGE + i, 3);
            }
            if (!zero && !kept)
                fail("page %zu is neither zero nor kept after MADV_FREE", page);
        }
        MUST(madvise(m, LEN, MADV_FREE));
        fill(m, LEN, 4);
        evict(m, LEN);
        check(m, LEN, 4, "memory written after MADV_FREE");
        evict(m, LEN);
        MUST(madvise(m, LEN, MADV_DONTNEED));
        check_zero(m, LEN, "all memory dropped");
    }
    REQUIRE(madvise(m + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    REQUIRE(madvise(m, LEN, 12345) == -1 && errno == EINVAL);
    REQUIRE(madvise(m, LEN, MADV_REMOVE) == -1 && errno == EINVAL);
    MUST(munmap(m + MIB, PAGE));
    REQUIRE(madvise(m, LEN, MADV_DONTNEED) == -1 && errno == ENOMEM);
    check_zero(m + MIB + PAGE, PAGE, "memory behind a hole");
    return ok();
}
