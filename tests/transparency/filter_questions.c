/* Questions about seccomp that load nothing, as libseccomp asks them: whether there is the operation, the action, the flag. The kernel
 * answers, and the program goes on in more memory than it may have. */
#include "pressure.h"
#include "filter.h"
int main(void)
{
    unsigned char *m = fresh(20 * MIB);
    fill(m, 20 * MIB, 3);
    REQUIRE(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) == -1 && errno == EINVAL);
    REQUIRE(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, m) == -1 && errno == EINVAL);
    uint32_t action = SECCOMP_RET_LOG;
    ZERO(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action));
    REQUIRE(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) == -1 && errno == EFAULT);
    check(m, 20 * MIB, 3, "after the questions");
    return ok();
}
