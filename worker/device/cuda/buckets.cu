/* SPDX-License-Identifier: Apache-2.0 */
/* buckets.cu - weights in few bits (base/weight_codes.h): a block for each bucket, a thread for four values. */
#include "worker/device/cuda/kernel.cuh"

static_assert(WEIGHT_BUCKET == 4 * THREADS, "a thread has four values of a bucket");

struct op_lower {
    __device__ int32_t operator()(int32_t a, int32_t b) const
    {
        return a < b ? a : b;
    }
};
struct op_higher {
    __device__ int32_t operator()(int32_t a, int32_t b) const
    {
        return a > b ? a : b;
    }
};

template <class T> __global__ static void __launch_bounds__(THREADS) weight_codes(const struct weight_encode_args a)
{
    __shared__ int32_t lows[32], highs[32];
    const int bits = weight_bits(a.codec);
    const int64_t at = (int64_t)blockIdx.x * a.bucket + 4 * (int)threadIdx.x;
    const int64_t stop = (int64_t)(blockIdx.x + 1) * a.bucket, end = stop < a.n ? stop : a.n;
    const T *const x = (const T *)a.x;
    float value[4];
    bool coded[4];
    int32_t low = INT32_MAX, high = INT32_MIN;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        coded[i] = at + i < end;
        value[i] = coded[i] ? num_load(x + at + i) : 0.0f;
    }
    for (int r = 0; r < a.runs; r++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            coded[i] = coded[i] && !(at + i >= a.run[r].from && at + i < a.run[r].to);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t order = weight_order(value[i]);
        low = coded[i] && order < low ? order : low;
        high = coded[i] && order > high ? order : high;
    }
    low = block_reduce(low, op_lower(), lows);
    high = block_reduce(high, op_higher(), highs);
    struct weight_scale scale;
    const struct weight_bucket b = weight_bucket_of(low, high, a.codec, a.shift, &scale);
    if (threadIdx.x == 0)
        ((struct weight_bucket *)a.codes)[blockIdx.x] = b;
    if (at >= end)
        return;
    uint32_t packed = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (coded[i] && scale.inverse > 0.0f)
            packed |= (uint32_t)weight_encode(value[i], &scale) << (bits * i);
    uint8_t *const to = a.codes + weight_codes_begin(a.n, a.bucket) + at * bits / 8;
    const int bytes = (int)(((end - at < 4 ? end - at : 4) * bits + 7) / 8);
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(packed >> (8 * i));
}

template <class T> __global__ static void __launch_bounds__(THREADS) weight_values(const struct weight_decode_args a)
{
    const int bits = weight_bits(a.codec);
    const int64_t buckets = weight_buckets(a.n, a.bucket), piece = blockIdx.x / buckets, k = blockIdx.x % buckets;
    const int64_t at = k * a.bucket + 4 * (int)threadIdx.x, stop = (k + 1) * a.bucket, end = stop < a.n ? stop : a.n;
    if (at >= end)
        return;
    const uint8_t *const codes = a.codes + piece * weight_codes_bytes(a.codec, a.n, a.bucket);
    const uint8_t *const from = codes + weight_codes_begin(a.n, a.bucket) + at * bits / 8;
    const struct weight_bucket b = ((const struct weight_bucket *)codes)[k];
    const int n = (int)(end - at < 4 ? end - at : 4), bytes = (n * bits + 7) / 8;
    T *const out = (T *)a.out + piece * a.n + at;
    uint32_t packed = 0;
    for (int i = 0; i < bytes; i++)
        packed |= (uint32_t)from[i] << (8 * i);
    for (int i = 0; i < n; i++)
        num_store(out + i, weight_decode(packed >> (bits * i) & ((1u << bits) - 1), b));
}

int cuda_weight_encode(void *stream, const struct weight_encode_args *a)
{
    const int64_t buckets = weight_buckets(a->n, a->bucket), begin = weight_codes_begin(a->n, a->bucket);
    const int64_t numbers = buckets * (int64_t)sizeof(struct weight_bucket);
    const int64_t end = begin + (a->n * weight_bits(a->codec) + 7) / 8;
    const int64_t bytes = weight_codes_bytes(a->codec, a->n, a->bucket);
    cudaStream_t const s = (cudaStream_t)stream;
    int e = 0;

    if (begin > numbers)
        e = (int)cudaMemsetAsync(a->codes + numbers, 0, (size_t)(begin - numbers), s);
    if (!e && bytes > end)
        e = (int)cudaMemsetAsync(a->codes + end, 0, (size_t)(bytes - end), s);
    if (e || buckets == 0)
        return e;
    return TYPED(a->dt, LAUNCH(weight_codes<T>, (unsigned)buckets, THREADS, 0, stream, *a));
}

int cuda_weight_decode(void *stream, const struct weight_decode_args *a)
{
    const int64_t blocks = a->pieces * weight_buckets(a->n, a->bucket);
    return blocks == 0 ? 0 : TYPED(a->dt, LAUNCH(weight_values<T>, (unsigned)blocks, THREADS, 0, stream, *a));
}
