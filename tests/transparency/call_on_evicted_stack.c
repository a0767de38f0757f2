/* A system call whose stack pointer points into evicted memory, and a buffer on that stack. */
#include "pressure.h"
static long on_stack(void *stack_top, long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("mov %%rsp, %%rbx\n mov %[stack], %%rsp\n syscall\n mov %%rbx, %%rsp"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), [stack] "r"(stack_top)
                     : "rbx", "rcx", "r11", "memory");
    return result;
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    int ends[2];
    unsigned char got[5000];
    fill(m, MIB, 1);
    MUST(pipe(ends));
    for (int i = 0; i < 4; i++) {
        evict(m, MIB);
        REQUIRE(on_stack(m + MIB / 2, SYS_getppid, 0, 0, 0) == getppid());
        evict(m, MIB);
        REQUIRE(on_stack(m + 100 * PAGE + 8, SYS_write, ends[1], (long)(m + 100 * PAGE + 8), 5000) == 5000);
        REQUIRE(read(ends[0], got, 5000) == 5000 && memcmp(got, m + 100 * PAGE + 8, 5000) == 0);
    }
    check(m, MIB, 1, "at the end");
    return ok();
}
