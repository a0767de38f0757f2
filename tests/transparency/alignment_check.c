/* A program that has the alignment check on: faults, system calls and signals work, and the flag stays. */
#include "pressure.h"
#define CHECKED 0x40000UL
static unsigned char *m;
static volatile sig_atomic_t seen;
/* Past what a leaf function may have below its stack pointer, and back. */
#define SPARE "lea -128(%%rsp), %%rsp\n"
#define ENOUGH "lea 128(%%rsp), %%rsp\n"
#define ON "pushf\n orl $0x40000, (%%rsp)\n popf\n"
#define OFF "pushf\n andl $~0x40000, (%%rsp)\n popf\n"
static uint64_t flags(void)
{
    uint64_t value;
    __asm__ volatile(SPARE "pushf\n pop %0\n" ENOUGH : "=r"(value));
    return value;
}
static inline __attribute__((always_inline)) void set_check(int on)
{
    if (on)
        __asm__ volatile(SPARE ON ENOUGH : : : "cc", "memory");
    else
        __asm__ volatile(SPARE OFF ENOUGH : : : "cc", "memory");
}
/* One system call with the flag set, which must still be set afterwards. */
static long checked_call(long number, long a, long b, long c)
{
    long result;
    uint64_t after;
    __asm__ volatile(SPARE ON "syscall\n pushf\n mov (%%rsp), %1\n popf\n" OFF ENOUGH
                     : "=a"(result), "=&r"(after)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory", "cc");
    REQUIRE(after & CHECKED);
    REQUIRE(!(flags() & CHECKED));
    return result;
}
/* A word of memory that may be out, read with the flag set. */
static uint64_t checked_read(const void *at)
{
    uint64_t value, after;
    __asm__ volatile(SPARE ON "mov (%2), %0\n pushf\n mov (%%rsp), %1\n popf\n" OFF ENOUGH
                     : "=&r"(value), "=&r"(after)
                     : "r"(at)
                     : "memory", "cc");
    REQUIRE(after & CHECKED);
    return value;
}
static void on_signal(int number UNUSED, siginfo_t *info UNUSED, void *context)
{
    set_check(0);
    const ucontext_t *at = context;
    REQUIRE(at->uc_mcontext.gregs[REG_EFL] & CHECKED);
    seen++;
}
static void on_bus(int number UNUSED, siginfo_t *info, void *context)
{
    ucontext_t *at = context;
    at->uc_mcontext.gregs[REG_EFL] &= ~CHECKED;
    seen += info->si_code == BUS_ADRALN ? 100 : 1000;
}
int main(void)
{
    int ends[2];
    uint64_t word;
    /* The loader, which is not ready for the flag, finds these now. */
    REQUIRE(syscall(SYS_getpid) == getpid() && write(-1, "", 0) == -1 && read(-1, &word, 8) == -1);
    /* The small process first, by libc's function. */
    set_check(1);
    long pid = syscall(SYS_getpid);
    set_check(0);
    REQUIRE(pid == getpid());
    m = fresh(MIB);
    fill(m, MIB, 1);
    MUST(pipe(ends));
    for (int round = 0; round < 2; round++) {
        evict(m, MIB);
        for (size_t i = 0; i < MIB; i += PAGE) {
            memcpy(&word, m + i, 8);
            REQUIRE(i % 2 == 0 && checked_read(m + i) == word);
        }
        evict(m, MIB);
        REQUIRE(checked_call(SYS_getpid, 0, 0, 0) == getpid());
        REQUIRE(checked_call(SYS_write, ends[1], (long)m + 3, 4000) == 4000);
        REQUIRE(checked_call(SYS_read, ends[0], (long)m + MIB / 2 + 1, 4000) == 4000);
        check(m, MIB / 2, 1, "memory that the kernel read");
        REQUIRE(memcmp(m + MIB / 2 + 1, m + 3, 4000) == 0);
        fill(m, MIB, 1);
        REQUIRE(checked_call(SYS_read, ends[0], 8, 0) == 0);
        REQUIRE(checked_call(SYS_write, ends[1], 8, 1) == -EFAULT);
        long map = checked_call(SYS_brk, 0, 0, 0);
        REQUIRE(map > 0);
    }
    handle(SIGUSR1, on_signal, 0);
    checked_call(SYS_kill, getpid(), SIGUSR1, 0);
    REQUIRE(seen == 1);
    /* libc's functions from a program that has the flag set: as far as libc itself goes. */
    set_check(1);
    ssize_t n = write(ends[1], m, 8), k = read(ends[0], &word, 8);
    set_check(0);
    REQUIRE(n == 8 && k == 8 && memcmp(&word, m, 8) == 0);
    /* The program's own slips are still its own. */
    handle(SIGBUS, on_bus, 0);
    __asm__ volatile(SPARE ON "mov 1(%0), %%rax\n" OFF ENOUGH : : "r"(&word) : "rax", "cc", "memory");
    REQUIRE(seen == 101);
    return ok();
}
