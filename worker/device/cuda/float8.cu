/* SPDX-License-Identifier: Apache-2.0 */
/* float8.cu - operands of a product as float8 codes, and what is left to do to its sums.
 *
 * An operand is `lines` lines of k elements, element (i, x) at src[i * line + x * along]: one of the two strides is 1.
 * Its codes go to dst as lines of kp bytes, dense along k, zero behind k: what the tensor cores take. */
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

/* --- the largest magnitudes --------------------------------------------------------------------------------------- */

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

/* Of a line, where lines are dense: a block each. */
template <class T>
__global__ static void line_largest(unsigned *largest, const T *src, int64_t line, int64_t k, bool by_line, bool whole)
{
    __shared__ unsigned scratch[WARP];
    const T *const x = src + (int64_t)blockIdx.x * line;
    unsigned most = 0;
    for (int64_t at = piece_first<T>(); at < k; at += piece_stride<T>()) {
        const piece<T> p = piece_load(x + at, k - at, whole);
        for (int i = 0; i < piece<T>::N; i++)
            most = op_max_bits()(most, magnitude(p.v[i]));
    }
    most = block_reduce(most, op_max_bits(), scratch);
    if (threadIdx.x == 0)
        (void)atomicMax(largest + (by_line ? blockIdx.x : 0), most);
}

/* Where lines lie side by side: a thread has a piece of them, over TILE elements along k. */
template <class T>
__global__ static void column_largest(unsigned *largest, const T *src, int64_t along, int64_t lines, int64_t k,
                                      bool by_line, bool whole)
{
    __shared__ unsigned scratch[WARP];
    const int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * piece<T>::N,
                  from = (int64_t)blockIdx.y * TILE;
    const int64_t to = from + TILE < k ? from + TILE : k;
    unsigned most[piece<T>::N] = {0}, all = 0;
    for (int64_t x = from; x < to && first < lines; x++) {
        const piece<T> p = piece_load(src + x * along + first, lines - first, whole);
        for (int i = 0; i < piece<T>::N; i++)
            most[i] = op_max_bits()(most[i], magnitude(p.v[i]));
    }
    for (int i = 0; i < piece<T>::N; i++) {
        if (by_line && first + i < lines)
            (void)atomicMax(largest + first + i, most[i]);
        all = op_max_bits()(all, most[i]);
    }
    if (by_line)
        return;
    all = block_reduce(all, op_max_bits(), scratch);
    if (threadIdx.x == 0)
        (void)atomicMax(largest, all);
}

/* From the largest magnitudes the scales, the one of all n times; they stand in inverse (n) until the codes are made.
 */
__global__ static void scales(unsigned *largest, float *inverse, int64_t n, float top, bool by_line, bool power_of_two)
{
    for (int64_t i = (int64_t)grid_first(); i < n; i += (int64_t)grid_stride()) {
        float most, scale;
        memcpy(&most, largest + (by_line ? i : 0), sizeof most);
        scale = (float)((double)top / (most != most ? (double)most : fmax((double)most, 1e-12)));
        if (power_of_two) {
            unsigned bits;
            memcpy(&bits, &scale, sizeof bits);
            bits &= 0xff800000u;
            memcpy(&scale, &bits, sizeof scale);
        }
        inverse[i] = scale;
    }
}

__global__ static void invert(float *x, int64_t n)
{
    for (int64_t i = (int64_t)grid_first(); i < n; i += (int64_t)grid_stride())
        x[i] = 1.0f / x[i];
}

/* --- codes -------------------------------------------------------------------------------------------------------- */

/* Dense lines: 16 codes a thread. */
template <class T>
__global__ static void codes(uint8_t *dst, const T *src, const float *scale, int64_t line, int64_t lines, int64_t k,
                             int64_t kp, bool e5m2, bool whole)
{
    const int64_t pieces = kp / 16;
    for (int64_t at = (int64_t)grid_first(); at < lines * pieces; at += (int64_t)grid_stride()) {
        const int64_t i = at / pieces, x = at % pieces * 16;
        const float by = scale[i];
        uint8_t out[16];
        for (int part = 0; part < 16; part += piece<T>::N) {
            const piece<T> p = piece_load(src + i * line + x + part, k - x - part, whole && x + 16 <= k);
            for (int j = 0; j < piece<T>::N; j++)
                out[part + j] = x + part + j < k ? encode(p.v[j] * by, e5m2) : (uint8_t)0;
        }
        uint4 bits;
        memcpy(&bits, out, sizeof bits);
        STORE_16(dst + i * kp + x, bits);
    }
}

