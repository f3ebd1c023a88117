/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.cuh - shared by all kernel files: element types, launching, block-wide reductions.
 *
 * All arithmetic is fp32 (sums over long buffers fp64). TITAN_EMULATE builds the same kernels for the host, with
 * tests/cuda/emulator.h, where a block's threads are coroutines. So the kernels are tested without a GPU. */
#ifndef TITAN_WORKER_DEVICE_CUDA_KERNEL_CUH
#define TITAN_WORKER_DEVICE_CUDA_KERNEL_CUH

#include <stdint.h>
#include <string.h>

#ifdef TITAN_EMULATE
#include "tests/cuda/emulator.h"
#else
#include <cuda_runtime.h>
/* Launches a kernel and returns the launch's error. */
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                         \
    (kernel<<<(grid), (block), (shared_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__), (int)cudaGetLastError())
/* The block's dynamic shared memory. */
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) float name[]
/* 16 bytes at an address that is a multiple of 16, in one access. */
#define LOAD_16(from) (*(const uint4 *)(from))
#define STORE_16(to, value) (*(uint4 *)(to) = (value))
#endif

#include "worker/device/cuda/kernels.h"

#ifndef TITAN_EMULATE
__global__ static void module_mark(void)
{
}
__attribute__((used)) static const int module_listed = cuda_list_module((const void *)module_mark);
#endif

/* Evaluates `call` with T as the C++ type of dt. */
#define TYPED(dt, call)                                                                                                \
    ((dt) == DTYPE_BF16 ? [&]() {                                                                                      \
        typedef bf16 T;                                                                                                \
        return call;                                                                                                   \
    }()                                                                                                                \
                        : [&]() {                                                                                      \
        typedef float T;                                                                                               \
        return call;                                                                                                   \
    }())

#define THREADS 256
#define WARP 32
#define FULL_WARP 0xffffffffu

/* bfloat16 as its bits: the upper half of an fp32. */
struct bf16 {
    uint16_t bits;
};

__host__ __device__ static inline float num_load(const float *x)
{
    return *x;
}
__host__ __device__ static inline float num_load(const bf16 *x)
{
    uint32_t bits = (uint32_t)x->bits << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
__host__ __device__ static inline void num_store(float *x, float value)
{
    *x = value;
}
/* Rounds to nearest, ties to even; a NaN stays one. */
__host__ __device__ static inline void num_store(bf16 *x, float value)
{
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x->bits) : "f"(value));
#else
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        x->bits = (uint16_t)((bits >> 16) | 0x40u);
    else
        x->bits = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

/* hash_mix() and HASH_STEP of base/hash.h. */
#define HASH_STEP UINT64_C(0x9e3779b97f4a7c15)
__host__ __device__ static inline uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Reads element i of a tensor whose type is known only at run time. */
__host__ __device__ static inline float any_load(const void *x, int64_t i, bool is_bf16)
{
    return is_bf16 ? num_load((const bf16 *)x + i) : ((const float *)x)[i];
}
__host__ __device__ static inline void any_store(void *x, int64_t i, bool is_bf16, float value)
{
    if (is_bf16)
        num_store((bf16 *)x + i, value);
    else
        ((float *)x)[i] = value;
}

/* 16 bytes of a tensor, held as fp32 in registers. */
template <class T> struct piece {
    enum { N = 16 / sizeof(T) };
    float v[N];
};

/* Whether rows of row_bytes bytes at these addresses (or-ed together) consist of whole pieces. If so, each piece is one
 * access. Kernels that keep many pieces in registers are compiled for both cases. */
static inline bool in_pieces(size_t row_bytes, uintptr_t addresses)
{
    return (row_bytes | addresses) % 16 == 0;
}
static inline size_t row_bytes(int64_t c, bool is_bf16)
{
    return (size_t)c * (is_bf16 ? sizeof(bf16) : sizeof(float));
}
/* Pieces of a row of c elements; the last piece may be incomplete. */
static inline size_t pieces_of(int64_t c, bool is_bf16)
{
    return (row_bytes(c, is_bf16) + 15) / 16;
}
static inline uintptr_t address(const void *p)
{
    return (uintptr_t)p;
}

/* Loads the piece at x unconverted. Only `left` elements exist; the others become pad, which is 0 or infinite. A thread
 * gets the same elements from a whole and from an incomplete piece. */
