/* SPDX-License-Identifier: Apache-2.0 */
/* Every way to multiply bytes that this processor has gives the sums of plain C. */
#include <setjmp.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/hash.h"
#include "worker/device/cpu/gemm_i8.h"

enum { DEPTH = 520, LDA = 576 };

static alignas(64) uint8_t a[GEMM_I8_ROWS * LDA];
static alignas(64) int8_t b[DEPTH * GEMM_I8_COLS];

static bool has(enum gemm_i8_way way)
{
    __builtin_cpu_init();
    return way == GEMM_I8_PLAIN || (way == GEMM_I8_AVX2 && __builtin_cpu_supports("avx2")) ||
           (way == GEMM_I8_AVX_VNNI && __builtin_cpu_supports("avxvnni")) ||
           (way == GEMM_I8_AVX512_VNNI && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"));
}

static void test_ways_agree(void **state)
{
    alignas(64) int32_t want[GEMM_I8_ROWS * GEMM_I8_COLS], got[GEMM_I8_ROWS * GEMM_I8_COLS];
    int ways = 0;

    (void)state;
    for (int extreme = 0; extreme < 2; extreme++) {
        for (size_t i = 0; i < sizeof a; i++)
            a[i] = extreme ? 255 : (uint8_t)hash_mix(i);
        for (size_t i = 0; i < sizeof b; i++)
            b[i] = (int8_t)(extreme ? (i & 1 ? -128 : -127) : (int8_t)hash_mix(i + 7));
        for (int64_t k = 4; k <= DEPTH; k += k < 20 ? 4 : 100)
            for (int way = 0; way < GEMM_I8_WAYS; way++) {
                struct gemm_i8 g = {.a = a, .b = b, .lda = LDA, .k = k, .sums = want};
                if (!has((enum gemm_i8_way)way))
                    continue;
                gemm_i8(GEMM_I8_PLAIN, &g);
                g.sums = got;
                memset(got, 0x55, sizeof got);
                gemm_i8((enum gemm_i8_way)way, &g);
                assert_memory_equal(got, want, sizeof got);
                ways++;
            }
        /* plain C itself, on one element */
        int64_t sum = 0;
        gemm_i8(GEMM_I8_PLAIN, &(struct gemm_i8){.a = a, .b = b, .lda = LDA, .k = DEPTH, .sums = want});
        for (int64_t p = 0; p < DEPTH; p++)
            sum += a[7 * LDA + p] * b[p / 4 * 4 * GEMM_I8_COLS + 21 * 4 + p % 4];
        assert_int_equal(want[7 * GEMM_I8_COLS + 21], sum);
    }
    print_message("%d products compared\n", ways);
}

static void test_best_way_is_there(void **state)
{
    (void)state;
    assert_int_equal(gemm_i8_best(&(struct cpu_isa){0}), GEMM_I8_PLAIN);
    assert_int_equal(gemm_i8_best(&(struct cpu_isa){.avx2 = true}), GEMM_I8_AVX2);
    assert_int_equal(gemm_i8_best(&(struct cpu_isa){.avx2 = true, .avx_vnni = true}), GEMM_I8_AVX_VNNI);
    assert_int_equal(gemm_i8_best(&(struct cpu_isa){.avx2 = true, .avx_vnni = true, .avx512_vnni = true}),
                     GEMM_I8_AVX512_VNNI);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ways_agree), cmocka_unit_test(test_best_way_is_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
