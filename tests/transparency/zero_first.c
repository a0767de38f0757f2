/* Memory that was only read, written with zeroes, or written with one word repeated: all come back as they were. */
#include "pressure.h"
#define LEN (4 * MIB)
int main(void)
{
    unsigned char *m = fresh(LEN);
    check_zero(m, LEN, "memory never written");
    evict(m, LEN);
    check_zero(m, LEN, "memory only read");
    for (size_t page = 0; page < LEN / PAGE; page++)
        for (size_t i = 0; i < PAGE / 8; i++)
            ((uint64_t *)(m + page * PAGE))[i] = page % 3 == 0 ? 0 : page % 3 == 1 ? 0x0101010101010101 * (page & 255) : page;
    for (int round = 0; round < 2; round++) {
        evict(m, LEN);
        for (size_t page = 0; page < LEN / PAGE; page++)
            for (size_t i = 0; i < PAGE / 8; i++)
                REQUIRE(((uint64_t *)(m + page * PAGE))[i] ==
                        (page % 3 == 0 ? 0 : page % 3 == 1 ? 0x0101010101010101 * (page & 255) : page));
    }
    /* One byte in an otherwise zero page. */
    memset(m, 0, LEN);
    for (size_t page = 0; page < LEN / PAGE; page++)
        m[page * PAGE + page * 13 % PAGE] = 1 + page % 250;
    evict(m, LEN);
    for (size_t page = 0; page < LEN / PAGE; page++) {
        REQUIRE(m[page * PAGE + page * 13 % PAGE] == 1 + page % 250);
        m[page * PAGE + page * 13 % PAGE] = 0;
    }
    check_zero(m, LEN, "zeroes around a byte");
    evict(m, LEN);
    check_zero(m, LEN, "zeroes written");
    return ok();
}