/* Lines side by side: a tile of TILE by TILE goes through shared memory, pieces of lines in, 16 codes along k out. */
template <class T>
__global__ static void codes_across(uint8_t *dst, const T *src, const float *scale, int64_t along, int64_t lines,
                                    int64_t k, int64_t kp, bool e5m2, bool whole)
{
    enum { PIECES = TILE / piece<T>::N };
    __shared__ __align__(4) uint8_t tile[TILE][TILE + 4]; /* [line][k] */
    const int64_t line = (int64_t)blockIdx.x * TILE, from = (int64_t)blockIdx.y * TILE;
    for (int at = (int)threadIdx.x; at < TILE * PIECES; at += THREADS) {
        const int x = at / PIECES, i = at % PIECES * piece<T>::N;
        const int64_t left = from + x < k ? lines - line - i : 0;
        piece<T> p = {};
        if (left > 0)
            p = piece_load(src + (from + x) * along + line + i, left, whole);
        for (int j = 0; j < piece<T>::N; j++)
            tile[i + j][x] = j < left ? encode(p.v[j] * scale[line + i + j], e5m2) : (uint8_t)0;
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < TILE * (TILE / 16); at += THREADS) {
        const int i = at / (TILE / 16), x = at % (TILE / 16) * 16;
        if (line + i >= lines || from + x >= kp)
            continue;
        uint4 bits;
        memcpy(&bits, &tile[i][x], sizeof bits);
        STORE_16(dst + (line + i) * kp + from + x, bits);
    }
}

template <class T> static int make_codes(void *stream, const struct float8_operand o, const T *src)
{
    const bool dense = o.along == 1;
    const bool whole = in_pieces((size_t)(dense ? o.line : o.along) * sizeof(T), address(src)) &&
                       (dense ? o.k : o.lines) % piece<T>::N == 0;
    const float top = o.e5m2 ? 57344.0f : 448.0f;
    const unsigned tiles_k = (unsigned)((o.kp + TILE - 1) / TILE);
    int e =
        (int)cudaMemsetAsync(o.largest, 0, (size_t)(o.by_line ? o.lines : 1) * sizeof(unsigned), (cudaStream_t)stream);
    if (!e && dense)
        e = LAUNCH(line_largest<T>, (unsigned)o.lines, THREADS, 0, stream, o.largest, src, o.line, o.k, o.by_line,
                   whole);
    if (!e && !dense)
        e = LAUNCH(column_largest<T>,
                   dim3((unsigned)((o.lines + THREADS * piece<T>::N - 1) / (THREADS * piece<T>::N)), tiles_k), THREADS,
                   0, stream, o.largest, src, o.along, o.lines, o.k, o.by_line, whole);
    if (!e)
        e = LAUNCH(scales, grid_blocks((size_t)o.lines), THREADS, 0, stream, o.largest, o.inverse, o.lines, top,
                   o.by_line, o.power_of_two);
    if (!e && dense)
        e = LAUNCH(codes<T>, grid_blocks((size_t)(o.lines * o.kp / 16)), THREADS, 0, stream, o.codes, src, o.inverse,
                   o.line, o.lines, o.k, o.kp, o.e5m2, whole);
    if (!e && !dense)
        e = LAUNCH(codes_across<T>, dim3((unsigned)((o.lines + TILE - 1) / TILE), tiles_k), THREADS, 0, stream, o.codes,
                   src, o.inverse, o.along, o.lines, o.k, o.kp, o.e5m2, whole);
    return e ? e : LAUNCH(invert, grid_blocks((size_t)o.lines), THREADS, 0, stream, o.inverse, o.lines);
}

int cuda_float8(void *stream, const struct float8_operand *operand)
{
    return operand->bf16 ? make_codes(stream, *operand, (const bf16 *)operand->src)
                         : make_codes(stream, *operand, (const float *)operand->src);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

__global__ static void unscale(void *c, bool is_bf16, int64_t ldc, const float *sums, int64_t ld, const float *a,
                               const float *b, int64_t rows, int64_t n, bool accumulate)
{
    for (int64_t at = (int64_t)grid_first(); at < rows * n; at += (int64_t)grid_stride()) {
        const int64_t i = at / n, j = at % n;
        const float x = sums[i * ld + j] * a[i] * b[j];
        any_store(c, i * ldc + j, is_bf16, accumulate ? any_load(c, i * ldc + j, is_bf16) + x : x);
    }
}

int cuda_float8_unscale(void *stream, void *c, bool bf16, int64_t ldc, const float *sums, int64_t ld, const float *a,
                        const float *b, int64_t rows, int64_t n, bool accumulate)
{
    return LAUNCH(unscale, grid_blocks((size_t)(rows * n)), THREADS, 0, stream, c, bf16, ldc, sums, ld, a, b, rows, n,
                  accumulate);
}
