/* SPDX-License-Identifier: Apache-2.0 */
/* orthogonal.cu - what updates of whole matrices need besides products. */
#include "worker/device/cuda/kernel.cuh"

template <class T> __global__ static void __launch_bounds__(THREADS) unit(struct unit_args a)
{
    const float factor = (float)(1 / (sqrt(*a.sum) + (double)a.eps));
    for (size_t i = grid_first(); i < a.n; i += grid_stride())
        num_store((T *)a.out + i, a.x[i] * factor);
}

int cuda_unit(void *stream, const struct unit_args *a)
{
    if (a->n == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(unit<T>, grid_blocks(a->n), THREADS, 0, stream, *a));
}

template <class T> __global__ static void __launch_bounds__(THREADS) polynomial(struct polynomial_args a)
{
    const size_t n = (size_t)a.n;
    for (size_t i = grid_first(); i < n * n; i += grid_stride()) {
        const float sum = fmaf(a.b, num_load((const T *)a.x + i), a.c * a.y[i]);
        num_store((T *)a.out + i, i % (n + 1) == 0 ? a.a + sum : sum); /* the diagonal's places are n + 1 apart */
    }
}

int cuda_polynomial(void *stream, const struct polynomial_args *a)
{
    const size_t n = (size_t)(a->n * a->n);
    if (n == 0)
        return 0;
    return TYPED(a->dt, LAUNCH(polynomial<T>, grid_blocks(n), THREADS, 0, stream, *a));
}
