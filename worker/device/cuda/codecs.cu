/* SPDX-License-Identifier: Apache-2.0 */
/* codecs.cu - codes of gradients that travel (base/codecs.h). A warp codes a bucket, which stays in its registers:
 * eight loads of 16 bytes a thread are under way at a time. */
#include "worker/device/cuda/float8.cuh"

#define PHILOX_INLINE __device__ static inline
#include "base/philox.h"

#define GROUP 8                              /* values in a row that a thread codes together */
#define GROUPS (CODEC_BUCKET / GROUP / WARP) /* groups of a thread */
#define WARPS (THREADS / WARP)

/* The first value of a thread's group j, in its bucket. */
__device__ static inline int64_t group_at(int j)
{
    return GROUP * (int64_t)(threadIdx.x % WARP + WARP * j);
}

/* Eight values, of which `left` exist; the others become 0. */
__device__ static inline void group_load(float x[GROUP], const float *from, int64_t left, bool whole)
{
    if (whole && left >= GROUP) {
        const uint4 low = LOAD_16(from), high = LOAD_16(from + 4);
        memcpy(x, &low, sizeof low);
        memcpy(x + 4, &high, sizeof high);
        return;
    }
    for (int v = 0; v < GROUP; v++)
        x[v] = v < left ? from[v] : 0.0f;
}

__device__ static inline uint32_t warp_largest(uint32_t x)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x = op_max_bits()(x, __shfl_xor_sync(FULL_WARP, x, offset));
    return x;
}

__device__ static inline uint32_t group_largest(uint32_t most, const float x[GROUP])
{
    for (int v = 0; v < GROUP; v++)
        most = op_max_bits()(most, codec_magnitude(x[v]));
    return most;
}

/* Eight codes of 8 bits, as two words. */
__device__ static inline uint2 pack_8(const float shifted[GROUP])
{
    uint32_t w[2] = {0, 0};
    for (int v = 0; v < GROUP; v++)
        w[v / 4] |= (uint32_t)(uint8_t)codec_code(shifted[v]) << 8 * (v % 4);
    return uint2{w[0], w[1]};
}
__device__ static inline uint32_t pack_4(const float shifted[GROUP])
{
    uint32_t w = 0;
    for (int v = 0; v < GROUP; v++)
        w |= (uint32_t)(codec_code(shifted[v]) & 15) << 4 * v;
    return w;
}

/* --- encode ------------------------------------------------------------------------------------------------------- */

/* The 16 random bits of eight values, from place `first` of x on. */
__attribute__((noinline)) __device__ static uint32_t half_apart(const struct encode_args &a, uint64_t place)
{
    uint32_t words[4];
    philox(a.key.k[0], a.key.k[1], place / 8, a.step, words);
    const uint32_t low = place & 2 ? words[1] : words[0], high = place & 2 ? words[3] : words[2];
    return (place & 4 ? high : low) >> (place & 1 ? 16 : 0) & 0xffffu;
}
__device__ static inline void halves(uint32_t ret[GROUP], const struct encode_args &a, uint64_t first)
{
    if (first % 8 == 0) {
        uint32_t words[4];
        philox(a.key.k[0], a.key.k[1], first / 8, a.step, words);
        for (int v = 0; v < GROUP; v++)
            ret[v] = words[v / 2] >> 16 * (v % 2) & 0xffffu;
    } else {
        for (int v = 0; v < GROUP; v++)
            ret[v] = half_apart(a, first + (uint64_t)v);
    }
}

