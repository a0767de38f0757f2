/* SA_RESETHAND: the second fault of a program's own ends it, by that signal. Also for SIGBUS, which Ebb uses itself. */
#include "pressure.h"
static int signal_number;
static void handler(int signal, siginfo_t *info, void *context)
{
    (void)info;
    (void)context;
    REQUIRE(signal == signal_number);
    if (write(3, "x", 1) != 1)
        fail("write in a handler");
    /* Returning repeats the access: the second fault. */
}
static void faulting(void *argument)
{
    unsigned char *m = fresh(MIB), *bad;
    signal_number = *(int *)argument;
    fill(m, MIB, 1);
    int fd = MUST(memfd_create("empty", MFD_CLOEXEC));
    bad = signal_number == SIGBUS ? mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0)
                                  : mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(bad != MAP_FAILED);
    handle(signal_number, handler, SA_RESETHAND);
    evict(m, MIB);
    check(m, MIB, 1, "before the fault");
    *(volatile unsigned char *)bad;
    fail("the access succeeded");
}
int main(void)
{
    int ends[2], signals[] = { SIGSEGV, SIGBUS };
    for (int i = 0; i < 2; i++) {
        char got[8];
        MUST(pipe(ends));
        if (ends[1] != 3) {
            MUST(dup2(ends[0], 9));
            MUST(dup2(ends[1], 3));
            ends[0] = 9;
        }
        pid_t pid = child_of(faulting, &signals[i]);
        wait_signal(pid, signals[i]);
        REQUIRE(read(ends[0], got, 8) == 1);
        close(3);
        close(9);
        close(ends[1]);
    }
    return ok();
}
