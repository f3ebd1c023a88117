/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA plug-in's mapping of row-major products to column-major ones, against the definition of both. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "worker/device/cuda/matmul_map.h"

enum { M = 5, N = 7, K = 3, PAD = 2, MOST = (N + PAD) * (N + PAD) };

/* The column-major product as BLAS defines it. */
static void column_major(const struct matmul_map *map, const double *first, const double *second, double *out)
{
    const int64_t inner = (int64_t)(map->transpose_first ? map->first.rows : map->first.columns);
    assert_true(map->first.ld >= (int64_t)map->first.rows && map->second.ld >= (int64_t)map->second.rows);
    assert_int_equal(inner, map->transpose_second ? map->second.columns : map->second.rows);
    for (int64_t j = 0; j < (int64_t)map->out.columns; j++) {
        for (int64_t i = 0; i < (int64_t)map->out.rows; i++) {
            double sum = 0;
            for (int64_t x = 0; x < inner; x++)
                sum += first[map->transpose_first ? x + i * map->first.ld : i + x * map->first.ld] *
                       second[map->transpose_second ? j + x * map->second.ld : x + j * map->second.ld];
            out[i + j * map->out.ld] = sum;
        }
    }
}

static void check(bool ta, bool tb)
{
    const int64_t lda = (ta ? M : K) + PAD, ldb = (tb ? K : N) + PAD, ldc = N + PAD;
    double a[MOST], b[MOST], c[MOST];
    for (int i = 0; i < MOST; i++) {
        a[i] = i % 11 - 4;
        b[i] = i % 7 - 3;
        c[i] = NAN;
    }
    const struct matmul_map map =
        matmul_map(ARGS(matmul, .ta = ta, .lda = lda, .tb = tb, .ldb = ldb, .ldc = ldc, .m = M, .n = N, .k = K));
    column_major(&map, b, a, c);
    for (int64_t i = 0; i < M; i++) {
        for (int64_t j = 0; j < ldc; j++) {
            double want = 0;
            for (int64_t x = 0; x < K; x++)
                want += a[ta ? x * lda + i : i * lda + x] * b[tb ? j * ldb + x : x * ldb + j];
            if (j < N)
                assert_true(c[i * ldc + j] == want);
            else
                assert_true(isnan(c[i * ldc + j])); /* padding stays untouched */
        }
    }
}

static void test_all_transposes(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++)
        check(which & 1, which & 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_transposes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
