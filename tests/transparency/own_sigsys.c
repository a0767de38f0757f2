/* A program with a seccomp filter of its own that traps a call: its SIGSYS handler gets it and gives the result. */
#include "pressure.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
static volatile int trapped;
static void handler(int signal, siginfo_t *info, void *context)
{
    ucontext_t *state = context;
    REQUIRE(signal == SIGSYS && info->si_code == 1 /* SYS_SECCOMP */ && info->si_syscall == SYS_getppid);
    trapped++;
    state->uc_mcontext.gregs[REG_RAX] = 4711;
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { 4, code };
    fill(m, MIB, 1);
    handle(SIGSYS, handler, 0);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return skip("seccomp filters are not allowed here");
    evict(m, MIB);
    REQUIRE(getppid() == 4711 && trapped == 1);
    check(m, MIB, 1, "under a filter");
    REQUIRE(syscall(SYS_getppid) == 4711 && trapped == 2);
    return ok();
}
