/* SPDX-License-Identifier: Apache-2.0 */
/* float8.cu - converts operands of a product to float8 or int8 codes, and undoes the scales of its sums.
 *
 * An operand is `lines` lines of k elements, element (i, x) at src[i * line + x * along]. One of the two strides is 1.
 * The tensor cores need codes as lines of kp bytes, dense along k, and zero behind k. But if a line's scale is not
 * finite, the whole line is NaN in float8, even behind k. */
#include <float.h>

#include "worker/device/cuda/float8.cuh"

/* --- pieces ------------------------------------------------------------------------------------------------------- */

#define LOADS 4 /* pieces per thread: all loads are issued before the first piece is used */
#define BLOCK_PIECES (LOADS * THREADS)

/* Rows of cols elements, pitch apart, divided into pieces. There are fewer than 2^32 pieces unless the area is one
 * row. */
struct area {
    int64_t rows, cols, pitch;
    int64_t padded;  /* cols, or the length of a row of codes if that is more */
    int64_t per_row; /* pieces in a row; the last pieces may lie behind cols */
    int64_t whole;   /* this many pieces, from the first on, are one access each */
};

struct spot {
    int64_t row, x;
};

/* Returns the position of a thread's piece. If the piece does not exist, the position's x is behind the row. */
template <class T> __device__ static inline struct spot spot_of(const struct area &a, int64_t base, int piece_no)
{
    const int64_t at = base + piece_no * THREADS + threadIdx.x;
    const int64_t row = a.rows == 1 ? 0 : (int64_t)((uint32_t)at / (uint32_t)a.per_row);
    return {row, (row < a.rows ? at - row * a.per_row : a.per_row) * piece<T>::N};
}

template <class T>
__device__ static inline void load_pieces(uint4 *bits, const T *src, const struct area &a, int64_t base)
{
    const bool whole = base + BLOCK_PIECES <= a.whole;
    if (whole) {
#pragma unroll
        for (int u = 0; u < LOADS; u++) {
            const struct spot s = spot_of<T>(a, base, u);
            bits[u] = LOAD_16(src + s.row * a.pitch + s.x);
        }
        return;
    }
#pragma unroll
    for (int u = 0; u < LOADS; u++) {
        const struct spot s = spot_of<T>(a, base, u);
        bits[u] = bits_within(src + s.row * a.pitch + s.x, a.cols - s.x, false);
    }
}

/* Describes the operand as one row if the rows have no gaps. out: address of the codes. */
template <class T>
static struct area area_of(const T *src, int64_t rows, int64_t cols, int64_t pitch, int64_t padded, uintptr_t out)
{
    enum { N = piece<T>::N };
    struct area a = {rows, cols, pitch, padded, 0, 0};
    if (cols == pitch && cols == padded)
        a.rows = 1, a.cols = a.padded = rows * cols;
    const bool aligned = in_pieces(a.rows == 1 ? 0 : (size_t)pitch * sizeof(T), address(src) | out);
    a.per_row = (a.padded + N - 1) / N;
    if (aligned && a.cols == a.padded && (a.rows == 1 || a.cols % N == 0))
        a.whole = a.rows * (a.cols / N);
    return a;
}
static unsigned area_blocks(const struct area &a)
{
    return (unsigned)((a.rows * a.per_row + BLOCK_PIECES - 1) / BLOCK_PIECES);
}

/* --- the largest magnitudes --------------------------------------------------------------------------------------- */

template <class T> __device__ static inline unsigned largest_in(unsigned most, uint4 bits)
{
    const piece<T> p = piece_of<T>(bits);
    for (int i = 0; i < piece<T>::N; i++)
        most = op_max_bits()(most, magnitude(p.v[i]));
    return most;
}

template <class T> __global__ static void all_largest(unsigned *largest, const T *src, struct area a)
{
    __shared__ unsigned scratch[WARP];
    uint4 bits[LOADS];
    unsigned most = 0;
    load_pieces(bits, src, a, (int64_t)blockIdx.x * BLOCK_PIECES);
#pragma unroll
    for (int u = 0; u < LOADS; u++)
        most = largest_in<T>(most, bits[u]);
    most = block_reduce(most, op_max_bits(), scratch);
    if (threadIdx.x == 0)
        (void)atomicMax(largest, most);
}

