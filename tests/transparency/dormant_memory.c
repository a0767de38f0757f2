/* A small process grows: all memory that it had before is what it was, whatever kind it is. */
#include "pressure.h"
#include <malloc.h>
#define ARENA (6 * MIB)
static unsigned char *small[400];
static void grow_and_press(void)
{
    unsigned char *m = MUST(mmap(NULL, 24 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    fill(m, 24 * MIB, 77);
    evict(m, 24 * MIB);
    check(m, 24 * MIB, 77, "what made it grow");
    ZERO(munmap(m, 24 * MIB));
}
int main(void)
{
    /* The heap by the program break, in pieces with holes. */
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
    for (int i = 0; i < 400; i++) {
        small[i] = malloc(9000);
        fill(small[i], 9000, i);
    }
    for (int i = 0; i < 400; i += 7) {
        free(small[i]);
        small[i] = NULL;
    }
    unsigned char *plain = MUST(mmap(NULL, 512 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < 512; i += 3)
        fill(plain + i * PAGE, PAGE, 1000 + i);
    /* Only looked at: the kernel's page of zeros. */
    for (int i = 1; i < 512; i += 3)
        REQUIRE(((volatile unsigned char *)plain)[i * PAGE] == 0);
    unsigned char *rest[6];
    for (int i = 0; i < 6; i++) {
        rest[i] = MUST(mmap(NULL, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        /* A gap keeps them apart. */
        MUST(mmap(NULL, PAGE, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        fill(rest[i], 32 * PAGE, 2000 + i);
    }
    ZERO(mprotect(rest[0], 32 * PAGE, PROT_READ));
    ZERO(mprotect(rest[1], 32 * PAGE, PROT_NONE));
    ZERO(madvise(rest[2], 32 * PAGE, MADV_DONTFORK));
    ZERO(madvise(rest[3], 32 * PAGE, MADV_WIPEONFORK));
    int is_locked = mlock(rest[4], 32 * PAGE) == 0;
    ZERO(madvise(rest[5], 32 * PAGE, MADV_DONTDUMP));
    unsigned char *shared = MUST(mmap(NULL, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    fill(shared, 32 * PAGE, 3000);
    unsigned char *huge = MUST(mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    madvise(huge, 4 * MIB, MADV_HUGEPAGE);
    unsigned char *in_huge = (unsigned char *)(((uintptr_t)huge + 2 * MIB - 1) & ~(2 * MIB - 1));
    fill(in_huge, MIB, 4000);

    grow_and_press();

    for (int i = 0; i < 400; i++)
        if (small[i])
            check(small[i], 9000, i, "the heap");
    for (int i = 0; i < 512; i++)
        if (i % 3 == 0)
            check(plain + i * PAGE, PAGE, 1000 + i, "a mapping");
        else
            check_zero(plain + i * PAGE, PAGE, "a page never written");
    check(rest[0], 32 * PAGE, 2000, "read-only memory");
    if (is_locked)
        REQUIRE(absent(rest[4], 32 * PAGE) == 0);
    pid_t pid = MUST(fork());
    if (pid == 0) {
        unsigned char in_core;
        REQUIRE(mincore(rest[2], PAGE, &in_core) == -1 && errno == ENOMEM);
        check_zero(rest[3], 32 * PAGE, "memory to be wiped in the child");
        check(rest[5], 32 * PAGE, 2005, "memory left out of dumps, in the child");
        for (int i = 0; i < 400; i++)
            if (small[i])
                check(small[i], 9000, i, "the child's heap");
        _exit(0);
    }
    wait_ok(pid);
    ZERO(mprotect(rest[1], 32 * PAGE, PROT_READ));
    for (int i = 1; i < 6; i++)
        check(rest[i], 32 * PAGE, 2000 + i, "memory with attributes");
    check(shared, 32 * PAGE, 3000, "shared memory");
    check(in_huge, MIB, 4000, "a huge page");
    /* The heap goes on where it was. */
    unsigned char *more = malloc(2 * MIB);
    fill(more, 2 * MIB, 5000);
    for (int i = 0; i < 400; i++)
        free(small[i]);
    check(more, 2 * MIB, 5000, "the heap after the change");
    free(more);
    return ok();
}
