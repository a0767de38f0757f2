/* clone3 refuses what the kernel refuses, with the kernel's reason, and makes a child of everything else. */
#include "pressure.h"
#include <linux/sched.h>
#define ARGS sizeof(struct clone_args)
#define PRIVATE 0
#define WAITING (CLONE_VM | CLONE_VFORK)
static unsigned char page[3 * 4096] __attribute__((aligned(4096)));
static unsigned char stack[65536] __attribute__((aligned(16)));
/* The child ends at once, on whatever stack it has. */
static long make(void *args, size_t bytes)
{
    long result;
    __asm__ volatile("syscall\n test %%rax, %%rax\n jnz 1f\n mov $0, %%edi\n mov %2, %%eax\n syscall\n 1:"
                     : "=a"(result)
                     : "a"(SYS_clone3), "i"(SYS_exit_group), "D"(args), "S"(bytes)
                     : "rcx", "r11", "memory", "cc");
    return result;
}
static void expect(int line, struct clone_args args, int as_fork, size_t bytes, int error)
{
    if (as_fork)
        args.exit_signal = SIGCHLD;
    memset(page, 0, sizeof page);
    memcpy(page, &args, sizeof args);
    long pid = make(page, bytes);
    if (error ? pid != -error : pid <= 0)
        fail("line %d: clone3 answers %ld and not %d", line, pid, -error);
    if (pid > 0)
        wait_ok((pid_t)pid);
}
#define EXPECT(bytes, error, ...) expect(__LINE__, (struct clone_args){ __VA_ARGS__ }, 1, bytes, error)
/* The same with an exit signal of its own. */
#define EXPECT_AS(bytes, error, ...) expect(__LINE__, (struct clone_args){ __VA_ARGS__ }, 0, bytes, error)
int main(void)
{
    uint64_t here = (uint64_t)stack;
    unsigned char *m = fresh(MIB);
    fill(m, MIB, 1);
    evict(m, MIB);
    for (int i = 0; i < 2; i++) {
        uint64_t kind = i ? WAITING : PRIVATE;
        EXPECT(ARGS, 0, .flags = kind);
        EXPECT(64, 0, .flags = kind);
        EXPECT(70, 0, .flags = kind);
        EXPECT(90, 0, .flags = kind);
        EXPECT(4096, 0, .flags = kind);
        EXPECT(4097, E2BIG, .flags = kind);
        EXPECT(8192, E2BIG, .flags = kind);
        EXPECT(0, EINVAL, .flags = kind);
        EXPECT(63, EINVAL, .flags = kind);
        EXPECT(ARGS, 0, .flags = kind, .stack = here, .stack_size = sizeof stack);
        EXPECT(ARGS, EINVAL, .flags = kind, .stack = here);
        EXPECT(ARGS, EINVAL, .flags = kind, .stack_size = 4);
        EXPECT(ARGS, EINVAL, .flags = kind, .stack = 0xffff800000000000, .stack_size = 4096);
        EXPECT(ARGS, EINVAL, .flags = kind, .stack = 0x7fffffffe000, .stack_size = 1UL << 56);
        EXPECT(ARGS, EINVAL, .flags = kind, .stack = here, .stack_size = -1UL);
        EXPECT_AS(ARGS, EINVAL, .flags = kind, .exit_signal = 65);
        EXPECT_AS(ARGS, EINVAL, .flags = kind, .exit_signal = 1UL << 40);
        EXPECT(ARGS, EINVAL, .flags = kind | CLONE_DETACHED);
        EXPECT(ARGS, EINVAL, .flags = kind | 1UL << 60);
        EXPECT(ARGS, EINVAL, .flags = kind | SIGCHLD);
        EXPECT_AS(ARGS, EINVAL, .flags = kind | CLONE_THREAD, .exit_signal = 0);
        EXPECT(ARGS, EINVAL, .flags = kind | CLONE_PARENT);
        EXPECT(ARGS, EINVAL, .flags = kind | CLONE_SIGHAND | CLONE_CLEAR_SIGHAND);
        EXPECT(ARGS, EINVAL, .flags = kind | CLONE_NEWNS | CLONE_FS);
        EXPECT(ARGS, EINVAL, .flags = kind, .set_tid_size = 1);
        EXPECT(ARGS, EINVAL, .flags = kind, .set_tid = here);
        EXPECT(ARGS, EINVAL, .flags = kind, .set_tid = here, .set_tid_size = 33);
        EXPECT(ARGS, EFAULT, .flags = kind, .set_tid = 8, .set_tid_size = 1);
        EXPECT(80, EINVAL, .flags = kind | CLONE_INTO_CGROUP);
        EXPECT(ARGS, EINVAL, .flags = kind | CLONE_INTO_CGROUP, .cgroup = 1UL << 40);
        EXPECT(ARGS, EBADF, .flags = kind | CLONE_INTO_CGROUP, .cgroup = 999999);
        EXPECT(ARGS, EFAULT, .flags = kind | CLONE_PIDFD, .pidfd = 8);
        EXPECT(ARGS, 0, .flags = kind | CLONE_CLEAR_SIGHAND);
        EXPECT(ARGS, 0, .flags = kind | CLONE_PARENT_SETTID, .parent_tid = 8);
    }
    EXPECT(ARGS, EINVAL, .flags = CLONE_SIGHAND);
    /* Beyond the known fields all must be zero, up to the last byte. */
    memset(page, 0, sizeof page);
    ((struct clone_args *)page)->exit_signal = SIGCHLD;
    page[ARGS + 2] = 1;
    REQUIRE(make(page, ARGS) > 0 && make(page, ARGS + 2) > 0);
    REQUIRE(make(page, ARGS + 3) == -E2BIG && make(page, 4096) == -E2BIG);
    page[ARGS + 2] = 0;
    page[4095] = 1;
    REQUIRE(make(page, 4095) > 0 && make(page, 4096) == -E2BIG);
    /* The structure itself out, across two pages, or not there. */
    for (int i = 0; i < 4; i++) {
        unsigned char *at = m + MIB / 2 - 40;
        memset(at, 0, ARGS);
        ((struct clone_args *)at)->exit_signal = SIGCHLD;
        evict(m, MIB);
        REQUIRE(make(at, ARGS) > 0);
    }
    REQUIRE(make((void *)8, ARGS) == -EFAULT && make(NULL, ARGS) == -EFAULT);
    int status;
    while (waitpid(-1, &status, __WALL) > 0)
        REQUIRE(status == 0);
    check(m, MIB / 4, 1, "the parent's memory");
    return ok();
}
