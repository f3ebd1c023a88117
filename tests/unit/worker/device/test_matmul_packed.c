/* SPDX-License-Identifier: Apache-2.0 */
/* matmul_packed.c against sums in double, and an element's bits: the same on any threads, in any place, beside any
 * others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include "base/bf16.h"
#include "base/cleanup.h"
#include "worker/device/cpu/matmul_packed.h"

enum { M = 300, N = 2300, K = 600 }; /* more than a block of each */

static void fill(float *x, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-31f;
    }
}

/* The first m x n of a product of M x K and K x N that lie by rows or, transposed, by columns. */
static void product_of(void *c, enum dtype c_dt, const void *a, const void *b, enum dtype ab_dt, bool ta, bool tb,
                       int64_t m, int64_t n, int64_t k, bool accumulate, int threads)
{
    const struct matmul_packed z = {.m = m,
                                    .n = n,
                                    .k = k,
                                    .a_row = ta ? 1 : K,
                                    .a_col = ta ? M : 1,
                                    .b_row = tb ? 1 : N,
                                    .b_col = tb ? K : 1,
                                    .ldc = N,
                                    .a = a,
                                    .b = b,
                                    .c = c,
                                    .ab_dt = ab_dt,
                                    .c_dt = c_dt,
                                    .accumulate = accumulate};
    _cleanup_free_ float *scratch = aligned_alloc(64, (matmul_packed_scratch_bytes(&z, threads) + 63) / 64 * 64);
    assert_non_null(scratch);
    matmul_packed_run(&z, threads, scratch);
}

static void product(float *c, const float *a, const float *b, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                    bool accumulate, int threads)
{
    product_of(c, DTYPE_F32, a, b, DTYPE_F32, ta, tb, m, n, k, accumulate, threads);
}

static void test_products(void **state)
{
    static const int64_t shapes[][3] = {{M, N, K},    {1, 17, 5}, {4, 33, 400}, {3, 8, 384},
                                        {5, 16, 385}, {7, 1, 8},  {241, 513, 1}};
    _cleanup_free_ float *a = malloc(sizeof(float) * M * K), *b = malloc(sizeof(float) * K * N);
    _cleanup_free_ float *whole = malloc(sizeof(float) * M * N), *c = malloc(sizeof(float) * M * N);
    (void)state;
    if (!__builtin_cpu_supports("avx2"))
        skip();
    fill(a, M * K, 1);
    fill(b, K * N, 2);
    for (int way = 0; way < 4; way++) {
        const bool ta = way & 1, tb = way & 2;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            const int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
            const bool accumulate = s % 2;
            product(whole, a, b, ta, tb, M, N, k, false, 1);
            for (int threads = 1; threads <= 3; threads++) {
                memset(c, 0, sizeof(float) * M * N);
                c[n < N ? n : 0] = n < N ? 42.0f : 0.0f; /* outside, as long as there is an outside */
                product(c, a, b, ta, tb, m, n, k, accumulate, threads);
                for (int64_t i = 0; i < m; i++)
                    assert_memory_equal(c + i * N, whole + i * N, (size_t)n * sizeof(float));
                assert_true(n == N || c[n] == 42.0f);
            }
            for (int64_t i = 0; i < m; i += 1 + m / 7)
                for (int64_t j = 0; j < n; j += 1 + n / 5) {
                    double want = 0.0;
                    for (int64_t p = 0; p < k; p++)
                        want += (double)a[ta ? p * M + i : i * K + p] * (double)b[tb ? j * K + p : p * N + j];
                    assert_true(fabs((double)c[i * N + j] - want) <= 1e-6 * (double)(k + 16));
                }
        }
    }
}

static void test_accumulates(void **state)
{
    _cleanup_free_ float *a = malloc(sizeof(float) * M * K), *b = malloc(sizeof(float) * K * N);
    _cleanup_free_ float *c = malloc(sizeof(float) * M * N), *twice = malloc(sizeof(float) * M * N);
    (void)state;
    if (!__builtin_cpu_supports("avx2"))
        skip();
    fill(a, M * K, 3);
    fill(b, K * N, 4);
    for (int64_t m = 2; m <= M; m *= 10) { /* few rows, and many */
        product(c, a, b, false, true, m, N, K, false, 2);
        memcpy(twice, c, sizeof(float) * (size_t)m * N);
        product(twice, a, b, false, true, m, N, K, true, 2);
        for (int64_t i = 0; i < m * N; i++)
            assert_true(fabsf(twice[i] - 2.0f * c[i]) <= 1e-4f);
    }
}

/* Of bf16: what the same values give in fp32, bit for bit, and that rounded once. */
static void test_bf16(void **state)
{
    static const int64_t shapes[][3] = {{M, N, K}, {1, 17, 5}, {4, 2100, 400}, {3, 8, 384}, {7, 1, 8}, {241, 513, 1}};
    _cleanup_free_ float *a = malloc(sizeof(float) * M * K), *b = malloc(sizeof(float) * K * N);
    _cleanup_free_ float *c = malloc(sizeof(float) * M * N), *wide = malloc(sizeof(float) * M * N);
    _cleanup_free_ uint16_t *a16 = malloc(2 * M * K), *b16 = malloc(2 * K * N), *c16 = malloc(2 * M * N);
    (void)state;
    if (!__builtin_cpu_supports("avx2"))
        skip();
    fill(a, M * K, 5);
    fill(b, K * N, 6);
    for (int64_t i = 0; i < M * K; i++)
        a[i] = bf16_to_f32(a16[i] = bf16_from_f32(a[i]));
    for (int64_t i = 0; i < K * N; i++)
        b[i] = bf16_to_f32(b16[i] = bf16_from_f32(b[i]));
    for (int run = 0; run < 8 * (int)ARRAY_SIZE(shapes); run++) {
        const bool ta = run & 1, tb = run & 2, accumulate = run & 4;
        const int64_t m = shapes[run / 8][0], n = shapes[run / 8][1], k = shapes[run / 8][2];
        const int threads = 1 + run % 3;
        for (int64_t i = 0; i < M * N; i++)
            c[i] = wide[i] = bf16_to_f32(c16[i] = bf16_from_f32((float)(i % 97)));
        product(wide, a, b, ta, tb, m, n, k, accumulate, 1);
        product_of(c, DTYPE_F32, a16, b16, DTYPE_BF16, ta, tb, m, n, k, accumulate, threads);
        assert_memory_equal(c, wide, sizeof(float) * M * N);
        product_of(c16, DTYPE_BF16, a16, b16, DTYPE_BF16, ta, tb, m, n, k, accumulate, threads);
        for (int64_t i = 0; i < M * N; i++)
            assert_int_equal(c16[i], bf16_from_f32(wide[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_accumulates),
        cmocka_unit_test(test_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