template <class T> __device__ static inline uint4 bits_load(const T *x, int64_t left, bool whole, float pad = 0.0f)
{
    if (whole)
        return LOAD_16(x);
    T e[piece<T>::N];
    for (int k = 0; k < piece<T>::N; k++) {
        if (k < left)
            e[k] = x[k];
        else
            num_store(e + k, pad);
    }
    uint4 bits;
    memcpy(&bits, e, sizeof bits);
    return bits;
}
/* Same as bits_load(), for a piece that may lie behind the end: left may be 0 or negative. */
template <class T> __device__ static inline uint4 bits_within(const T *x, int64_t left, bool whole, float pad = 0.0f)
{
    uint32_t word;
    memcpy(&word, &pad, sizeof word);
    word |= sizeof(T) == 2 ? word >> 16 : 0;
    const uint4 none = {word, word, word, word};
    return left > 0 ? bits_load(x, left, whole, pad) : none;
}
template <class T> __device__ static inline void bits_store(T *x, uint4 bits, int64_t left, bool whole)
{
    if (whole) {
        STORE_16(x, bits);
        return;
    }
    T e[piece<T>::N];
    memcpy(e, &bits, sizeof bits);
    for (int k = 0; k < piece<T>::N; k++)
        if (k < left)
            x[k] = e[k];
}
template <class T> __device__ static inline piece<T> piece_of(uint4 bits)
{
    piece<T> p;
    T e[piece<T>::N];
    memcpy(e, &bits, sizeof bits);
    for (int k = 0; k < piece<T>::N; k++)
        p.v[k] = num_load(e + k);
    return p;
}
/* Rounds p to 16 bytes of fp32 or bf16. One conversion rounds two bf16. */
__device__ static inline uint4 bits_of(const piece<float> &p)
{
    uint4 bits;
    memcpy(&bits, p.v, sizeof bits);
    return bits;
}
__device__ static inline uint4 bits_of(const piece<bf16> &p)
{
    uint4 bits;
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits.x) : "f"(p.v[1]), "f"(p.v[0]));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits.y) : "f"(p.v[3]), "f"(p.v[2]));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits.z) : "f"(p.v[5]), "f"(p.v[4]));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits.w) : "f"(p.v[7]), "f"(p.v[6]));
#else
    bf16 e[piece<bf16>::N];
    for (int k = 0; k < piece<bf16>::N; k++)
        num_store(e + k, p.v[k]);
    memcpy(&bits, e, sizeof bits);
#endif
    return bits;
}
template <class T> __device__ static inline piece<T> piece_load(const T *x, int64_t left, bool whole)
{
    return piece_of<T>(bits_load(x, left, whole));
}
/* Rounds p to the stored type; p becomes the stored values. */
template <class T> __device__ static inline void piece_store(T *x, piece<T> &p, int64_t left, bool whole)
{
    const uint4 bits = bits_of(p);
    p = piece_of<T>(bits);
    bits_store(x, bits, left, whole);
}
/* First element and stride of this thread's pieces in a row that one block processes. */
template <class T> __device__ static inline int64_t piece_first(void)
{
    return (int64_t)threadIdx.x * piece<T>::N;
}
template <class T> __device__ static inline int64_t piece_stride(int threads = THREADS)
{
    return (int64_t)threads * piece<T>::N;
}

/* First element and stride of this thread in a grid-stride loop. */
__device__ static inline size_t grid_first(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ static inline size_t grid_stride(void)
{
    return (size_t)gridDim.x * blockDim.x;
}
/* Blocks for a grid-stride loop over n elements: enough to fill any GPU, but no more than the work needs. */
static inline unsigned grid_blocks(size_t n)
{
    size_t blocks = (n + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 4096 ? blocks : 4096);
}

/* Makes the stream fail, for a kernel that finds impossible data. Any number of threads may call it. */
__device__ static inline void fail_stream(const struct fault_words &w, enum fault fault)
{
    if (*(volatile int *)w.seen != 0)
        return;
    *(volatile int *)w.fault = (int)fault;
    __threadfence_system();
    *(volatile int *)w.told = w.status;
    *(volatile int *)w.seen = w.status;
    __threadfence_system();
}

struct op_sum {
    template <class V> __device__ V operator()(V a, V b) const
    {
        return a + b;
    }
};
struct op_max {
    __device__ float operator()(float a, float b) const
    {
        return fmaxf(a, b);
    }
};

/* The reduction of x over a block of 2^i warps. Every thread gets the same bits. The order depends only on blockDim: a
 * butterfly within each warp, then a butterfly of the warps. Every thread calls it. scratch: 32 elements of shared
 * memory. */
template <class V, class Op> __device__ static inline V block_reduce(V x, Op op, V *scratch)
{
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        x = op(x, __shfl_xor_sync(FULL_WARP, x, offset));
    if (threadIdx.x % WARP == 0)
        scratch[threadIdx.x / WARP] = x;
    __syncthreads();
    const int warps = (int)blockDim.x / WARP;
    x = scratch[(int)threadIdx.x % warps];
    for (int offset = warps / 2; offset > 0; offset /= 2)
        x = op(x, __shfl_xor_sync(FULL_WARP, x, offset));
    __syncthreads();
    return x;
}

#endif