/* Codes of a group at `to`, where `room` bytes of the piece are left. */
template <enum codec C, bool AT_RANDOM>
__device__ static inline void group_encode(uint8_t *to, int64_t room, const float x[GROUP], float inverse,
                                           const struct encode_args &a, uint64_t first)
{
    if (room <= 0)
        return;
    if (C == CODEC_F32) {
        uint4 low, high;
        memcpy(&low, x, sizeof low);
        memcpy(&high, x + 4, sizeof high);
        STORE_16(to, low);
        if (room > 16)
            STORE_16(to + 16, high);
        return;
    }
    if (C == CODEC_BF16) {
        piece<bf16> p;
        for (int v = 0; v < GROUP; v++)
            p.v[v] = x[v];
        STORE_16(to, bits_of(p));
        return;
    }
    if (C == CODEC_FP8) {
        const uint32_t low = encode_4(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse, false);
        const uint32_t high = encode_4(x[4] * inverse, x[5] * inverse, x[6] * inverse, x[7] * inverse, false);
        *(uint2 *)to = uint2{low, high};
        return;
    }
    const float least = C == CODEC_INT8 ? 128.0f : 8.0f, most = least - 1.0f;
    float shifted[GROUP];
    if (AT_RANDOM) {
        uint32_t r[GROUP];
        halves(r, a, first);
        for (int v = 0; v < GROUP; v++)
            shifted[v] = codec_round_at_random(x[v], inverse, codec_offset(r[v]), least, most);
    } else {
        for (int v = 0; v < GROUP; v++)
            shifted[v] = codec_round(x[v], inverse, least, most);
    }
    if (C == CODEC_INT8)
        *(uint2 *)to = pack_8(shifted);
    else
        *(uint32_t *)to = pack_4(shifted);
}

template <enum codec C> __device__ static inline int code_bits(void)
{
    return C == CODEC_F32 ? 32 : C == CODEC_BF16 ? 16 : C == CODEC_FP8 || C == CODEC_INT8 ? 8 : 4;
}

/* Zeroes what follows the last of a piece's scales, up to the codes. */
__device__ static inline void end_scales(float *scales, int64_t buckets, int64_t bytes)
{
    const int64_t i = buckets + threadIdx.x % WARP;
    if (i * (int64_t)sizeof *scales < bytes)
        scales[i] = 0.0f;
}

template <enum codec C, bool AT_RANDOM>
__global__ static void __launch_bounds__(THREADS) encode(struct encode_args a, struct codec_places at, bool whole)
{
    const int64_t bucket = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (bucket >= a.pieces * at.buckets)
        return;
    const int64_t i = bucket / at.buckets, k = bucket % at.buckets, begin = k * CODEC_BUCKET, n = a.n - begin;
    const float *const x = a.x + i * a.n + begin;
    uint8_t *const of = a.codes + i * at.bytes, *const codes = of + at.codes + begin / 8 * code_bits<C>();
    const int64_t room = of + at.bytes - codes;
    float h[GROUPS][GROUP], inverse = 1.0f;
    uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
        group_load(h[j], x + group_at(j), n - group_at(j), whole);
    if (C != CODEC_F32 && C != CODEC_BF16) {
        for (int j = 0; j < GROUPS; j++)
            most = group_largest(most, h[j]);
        most = a.largest ? codec_magnitude(a.largest[bucket]) : warp_largest(most);
        const float scale = codec_scale(C, AT_RANDOM, most);
        if (threadIdx.x % WARP == 0)
            ((float *)of)[k] = scale;
        if (k == at.buckets - 1)
            end_scales((float *)of, at.buckets, at.codes);
        inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        if (inverse == 0.0f) /* codes of 0 */
            for (int v = 0; v < GROUP; v++)
                h[j][v] = 0.0f;
        group_encode<C, AT_RANDOM>(codes + group_at(j) / 8 * code_bits<C>(), room - group_at(j) / 8 * code_bits<C>(),
                                   h[j], inverse, a, (uint64_t)(i * a.n + begin + group_at(j)));
    }
}

