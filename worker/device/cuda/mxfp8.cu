/* SPDX-License-Identifier: Apache-2.0 */
/* mxfp8.cu - operands of a product as MXFP8: codes of e4m3, and a scale for each block of 32 along k (base/float8.h).
 * mx_scales.h defines the places of the scales. Operands are described as in float8.cu. */
#include "worker/device/cuda/float8.cuh"
#include "worker/device/cuda/mx_scales.h"

#define BLOCK 32
#define CODES 16 /* codes of a thread: half a block */

/* mx_scale() of base/float8.h. */
__device__ static inline unsigned scale_of(unsigned largest)
{
    const unsigned exponent = largest >> 23;
    return exponent == 255 ? 255u : exponent > 8 ? exponent - 8 : 0u;
}

/* The factor of the elements. A scale is at most 246, or NaN. */
__device__ static inline float inverse_of(unsigned scale)
{
    const unsigned bits = scale == 255 ? 0x7fc00000u : (254u - scale) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

__device__ static inline uint4 codes_of(const float *x, float inverse)
{
    uint32_t out[CODES / 4];
    uint4 bits;
    for (int j = 0; j < CODES / 4; j++, x += 4)
        out[j] = encode_4(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse, false);
    memcpy(&bits, out, sizeof bits);
    return bits;
}

/* Dense lines; two threads make a block. Blocks behind kp only fill up a tile of scales. They get the scale of a block
 * of zeros, and no codes. */
template <class T> __global__ static void blocks(struct float8_operand o, bool whole)
{
    const T *const src = (const T *)o.src;
    const int64_t halves = mx_tiles_across(o.kp / BLOCK) * MX_TILE_BLOCKS * 2, n = o.lines * halves;
    for (int64_t base = (int64_t)blockIdx.x * THREADS; base < n; base += (int64_t)gridDim.x * THREADS) {
        const int64_t at = base + threadIdx.x, i = at / halves, x = at % halves * CODES;
        float v[CODES] = {0};
        unsigned most = 0;
        for (int part = 0; part < CODES && at < n && x < o.k; part += piece<T>::N) {
            const piece<T> p =
                piece_of<T>(bits_within(src + i * o.line + x + part, o.k - x - part, whole && x + CODES <= o.k));
            for (int j = 0; j < piece<T>::N; j++) {
                v[part + j] = p.v[j];
                most = op_max_bits()(most, magnitude(p.v[j]));
            }
        }
        most = op_max_bits()(most, __shfl_xor_sync(FULL_WARP, most, 1)); /* the whole warp calls it: n is even */
        if (at >= n)
            continue;
        const unsigned scale = scale_of(most);
        if (x < o.kp)
            STORE_16(o.codes + i * o.kp + x, codes_of(v, inverse_of(scale)));
        if (x % BLOCK == 0)
            o.scales[mx_scale_place(i, x / BLOCK, o.kp / BLOCK)] = (uint8_t)scale;
    }
}

/* Lines that lie side by side. A tile of TILE by TILE goes through shared memory: pieces of lines in, codes along k
 * out. */
template <class T> __global__ static void blocks_across(struct float8_operand o, bool whole)
{
    enum { N = piece<T>::N, PIECES = TILE / N, HALVES = TILE / CODES };
    __shared__ __align__(16) T in[TILE][TILE + N];            /* [k][line] */
    __shared__ __align__(16) uint8_t out[TILE][TILE + CODES]; /* [line][k] */
    const int64_t line = (int64_t)blockIdx.x * TILE, from = (int64_t)blockIdx.y * TILE;
    for (int at = (int)threadIdx.x; at < TILE * PIECES; at += THREADS) {
        const int x = at / PIECES, i = at % PIECES * N;
        const int64_t left = from + x < o.k ? o.lines - line - i : 0;
        STORE_16(&in[x][i], bits_within((const T *)o.src + (from + x) * o.along + line + i, left, whole));
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < TILE * HALVES; at += THREADS) {
        const int i = at % TILE, x = at / TILE * CODES, block = x / BLOCK * BLOCK;
        float v[CODES];
        unsigned most = 0;
        for (int j = 0; j < BLOCK; j++)
            most = op_max_bits()(most, magnitude(num_load(&in[block + j][i])));
        for (int j = 0; j < CODES; j++)
            v[j] = num_load(&in[x + j][i]);
        const unsigned scale = scale_of(most);
        STORE_16(&out[i][x], codes_of(v, inverse_of(scale)));
        if (x == block && line + i < o.lines)
            o.scales[mx_scale_place(line + i, (from + x) / BLOCK, o.kp / BLOCK)] = (uint8_t)scale;
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < TILE * HALVES; at += THREADS) {
        const int i = at / HALVES, x = at % HALVES * CODES;
        if (line + i < o.lines && from + x < o.kp)
            STORE_16(o.codes + (line + i) * o.kp + from + x, LOAD_16(&out[i][x]));
    }
}

template <class T> static int make_blocks(void *stream, const struct float8_operand o)
{
    const bool dense = o.along == 1;
    const bool whole = in_pieces((size_t)(dense ? o.line : o.along) * sizeof(T), address(o.src)) &&
                       (dense ? o.k : o.lines) % piece<T>::N == 0;
    const int64_t padded = mx_tiles_across(o.kp / BLOCK) * MX_TILE_BLOCKS * BLOCK;
    if (dense)
        return LAUNCH(blocks<T>, grid_blocks((size_t)(o.lines * padded / CODES)), THREADS, 0, stream, o, whole);
    return LAUNCH(blocks_across<T>, dim3((unsigned)((o.lines + TILE - 1) / TILE), (unsigned)(padded / TILE)), THREADS,
                  0, stream, o, whole);
}

int cuda_mxfp8(void *stream, const struct float8_operand *operand)
{
    /* Clears scales of lines that only fill up a tile. No product uses them, but cuBLASLt reads them. */
    int e = 0;
    if (operand->lines % MX_TILE_LINES != 0)
        e = (int)cudaMemsetAsync(operand->scales, 0, mx_scales_bytes(operand->lines, operand->kp / BLOCK),
                                 (cudaStream_t)stream);
    if (e)
        return e;
    return operand->bf16 ? make_blocks<bf16>(stream, *operand) : make_blocks<float>(stream, *operand);
}
