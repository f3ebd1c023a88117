/* SPDX-License-Identifier: Apache-2.0 */
/* float8.cuh - casts to eight bits, for the kernels that make codes. */
#ifndef TITAN_WORKER_DEVICE_CUDA_FLOAT8_CUH
#define TITAN_WORKER_DEVICE_CUDA_FLOAT8_CUH

#include "worker/device/cuda/kernel.cuh"

#ifdef TITAN_EMULATE
extern "C" {
#include "base/float8.h"
}
static inline uint32_t encode_2(float low, float high, bool e5m2)
{
    const enum float8 type = e5m2 ? FLOAT8_E5M2 : FLOAT8_E4M3;
    return (uint32_t)float8_encode(low, type) | (uint32_t)float8_encode(high, type) << 8;
}
#else
#include <cuda_fp8.h>
/* Returns the nearest codes, ties to even. Values beyond the largest value become the largest value; NaN stays NaN. The
 * codes are those of float8_encode() in base/float8.h. One conversion makes both codes. */
__device__ static inline uint32_t encode_2(float low, float high, bool e5m2)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}
#endif
/* Four codes, in the order of memory. */
__device__ static inline uint32_t encode_4(float a, float b, float c, float d, bool e5m2)
{
    return encode_2(a, b, e5m2) | encode_2(c, d, e5m2) << 16;
}

/* Four codes of int8: the nearest integers, ties to even. Values beyond 127 become 127; NaN becomes 0. */
__device__ static inline uint32_t encode_4_int8(float a, float b, float c, float d)
{
    const float x[4] = {a, b, c, d};
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) {
#ifdef TITAN_EMULATE
        const int code = x[i] != x[i] ? 0 : (int)rintf(fminf(fmaxf(x[i], -127.0f), 127.0f));
#else
        const int code = max(-127, min(127, __float2int_rn(x[i])));
#endif
        word |= ((uint32_t)code & 0xffu) << 8 * i;
    }
    return word;
}

#define TILE 64

/* A magnitude as its bits, which sort in the same order; a NaN is above all. */
__device__ static inline unsigned magnitude(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

struct op_max_bits {
    __device__ unsigned operator()(unsigned a, unsigned b) const
    {
        return a > b ? a : b;
    }
};

#endif
