/* Several processes of one tree under pressure at once, each with content of its own and shared ancestors. */
#include "pressure.h"
#define LEN (6 * MIB)
static unsigned char *m;
static void body(void *argument)
{
    unsigned seed = *(unsigned *)argument;
    unsigned char *own = fresh(LEN);
    fill(own, LEN, seed);
    for (int i = 0; i < 3; i++) {
        evict(own, LEN);
        check(m, LEN, 1, "inherited memory");
        check(own, LEN, seed, "a child's own memory");
        for (size_t page = seed % 7; page < LEN / PAGE; page += 7)
            m[page * PAGE]++;
        evict(m, LEN);
        for (size_t page = seed % 7; page < LEN / PAGE; page += 7)
            m[page * PAGE]--;
    }
}
int main(void)
{
    unsigned seeds[] = { 11, 12, 13, 14 };
    pid_t pids[4];
    m = fresh(LEN);
    fill(m, LEN, 1);
    evict(m, LEN);
    for (int i = 0; i < 4; i++)
        pids[i] = child_of(body, &seeds[i]);
    evict(m, LEN);
    check(m, LEN, 1, "the parent's memory");
    for (int i = 0; i < 4; i++)
        wait_ok(pids[i]);
    check(m, LEN, 1, "the parent's memory");
    return ok();
}
