/* SPDX-License-Identifier: Apache-2.0 */
/* float8.cu - operands of a product as float8 codes, and what is left to do to its sums.
 *
 * An operand is `lines` lines of k elements, element (i, x) at src[i * line + x * along]: one of the two strides is 1.
 * Its codes go to dst as lines of kp bytes, dense along k, zero behind k: what the tensor cores take. */
#include "worker/device/cuda/float8.cuh"

/* --- the largest magnitudes --------------------------------------------------------------------------------------- */

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

/* Of n elements in a row, by all blocks. */
template <class T> __global__ static void all_largest(unsigned *largest, const T *x, int64_t n, bool whole)
{
    enum { N = piece<T>::N };
    __shared__ unsigned scratch[WARP];
    unsigned most = 0;
    for (int64_t at = (int64_t)grid_first() * N; at < n; at += (int64_t)grid_stride() * N) {
        const piece<T> p = piece_load(x + at, n - at, whole && at + N <= n);
        for (int i = 0; i < N; i++)
            most = op_max_bits()(most, magnitude(p.v[i]));
    }
    most = block_reduce(most, op_max_bits(), scratch);
    if (threadIdx.x == 0)
        (void)atomicMax(largest, most);
}

/* The scale of what has this largest magnitude. */
__device__ static inline float scale_of(unsigned bits, float top)
{
    float most;
    memcpy(&most, &bits, sizeof most);
    return (float)((double)top / (most != most ? (double)most : fmax((double)most, 1e-12)));
}

/* From the largest magnitudes the scales, the one of all n times; they stand in inverse (n) until the codes are made.
 */
__global__ static void scales(unsigned *largest, float *inverse, int64_t n, float top, bool by_line, bool power_of_two)
{
    for (int64_t i = (int64_t)grid_first(); i < n; i += (int64_t)grid_stride()) {
        float scale = scale_of(largest[by_line ? i : 0], top);
        if (power_of_two) {
            unsigned bits;
            memcpy(&bits, &scale, sizeof bits);
            bits &= 0xff800000u;
            memcpy(&scale, &bits, sizeof scale);
        }
        inverse[i] = scale;
    }
}

/* Columns of largest (ranks, n), rows ld apart. */
__global__ static void column_scales(float *scales, const float *largest, int64_t ld, int64_t ranks, int64_t n,
                                     float top)
{
    for (int64_t j = (int64_t)grid_first(); j < n; j += (int64_t)grid_stride()) {
        unsigned most = 0;
        for (int64_t i = 0; i < ranks; i++)
            most = op_max_bits()(most, magnitude(largest[i * ld + j]));
        scales[j] = scale_of(most, top);
    }
}

