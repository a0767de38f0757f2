/* Atomic and unaligned accesses to evicted pages, across their boundaries too; gathers from many pages at once. */
#include "pressure.h"
static __attribute__((noinline, target("avx2"))) void gather(const unsigned char *base, unsigned *out)
{
    /* Eight dwords, each in a page of its own: a fault in the middle leaves a part of the mask done. */
    static const int index[8] = { 4, 4096 * 9 + 8, 4096 * 30, 4096 * 2 + 40, 4096 * 77, 4096 * 200, 4096 * 11 + 100, 4096 * 150 };
    __asm__ volatile("vmovdqu (%1), %%ymm1\n vpcmpeqd %%ymm2, %%ymm2, %%ymm2\n vpxor %%ymm0, %%ymm0, %%ymm0\n"
                     "vpgatherdd %%ymm2, (%0, %%ymm1, 1), %%ymm0\n vmovdqu %%ymm0, (%2)\n vzeroupper"
                     : : "r"(base), "r"(index), "r"(out) : "xmm0", "xmm1", "xmm2", "memory");
    for (int i = 0; i < 8; i++) {
        unsigned want;
        memcpy(&want, base + index[i], 4);
        REQUIRE(out[i] == want);
    }
}
static unsigned char *m;
static void *adder(void *argument)
{
    (void)argument;
    for (int i = 0; i < 20000; i++)
        __atomic_fetch_add((uint64_t *)(m + mix(i) % 256 * PAGE), 1, __ATOMIC_RELAXED);
    return NULL;
}
int main(void)
{
    unsigned out[8];
    m = fresh(MIB);
    fill(m, MIB, 1);
    for (int round = 0; round < 2; round++) {
        evict(m, MIB);
        if (__builtin_cpu_supports("avx2"))
            gather(m, out);
        check(m, MIB, 1, "after a gather");
    }
    evict(m, MIB);
    for (size_t page = 1; page < 256; page++) {
        /* Eight bytes, four in each page. */
        uint64_t value, *at = (uint64_t *)(m + page * PAGE - 4);
        __asm__ volatile("mov (%1), %0" : "=r"(value) : "r"(at) : "memory");
        uint64_t want;
        for (size_t i = 0; i < 8; i++)
            ((unsigned char *)&want)[i] = pattern(page * PAGE - 4 + i, 1);
        REQUIRE(value == want);
        __asm__ volatile("mov %0, (%1)" : : "r"(~value), "r"(at) : "memory");
        __asm__ volatile("notq (%0)" : : "r"(at) : "memory");
    }
    check(m, MIB, 1, "after accesses across pages");
    evict(m, MIB);
    for (size_t page = 0; page < 256; page++) {
        __attribute__((aligned(16))) uint64_t *pair = (uint64_t *)(m + page * PAGE + 16);
        uint64_t low = pair[0], high = pair[1];
        if (page % 2)
            evict(m + page * PAGE, 0);
        unsigned char done;
        __asm__ volatile("lock cmpxchg16b (%3)\n sete %0" : "=q"(done), "+a"(low), "+d"(high) : "r"(pair), "b"(1), "c"(2) : "memory", "cc");
        REQUIRE(done && pair[0] == 1 && pair[1] == 2);
        if (page == 2)
            break;
    }
    memset(m, 0, MIB);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        ZERO(pthread_create(&threads[i], NULL, adder, NULL));
    for (int i = 0; i < 4; i++)
        evict(m, MIB);
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++)
        ZERO(pthread_join(threads[i], NULL));
    for (size_t page = 0; page < 256; page++)
        sum += *(uint64_t *)(m + page * PAGE);
    REQUIRE(sum == 60000);
    return ok();
}