/* Largest magnitude of each line, for lines that lie side by side. A thread has a piece of the lines, over TILE
 * elements along k. */
template <class T>
__global__ static void column_largest(unsigned *largest, const T *src, int64_t along, int64_t lines, int64_t k,
                                      bool whole)
{
    const int64_t first = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * piece<T>::N,
                  from = (int64_t)blockIdx.y * TILE;
    const int64_t to = from + TILE < k ? from + TILE : k;
    unsigned most[piece<T>::N] = {0};
    for (int64_t x = from; x < to && first < lines; x++) {
        const piece<T> p = piece_load(src + x * along + first, lines - first, whole);
        for (int i = 0; i < piece<T>::N; i++)
            most[i] = op_max_bits()(most[i], magnitude(p.v[i]));
    }
    for (int i = 0; i < piece<T>::N; i++)
        if (first + i < lines)
            (void)atomicMax(largest + first + i, most[i]);
}

/* --- scales ------------------------------------------------------------------------------------------------------- */

#define FLOAT8_LEAST 1e-12 /* a magnitude below it counts as this */

/* The scale for this largest magnitude. */
__device__ static inline float scale_of(unsigned largest, float top, double least, bool power_of_two)
{
    float most, scale;
    unsigned bits;
    memcpy(&most, &largest, sizeof most);
    scale = (float)((double)top / (most != most ? (double)most : fmax((double)most, least)));
    memcpy(&bits, &scale, sizeof bits);
    bits &= power_of_two ? 0xff800000u : 0xffffffffu;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* Makes a scale from each column of largest (ranks, n), rows ld apart. */
__global__ static void column_scales(float *scales, const float *largest, int64_t ld, int64_t ranks, int64_t n,
                                     float top, bool power_of_two)
{
    for (int64_t j = (int64_t)grid_first(); j < n; j += (int64_t)grid_stride()) {
        unsigned most = 0;
        for (int64_t i = 0; i < ranks; i++)
            most = op_max_bits()(most, magnitude(largest[i * ld + j]));
        scales[j] = scale_of(most, top, FLOAT8_LEAST, power_of_two);
    }
}

/* The factor of the elements: *given, or computed from the largest magnitudes. inverse: where the inverse scales go. */
struct scaling {
    const float *given;
    const unsigned *largest; /* largest magnitude of the whole operand, or of each line */
    float *inverse;          /* (lines) */
    int64_t lines;
    bool by_line, power_of_two, e5m2;
};

/* INT8 is 1 where codes are of int8, and 0 where they are of float8. */
template <int INT8> __device__ static inline float scale_after(const struct scaling &how, unsigned largest)
{
    const float top = INT8 ? 127.0f : how.e5m2 ? 57344.0f : 448.0f;
    return scale_of(largest, top, INT8 ? INT8_LEAST : FLOAT8_LEAST, how.power_of_two);
}
template <int INT8> __device__ static inline float scale_at(const struct scaling &how, int64_t line)
{
    return how.given ? *how.given : scale_after<INT8>(how, how.largest[how.by_line ? line : 0]);
}

__global__ static void fill_inverse(float *x, int64_t n, const float *scale)
{
    for (int64_t i = (int64_t)grid_first(); i < n; i += (int64_t)grid_stride())
        x[i] = 1.0f / *scale;
}

/* --- codes -------------------------------------------------------------------------------------------------------- */

/* The element type of codes, which are copied without a cast. */
struct code {
    uint8_t bits;
};
__host__ __device__ static inline void num_store(struct code *x, float)
{
    x->bits = 0;
}

/* The codes of a piece, four in a word. */
template <class T> struct code_words {
    enum { N = piece<T>::N / 4 };
    uint32_t w[N];
};

/* A given scale says nothing of an infinity: it becomes NaN, as it does with a scale of 0. OWN: the scale is of the
 * line's own largest magnitude. */
template <bool OWN> __device__ static inline float scaled(float x, float by)
{
    return x * (OWN || fabsf(x) <= FLT_MAX ? by : NAN);
}

/* The codes of four elements. */
template <int INT8> __device__ static inline uint32_t encode(float a, float b, float c, float d, bool e5m2)
{
    return INT8 ? encode_4_int8(a, b, c, d) : encode_4(a, b, c, d, e5m2);
}

template <class T, int INT8, bool OWN = INT8 != 0>
__device__ static inline code_words<T> encode_piece(uint4 bits, float by, bool e5m2)
{
    const piece<T> p = piece_of<T>(bits);
    code_words<T> words;
    for (int i = 0; i < words.N; i++)
        words.w[i] = encode<INT8>(scaled<OWN>(p.v[4 * i], by), scaled<OWN>(p.v[4 * i + 1], by),
                                  scaled<OWN>(p.v[4 * i + 2], by), scaled<OWN>(p.v[4 * i + 3], by), e5m2);
    return words;
}
template <> __device__ inline code_words<struct code> encode_piece<struct code, 0, false>(uint4 bits, float, bool)
{
    code_words<struct code> words;
    memcpy(words.w, &bits, sizeof words.w);
    return words;
}

/* The codes of element i of four pieces, one above the other. */
template <class T, int INT8>
__device__ static inline uint32_t encode_column(const uint4 *bits, int i, float by, bool e5m2)
{
    constexpr bool own = INT8 != 0;
    return encode<INT8>(scaled<own>(piece_of<T>(bits[0]).v[i], by), scaled<own>(piece_of<T>(bits[1]).v[i], by),
                        scaled<own>(piece_of<T>(bits[2]).v[i], by), scaled<own>(piece_of<T>(bits[3]).v[i], by), e5m2);
}
template <> __device__ inline uint32_t encode_column<struct code, 0>(const uint4 *bits, int i, float, bool)
{
    uint32_t word = 0;
    for (int row = 0; row < 4; row++) {
        uint8_t e[piece<struct code>::N];
        memcpy(e, bits + row, sizeof e);
        word |= (uint32_t)e[i] << 8 * row;
    }
    return word;
}

template <class T> __device__ static inline void store_codes(uint8_t *dst, const code_words<T> &words)
{
    if constexpr (words.N == 4)
        STORE_16(dst, (uint4{words.w[0], words.w[1], words.w[2], words.w[3]}));
    else if constexpr (words.N == 2)
        *(uint2 *)dst = {words.w[0], words.w[1]};
    else
        *(uint32_t *)dst = words.w[0];
}
template <class T> __device__ static inline void store_some(uint8_t *dst, const code_words<T> &words, int64_t room)
{
    for (int i = 0; i < piece<T>::N; i++)
        if (i < room)
            dst[i] = (uint8_t)(words.w[i / 4] >> i % 4 * 8);
}

/* Codes of dense lines with one scale. Blocks start at the end, because the cache still holds the end. */
template <class T, int INT8>
__global__ static void __launch_bounds__(THREADS, 6)
    codes(uint8_t *dst, const T *src, struct scaling how, struct area a)
{
    __shared__ float shared;
    const int64_t base = (int64_t)(gridDim.x - 1 - blockIdx.x) * BLOCK_PIECES;
    uint4 bits[LOADS];
    load_pieces(bits, src, a, base);
    if (threadIdx.x == 0)
        shared = scale_at<INT8>(how, 0);
    __syncthreads();
    const float by = shared;
    if (base + BLOCK_PIECES <= a.whole) {
#pragma unroll
        for (int u = 0; u < LOADS; u++)
            store_codes<T>(dst + (base + u * THREADS + threadIdx.x) * piece<T>::N,
                           encode_piece<T, INT8>(bits[u], by, how.e5m2));
    } else {
#pragma unroll
        for (int u = 0; u < LOADS; u++) {
            const struct spot s = spot_of<T>(a, base, u);
            store_some<T>(dst + s.row * a.padded + s.x, encode_piece<T, INT8>(bits[u], by, how.e5m2), a.padded - s.x);
        }
    }
    for (int64_t i = (int64_t)grid_first(); i < how.lines; i += (int64_t)grid_stride())
        how.inverse[i] = 1.0f / by;
}

/* Codes of dense lines with a scale each. A block has one line, which it reads twice. */
template <class T, int INT8> __global__ static void line_codes(struct float8_operand o, struct scaling how, bool whole)
{
    __shared__ unsigned scratch[WARP];
    __shared__ float shared;
    const T *const x = (const T *)o.src + blockIdx.x * o.line;
    unsigned most = 0;
#pragma unroll 4
    for (int64_t at = piece_first<T>(); at < o.k; at += piece_stride<T>())
        most = largest_in<T>(most, bits_load(x + at, o.k - at, whole));
    most = block_reduce(most, op_max_bits(), scratch);
    if (threadIdx.x == 0) {
        shared = scale_after<INT8>(how, most);
        how.inverse[blockIdx.x] = 1.0f / shared;
    }
    __syncthreads();
    const float by = shared;
#pragma unroll 4
    for (int64_t at = piece_first<T>(); at < o.kp; at += piece_stride<T>()) {
        const uint4 bits = bits_within(x + at, o.k - at, whole);
        store_codes<T>(o.codes + blockIdx.x * o.kp + at, encode_piece<T, INT8, true>(bits, by, how.e5m2));
    }
}

#define TILE_K 128   /* elements along k in a tile of TILE lines; memory is read and written in lines of this length */
#define TILE_GROUP 4 /* tiles along k that are made together, so that neither lines nor rows are far apart */

/* Codes of lines that lie side by side. A tile goes through shared memory: pieces of four rows in, 16 codes along k
 * out. The 16 bytes of its lines are permuted so that an access's banks differ. Blocks start at the end, as above. */
template <class T, int INT8>
__global__ static void __launch_bounds__(THREADS, sizeof(T) == 2 ? 6 : 4)
    codes_across(uint8_t *dst, const T *src, struct scaling how, int64_t along, int64_t k, int64_t kp, bool whole)
{
    const unsigned N = piece<T>::N, ACROSS = TILE / N, QUADS = TILE_K / 4, SIXTEENS = TILE_K / 16;
    __shared__ __align__(16) uint32_t tile[TILE][TILE_K / 4]; /* [line][k / 4] */
    __shared__ __align__(16) float scales[TILE];
    const unsigned block = gridDim.x - 1 - blockIdx.x, group = gridDim.y - 1 - blockIdx.y;
    const int64_t line = (int64_t)(block / TILE_GROUP) * TILE;
    const int64_t from = ((int64_t)group * TILE_GROUP + block % TILE_GROUP) * TILE_K;
    if (from >= kp)
        return;
    const bool inside = whole && line + TILE <= how.lines && from + TILE_K <= k;
#pragma unroll
    for (unsigned first = 0; first < QUADS * ACROSS; first += THREADS) {
        const unsigned at = first + threadIdx.x, p = at % ACROSS * N, q = at / ACROSS;
        const bool mine = q < QUADS;
        const T *const x = src + (from + 4 * q) * along + line + p;
        const int64_t rows = k - from - 4 * q, left = how.lines - line - p;
        uint4 bits[4] = {};
        float by[piece<T>::N];
        if (mine && inside) {
            for (int row = 0; row < 4; row++)
                bits[row] = LOAD_16(x + row * along);
        } else if (mine) {
            for (int row = 0; row < 4; row++)
                bits[row] = bits_within(x + row * along, row < rows ? left : 0, whole);
        }
        if (first == 0) {
            if (threadIdx.x < TILE && line + threadIdx.x < how.lines) {
                scales[threadIdx.x] = scale_at<INT8>(how, line + threadIdx.x);
                if (from == 0)
                    how.inverse[line + threadIdx.x] = 1.0f / scales[threadIdx.x];
            }
            __syncthreads();
        }
        for (unsigned i = 0; i < N; i++)
            by[i] = scales[p + i];
        for (unsigned i = 0; i < N && mine; i++)
            tile[p + i][q ^ (p + i) / 8 * 4] = encode_column<T, INT8>(bits, (int)i, by[i], how.e5m2);
    }
    __syncthreads();
#pragma unroll
    for (unsigned first = 0; first < TILE * SIXTEENS; first += THREADS) {
        const unsigned at = first + threadIdx.x, i = at / SIXTEENS, x = at % SIXTEENS;
        if (line + i < how.lines && from + 16 * x < kp)
            STORE_16(dst + (line + i) * kp + from + 16 * x, LOAD_16(&tile[i][(x ^ i / 8) * 4]));
    }
}

template <class T>
static int launch_largest(void *stream, unsigned *largest, const T *x, int64_t rows, int64_t cols, int64_t pitch)
{
    const struct area a = area_of(x, rows, cols, pitch, cols, 0);
    const int e = (int)cudaMemsetAsync(largest, 0, sizeof *largest, (cudaStream_t)stream);
    return e || cols == 0 ? e : LAUNCH(all_largest<T>, area_blocks(a), THREADS, 0, stream, largest, x, a);
}

/* Codes of an operand that is dense along k, with one scale. */
template <class T, int INT8 = 0>
static int launch_codes(void *stream, const struct float8_operand &o, const T *src, const struct scaling how)
{
    const struct area a = area_of(src, o.lines, o.k, o.line, o.kp, address(o.codes));
    return LAUNCH((codes<T, INT8>), area_blocks(a), THREADS, 0, stream, o.codes, src, how, a);
}

/* Whether the operand's rows in memory consist of whole pieces. */
template <class T> static bool lies_in_pieces(const struct float8_operand &o, const T *src)
{
    const bool dense = o.along == 1;
    return in_pieces((size_t)(dense ? o.line : o.along) * sizeof(T), address(src)) &&
           (dense ? o.k : o.lines) % piece<T>::N == 0;
}

template <class T, int INT8 = 0>
static int launch_across(void *stream, const struct float8_operand &o, const T *src, const struct scaling how)
{
    const int64_t across = (o.lines + TILE - 1) / TILE, group = TILE_K * TILE_GROUP;
    return LAUNCH((codes_across<T, INT8>),
                  dim3((unsigned)(across * TILE_GROUP), (unsigned)((o.kp + group - 1) / group)), THREADS, 0, stream,
                  o.codes, src, how, o.along, o.k, o.kp, lies_in_pieces(o, src));
}

static struct scaling scaling_of(const struct float8_operand &o, const float *given)
{
    return {given, o.largest, o.inverse, o.lines, o.by_line, o.power_of_two, o.e5m2};
}

template <class T, int INT8> static int make_codes(void *stream, const struct float8_operand o, const T *src)
{
    const bool dense = o.along == 1, whole = lies_in_pieces(o, src);
    const struct scaling how = scaling_of(o, o.given);
    int e = 0;
    if (dense && o.by_line)
        return LAUNCH((line_codes<T, INT8>), (unsigned)o.lines, THREADS, 0, stream, o, how, whole);
    if (o.given)
        return dense ? launch_codes<T, INT8>(stream, o, src, how) : launch_across<T, INT8>(stream, o, src, how);
    if (!o.by_line)
        e = dense ? launch_largest(stream, o.largest, src, o.lines, o.k, o.line)
                  : launch_largest(stream, o.largest, src, o.k, o.lines, o.along);
    else
        e = (int)cudaMemsetAsync(o.largest, 0, (size_t)o.lines * sizeof *o.largest, (cudaStream_t)stream);
    if (!e && o.by_line)
        e = LAUNCH(column_largest<T>,
                   dim3((unsigned)((o.lines + THREADS * piece<T>::N - 1) / (THREADS * piece<T>::N)),
                        (unsigned)((o.k + TILE - 1) / TILE)),
                   THREADS, 0, stream, o.largest, src, o.along, o.lines, o.k, whole);
    if (e)
        return e;
    return dense ? launch_codes<T, INT8>(stream, o, src, how) : launch_across<T, INT8>(stream, o, src, how);
}

int cuda_float8(void *stream, const struct float8_operand *operand)
{
    const bf16 *const narrow = (const bf16 *)operand->src;
    const float *const wide = (const float *)operand->src;
    if (operand->int8)
        return operand->bf16 ? make_codes<bf16, 1>(stream, *operand, narrow)
                             : make_codes<float, 1>(stream, *operand, wide);
    return operand->bf16 ? make_codes<bf16, 0>(stream, *operand, narrow) : make_codes<float, 0>(stream, *operand, wide);
}

int cuda_float8_take(void *stream, const struct float8_operand *o, const float *scale)
{
    const struct code *const src = (const struct code *)o->src;
    const struct scaling how = scaling_of(*o, scale);
    if (address(src) == address(o->codes))
        return LAUNCH(fill_inverse, grid_blocks((size_t)o->lines), THREADS, 0, stream, o->inverse, o->lines, scale);
    return o->along == 1 ? launch_codes(stream, *o, src, how) : launch_across(stream, *o, src, how);
}

int cuda_float8_largest(void *stream, float *largest, const void *x, bool bf16, size_t n)
{
    unsigned *const bits = (unsigned *)largest;
    return bf16 ? launch_largest(stream, bits, (const struct bf16 *)x, 1, (int64_t)n, (int64_t)n)
                : launch_largest(stream, bits, (const float *)x, 1, (int64_t)n, (int64_t)n);
}

int cuda_float8_scales(void *stream, float *scales, const float *largest, int64_t ld, int64_t ranks, int64_t n,
                       bool power_of_two)
{
    return LAUNCH(column_scales, grid_blocks((size_t)n), THREADS, 0, stream, scales, largest, ld, ranks, n, 448.0f,
                  power_of_two);
}

int cuda_float8_encode(void *stream, uint8_t *codes, const void *x, bool bf16, size_t n, const float *scale)
{
    struct float8_operand o = {};
    struct scaling how = {};
    o.codes = codes, o.lines = 1;
    o.k = o.kp = o.line = (int64_t)n;
    how.given = scale;
    return bf16 ? launch_codes(stream, o, (const struct bf16 *)x, how) : launch_codes(stream, o, (const float *)x, how);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

template <class Sum> __global__ static void unscale(struct float8_sums s)
{
    const Sum *const sums = (const Sum *)s.sums;
    for (int64_t at = (int64_t)grid_first(); at < s.rows * s.n; at += (int64_t)grid_stride()) {
        const int64_t i = at / s.n, j = at % s.n, to = i * s.ldc + j;
        const float sum = (float)sums[i * s.ld + j], x = s.a ? sum * s.a[i] * s.b[j] : sum;
        any_store(s.c, to, s.bf16, s.accumulate ? any_load(s.c, to, s.bf16) + x : x);
    }
}

int cuda_float8_unscale(void *stream, const struct float8_sums *sums)
{
    const unsigned blocks = grid_blocks((size_t)(sums->rows * sums->n));
    return sums->int8 ? LAUNCH(unscale<int>, blocks, THREADS, 0, stream, *sums)
                      : LAUNCH(unscale<float>, blocks, THREADS, 0, stream, *sums);
}

/* --- rows of int8 codes ------------------------------------------------------------------------------------------- */

/* A thread has 16 codes of a row. pitch: codes of a row; whole: rows of values are whole pieces. */
template <class T> __global__ static void row_values(struct rows_decode_args a, int64_t pitch, bool whole)
{
    const int64_t per_row = pitch / 16;
    const float *const one = (const float *)(a.codes + a.n * pitch);
    for (int64_t at = (int64_t)grid_first(); at < a.n * per_row; at += (int64_t)grid_stride()) {
        const int64_t row = at / per_row, x = at % per_row * 16;
        const uint4 bits = LOAD_16(a.codes + at * 16);
        const float by = one[row];
        int8_t code[16];
        T value[16];
        T *const to = (T *)a.out + row * a.c + x;
        memcpy(code, &bits, sizeof code);
        for (int i = 0; i < 16; i++)
            num_store(value + i, (float)code[i] * by);
        if (whole && x + 16 <= a.c) {
            for (int i = 0; i < 16; i += piece<T>::N) {
                uint4 words;
                memcpy(&words, value + i, sizeof words);
                STORE_16(to + i, words);
            }
        } else {
            for (int i = 0; i < 16; i++)
                if (x + i < a.c)
                    to[i] = value[i];
        }
    }
}

int cuda_rows_decode(void *stream, const struct rows_decode_args *a)
{
    const int64_t pitch = int8_row_codes(a->c);
    const size_t pieces = (size_t)(a->n * (pitch / 16));
    const bool whole = in_pieces((size_t)a->c * dtype_bytes(a->dt), address(a->out));
    return pieces == 0 ? 0
                       : TYPED(a->dt, LAUNCH(row_values<T>, grid_blocks(pieces), THREADS, 0, stream, *a, pitch, whole));
}
