/* The GS base belongs to the program: it is what the program put there after faults, system calls of every kind, signals,
 * forks and in new threads, whether it was written by the instruction or by arch_prctl. */
#include "clone_common.h"
#include <asm/prctl.h>
#include <immintrin.h>
#include <spawn.h>
#include <sys/auxv.h>
extern char **environ;
static unsigned char *m;
static uint64_t areas[8][512];
static volatile sig_atomic_t signals_seen;
__attribute__((target("fsgsbase"))) static void set_base(uint64_t base)
{
    _writegsbase_u64(base);
}
__attribute__((target("fsgsbase"))) static uint64_t base(void)
{
    return _readgsbase_u64();
}
static uint64_t first_word(void)
{
    uint64_t word;
    __asm__ volatile("mov %%gs:0, %0" : "=r"(word));
    return word;
}
static long raw(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
static void on_signal(int number UNUSED, siginfo_t *info UNUSED, void *context UNUSED)
{
    signals_seen++;
    raw(SYS_getppid, 0, 0, 0);
    REQUIRE(base() == 0 || first_word() == base());
}
/* Everything that the program may do with a base of its own. */
static void use(uint64_t mine, unsigned seed)
{
    int ends[2];
    unsigned char back[3000];
    uint64_t asked = 1;
    for (unsigned round = 0; round < 2; round++) {
        for (size_t i = 0; i < MIB; i += PAGE)
            REQUIRE(m[i + seed] == pattern(i + seed, 1) && base() == mine);
        MUST(pipe(ends));
        REQUIRE(write(ends[1], m + 5, sizeof back) == sizeof back && base() == mine);
        REQUIRE(raw(SYS_read, ends[0], (long)back, sizeof back) == sizeof back && base() == mine);
        REQUIRE(memcmp(back, m + 5, sizeof back) == 0);
        REQUIRE(raw(SYS_read, ends[0], (long)areas, -1) != 0 && base() == mine);
        close(ends[0]);
        close(ends[1]);
        REQUIRE(raw(SYS_getppid, 0, 0, 0) == getppid() && base() == mine);
        REQUIRE(raw(SYS_write, -1, (long)m, 10) == -EBADF && base() == mine);
        raise(SIGUSR1);
        REQUIRE(base() == mine);
        MUST(syscall(SYS_arch_prctl, ARCH_GET_GS, &asked));
        REQUIRE(asked == mine);
        unsigned char *other = fresh(MIB);
        memset(other, 1, MIB);
        MUST(munmap(other, MIB));
        REQUIRE(base() == mine && (mine == 0 || first_word() == mine));
    }
}
static void *thread(void *argument)
{
    unsigned number = (unsigned)(uintptr_t)argument;
    /* As the kernel has it, a new thread begins with its maker's base. */
    REQUIRE(base() == (uint64_t)areas[0]);
    use((uint64_t)areas[0], number);
    uint64_t mine = (uint64_t)areas[number];
    areas[number][0] = mine;
    set_base(mine);
    use(mine, number);
    MUST(syscall(SYS_arch_prctl, ARCH_SET_GS, areas[7]));
    REQUIRE(base() == (uint64_t)areas[7]);
    use((uint64_t)areas[7], number);
    return NULL;
}
static void nothing(void *argument UNUSED)
{
    REQUIRE(base() == (uint64_t)areas[0]);
}
static void forks(void *argument UNUSED)
{
    use((uint64_t)areas[0], 9);
    wait_ok(child_of(nothing, NULL));
    REQUIRE(base() == (uint64_t)areas[0]);
}
/* Whether one of this process's threads has the name, within three seconds. */
static int has_thread(const char *name)
{
    for (int i = 0; i < 300; i++) {
        char path[300];
        pid_t tasks[64];
        int found = 0;
        for (int task = all_tasks(tasks, 64); task-- > 0;) {
            snprintf(path, sizeof path, "/proc/self/task/%d/comm", tasks[task]);
            int fd = open(path, O_RDONLY);
            char text[40] = "";
            if (fd >= 0 && read(fd, text, sizeof text - 1) > 0)
                found |= strcmp(text, name) == 0;
            if (fd >= 0)
                close(fd);
        }
        if (found)
            return 1;
        usleep(10000);
    }
    return 0;
}
/* Ebb's own thread begins from a thread that has a base of its own, too. */
static void grows(void *argument UNUSED)
{
    set_base((uint64_t)areas[0]);
    unsigned char *large = fresh(10 * MIB);
    fill(large, 10 * MIB, 3);
    const char *force = getenv("EBB_FORCE");
    int wanted = getenv("EBB_RAM") && !(force && strstr(force, "no-background"));
    REQUIRE(!wanted || has_thread("ebb-reclaim\n"));
    check(large, 10 * MIB, 3, "memory of a program with a base of its own");
    REQUIRE(base() == (uint64_t)areas[0]);
}
int main(void)
{
    if (!(getauxval(AT_HWCAP2) & 2))
        return skip("this processor or kernel has no instructions for the GS base");
    areas[0][0] = (uint64_t)areas[0];
    areas[7][0] = (uint64_t)areas[7];
    handle(SIGUSR1, on_signal, 0);
    m = fresh(MIB);
    fill(m, MIB, 1);
    set_base((uint64_t)areas[0]);
    evict(m, MIB);
    REQUIRE(base() == (uint64_t)areas[0]);
    use((uint64_t)areas[0], 0);
    REQUIRE(signals_seen == 2);
    evict(m, MIB);
    wait_ok(child_of(forks, NULL));
    wait_ok(child_of(grows, NULL));
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        ZERO(pthread_create(&threads[i], NULL, thread, (void *)(i + 1)));
    evict(m, MIB);
    for (int i = 0; i < 4; i++)
        ZERO(pthread_join(threads[i], NULL));
    REQUIRE(base() == (uint64_t)areas[0]);
    pid_t pid;
    char *arguments[] = { "true", NULL };
    ZERO(posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ));
    wait_ok(pid);
    REQUIRE(base() == (uint64_t)areas[0]);
    /* Places that are no place, and one that looks like a block of the agent's: nothing there is read. */
    static const uint64_t odd[] = { 8, 0x7ffff0036000, 0x36000, 0x1236000 };
    for (unsigned i = 0; i < 4; i++) {
        set_base(odd[i]);
        REQUIRE(write(-1, m, 1) == -1 && errno == EBADF);
        evict(m, PAGE);
        REQUIRE(m[0] == pattern(0, 1));
        REQUIRE(raw(SYS_getppid, 0, 0, 0) == getppid());
        REQUIRE(base() == odd[i]);
    }
    REQUIRE(syscall(SYS_arch_prctl, ARCH_SET_GS, -4096L) == -1 && errno == EPERM && base() == odd[3]);
    MUST(syscall(SYS_arch_prctl, ARCH_SET_GS, 0));
    use(0, 0);
    return ok();
}
