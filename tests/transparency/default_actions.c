/* Without handlers a program dies of its own errors as ever: by the signal that belongs to them. */
#include "pressure.h"
#include <sys/resource.h>
static unsigned char *m;
static void prepare(void)
{
    struct rlimit none = { 0, 0 };
    setrlimit(RLIMIT_CORE, &none);
    evict(m, MIB);
    check(m, MIB, 1, "in a child that is about to die");
}
static void null_pointer(void *argument)
{
    (void)argument;
    prepare();
    *(volatile int *)argument = 1;
}
static void read_only(void *argument)
{
    (void)argument;
    prepare();
    MUST(mprotect(m, MIB, PROT_READ));
    m[5] = 1;
}
static void read_only_evicted(void *argument)
{
    (void)argument;
    MUST(mprotect(m, MIB, PROT_READ));
    prepare();
    evict(m, MIB);
    m[5] = 1;
}
static void truncated(void *argument)
{
    (void)argument;
    prepare();
    int fd = MUST(memfd_create("empty", 0));
    volatile char *map = MUST(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0));
    (void)map[0];
}
static void illegal(void *argument)
{
    (void)argument;
    prepare();
    __builtin_trap();
}
static void aborts(void *argument)
{
    (void)argument;
    prepare();
    abort();
}
static void sent(void *argument)
{
    prepare();
    kill(getpid(), *(int *)argument);
    sleep(5);
}
static void unmapped(void *argument)
{
    (void)argument;
    prepare();
    MUST(munmap(m + 64 * PAGE, PAGE));
    (void)*(volatile char *)(m + 64 * PAGE);
}
int main(void)
{
    int bus = SIGBUS, sys = SIGSYS, term = SIGTERM;
    m = fresh(MIB);
    fill(m, MIB, 1);
    wait_signal(child_of(null_pointer, NULL), SIGSEGV);
    wait_signal(child_of(read_only, NULL), SIGSEGV);
    wait_signal(child_of(read_only_evicted, NULL), SIGSEGV);
    wait_signal(child_of(unmapped, NULL), SIGSEGV);
    wait_signal(child_of(truncated, NULL), SIGBUS);
    wait_signal(child_of(illegal, NULL), SIGILL);
    wait_signal(child_of(aborts, NULL), SIGABRT);
    wait_signal(child_of(sent, &bus), SIGBUS);
    wait_signal(child_of(sent, &sys), SIGSYS);
    wait_signal(child_of(sent, &term), SIGTERM);
    check(m, MIB, 1, "in the parent");
    return ok();
}