/* LoCo: the values and the error that was kept, coded, and the error that is kept. */
__global__ static void __launch_bounds__(THREADS)
    encode_with_error(struct encode_args a, struct codec_places at, bool whole)
{
    const int64_t bucket = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (bucket >= a.pieces * at.buckets)
        return;
    const int64_t i = bucket / at.buckets, k = bucket % at.buckets, begin = k * CODEC_BUCKET, n = a.n - begin;
    const float *const x = a.x + i * a.n + begin;
    uint8_t *const of = a.codes + i * at.bytes, *const codes = of + at.codes + begin / 2;
    uint8_t *const kept = a.error + i * at.error_bytes, *const error = kept + at.error_codes + begin;
    const int64_t room = of + at.bytes - codes, error_room = kept + at.error_bytes - error;
    const float was = ((const float *)kept)[k], old = a.decay * was, rest = 1.0f - a.decay;
    float h[GROUPS][GROUP];
    uint2 c[GROUPS];
    uint32_t most = 0;

#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        const int64_t left = n - group_at(j);
        group_load(h[j], x + group_at(j), left, whole);
        c[j] = left > 0 ? *(const uint2 *)(error + group_at(j)) : uint2{0, 0};
        if (left < GROUP) /* no value, no error */
            for (int v = 0; v < GROUP; v++)
                if (v >= left)
                    (v < 4 ? c[j].x : c[j].y) &= ~(0xffu << 8 * (v % 4));
    }
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        for (int v = 0; v < GROUP; v++)
            h[j][v] = fmaf((float)(int8_t)((v < 4 ? c[j].x : c[j].y) >> 8 * (v % 4)), was, h[j][v]);
        most = group_largest(most, h[j]);
    }
    most = warp_largest(most);
    const float scale = codec_scale(CODEC_LOCO, false, a.largest ? codec_magnitude(a.largest[bucket]) : most);
    const bool bad = scale != scale;
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    most = 0;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        float shifted[GROUP];
        for (int v = 0; v < GROUP; v++) {
            shifted[v] = bad ? CODEC_SHIFT : codec_round(h[j][v], inverse, 8.0f, 7.0f);
            const float e = (float)(int8_t)((v < 4 ? c[j].x : c[j].y) >> 8 * (v % 4));
            h[j][v] = fmaf(e, old, rest * fmaf(-codec_value(shifted[v]), scale, h[j][v]));
        }
        most = group_largest(most, h[j]);
        if (room - group_at(j) / 2 > 0)
            *(uint32_t *)(codes + group_at(j) / 2) = pack_4(shifted);
    }
    const float error_scale = bad ? 0.0f : codec_error_scale(warp_largest(most));
    const float by = error_scale > 0.0f ? 1.0f / error_scale : 0.0f;
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        float shifted[GROUP];
        for (int v = 0; v < GROUP; v++)
            shifted[v] = by > 0.0f ? codec_round(h[j][v], by, 127.0f, 127.0f) : CODEC_SHIFT;
        if (error_room - group_at(j) > 0)
            *(uint2 *)(error + group_at(j)) = pack_8(shifted);
    }
    if (threadIdx.x % WARP == 0) {
        ((float *)of)[k] = scale;
        ((float *)kept)[k] = error_scale;
    }
    if (k == at.buckets - 1) {
        end_scales((float *)of, at.buckets, at.codes);
        end_scales((float *)kept, at.buckets, at.error_codes);
    }
}

int cuda_encode(void *stream, const struct encode_args *a, struct codec_places at)
{
    const int64_t buckets = a->pieces * at.buckets;
    const bool whole = in_pieces(row_bytes(a->n, false), address(a->x));
    if (buckets == 0)
        return 0;
    auto kernel = encode_with_error;
    if (a->codec == CODEC_F32)
        kernel = encode<CODEC_F32, false>;
    else if (a->codec == CODEC_BF16)
        kernel = encode<CODEC_BF16, false>;
    else if (a->codec == CODEC_FP8)
        kernel = encode<CODEC_FP8, false>;
    else if (a->codec == CODEC_INT8)
        kernel = a->stochastic ? encode<CODEC_INT8, true> : encode<CODEC_INT8, false>;
    else if (a->codec == CODEC_INT4)
        kernel = a->stochastic ? encode<CODEC_INT4, true> : encode<CODEC_INT4, false>;
    return LAUNCH(kernel, (unsigned)((buckets + WARPS - 1) / WARPS), THREADS, 0, stream, *a, at, whole);
}

