/* brk and sbrk both ways: content stays below the break, and memory above a lowered one comes back as zeroes. */
#include "pressure.h"
int main(void)
{
    char line[64];
    (void)!snprintf(line, sizeof line, "x"); /* nothing below allocates from the heap */
    unsigned char *start = sbrk(0);
    unsigned char *aligned = (unsigned char *)(((uintptr_t)start + PAGE - 1) / PAGE * PAGE);
    REQUIRE(brk(aligned) == 0);
    for (unsigned round = 0; round < 3; round++) {
        REQUIRE(sbrk(2 * MIB) == aligned);
        check_zero(aligned, 2 * MIB, "new memory at the break");
        fill(aligned, 2 * MIB, round);
        evict(aligned, 2 * MIB);
        check(aligned, 2 * MIB, round, "memory at the break");
        REQUIRE(sbrk(-(intptr_t)MIB) == aligned + 2 * MIB);
        evict(aligned, MIB);
        REQUIRE(sbrk(MIB) == aligned + MIB);
        check(aligned, MIB, round, "memory below a lowered break");
        check_zero(aligned + MIB, MIB, "memory above a lowered break");
        fill(aligned, 2 * MIB, round + 10);
        evict(aligned, 2 * MIB);
        pid_t pid = MUST(fork());
        if (pid == 0) {
            check(aligned, 2 * MIB, round + 10, "memory at the break in a child");
            REQUIRE(sbrk(MIB) == aligned + 2 * MIB);
            check_zero(aligned + 2 * MIB, MIB, "a child's new memory");
            _exit(0);
        }
        wait_ok(pid);
        REQUIRE((long)syscall(SYS_brk, 0) == (long)(aligned + 2 * MIB));
        /* An odd break: the page it lies in stays. */
        REQUIRE(brk(aligned + 5 * PAGE + 100) == 0);
        check(aligned, 5 * PAGE + 100, round + 10, "memory below an odd break");
        REQUIRE(brk(aligned) == 0);
        REQUIRE(sbrk(0) == aligned);
    }
    return ok();
}
