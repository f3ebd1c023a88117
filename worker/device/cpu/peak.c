/* SPDX-License-Identifier: Apache-2.0 */
/* peak.c - the most that the multiply-add units of a core can do.
 *
 * It counts multiply-adds of the widest kind, in enough independent chains to fill the units whatever their number and
 * latency. The clock rate is no substitute: newer cores fold additions of constants, units per core differ by model,
 * and wide vectors run at their own clock. */
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "worker/device/cpu/cpu.h"

/* Twelve chains: enough for two units with a latency of five. Registers 14 and 15 are sources. All operands are 0. */
#define ONE(op, r, sum) op " %%" r "14, %%" r "15, %%" r sum "\n\t"
#define FOUR(op, r, a, b, c, d) ONE(op, r, a) ONE(op, r, b) ONE(op, r, c) ONE(op, r, d)
#define TWELVE(op, r) FOUR(op, r, "0", "1", "2", "3") FOUR(op, r, "4", "5", "6", "7") FOUR(op, r, "8", "9", "10", "11")
#define CLOBBERED                                                                                                      \
    "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",   \
        "xmm13", "xmm14", "xmm15"
#define CHAINS(name, op, r)                                                                                            \
    static void name(int64_t n)                                                                                        \
    {                                                                                                                  \
        __asm__ volatile("vzeroall\n1:\n\t" TWELVE(op, r) "dec %0\n\tjnz 1b\n\tvzeroupper" : "+r"(n)::CLOBBERED);      \
    }
CHAINS(fma_avx512, "vfmadd231ps", "zmm")
CHAINS(fma_avx2, "vfmadd231ps", "ymm")
CHAINS(dot_bf16, "vdpbf16ps", "zmm")

/* Without multiply-add: six chains of products beside six chains of sums. */
static void mul_add_sse(int64_t n)
{
    __asm__ volatile(
        "xorps %%xmm14, %%xmm14\n1:\n\t"
        "mulps %%xmm14, %%xmm0\n\taddps %%xmm14, %%xmm6\n\tmulps %%xmm14, %%xmm1\n\taddps %%xmm14, %%xmm7\n\t"
        "mulps %%xmm14, %%xmm2\n\taddps %%xmm14, %%xmm8\n\tmulps %%xmm14, %%xmm3\n\taddps %%xmm14, %%xmm9\n\t"
        "mulps %%xmm14, %%xmm4\n\taddps %%xmm14, %%xmm10\n\tmulps %%xmm14, %%xmm5\n\taddps %%xmm14, %%xmm11\n\t"
        "dec %0\n\tjnz 1b"
        : "+r"(n)::CLOBBERED);
}

/* Four of the eight tiles of 16 rows x 64 bytes are sums. A product occupies the unit for 16 cycles, and its result
 * comes after 52. */
static void tiles_bf16(int64_t n)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    _Static_assert(sizeof(config) == 64, "what ldtilecfg reads");
    for (int i = 0; i < 8; i++)
        config.row_bytes[i] = 64, config.rows[i] = 16;
    __asm__ volatile("ldtilecfg %1\n\t"
                     "tilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"
                     "tilezero %%tmm4\n\ttilezero %%tmm5\n1:\n\t"
                     "tdpbf16ps %%tmm4, %%tmm5, %%tmm0\n\ttdpbf16ps %%tmm4, %%tmm5, %%tmm1\n\t"
                     "tdpbf16ps %%tmm4, %%tmm5, %%tmm2\n\ttdpbf16ps %%tmm4, %%tmm5, %%tmm3\n\t"
                     "dec %0\n\tjnz 1b\n\ttilerelease"
                     : "+r"(n)
                     : "m"(config)
                     : "cc");
}

bool cpu_allow_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* Returns the FLOP per second of loops with `flops` operations. The best of several short runs counts, because other
 * processes may use the core during some runs. */
static double rate(void (*loops)(int64_t), int64_t n, double flops)
{
    titan_assert(n > 0 && flops > 0);
    enum { RUNS = 8 };
    double best = 0.0;
    for (int run = 0; run < RUNS; run++) {
        const int64_t start = clock_mono_ns();
        loops(n);
        const int64_t ns = clock_mono_ns() - start;
        if (ns > 0)
            best = MAX(best, (double)n * flops * 1e9 / (double)ns);
    }
    return best;
}

struct cpu_peak cpu_peak_measure(const struct cpu_isa *isa)
{
    enum { CHAINS_OF_SUMS = 12, LOOPS = 4096 }; /* 10 to 20 us a run */
    struct cpu_peak peak;
    peak.f32 = isa->avx512 ? rate(fma_avx512, LOOPS, CHAINS_OF_SUMS * 2 * 16)
               : isa->avx2 ? rate(fma_avx2, LOOPS, CHAINS_OF_SUMS * 2 * 8)
                           : rate(mul_add_sse, LOOPS, CHAINS_OF_SUMS * 4);
    peak.bf16 = isa->amx_bf16      ? rate(tiles_bf16, LOOPS / 8, 4 * 2 * 16 * 16 * 32)
                : isa->avx512_bf16 ? rate(dot_bf16, LOOPS, CHAINS_OF_SUMS * 2 * 32)
                                   : 0.0;
    peak.bf16 = MAX(peak.bf16, peak.f32); /* products widen their operands to fp32 if that is faster */
    return peak;
}
