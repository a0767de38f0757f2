/* clone3: threads, processes, with and without a stack of their own. */
#include "clone_common.h"
static unsigned char *m;
static volatile int result;
static void body(void *argument)
{
    check(m, MIB, 1, "in a child of clone3");
    __atomic_fetch_add(&result, (int)(uintptr_t)argument, __ATOMIC_SEQ_CST);
}
int main(void)
{
    static int id;
    m = fresh(MIB);
    fill(m, MIB, 1);
    for (int i = 0; i < 3; i++) {
        struct clone_args args;
        unsigned char *stack = fresh(STACK_SIZE);
        memset(&args, 0, sizeof args);
        id = 1;
        evict(m, MIB);
        args.flags = THREAD_FLAGS | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
        args.stack = (uintptr_t)stack;
        args.stack_size = STACK_SIZE;
        args.tls = (uintptr_t)new_tls();
        args.parent_tid = args.child_tid = (uintptr_t)&id;
        long tid = raw_clone3(&args, sizeof args, body, (void *)1);
        REQUIRE(tid > 0);
        wait_cleared(&id);
        REQUIRE(result == i + 1);
    }
    for (int i = 0; i < 3; i++) {
        /* The arguments themselves may lie in evicted memory, and the result go there. */
        struct clone_args *args = (struct clone_args *)(m + MIB - PAGE - 40);
        unsigned char saved[sizeof *args];
        memcpy(saved, args, sizeof saved);
        memset(args, 0, sizeof *args);
        int pidfd = -1;
        args->flags = CLONE_PIDFD | (i == 1 ? CLONE_CLEAR_SIGHAND : 0);
        args->pidfd = (uintptr_t)&pidfd;
        args->exit_signal = SIGCHLD;
        unsigned char *stack = fresh(STACK_SIZE);
        if (i == 2) {
            args->stack = (uintptr_t)stack;
            args->stack_size = STACK_SIZE;
        }
        evict(m, MIB);
        long pid = syscall(SYS_clone3, args, i == 2 ? 0 : sizeof *args);
        if (i == 2) {
            REQUIRE(pid == -1 && errno == EINVAL);
            memcpy(args, saved, sizeof saved);
            continue;
        }
        if (pid == 0) {
            memcpy(args, saved, sizeof saved);
            check(m, MIB, 1, "in a process of clone3");
            _exit(0);
        }
        REQUIRE(pid > 0 && pidfd >= 0);
        memcpy(args, saved, sizeof saved);
        wait_ok((pid_t)pid);
        close(pidfd);
    }
    check(m, MIB, 1, "at the end");
    return ok();
}
