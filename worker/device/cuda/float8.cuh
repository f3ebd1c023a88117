/* SPDX-License-Identifier: Apache-2.0 */
/* float8.cuh - casts to float8, for the kernels that make codes. */
#ifndef TITAN_WORKER_DEVICE_CUDA_FLOAT8_CUH
#define TITAN_WORKER_DEVICE_CUDA_FLOAT8_CUH

#include "worker/device/cuda/kernel.cuh"

#ifdef TITAN_EMULATE
extern "C" {
#include "base/float8.h"
}
static inline uint8_t encode(float x, bool e5m2)
{
    return float8_encode(x, e5m2 ? FLOAT8_E5M2 : FLOAT8_E4M3);
}
#else
#include <cuda_fp8.h>
/* The nearest code, ties to even; beyond the largest value it is that one, NaN stays NaN: float8_encode of
 * base/float8.h. */
__device__ static inline uint8_t encode(float x, bool e5m2)
{
    return (uint8_t)__nv_cvt_float_to_fp8(x, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}
#endif

#define TILE 64

/* Magnitudes as their bits, which are in the same order; a NaN is above all. */
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
