/* Vector, mask and floating-point registers survive faults and system calls. */
#include "pressure.h"
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define HIGH(X) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
#define MASKS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
static uint8_t before[32 * 64], after[32 * 64];
static uint64_t masks_before[8], masks_after[8];
/* Loads all registers, touches a page and makes a call, stores all registers. */
#define LOAD_YMM(n) "vmovdqu " #n "*32(%[b]), %%ymm" #n "\n"
#define STORE_YMM(n) "vmovdqu %%ymm" #n ", " #n "*32(%[a])\n"
#define LOAD_ZMM(n) "vmovdqu64 " #n "*64(%[b]), %%zmm" #n "\n"
#define STORE_ZMM(n) "vmovdqu64 %%zmm" #n ", " #n "*64(%[a])\n"
#define LOAD_MASK(n) "kmovq " #n "*8(%[mb]), %%k" #n "\n"
#define STORE_MASK(n) "kmovq %%k" #n ", " #n "*8(%[ma])\n"
#define MIDDLE "mov (%[t]), %%cl\n mov %%cl, (%[t])\n mov $110, %%eax\n syscall\n mov 4096(%[t]), %%cl\n mov %%cl, 4096(%[t])\n"
#define CLOBBERS "rax", "rcx", "r11", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
    "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
static __attribute__((noinline, target("avx2"))) void run_avx2(unsigned char *touch)
{
    __asm__ volatile(EACH(LOAD_YMM) MIDDLE EACH(STORE_YMM) "vzeroupper\n"
                     : : [b] "r"(before), [a] "r"(after), [t] "r"(touch) : CLOBBERS);
}
static __attribute__((noinline, target("avx512f,avx512bw"))) void run_avx512(unsigned char *touch)
{
    __asm__ volatile(EACH(LOAD_ZMM) HIGH(LOAD_ZMM) MASKS(LOAD_MASK) MIDDLE MASKS(STORE_MASK) EACH(STORE_ZMM) HIGH(STORE_ZMM)
                     "vzeroupper\n"
                     : : [b] "r"(before), [a] "r"(after), [t] "r"(touch), [mb] "r"(masks_before), [ma] "r"(masks_after)
                     : CLOBBERS);
}
static void x87(unsigned char *touch)
{
    /* Eight values on the x87 stack, the rounding mode, and mxcsr. */
    double in[8], out[8];
    uint16_t control = 0x0f7f, control_after = 0;
    uint32_t mxcsr = 0x7f80, mxcsr_after = 0, mxcsr_old = 0;
    for (int i = 0; i < 8; i++)
        in[i] = i * 1.25 + 0.125;
    __asm__ volatile("stmxcsr %[o]\n ldmxcsr %[x]\n fninit\n fldcw %[c]\n"
                     "fldl (%[in])\n fldl 8(%[in])\n fldl 16(%[in])\n fldl 24(%[in])\n"
                     "fldl 32(%[in])\n fldl 40(%[in])\n fldl 48(%[in])\n fldl 56(%[in])\n"
                     MIDDLE
                     "fstpl 56(%[out])\n fstpl 48(%[out])\n fstpl 40(%[out])\n fstpl 32(%[out])\n"
                     "fstpl 24(%[out])\n fstpl 16(%[out])\n fstpl 8(%[out])\n fstpl (%[out])\n"
                     "fnstcw %[ca]\n stmxcsr %[xa]\n fninit\n ldmxcsr %[o]\n"
                     : [ca] "=m"(control_after), [xa] "=m"(mxcsr_after), [o] "+m"(mxcsr_old)
                     : [in] "r"(in), [out] "r"(out), [t] "r"(touch), [c] "m"(control), [x] "m"(mxcsr)
                     : "rax", "rcx", "r11", "memory");
    REQUIRE(control_after == control && (mxcsr_after & ~0x3fu) == (mxcsr & ~0x3fu));
    REQUIRE(memcmp(in, out, sizeof in) == 0);
}
int main(void)
{
    unsigned char *m = fresh(MIB);
    int avx2 = __builtin_cpu_supports("avx2"), avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
    fill(m, MIB, 1);
    if (!avx2)
        return skip("no AVX2");
    for (int round = 0; round < 3; round++) {
        evict(m, MIB);
        for (size_t page = 0; page < 256; page += 2) {
            fill(before, sizeof before, (unsigned)(round * 1000 + page));
            memset(after, 0, sizeof after);
            if (page % 4 == 0) {
                run_avx2(m + page * PAGE);
                REQUIRE(memcmp(before, after, 16 * 32) == 0);
            } else if (avx512 && page % 8 == 2) {
                for (int i = 0; i < 8; i++)
                    masks_before[i] = mix(page * 8 + i);
                run_avx512(m + page * PAGE);
                REQUIRE(memcmp(before, after, sizeof before) == 0);
                REQUIRE(memcmp(masks_before + 1, masks_after + 1, 7 * 8) == 0);
            } else {
                x87(m + page * PAGE);
            }
        }
    }
    check(m, MIB, 1, "at the end");
    return ok();
}
