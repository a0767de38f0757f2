/* Small processes that fork, vfork, spawn and make threads before and while they grow. Parent and child grow both, each
 * for itself; a child between vfork and exec does not change its parent. */
#include "pressure.h"
#include <spawn.h>
#include <sys/prctl.h>
static unsigned char *early;
static unsigned char registers_in[32] __attribute__((aligned(32))), registers_out[32] __attribute__((aligned(32)));
static void grow(int seed)
{
    unsigned char *m = MUST(mmap(NULL, 24 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    fill(m, 24 * MIB, seed);
    evict(m, 24 * MIB);
    check(m, 24 * MIB, seed, "what made it grow");
    ZERO(munmap(m, 24 * MIB));
}
static void check_early(const char *who)
{
    check(early, 64 * PAGE, 1, who);
    check_zero(early + 64 * PAGE, 64 * PAGE, who);
}
static void *in_thread(void *arg)
{
    check_early("a thread");
    grow(3);
    return arg;
}
int main(int argc, char **argv)
{
    if (argc == 2)
        return strcmp(argv[1], "inner") != 0;
    char path[600] = { 0 };
    MUST(readlink("/proc/self/exe", path, sizeof path - 1));
    char *inner[] = { path, "inner", NULL }, *empty[] = { NULL };
    early = MUST(mmap(NULL, 128 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    fill(early, 64 * PAGE, 1);

    /* A child grows, its parent is still small. */
    pid_t pid = MUST(fork());
    if (pid == 0) {
        check_early("the first child");
        grow(2);
        check_early("the first child, grown");
        fill(early, 64 * PAGE, 9);
        pid = MUST(fork());
        if (pid == 0) {
            check(early, 64 * PAGE, 9, "a grandchild");
            _exit(0);
        }
        wait_ok(pid);
        _exit(0);
    }
    wait_ok(pid);
    check_early("the parent");

    /* The child of a raw call, which libc does not see. */
    pid = MUST(({ long r; __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_fork) : "rcx", "r11", "memory"); r; }));
    if (pid == 0) {
        grow(4);
        check_early("a child by a raw call");
        _exit(0);
    }
    wait_ok(pid);

    /* Between vfork and exec memory is the parent's. */
    pid = vfork();
    if (pid == 0) {
        void *m = mmap(NULL, 24 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (m == MAP_FAILED || munmap(m, 24 * MIB))
            _exit(3);
        execve(path, inner, empty);
        _exit(4);
    }
    wait_ok(MUST(pid));
    for (int i = 0; i < 3; i++) {
        ZERO(posix_spawn(&pid, path, NULL, NULL, inner, empty));
        wait_ok(pid);
    }
    check_early("the parent after vfork");

    /* Registers survive the change, whatever it does. */
    for (int i = 0; i < 32; i++)
        registers_in[i] = i * 7 + 1;
    unsigned char *grown;
    long rbx_out, r12_out;
    __asm__ volatile(
        "vmovdqa %3, %%ymm9\n mov $0x1234567, %%rbx\n mov $0x7654321, %%r12\n"
        "mov $24, %%esi\n shl $20, %%rsi\n xor %%edi, %%edi\n mov $3, %%edx\n mov $0x22, %%ecx\n mov $-1, %%r8\n xor %%r9d, %%r9d\n"
        "mov %%rsp, %%r13\n and $-16, %%rsp\n call mmap@PLT\n mov %%r13, %%rsp\n"
        "vmovdqa %%ymm9, %4\n mov %%rbx, %1\n mov %%r12, %2\n"
        : "=&a"(grown), "=m"(rbx_out), "=m"(r12_out)
        : "m"(registers_in), "m"(registers_out)
        : "rbx", "r12", "r13", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc", "xmm9");
    REQUIRE(rbx_out == 0x1234567 && r12_out == 0x7654321);
    REQUIRE(memcmp(registers_in, registers_out, 32) == 0);
    fill(grown, 24 * MIB, 5);
    evict(grown, 24 * MIB);
    check(grown, 24 * MIB, 5, "memory by mmap with registers in use");
    check_early("the parent, grown");

    /* In a child that is small again, a thread. */
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, in_thread, NULL));
    ZERO(pthread_join(thread, NULL));
    pid = MUST(fork());
    if (pid == 0) {
        check_early("a late child");
        ZERO(pthread_create(&thread, NULL, in_thread, NULL));
        ZERO(pthread_join(thread, NULL));
        _exit(0);
    }
    wait_ok(pid);
    return ok();
}
