/* Instructions that run over many evicted pages and are interrupted half-way: string moves both ways, compares, scans. */
#include "pressure.h"
#define LEN (512 * 1024)
int main(void)
{
    unsigned char *a = fresh(LEN + PAGE), *b = fresh(LEN + PAGE);
    for (size_t shift = 0; shift < 9; shift += 4) {
        fill(a, LEN, 1);
        memset(b, 0, LEN + PAGE);
        evict(a, LEN);
        evict(b, LEN);
        unsigned char *from = a, *to = b + shift;
        size_t count = LEN;
        __asm__ volatile("rep movsb" : "+S"(from), "+D"(to), "+c"(count) : : "memory");
        REQUIRE(from == a + LEN && to == b + shift + LEN && count == 0);
        check(b + shift, LEN, 1, "memory copied forwards");
        memset(a, 0, LEN);
        evict(a, LEN);
        evict(b, LEN);
        from = b + shift + LEN - 1;
        to = a + LEN - 1;
        count = LEN;
        __asm__ volatile("std\n rep movsb\n cld" : "+S"(from), "+D"(to), "+c"(count) : : "memory");
        check(a, LEN, 1, "memory copied backwards");
        evict(a, LEN);
        from = a;
        to = b + shift;
        count = LEN;
        unsigned char equal;
        __asm__ volatile("repe cmpsb\n sete %3" : "+S"(from), "+D"(to), "+c"(count), "=r"(equal) : : "memory", "cc");
        REQUIRE(equal && count == 0);
        memset(a, 7, LEN);
        a[LEN - 3] = 9;
        evict(a, LEN);
        to = a;
        count = LEN;
        __asm__ volatile("repne scasb" : "+D"(to), "+c"(count) : "a"(9) : "memory", "cc");
        REQUIRE(to == a + LEN - 2);
        uint64_t *words = (uint64_t *)a;
        count = LEN / 8;
        evict(a, LEN);
        __asm__ volatile("rep stosq" : "+D"(words), "+c"(count) : "a"(0x1122334455667788) : "memory");
        for (size_t i = 0; i < LEN / 8; i++)
            REQUIRE(((uint64_t *)a)[i] == 0x1122334455667788);
    }
    return ok();
}
