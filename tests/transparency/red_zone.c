/* The 128 bytes below the stack pointer survive system calls, faults, and signals in between. */
#include "pressure.h"
static __attribute__((naked, noinline)) long zone(volatile void *touch UNUSED, long number UNUSED, long argument UNUSED)
{
    /* rdi: address to touch, rsi: call number, rdx: its argument. Returns 0 when all sixteen words survived. */
    __asm__(
        "mov %rdi, %r8\n mov %rsi, %rax\n mov %rdx, %rdi\n"
        "movabs $0x1234567890abcdef, %r9\n"
        ".set i, 1\n .rept 16\n lea i(%r9), %r10\n mov %r10, -8*i(%rsp)\n .set i, i+1\n .endr\n"
        "syscall\n"
        "movzbl (%r8), %r10d\n" /* a fault, when it is evicted */
        "movb %r10b, (%r8)\n"
        "movabs $0x1234567890abcdef, %r9\n"
        "xor %eax, %eax\n"
        ".set i, 1\n .rept 16\n lea i(%r9), %r10\n cmp %r10, -8*i(%rsp)\n setne %cl\n movzbl %cl, %ecx\n add %rcx, %rax\n .set i, i+1\n .endr\n"
        "ret\n");
}
static volatile int ticks;
static void handler(int signal)
{
    (void)signal;
    volatile char local[600];
    memset((char *)local, 0x77, sizeof local);
    ticks++;
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    fill(m, MIB, 1);
    signal(SYS_kill, handler);
    for (int i = 0; i < 3; i++) {
        evict(m, MIB);
        for (size_t page = 0; page < 256; page++) {
            long lost = zone(m + page * PAGE, SYS_getppid, 0);
            if (lost)
                fail("%ld words below the stack pointer were lost by a call", lost);
        }
    }
    /* kill(this process, 62): the second argument still is the number of the call. The handler runs on this stack,
     * below the red zone, before the call returns. */
    for (int i = 0; i < 50; i++) {
        long lost = zone(m, SYS_kill, getpid());
        if (lost)
            fail("%ld words below the stack pointer were lost by a signal", lost);
    }
    REQUIRE(ticks == 50);
    check(m, MIB, 1, "at the end");
    return ok();
}
