/* After fork both sides find evicted memory as it was - never zeroes - and write to it independently. */
#include "pressure.h"
#define LEN (4 * MIB)
static unsigned char *m;
static void reader(void *argument)
{
    (void)argument;
    check(m, LEN, 1, "evicted memory in a child");
}
static void writer(void *argument)
{
    unsigned seed = *(unsigned *)argument;
    for (size_t page = 0; page < LEN / PAGE; page += 2)
        m[page * PAGE + 100] ^= seed;
    evict(m, LEN);
    for (size_t page = 0; page < LEN / PAGE; page += 2) {
        REQUIRE(m[page * PAGE + 100] == (pattern(page * PAGE + 100, 1) ^ seed));
        m[page * PAGE + 100] ^= seed;
    }
    check(m, LEN, 1, "a child's copy");
    fill(m, LEN, seed);
    evict(m, LEN);
    check(m, LEN, seed, "what a child wrote");
}
static void grandchildren(void *argument)
{
    unsigned seed = 77;
    (void)argument;
    pid_t pid = child_of(reader, NULL);
    writer(&seed);
    evict(m, LEN);
    pid_t second = MUST(fork());
    if (second == 0) {
        check(m, LEN, seed, "evicted memory in a grandchild");
        fill(m, LEN, 5);
        _exit(0);
    }
    wait_ok(pid);
    wait_ok(second);
    check(m, LEN, seed, "a child's memory after its children");
}
int main(void)
{
    unsigned seeds[] = { 21, 22, 23 };
    m = fresh(LEN);
    fill(m, LEN, 1);
    for (int round = 0; round < 2; round++) {
        evict(m, LEN);
        wait_ok(child_of(reader, NULL));
        evict(m, LEN);
        pid_t pids[3];
        for (int i = 0; i < 3; i++)
            pids[i] = child_of(writer, &seeds[i]);
        check(m, LEN, 1, "evicted memory in the parent");
        evict(m, LEN);
        for (int i = 0; i < 3; i++)
            wait_ok(pids[i]);
        check(m, LEN, 1, "the parent's memory after its children wrote to theirs");
        /* The parent writes first. */
        evict(m, LEN);
        pid_t pid = MUST(fork());
        if (pid == 0) {
            sleep_ms(50);
            evict(m, LEN);
            reader(NULL);
            _exit(0);
        }
        fill(m, LEN, 9);
        evict(m, LEN);
        check(m, LEN, 9, "what the parent wrote after fork");
        wait_ok(pid);
        check(m, LEN, 9, "what the parent wrote after fork");
        fill(m, LEN, 1);
    }
    evict(m, LEN);
    wait_ok(child_of(grandchildren, NULL));
    check(m, LEN, 1, "at the end");
    return ok();
}
