/* A system call changes rax, rcx and r11, and nothing else; a fault changes nothing at all, flags included. */
#include "pressure.h"
struct registers {
    uint64_t rbx, rbp, rdi, rsi, rdx, r8, r9, r10, r12, r13, r14, r15, flags, rax;
};
__attribute__((visibility("hidden"))) struct registers want, got;
/* What run() works on, kept in memory: every register is in use. */
__attribute__((visibility("hidden"))) uint64_t saved_rsp, number;
__attribute__((visibility("hidden"))) unsigned char *touch;
static __attribute__((naked, noinline)) void run(int call UNUSED)
{
    __asm__(
        "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, saved_rsp(%rip)\n"
        "mov %edi, %ecx\n"
        "lea want(%rip), %rax\n"
        "mov 0(%rax), %rbx\n mov 8(%rax), %rbp\n mov 16(%rax), %rdi\n mov 24(%rax), %rsi\n mov 32(%rax), %rdx\n"
        "mov 40(%rax), %r8\n mov 48(%rax), %r9\n mov 56(%rax), %r10\n mov 64(%rax), %r12\n mov 72(%rax), %r13\n"
        "mov 80(%rax), %r14\n mov 88(%rax), %r15\n"
        "test %ecx, %ecx\n jz 1f\n"
        "push 96(%rax)\n"
        "mov number(%rip), %rax\n"
        "popf\n"
        "syscall\n"
        "pushf\n"
        "jmp 2f\n"
        "1: push 96(%rax)\n"
        "mov touch(%rip), %rcx\n"
        "popf\n"
        "mov (%rcx), %al\n" /* the fault */
        "mov %al, (%rcx)\n"
        "pushf\n"
        "2: mov %rax, 104+got(%rip)\n"
        "lea got(%rip), %rax\n"
        "mov %rbx, 0(%rax)\n mov %rbp, 8(%rax)\n mov %rdi, 16(%rax)\n mov %rsi, 24(%rax)\n mov %rdx, 32(%rax)\n"
        "mov %r8, 40(%rax)\n mov %r9, 48(%rax)\n mov %r10, 56(%rax)\n mov %r12, 64(%rax)\n mov %r13, 72(%rax)\n"
        "mov %r14, 80(%rax)\n mov %r15, 88(%rax)\n"
        "pop 96(%rax)\n cld\n"
        "cmp %rsp, saved_rsp(%rip)\n je 3f\n ud2\n 3:\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");
}
static void compare(const char *what)
{
    const uint64_t *w = (const uint64_t *)&want, *g = (const uint64_t *)&got;
    static const char *names[] = { "rbx", "rbp", "rdi", "rsi", "rdx", "r8", "r9", "r10", "r12", "r13", "r14", "r15", "flags" };
    for (int i = 0; i < 13; i++)
        if (w[i] != g[i])
            fail("%s changed %s from %#lx to %#lx", what, names[i], w[i], g[i]);
}
static void randomize(uint64_t seed)
{
    uint64_t *w = (uint64_t *)&want;
    for (int i = 0; i < 12; i++)
        w[i] = mix(seed * 16 + i + 1);
    /* Carry, parity, adjust, zero, sign, direction, overflow; with bit 1 and the interrupt flag as always. */
    want.flags = (mix(seed) & 0xcd5) | 0x202;
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    fill(m, MIB, 1);
    for (unsigned round = 0; round < 3; round++) {
        evict(m, MIB);
        for (size_t page = 0; page < 256; page++) {
            randomize(round * 256 + page);
            touch = m + page * PAGE;
            run(0);
            compare("a fault");
        }
    }
    static const int calls[] = { SYS_getppid, SYS_sched_yield, SYS_getuid, 9999 };
    for (unsigned i = 0; i < 200; i++) {
        randomize(10000 + i);
        number = calls[i % 4];
        run(1);
        compare("a system call");
        REQUIRE(i % 4 != 0 || got.rax == (uint64_t)getppid());
        REQUIRE(i % 4 != 3 || got.rax == (uint64_t)-ENOSYS);
    }
    /* A call whose buffer is evicted: the kernel's result, and all arguments still in their registers. */
    int ends[2];
    MUST(pipe(ends));
    for (unsigned i = 0; i < 4; i++) {
        evict(m, MIB);
        randomize(20000 + i);
        number = SYS_write;
        want.rdi = ends[1];
        want.rsi = (uint64_t)m + 3;
        want.rdx = 5000;
        want.flags = 0x202;
        run(1);
        compare("write() from evicted memory");
        REQUIRE(got.rax == 5000);
        static unsigned char back[5000];
        REQUIRE(read(ends[0], back, 5000) == 5000 && memcmp(back, m + 3, 5000) == 0);
    }
    return ok();
}
