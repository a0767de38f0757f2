/* Hundreds of jumps out of SIGSEGV handlers, nested too, with evictions between them. */
#include "pressure.h"
static sigjmp_buf jump;
static unsigned char *none;
static void handler(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    REQUIRE((unsigned char *)info->si_addr == none + 100);
    siglongjmp(jump, 7);
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    none = MUST(mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    fill(m, MIB, 1);
    handle(SIGSEGV, handler, 0);
    volatile int jumps = 0;
    for (volatile int i = 0; i < 600; i++) {
        if (i % 200 == 0)
            evict(m, MIB);
        int value = sigsetjmp(jump, 1);
        if (value == 0)
            none[100] = 1;
        REQUIRE(value == 7);
        jumps++;
        REQUIRE(m[i % 256 * PAGE] == pattern(i % 256 * PAGE, 1));
    }
    REQUIRE(jumps == 600);
    check(m, MIB, 1, "after all jumps");
    return ok();
}
