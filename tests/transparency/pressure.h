/* What every program here uses: memory with a pattern, pressure that pushes memory out, and the closing line.
 *
 * A program prints `ok NAME` and exits with 0, or `FAIL NAME: why` and exits with 1, or `skip NAME: why` and exits with
 * 77. Run alone it proves that Linux behaves as the program expects; under `ebb run` that Ebb does not change it.
 */
#ifndef PRESSURE_H
#define PRESSURE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef NAME
#define NAME "unnamed"
#endif
#define PAGE ((size_t)4096)
#define MIB ((size_t)1 << 20)
#define UNUSED __attribute__((unused))

static size_t pages_evicted;

/* Ends the process with the reason; usable in handlers and in children. */
static UNUSED __attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...)
{
    char line[700];
    int saved = errno;
    int n = snprintf(line, sizeof line, "FAIL %s: ", NAME);
    va_list list;
    va_start(list, format);
    n += vsnprintf(line + n, sizeof line - n - 60, format, list);
    va_end(list);
    n += snprintf(line + n, sizeof line - n, " [errno %d, pid %d]\n", saved, getpid());
    if (write(1, line, n) < 0)
        _exit(2);
    _exit(1);
}

#define STRING2(x) #x
#define STRING(x) STRING2(x)
/* The condition must hold. */
#define REQUIRE(condition) do { if (!(condition)) fail("line %d: not true: %s", __LINE__, STRING(condition)); } while (0)
/* The call must not return -1; its value. */
#define MUST(call) ({ __auto_type result_ = (call); if (result_ == (__typeof__(result_))-1) fail("line %d: %s failed", __LINE__, STRING(call)); result_; })
/* The call must return 0 (the pthread functions). */
#define ZERO(call) do { int result_ = (call); if (result_ != 0) fail("line %d: %s returned %d", __LINE__, STRING(call), result_); } while (0)

static UNUSED int ok(void)
{
    char line[200];
    int n = snprintf(line, sizeof line, "ok %s evicted=%zu\n", NAME, pages_evicted);
    return write(1, line, n) == n ? 0 : 2;
}

static UNUSED int skip(const char *why)
{
    char line[200];
    int n = snprintf(line, sizeof line, "skip %s: %s\n", NAME, why);
    return write(1, line, n) == n ? 77 : 2;
}

static UNUSED uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* New private memory. */
static UNUSED unsigned char *fresh(size_t len)
{
    return MUST(mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

/* The byte at offset i of memory filled with a seed: every other page is incompressible. */
static UNUSED unsigned char pattern(size_t i, unsigned seed)
{
    size_t page = i / PAGE;
    uint64_t key = page & 1 ? i / 8 : i / 8 % 16 + page * 7;
    return (unsigned char)(mix(key * 0x9e3779b97f4a7c15u + seed) >> (i % 8 * 8));
}

static UNUSED void fill(void *at, size_t len, unsigned seed)
{
    unsigned char *bytes = at;
    for (size_t i = 0; i < len; i++)
        bytes[i] = pattern(i, seed);
}

/* Every byte must be as fill() left it. */
static UNUSED void check(const void *at, size_t len, unsigned seed, const char *what)
{
    const unsigned char *bytes = at;
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != pattern(i, seed)) {
            size_t page = i / PAGE * PAGE, zero = 0;
            for (size_t j = page; j < page + PAGE && j < len; j++)
                zero += bytes[j] == 0;
            fail("%s: byte %zu at %p is %#x, not %#x; %zu bytes of its page are zero", what, i,
                 (const void *)(bytes + i), bytes[i], pattern(i, seed), zero);
        }
}

static UNUSED void check_zero(const void *at, size_t len, const char *what)
{
    const unsigned char *bytes = at;
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != 0)
            fail("%s: byte %zu at %p is %#x, not zero", what, i, (const void *)(bytes + i), bytes[i]);
}

/* The budget in bytes, 0 when nothing limits this process. */
static UNUSED size_t budget(void)
{
    const char *text = getenv("EBB_RAM");
    return text ? strtoull(text, NULL, 10) : 0;
}

/* Whether Ebb is in this process, found without the environment. */
static UNUSED int managed(void)
{
    static const char wanted[] = "libebb_agent";
    char buffer[4096];
    size_t matched = 0;
    ssize_t n;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return budget() != 0;
    while (wanted[matched] && (n = read(fd, buffer, sizeof buffer)) > 0)
        for (ssize_t i = 0; i < n && wanted[matched]; i++)
            matched = buffer[i] == wanted[matched] ? matched + 1 : buffer[i] == wanted[0];
    close(fd);
    return !wanted[matched];
}

/* Pages of a range that are not in memory. */
static UNUSED size_t absent(const void *at, size_t len)
{
    size_t first = (uintptr_t)at / PAGE, last = ((uintptr_t)at + len - 1) / PAGE, missing = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    for (size_t page = first; page <= last; page++) {
        uint64_t word = 0;
        if (pread(fd, &word, 8, page * 8) != 8)
            break;
        missing += !(word >> 63);
    }
    close(fd);
    return missing;
}

