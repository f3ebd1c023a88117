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

/* The four values of a thread, which of them have codes, and their part of the bucket's range. */
struct four_values {
    float value[4];
    bool coded[4];
    int64_t at, end; /* of the first value; of the bucket */
    int32_t low, high;
};

template <class T> __device__ static struct four_values read_four(const struct weight_encode_args &a)
{
    const int64_t stop = (int64_t)(blockIdx.x + 1) * a.bucket;
    const T *const x = (const T *)a.x;
    struct four_values v;

    v.at = (int64_t)blockIdx.x * a.bucket + 4 * (int)threadIdx.x;
    v.end = stop < a.n ? stop : a.n;
    v.low = INT32_MAX;
    v.high = INT32_MIN;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v.coded[i] = v.at + i < v.end;
        v.value[i] = v.coded[i] ? num_load(x + v.at + i) : 0.0f;
    }
    for (int r = 0; r < a.runs; r++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            v.coded[i] = v.coded[i] && !(v.at + i >= a.run[r].from && v.at + i < a.run[r].to);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t order = weight_order(v.value[i]);
        v.low = v.coded[i] && order < v.low ? order : v.low;
        v.high = v.coded[i] && order > v.high ? order : v.high;
    }
    return v;
}

template <class T> __global__ static void __launch_bounds__(THREADS) weight_codes(const struct weight_encode_args a)
{
    __shared__ int32_t lows[32], highs[32];
    const int bits = weight_bits(a.codec);
    struct four_values v = read_four<T>(a);
    v.low = block_reduce(v.low, op_lower(), lows);
    v.high = block_reduce(v.high, op_higher(), highs);
    struct weight_scale scale;
    const struct weight_bucket b =
        a.table ? weight_bucket_by(v.low, v.high, &scale) : weight_bucket_of(v.low, v.high, a.codec, a.shift, &scale);
    if (threadIdx.x == 0)
        ((struct weight_bucket *)a.codes)[blockIdx.x] = b;
    if (v.at >= v.end)
        return;
    uint32_t packed = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (v.coded[i] && scale.inverse > 0.0f)
            packed |= (uint32_t)(a.table ? weight_encode_by(v.value[i], &scale, a.table, 1 << bits)
                                         : weight_encode(v.value[i], &scale))
                      << (bits * i);
    uint8_t *const to = a.codes + weight_codes_begin(a.n, a.bucket) + v.at * bits / 8;
    const int bytes = (int)(((v.end - v.at < 4 ? v.end - v.at : 4) * bits + 7) / 8);
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
    for (int i = 0; i < n; i++) {
        const uint32_t code = packed >> (bits * i) & ((1u << bits) - 1);
        num_store(out + i, a.table ? weight_decode_by(code, b, a.table, 1 << bits) : weight_decode(code, b));
    }
}

template <class T>
__global__ static void __launch_bounds__(THREADS) weight_counts(int32_t *counts, const struct weight_encode_args a)
{
    __shared__ int32_t lows[32], highs[32];
    const struct four_values v = read_four<T>(a);
    const int32_t low = block_reduce(v.low, op_lower(), lows), high = block_reduce(v.high, op_higher(), highs);
    struct weight_scale scale;

    (void)weight_bucket_by(low, high, &scale);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (v.coded[i] && scale.inverse > 0.0f)
            atomicAdd(counts + weight_bin(v.value[i], &scale), 1);
}

/* One block: a thread sums WEIGHT_BINS / THREADS bins over ranks, then moves one level. */
__global__ static void __launch_bounds__(THREADS) weight_levels(const struct weight_learn_args a)
{
    __shared__ struct weight_sums sums[WEIGHT_BINS + 1];
    __shared__ float level[2][WEIGHT_LEVELS];
    const int n = 1 << weight_bits(a.codec), j = (int)threadIdx.x;

    for (int b = j; b < WEIGHT_BINS; b += THREADS) {
        uint64_t count = 0;
        for (int64_t r = 0; r < a.ranks; r++)
            count += (uint32_t)a.counts[r * a.ld + b];
        sums[b + 1].count = (double)count;
    }
    __syncthreads();
    if (j == 0) {
        sums[0].count = sums[0].twice = 0;
        for (int b = 0; b < WEIGHT_BINS; b++)
            sums[b + 1] = weight_sums_next(sums[b], b, sums[b + 1].count);
    }
    __syncthreads();
    if (j < n)
        level[0][j] = weight_level_first(sums, j, n);
    __syncthreads();
    for (int turn = 0; turn < WEIGHT_TURNS; turn++) {
        if (j < n)
            level[(turn + 1) % 2][j] = weight_level(sums, level[turn % 2], j, n);
        __syncthreads();
    }
    if (j < n)
        weight_table(level[WEIGHT_TURNS % 2], j, n, a.shift, a.table);
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

int cuda_weight_count(void *stream, int32_t *counts, const struct weight_encode_args *a)
{
    const int64_t buckets = weight_buckets(a->n, a->bucket);
    return buckets == 0 ? 0 : TYPED(a->dt, LAUNCH(weight_counts<T>, (unsigned)buckets, THREADS, 0, stream, counts, *a));
}

int cuda_weight_learn(void *stream, const struct weight_learn_args *a)
{
    return LAUNCH(weight_levels, 1, THREADS, 0, stream, *a);
}
