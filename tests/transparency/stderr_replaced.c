/* A program closes standard error, and a data file gets its number: whatever Ebb would say then is not written there. */
#include "pressure.h"
#include "filter.h"
static char path[] = "/tmp/ebb-data-XXXXXX";
static void ends_with_a_message(void *unused)
{
    (void)unused;
    unsigned char *m = fresh(12 * MIB);
    fill(m, 12 * MIB, 1);
    evict(m, MIB);
    close(2);
    REQUIRE(open(path, O_RDWR | O_CLOEXEC) == 2);
    REQUIRE(write(2, "DATA", 4) == 4);
    /* Where Ebb is in the process it cannot go on under this filter, says so, and ends with 125. */
    answer_with(SYS_ioctl, SECCOMP_RET_ERRNO | ENOSYS);
    check(m, MIB, 1, "under a filter");
    _exit(125);
}
int main(void)
{
    char bytes[100];
    int status, fd = MUST(mkstemp(path));
    pid_t pid = child_of(ends_with_a_message, NULL);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 125);
    ssize_t n = pread(fd, bytes, sizeof bytes, 0);
    unlink(path);
    if (n != 4 || memcmp(bytes, "DATA", 4))
        fail("the data file has %.*s", (int)n, bytes);
    return ok();
}
