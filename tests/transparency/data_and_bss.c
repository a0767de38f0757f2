/* The program's own variables, initialised or not, under pressure and across fork. */
#include "pressure.h"
static unsigned char bss[8 * MIB];
static unsigned char data[64 * PAGE] = { 1, 2, 3 };
static const unsigned char constant[64 * PAGE] = { 4, 5, 6 };
int main(void)
{
    REQUIRE(data[0] == 1 && data[2] == 3);
    check_zero(bss, sizeof bss, "uninitialised variables");
    fill(bss, sizeof bss, 1);
    fill(data, sizeof data, 2);
    for (int i = 0; i < 3; i++) {
        evict(bss, sizeof bss);
        pid_t pid = MUST(fork());
        if (pid == 0) {
            check(bss, sizeof bss, 1, "uninitialised variables in a child");
            check(data, sizeof data, 2, "initialised variables in a child");
            fill(bss, sizeof bss, 5);
            fill(data, sizeof data, 6);
            _exit(0);
        }
        wait_ok(pid);
        check(bss, sizeof bss, 1, "uninitialised variables");
        check(data, sizeof data, 2, "initialised variables");
        REQUIRE(constant[0] == 4 && constant[2] == 6 && constant[63 * PAGE] == 0);
    }
    return ok();
}
