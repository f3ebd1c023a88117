/* loss.cu - softmax cross-entropy, one block per row: maximum, sum of exponentials, then the gradient. */
#include "worker/device/cuda/kernel.cuh"

template <class T> __device__ static void zero_row(T *row, int64_t v)
{
    for (int64_t i = threadIdx.x; i < v; i += THREADS)
        num_store(row + i, 0.0f);
}

/* dlogits may be logits itself: everything a thread needs of other threads' elements is read before the last barrier
 * that comes before the first store. */
template <class T>
__global__ static void __launch_bounds__(THREADS)
    cross_entropy(float *losses, T *dlogits, const T *logits, const int32_t *targets, int64_t v, float grad_scale)
{
    __shared__ float scratch[32];
    const int64_t row = blockIdx.x;
    const int64_t target = targets[row];
    const T *x = logits + row * v;
    T *dx = dlogits ? dlogits + row * v : nullptr;
    if (target < 0) {
        if (threadIdx.x == 0)
            losses[row] = 0.0f;
        if (dx)
            zero_row(dx, v);
        return;
    }

    /* fmaxf drops NaN; the sum of exponentials below brings it back. */
    float top = -INFINITY;
    for (int64_t i = threadIdx.x; i < v; i += THREADS)
        top = fmaxf(top, num_load(x + i));
    top = block_reduce(top, op_max(), scratch);
    const float picked =
        target < v ? num_load(x + target) : NAN; /* a target outside the vocabulary shows in the loss */
    float sum = 0;
    for (int64_t i = threadIdx.x; i < v; i += THREADS)
        sum += expf(num_load(x + i) - top);
    sum = block_reduce(sum, op_sum(), scratch);

    if (threadIdx.x == 0)
        losses[row] = logf(sum) + top - picked;
    if (!dx)
        return;
    for (int64_t i = threadIdx.x; i < v; i += THREADS) {
        float p = expf(num_load(x + i) - top) / sum;
        num_store(dx + i, grad_scale * (i == target ? p - 1.0f : p));
    }
}

int cuda_cross_entropy(void *stream, float *losses, void *dlogits, const void *logits, const int32_t *targets,
                       bool is_bf16, int64_t n, int64_t v, float grad_scale)
{
    if (n == 0 || v == 0)
        return 0;
    if (is_bf16)
        return LAUNCH(cross_entropy<bf16>, (unsigned)n, THREADS, 0, stream, losses, (bf16 *)dlogits,
                      (const bf16 *)logits, targets, v, grad_scale);
    return LAUNCH(cross_entropy<float>, (unsigned)n, THREADS, 0, stream, losses, (float *)dlogits,
                  (const float *)logits, targets, v, grad_scale);
}
