/* A program that overflows its stack gets its SIGSEGV on its alternate stack, and can jump out of it. */
#include "pressure.h"
static sigjmp_buf jump;
static volatile int caught;
static void handler(int signal, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    REQUIRE(signal == SIGSEGV);
    caught++;
    siglongjmp(jump, 1);
}
static __attribute__((noinline)) int deep(volatile int n)
{
    volatile char local[PAGE];
    local[n % PAGE] = 1;
    return deep(n + 1) + local[n % PAGE];
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    fill(m, MIB, 1);
    stack_t set = { .ss_sp = malloc(SIGSTKSZ * 4), .ss_size = SIGSTKSZ * 4 };
    MUST(sigaltstack(&set, NULL));
    handle(SIGSEGV, handler, SA_ONSTACK);
    for (int i = 0; i < 3; i++) {
        if (sigsetjmp(jump, 1) == 0)
            deep(0);
        evict(m, MIB);
        check(m, MIB, 1, "after a stack overflow");
    }
    REQUIRE(caught == 3);
    return ok();
}