__global__ static void fill_inverse(float *x, int64_t n, const float *scale)
{
    for (int64_t i = (int64_t)grid_first(); i < n; i += (int64_t)grid_stride())
        x[i] = 1.0f / *scale;
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

/* 16 codes a thread of n elements in a row. */
template <class T>
__global__ static void encode_row(uint8_t *dst, const T *x, int64_t n, const float *scale, bool e5m2, bool whole)
{
    const float by = *scale;
    for (int64_t at = (int64_t)grid_first() * 16; at < n; at += (int64_t)grid_stride() * 16) {
        const bool all = whole && at + 16 <= n;
        uint8_t out[16];
        for (int part = 0; part < 16; part += piece<T>::N) {
            const piece<T> p = piece_load(x + at + part, n - at - part, all);
            for (int j = 0; j < piece<T>::N; j++)
                out[part + j] = encode(p.v[j] * by, e5m2);
        }
        uint4 bits;
        memcpy(&bits, out, sizeof bits);
        if (all)
            STORE_16(dst + at, bits);
        else
            for (int j = 0; j < 16 && at + j < n; j++)
                dst[at + j] = out[j];
    }
}

/* Codes that lie in lines side by side, or in lines that are no pieces: as codes_across, without a cast. */
__global__ static void turn_codes(uint8_t *dst, const uint8_t *src, int64_t line, int64_t along, int64_t lines,
                                  int64_t k, int64_t kp, bool whole)
{
    __shared__ __align__(4) uint8_t tile[TILE][TILE + 4]; /* [line][k] */
    const int64_t first = (int64_t)blockIdx.x * TILE, from = (int64_t)blockIdx.y * TILE;
    for (int at = (int)threadIdx.x; at < TILE * (TILE / 16); at += THREADS) {
        /* 16 that lie beside each other: of a line, or of so many lines */
        const int row = at / (TILE / 16), col = at % (TILE / 16) * 16;
        const int64_t i = first + (along == 1 ? row : col), x = from + (along == 1 ? col : row);
        const int64_t left = along == 1 ? (i < lines ? k - x : 0) : (x < k ? lines - i : 0);
        uint8_t in[16] = {0};
        if (whole && left >= 16) {
            const uint4 bits = LOAD_16(src + i * line + x * along);
            memcpy(in, &bits, sizeof bits);
        } else {
            for (int j = 0; j < 16 && j < left; j++)
                in[j] = src[i * line + x * along + j];
        }
        for (int j = 0; j < 16; j++)
            tile[along == 1 ? row : col + j][along == 1 ? col + j : row] = in[j];
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < TILE * (TILE / 16); at += THREADS) {
        const int i = at / (TILE / 16), x = at % (TILE / 16) * 16;
        if (first + i >= lines || from + x >= kp)
            continue;
        uint4 bits;
        memcpy(&bits, &tile[i][x], sizeof bits);
        STORE_16(dst + (first + i) * kp + from + x, bits);
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

int cuda_float8_take(void *stream, const struct float8_operand *o, const float *scale)
{
    const uint8_t *const src = (const uint8_t *)o->src;
    const bool whole = in_pieces((size_t)(o->along == 1 ? o->line : o->along), address(src));
    const dim3 tiles((unsigned)((o->lines + TILE - 1) / TILE), (unsigned)((o->kp + TILE - 1) / TILE));
    int e = 0;
    if (src != o->codes)
        e = LAUNCH(turn_codes, tiles, THREADS, 0, stream, o->codes, src, o->line, o->along, o->lines, o->k, o->kp,
                   whole);
    return e ? e : LAUNCH(fill_inverse, grid_blocks((size_t)o->lines), THREADS, 0, stream, o->inverse, o->lines, scale);
}

template <class T> static int largest_of(void *stream, float *largest, const T *x, size_t n)
{
    const int e = (int)cudaMemsetAsync(largest, 0, sizeof *largest, (cudaStream_t)stream);
    if (e || n == 0)
        return e;
    return LAUNCH(all_largest<T>, grid_blocks((n + piece<T>::N - 1) / piece<T>::N), THREADS, 0, stream,
                  (unsigned *)largest, x, (int64_t)n, in_pieces(0, address(x)));
}

int cuda_float8_largest(void *stream, float *largest, const void *x, bool bf16, size_t n)
{
    return bf16 ? largest_of(stream, largest, (const struct bf16 *)x, n)
                : largest_of(stream, largest, (const float *)x, n);
}

int cuda_float8_scales(void *stream, float *scales, const float *largest, int64_t ld, int64_t ranks, int64_t n)
{
    return LAUNCH(column_scales, grid_blocks((size_t)n), THREADS, 0, stream, scales, largest, ld, ranks, n, 448.0f);
}

template <class T> static int encode_of(void *stream, uint8_t *codes, const T *x, size_t n, const float *scale)
{
    return LAUNCH(encode_row<T>, grid_blocks((n + 15) / 16), THREADS, 0, stream, codes, x, (int64_t)n, scale, false,
                  in_pieces(0, address(x) | address(codes)));
}

int cuda_float8_encode(void *stream, uint8_t *codes, const void *x, bool bf16, size_t n, const float *scale)
{
    return bf16 ? encode_of(stream, codes, (const struct bf16 *)x, n, scale)
                : encode_of(stream, codes, (const float *)x, n, scale);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

__global__ static void unscale(void *c, bool is_bf16, int64_t ldc, const float *sums, int64_t ld, const float *a,
                               const float *b, int64_t rows, int64_t n, bool accumulate)
{
    for (int64_t at = (int64_t)grid_first(); at < rows * n; at += (int64_t)grid_stride()) {
        const int64_t i = at / n, j = at % n;
        const float sum = sums[i * ld + j], x = a ? sum * a[i] * b[j] : sum;
        any_store(c, i * ldc + j, is_bf16, accumulate ? any_load(c, i * ldc + j, is_bf16) + x : x);
    }
}

int cuda_float8_unscale(void *stream, void *c, bool bf16, int64_t ldc, const float *sums, int64_t ld, const float *a,
                        const float *b, int64_t rows, int64_t n, bool accumulate)
{
    return LAUNCH(unscale, grid_blocks((size_t)(rows * n)), THREADS, 0, stream, c, bf16, ldc, sums, ld, a, b, rows, n,
                  accumulate);
}
