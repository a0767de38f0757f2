/* Pointers that the loader has relocated, which are only read afterwards: they go out and come back, a child has them, and
   nothing that would bring back the file's content passes for done. */
#include "pressure.h"
#define POINTERS (1 << 19)
static int values[4] = { 5, 6, 7, 8 };
static int *const table[POINTERS] = {
    [0 ... POINTERS / 2 - 1] = &values[1],
    [POINTERS / 2 ... POINTERS - 1] = &values[2],
};
static void check_table(const char *what)
{
    int *volatile const *at = (int *volatile const *)table;
    for (size_t i = 0; i < POINTERS; i++)
        if (at[i] != &values[1 + i / (POINTERS / 2)])
            fail("%s: pointer %zu is %p", what, i, (void *)at[i]);
}
int main(void)
{
    /* Where a process is small at first, this makes it large. */
    unsigned char *heap = fresh(16 * MIB);
    fill(heap, 16 * MIB, 1);
    for (int round = 1; round < 4; round++) {
        evict(table, sizeof table);
        if (budget() && managed())
            REQUIRE(absent(table, sizeof table) > sizeof table / PAGE / 4);
        pid_t pid = MUST(fork());
        if (pid == 0) {
            check_table("in a child");
            _exit(0);
        }
        check_table("beside a child");
        wait_ok(pid);
    }
    /* Still not to be written to. */
    size_t first = ((size_t)table + 64 * PAGE) & ~(PAGE - 1);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(int *volatile *)first = NULL;
        _exit(0);
    }
    int status;
    MUST(waitpid(pid, &status, 0));
    REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    /* Dropped, it would have to be the file's again: unrelocated. */
    int dropped = madvise((void *)first, 16 * PAGE, MADV_DONTNEED);
    REQUIRE(dropped == 0 || errno == EINVAL);
    if (dropped != 0)
        check_table("after it could not be dropped");
    MUST(mprotect((void *)first, 16 * PAGE, PROT_READ | PROT_WRITE));
    for (int i = 0; i < 4; i++)
        ((int **)first)[i] = &values[i];
    MUST(mprotect((void *)first, 16 * PAGE, PROT_READ));
    evict(table, sizeof table);
    for (int i = 0; i < 4; i++)
        REQUIRE(*((int *volatile *)first)[i] == 5 + i);
    check(heap, 16 * MIB, 1, "the heap");
    return ok();
}
