/* Probes of a tracer on a function of the program, at its entry and at its return: the function does what it did, each call
 * is counted, and the system calls in between are caught as before. */
#include "pressure.h"
#include <linux/perf_event.h>
#include <sys/ioctl.h>
static unsigned char *m;
static int ends[2];
/* Something to probe: begins with the instruction that newer kernels replace by a call. */
__attribute__((naked, noinline, used)) static uint64_t probed(uint64_t value UNUSED)
{
    __asm__(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"
            "lea 3(%rdi,%rdi,2), %rax\n"
            "ret\n");
}
/* And what has to do on the way. */
__attribute__((noinline, used)) static uint64_t deep(uint64_t value)
{
    unsigned char back[100];
    if (value > 0)
        return deep(value - 1) + 1;
    REQUIRE(write(ends[1], m + PAGE, sizeof back) == sizeof back);
    REQUIRE(syscall(SYS_read, ends[0], back, sizeof back) == sizeof back && memcmp(back, m + PAGE, sizeof back) == 0);
    return mix(7) == mix(7);
}
static int probe(void *function, int at_return)
{
    char path[4000];
    unsigned long start, end, offset, type = 0;
    FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "re");
    if (!file || fscanf(file, "%lu", &type) != 1)
        return -1;
    fclose(file);
    file = fopen("/proc/self/maps", "re");
    char line[4200];
    int found = 0;
    while (!found && fgets(line, sizeof line, file)) {
        REQUIRE(sscanf(line, "%lx-%lx %*s %lx %*s %*s %3999s", &start, &end, &offset, path) >= 3);
        found = (unsigned long)function >= start && (unsigned long)function < end;
    }
    fclose(file);
    REQUIRE(found);
    struct perf_event_attr attr = { .type = type, .size = sizeof attr, .config = at_return };
    attr.config1 = (uint64_t)path;
    attr.config2 = (uint64_t)function - start + offset;
    return syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}
static uint64_t count(int fd)
{
    uint64_t hits = 0;
    REQUIRE(read(fd, &hits, 8) == 8);
    return hits;
}
static volatile sig_atomic_t seen;
static void on_signal(int number UNUSED)
{
    seen++;
    REQUIRE(probed(1) == 6);
}
static void *thread(void *argument)
{
    for (uint64_t i = 0; i < 200; i++)
        REQUIRE(probed(i) == 3 * i + 3);
    return argument;
}
int main(void)
{
    int fds[3];
    m = fresh(MIB);
    fill(m, MIB, 1);
    MUST(pipe(ends));
    fds[0] = probe((void *)probed, 0);
    if (fds[0] < 0)
        return skip("this kernel or user has no uprobes");
    fds[1] = probe((void *)probed, 1);
    fds[2] = probe((void *)deep, 1);
    REQUIRE(fds[1] >= 0 && fds[2] >= 0);
    signal(SIGUSR1, on_signal);
    for (int round = 0; round < 3; round++) {
        evict(m, MIB);
        for (uint64_t i = 0; i < 100; i++)
            REQUIRE(probed(i) == 3 * i + 3);
        REQUIRE(deep(5) == 6);
        raise(SIGUSR1);
    }
    REQUIRE(seen == 3);
    if (count(fds[0]) != 303 || count(fds[1]) != 303 || count(fds[2]) != 18)
        fail("hits: %lu, %lu and %lu, not 303, 303 and 18", count(fds[0]), count(fds[1]), count(fds[2]));
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        ZERO(pthread_create(&threads[i], NULL, thread, NULL));
    for (int i = 0; i < 100; i++)
        raise(SIGUSR1);
    for (int i = 0; i < 2; i++)
        ZERO(pthread_join(threads[i], NULL));
    /* Still caught: the kernel would refuse a buffer that is out. */
    evict(m, MIB);
    long n;
    __asm__ volatile("syscall" : "=a"(n) : "a"(SYS_write), "D"(ends[1]), "S"(m), "d"(5000L) : "rcx", "r11", "memory");
    REQUIRE(n == 5000);
    check(m, MIB, 1, "memory");
    /* The kernel takes these calls from its own code only. */
    pid_t pid = MUST(fork());
    if (pid == 0) {
        syscall(335);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    REQUIRE(WIFSIGNALED(status) ? WTERMSIG(status) == SIGILL : status == 0);
    return ok();
}
