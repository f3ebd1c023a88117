/* SPDX-License-Identifier: Apache-2.0 */
/* optim.cu - Adam (Kingma and Ba 2015, arXiv:1412.6980), AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) and SGD,
 * with masters and moments in fp32 or bf16. None changes anything on a stream that has failed. */
#include "worker/device/cuda/kernel.cuh"

/* The clipped mean; with bf16 masters each of the two products is a bf16 number. */
template <typename W> __device__ static float gradient_of(float sum, const struct adamw_factors &a)
{
    if (sizeof(W) == sizeof(float))
        return sum * a.grad_scale;
    bf16 mean, clipped;
    num_store(&mean, sum * a.mean);
    num_store(&clipped, num_load(&mean) * a.clip);
    return num_load(&clipped);
}

template <typename W, typename M>
__global__ static void __launch_bounds__(THREADS)
    adamw(W *master, M *m, M *v, const float *grad, bf16 *shadow, size_t n, struct adamw_factors a, const int *failed)
{
    if (*failed != 0)
        return;
    for (size_t i = grid_first(); i < n; i += grid_stride()) {
        const float w = num_load(master + i);
        const float g = gradient_of<W>(grad[i], a) + a.l2 * w;
        const float mi = a.beta1 * num_load(m + i) + (1.0f - a.beta1) * g;
        const float vi = a.beta2 * num_load(v + i) + (1.0f - a.beta2) * g * g;
        const float next = w - a.lr * (mi / a.bias1 / (sqrtf(vi / a.bias2) + a.eps) + a.weight_decay * w);
        num_store(m + i, mi);
        num_store(v + i, vi);
        num_store(master + i, next);
        if (shadow)
            num_store(shadow + i, next);
    }
}

template <typename W, typename M>
static int launch_adamw(void *stream, void *master, void *m, void *v, const float *grad, uint16_t *shadow, size_t n,
                        struct adamw_factors factors, const int *failed)
{
    auto *const kernel = adamw<W, M>;
    return LAUNCH(kernel, grid_blocks(n), THREADS, 0, stream, (W *)master, (M *)m, (M *)v, grad, (bf16 *)shadow, n,
                  factors, failed);
}

int cuda_adamw(void *stream, void *master, void *m, void *v, const float *grad, uint16_t *shadow, size_t n,
               struct adamw_factors factors, const int *failed)
{
    if (n == 0)
        return 0;
    if (factors.bf16_master)
        return launch_adamw<bf16, bf16>(stream, master, m, v, grad, shadow, n, factors, failed);
    if (factors.bf16_moment)
        return launch_adamw<float, bf16>(stream, master, m, v, grad, shadow, n, factors, failed);
    return launch_adamw<float, float>(stream, master, m, v, grad, shadow, n, factors, failed);
}

template <typename W>
__global__ static void __launch_bounds__(THREADS)
    sgd(W *master, const float *grad, bf16 *shadow, size_t n, struct adamw_factors a, const int *failed)
{
    if (*failed != 0)
        return;
    for (size_t i = grid_first(); i < n; i += grid_stride()) {
        const float w = num_load(master + i);
        const float next = w - a.lr * (gradient_of<W>(grad[i], a) + a.weight_decay * w);
        num_store(master + i, next);
        if (shadow)
            num_store(shadow + i, next);
    }
}

int cuda_sgd(void *stream, void *master, const float *grad, uint16_t *shadow, size_t n, struct adamw_factors factors,
             const int *failed)
{
    if (n == 0)
        return 0;
    if (factors.bf16_master)
        return LAUNCH(sgd<bf16>, grid_blocks(n), THREADS, 0, stream, (bf16 *)master, grad, (bf16 *)shadow, n, factors,
                      failed);
    return LAUNCH(sgd<float>, grid_blocks(n), THREADS, 0, stream, (float *)master, grad, (bf16 *)shadow, n, factors,
                  failed);
}