/* Anonymous memory of this process that is in RAM, bytes. */
static UNUSED size_t held(void)
{
    char line[256];
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    REQUIRE(status);
    while (fgets(line, sizeof line, status))
        sscanf(line, "RssAnon: %zu", &kib);
    fclose(status);
    REQUIRE(kib > 0);
    return kib * 1024;
}

/* The tasks of this process, those of Ebb's too, which its own directory does not list: by asking for each number since its own. */
static UNUSED int all_tasks(pid_t *into, int most)
{
    char text[100] = "", *last;
    int n = 0, fd = MUST(open("/proc/loadavg", O_RDONLY | O_CLOEXEC));
    REQUIRE(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    REQUIRE((last = strrchr(text, ' ')));
    for (pid_t tid = getpid(); tid <= atoi(last) && n < most; tid++)
        if (syscall(SYS_tgkill, getpid(), tid, 0) == 0)
            into[n++] = tid;
    return n;
}

/* Uses so much other memory that the range's turn comes to be moved out. */
static UNUSED void evict(const void *at, size_t len)
{
    size_t limit = budget(), size = limit ? limit * 2 : 64 * MIB;
    size_t pages = (len + PAGE - 1) / PAGE, missing = 0;
    for (int round = 0; round < 4 && (round == 0 || (limit && missing < pages - pages / 4)); round++) {
        uint64_t *other = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (other == MAP_FAILED)
            fail("no memory for pressure");
        for (int pass = 0; pass < 2; pass++)
            for (size_t i = 0; i < size / 8; i += pass ? 512 : 1)
                other[i] = pass ? other[i] + 1 : mix(i + (size_t)round * size);
        munmap(other, size);
        missing = limit ? absent(at, len) : 0;
    }
    pages_evicted += missing;
}

/* Walks through new memory of that size, more than fits, and changes a word of each page, so many times. */
static UNUSED void churn(size_t len, uint64_t rounds)
{
    uint64_t *walk = (uint64_t *)fresh(len);
    for (size_t i = 0; i < len / 8; i++)
        walk[i] = i / 8;
    for (uint64_t round = 0; round < rounds; round++)
        for (size_t i = 0; i < len / 8; i += PAGE / 8) {
            REQUIRE(walk[i] == i / 8 + round);
            walk[i]++;
        }
    MUST(munmap(walk, len));
}

/* Forks with standard output as it is; the child calls the function and exits with 0. */
static UNUSED pid_t child_of(void (*function)(void *), void *argument)
{
    pid_t pid = MUST(fork());
    if (pid == 0) {
        function(argument);
        _exit(0);
    }
    return pid;
}

/* Waits for a child that must exit with 0; it has said itself why, if not. */
static UNUSED void wait_ok(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, __WALL) != pid)
        REQUIRE(errno == EINTR);
    if (status != 0)
        fail("child %d ended with wait status %#x", pid, status);
}

/* Waits for a child that must die by a signal. */
static UNUSED void wait_signal(pid_t pid, int signal)
{
    int status = 0;
    while (waitpid(pid, &status, __WALL) != pid)
        REQUIRE(errno == EINTR);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signal)
        fail("child %d ended with wait status %#x, not by signal %d", pid, status, signal);
}

/* Installs a handler with siginfo. */
static UNUSED void handle(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | flags;
    sigemptyset(&action.sa_mask);
    MUST(sigaction(signal, &action, NULL));
}

static UNUSED void sleep_ms(long ms)
{
    struct timespec time = { ms / 1000, ms % 1000 * 1000000 };
    while (nanosleep(&time, &time) != 0 && errno == EINTR)
        ;
}

static UNUSED double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* How long to wait for what another thread or process does. Only a test that fails waits so long. */
#define PATIENCE_S 100

/* What a wait with a limit says is left of it fits what has passed since it began. */
static UNUSED void require_left(double left, double limit, double start)
{
    if (left >= limit || left < limit - (now_s() - start) - 0.001)
        fail("%.6f s of %.6f are left after %.6f", left, limit, now_s() - start);
}

/* Waits until a thread of this process sleeps in one of two system calls (-1 for none), with this first argument unless
 * that is 0. To wait for a time instead would be wrong on a busy machine. */
static UNUSED void wait_asleep(pid_t thread, long call, long or_call, uintptr_t argument)
{
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)thread);
    for (double end = now_s() + PATIENCE_S; now_s() < end; sleep_ms(2)) {
        int fd = MUST(open(path, O_RDONLY | O_CLOEXEC));
        ssize_t len = MUST(read(fd, text, sizeof text - 1));
        close(fd);
        text[len] = 0;
        long number = -1;
        unsigned long first = 0;
        if (sscanf(text, "%ld %lx", &number, &first) == 2 && (number == call || number == or_call) &&
            (argument == 0 || first == argument))
            return;
    }
    fail("thread %d never slept in system call %ld: %s", (int)thread, call, text);
}
#endif