/* --- decode and sum ----------------------------------------------------------------------------------------------- */

/* The value of a code of e4m3, as float8_decode() of base/float8.h has it, but for the bits of a NaN. */
__device__ static inline float e4m3_value(uint32_t code)
{
    const uint32_t magnitude = code & 0x7fu;
    const float normal = codec_float((magnitude << 20) + (120u << 23)),
                x = magnitude < 8 ? (float)magnitude * 0x1p-9f : normal;
    return copysignf(magnitude == 0x7fu ? codec_float(0x7fc00000u) : x, code & 0x80u ? -1.0f : 1.0f);
}

/* The values of eight codes; of fp32 the last four only if there are more than four. */
template <enum codec C> __device__ static inline void group_decode(float v[GROUP], const uint8_t *codes, int64_t left)
{
    if (C == CODEC_F32) {
        const uint4 none = {0, 0, 0, 0}, low = LOAD_16(codes), high = left > 4 ? LOAD_16(codes + 16) : none;
        memcpy(v, &low, sizeof low);
        memcpy(v + 4, &high, sizeof high);
    } else if (C == CODEC_BF16) {
        const piece<bf16> p = piece_of<bf16>(LOAD_16(codes));
        for (int i = 0; i < GROUP; i++)
            v[i] = p.v[i];
    } else if (C == CODEC_INT4) {
        const uint32_t w = *(const uint32_t *)codes;
        for (int i = 0; i < GROUP; i++)
            v[i] = (float)((int32_t)(w << (28 - 4 * i)) >> 28);
    } else {
        const uint2 w = *(const uint2 *)codes;
        for (int i = 0; i < GROUP; i++) {
            const uint32_t code = (i < 4 ? w.x : w.y) >> 8 * (i % 4) & 0xffu;
            v[i] = C == CODEC_FP8 ? e4m3_value(code) : (float)(int8_t)code;
        }
    }
}

template <enum codec C>
__global__ static void __launch_bounds__(THREADS)
    decode_sum(struct decode_sum_args a, struct codec_places at, int64_t groups, bool whole)
{
    for (int64_t g = (int64_t)grid_first(); g < groups; g += (int64_t)grid_stride()) {
        const int64_t left = a.n - g * GROUP;
        float sum[GROUP];
#pragma unroll 4
        for (int64_t p = 0; p < a.pieces; p++) {
            const uint8_t *const of = a.codes + p * at.bytes;
            const float scale = at.codes ? ((const float *)of)[g * GROUP / CODEC_BUCKET] : 1.0f;
            float v[GROUP];
            group_decode<C>(v,
                            of + at.codes +
                                g * (C == CODEC_F32    ? 32
                                     : C == CODEC_BF16 ? 16
                                     : C == CODEC_INT4 ? 4
                                                       : 8),
                            left);
            for (int i = 0; i < GROUP; i++) {
                if (C == CODEC_F32 || C == CODEC_BF16)
                    sum[i] = p == 0 ? v[i] : sum[i] + v[i];
                else
                    sum[i] = p == 0 ? v[i] * scale : fmaf(v[i], scale, sum[i]);
            }
        }
        float *const out = a.out + g * GROUP;
        if (whole && left >= GROUP) {
            uint4 low, high;
            memcpy(&low, sum, sizeof low);
            memcpy(&high, sum + 4, sizeof high);
            STORE_16(out, low);
            STORE_16(out + 4, high);
        } else {
            for (int i = 0; i < GROUP; i++)
                if (i < left)
                    out[i] = sum[i];
        }
    }
}

