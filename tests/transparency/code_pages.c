/* Code in evicted memory: fetching an instruction brings it back, also when it lies across two pages. */
#include "pressure.h"
int main(void)
{
    unsigned char *m = fresh(MIB);
    for (size_t page = 0; page < 255; page++) {
        /* mov eax, page; ret: three bytes in this page, three in the next. */
        unsigned char code[6] = { 0xb8, (unsigned char)page, 0x11, 0x22, 0x33, 0xc3 };
        memcpy(m + (page + 1) * PAGE - 3, code, 6);
    }
    MUST(mprotect(m, MIB, PROT_READ | PROT_EXEC));
    for (int round = 0; round < 3; round++) {
        evict(m, MIB);
        for (size_t page = 0; page < 255; page++) {
            unsigned (*function)(void) = (unsigned (*)(void))(uintptr_t)(m + (page + 1) * PAGE - 3);
            REQUIRE(function() == (0x33221100u | page));
        }
    }
    return ok();
}
