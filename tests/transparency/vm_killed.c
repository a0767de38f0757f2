/* Processes that share the memory, and for which nobody waits, fault all the time. Each is ended by SIGTERM. The others go on. */
#include "pressure.h"
#include <sched.h>

enum { ROUNDS = 60, STACK = 64 << 10 };
#define BYTES (4 * MIB)

static unsigned char *m;

static int __attribute__((noreturn)) fault(void *unused)
{
    (void)unused;
    for (;;) {
        madvise(m, BYTES, MADV_PAGEOUT);
        for (size_t at = 0; at < BYTES; at += PAGE)
            ((volatile unsigned char *)m)[at];
    }
}

int main(void)
{
    m = fresh(BYTES);
    fill(m, BYTES, 1);
    char *stack = MUST(mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    unsigned seed = 1;
    for (int i = 0; i < ROUNDS; i++) {
        pid_t pid = MUST(clone(fault, stack + STACK, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, NULL));
        usleep(1000 + rand_r(&seed) % 3000);
        check(m, BYTES, 1, "beside its child");
        MUST(kill(pid, SIGTERM));
        int status;
        REQUIRE(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    }
    check(m, BYTES, 1, "after its children");
    return ok();
}