int cuda_decode_sum(void *stream, const struct decode_sum_args *a, struct codec_places at)
{
    const int64_t groups = (a->n + GROUP - 1) / GROUP;
    if (groups == 0)
        return 0;
    auto kernel = decode_sum<CODEC_INT4>;
    if (a->codec == CODEC_F32)
        kernel = decode_sum<CODEC_F32>;
    else if (a->codec == CODEC_BF16)
        kernel = decode_sum<CODEC_BF16>;
    else if (a->codec == CODEC_FP8)
        kernel = decode_sum<CODEC_FP8>;
    else if (a->codec == CODEC_INT8)
        kernel = decode_sum<CODEC_INT8>;
    return LAUNCH(kernel, grid_blocks((size_t)groups), THREADS, 0, stream, *a, at, groups, address(a->out) % 16 == 0);
}

/* --- one scale a tensor ------------------------------------------------------------------------------------------- */

/* The tensor that has all of a bucket; -1: none. */
__device__ static inline int tensor_of(const struct tensor_places &t, int64_t bucket, int64_t buckets, int64_t n)
{
    const int64_t of = bucket / buckets * n, from = of + bucket % buckets * CODEC_BUCKET;
    const int64_t to = from + CODEC_BUCKET < of + n ? from + CODEC_BUCKET : of + n;
    int low = 0, high = t.count;
    while (low < high) { /* the first tensor that ends behind `from` */
        const int middle = (low + high) / 2;
        if (t.begins[middle + 1] > from)
            high = middle;
        else
            low = middle + 1;
    }
    return low < t.count && t.begins[low] <= from && to <= t.begins[low + 1] ? low : -1;
}

/* A warp for each bucket. */
__global__ static void __launch_bounds__(THREADS)
    tensor_largest(unsigned *of_tensor, struct bucket_largest_args a, struct codec_places at,
                   const __grid_constant__ struct tensor_places tensors)
{
    const int64_t bucket = tensors.first_bucket + (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (bucket >= tensors.end_bucket)
        return;
    const int64_t i = bucket / at.buckets, k = bucket % at.buckets, begin = k * CODEC_BUCKET, n = a.n - begin;
    const float *const x = a.x + i * a.n + begin;
    const uint8_t *const kept = a.error ? a.error + i * at.error_bytes : NULL;
    const int8_t *const error = kept ? (const int8_t *)kept + at.error_codes + begin : NULL;
    const float scale = kept ? ((const float *)kept)[k] : 0.0f;
    const int tensor = tensor_of(tensors, bucket, at.buckets, a.n);
    unsigned most = 0;
#pragma unroll 8
    for (int e = (int)threadIdx.x % WARP; e < CODEC_BUCKET; e += WARP)
        if (e < n)
            most = op_max_bits()(most, codec_magnitude(kept ? fmaf((float)error[e], scale, x[e]) : x[e]));
    most = warp_largest(most);
    if (threadIdx.x % WARP != 0)
        return;
    if (tensor >= 0)
        (void)atomicMax(of_tensor + tensor, most);
    else
        a.largest[bucket] = codec_float(most);
}

__global__ static void __launch_bounds__(THREADS)
    tensors_to_buckets(float *largest, const float *of_tensor, int64_t n, int64_t buckets,
                       const __grid_constant__ struct tensor_places tensors)
{
    const int64_t bucket = tensors.first_bucket + (int64_t)grid_first();
    const int tensor = bucket < tensors.end_bucket ? tensor_of(tensors, bucket, buckets, n) : -1;
    if (tensor >= 0)
        largest[bucket] = of_tensor[tensor];
}

int cuda_bucket_largest(void *stream, const struct bucket_largest_args *a, struct codec_places at, float *of_tensor,
                        const struct tensor_places *tensors)
{
    const int64_t buckets = tensors->end_bucket - tensors->first_bucket;
    const int e = LAUNCH(tensor_largest, (unsigned)((buckets + WARPS - 1) / WARPS), THREADS, 0, stream,
                         (unsigned *)of_tensor, *a, at, *tensors);
    return e ? e
             : LAUNCH(tensors_to_buckets, (unsigned)((buckets + THREADS - 1) / THREADS), THREADS, 0, stream, a->largest,
                      of_tensor, a->n, at.buckets, *tensors);
}
