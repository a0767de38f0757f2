/* mremap: moved, grown, shrunk, placed over other memory, or moved away with the old place kept: content goes along. */
#include "pressure.h"
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#define LEN (2 * MIB)
static unsigned char *reserve(size_t len)
{
    unsigned char *at = MUST(mmap(NULL, len + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    return at + PAGE;
}
int main(void)
{
    unsigned char *m = reserve(LEN), *to, *old;
    MUST(mmap(m, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    fill(m, LEN, 1);
    for (int round = 0; round < 3; round++) {
        evict(m, LEN);
        to = reserve(LEN);
        REQUIRE(mremap(m, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        check(to, LEN, 1, "moved memory");
        REQUIRE(msync(m, PAGE, MS_ASYNC) == -1 && errno == ENOMEM);
        m = to;

        evict(m, LEN);
        to = MUST(mremap(m, LEN, LEN + MIB, MREMAP_MAYMOVE));
        check(to, LEN, 1, "grown memory");
        check_zero(to + LEN, MIB, "the new part of grown memory");
        fill(to + LEN, MIB, 5);
        m = to;
        evict(m, LEN + MIB);
        REQUIRE(mremap(m, LEN + MIB, LEN, 0) == m);
        check(m, LEN, 1, "shrunk memory");

        unsigned char *other = fresh(LEN);
        fill(other, LEN, 2);
        evict(m, LEN);
        evict(other, LEN);
        REQUIRE(mremap(m, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
        check(other, LEN, 1, "memory moved over other memory");
        m = other;

        evict(m, LEN);
        old = m;
        m = MUST(mremap(old, LEN, LEN, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL));
        check(m, LEN, 1, "memory moved away");
        check_zero(old, LEN, "the place left behind");
        fill(old, LEN, 3);
        evict(m, LEN);
        evict(old, LEN);
        check(m, LEN, 1, "memory moved away, evicted");
        check(old, LEN, 3, "the place left behind, used anew");
        MUST(munmap(old, LEN));

        /* A part from the middle. */
        evict(m, LEN);
        to = reserve(64 * PAGE);
        REQUIRE(mremap(m + 100 * PAGE, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
        for (size_t i = 0; i < 64 * PAGE; i++)
            REQUIRE(to[i] == pattern(100 * PAGE + i, 1));
        REQUIRE(mremap(to, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, m + 100 * PAGE) == m + 100 * PAGE);
        check(m, LEN, 1, "memory with its middle put back");

        /* Swap two ranges by way of a third, evicted at every step; then exchange back. */
        unsigned char *a = m, *b = fresh(LEN), *c = reserve(LEN);
        fill(b, LEN, 4);
        REQUIRE(mremap(a, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, c) == c);
        evict(c, LEN);
        REQUIRE(mremap(b, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, a) == a);
        evict(a, LEN);
        REQUIRE(mremap(c, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, b) == b);
        check(a, LEN, 4, "exchanged memory");
        check(b, LEN, 1, "exchanged memory");
        MUST(munmap(a, LEN));
        m = b;
    }
    REQUIRE(mremap(m + 1, PAGE, PAGE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    REQUIRE(mremap(m, LEN, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    REQUIRE(mremap(m, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, m + PAGE) == MAP_FAILED && errno == EINVAL);
    check(m, LEN, 1, "after refused calls");
    return ok();
}
