/* SPDX-License-Identifier: Apache-2.0 */
/* optim.cu - Adam (Kingma and Ba 2015, arXiv:1412.6980), AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) and SGD.
 * None changes anything on a stream that has failed. */
#include "worker/device/cuda/kernel.cuh"

__global__ static void __launch_bounds__(THREADS)
    adamw(float *master, float *m, float *v, const float *grad, bf16 *shadow, size_t n, struct adamw_factors a,
          const int *failed)
{
    if (*failed != 0)
        return;
    for (size_t i = grid_first(); i < n; i += grid_stride()) {
        const float w = master[i];
        const float g = grad[i] * a.grad_scale + a.l2 * w;
        const float mi = a.beta1 * m[i] + (1.0f - a.beta1) * g;
        const float vi = a.beta2 * v[i] + (1.0f - a.beta2) * g * g;
        const float next = w - a.lr * (mi / a.bias1 / (sqrtf(vi / a.bias2) + a.eps) + a.weight_decay * w);
        m[i] = mi;
        v[i] = vi;
        master[i] = next;
        if (shadow)
            num_store(shadow + i, next);
    }
}

int cuda_adamw(void *stream, float *master, float *m, float *v, const float *grad, uint16_t *shadow, size_t n,
               struct adamw_factors factors, const int *failed)
{
    if (n == 0)
        return 0;
    return LAUNCH(adamw, grid_blocks(n), THREADS, 0, stream, master, m, v, grad, (bf16 *)shadow, n, factors, failed);
}

__global__ static void __launch_bounds__(THREADS) sgd(float *master, const float *grad, bf16 *shadow, size_t n,
                                                      float lr, float weight_decay, float grad_scale, const int *failed)
{
    if (*failed != 0)
        return;
    for (size_t i = grid_first(); i < n; i += grid_stride()) {
        const float w = master[i];
        const float next = w - lr * (grad[i] * grad_scale + weight_decay * w);
        master[i] = next;
        if (shadow)
            num_store(shadow + i, next);
    }
}

int cuda_sgd(void *stream, float *master, const float *grad, uint16_t *shadow, size_t n, float lr, float weight_decay,
             float grad_scale, const int *failed)
{
    if (n == 0)
        return 0;
    return LAUNCH(sgd, grid_blocks(n), THREADS, 0, stream, master, grad, (bf16 *)shadow, n, lr, weight_decay,
                  grad_scale, failed);
}
