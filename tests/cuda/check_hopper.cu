/* SPDX-License-Identifier: Apache-2.0 */
/* check_hopper [MISTAKE] - what worker/device/cuda/hopper.cuh has, alone: tiles are copied and multiplied by products
 * of every width, from shared memory and from registers, against sums of integers, which are exact; TAP. With the name
 * of a mistake it is made, which the emulator answers with a message and the end of the program. */
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#include "worker/device/cuda/hopper.cuh"

enum mistake {
    NONE,
    UNKNOWN_BARRIER, /* no fence between a barrier's initialisation and the copy */
    TOO_EARLY,       /* no wait for the copy */
    OLD_PHASE,       /* a wait for the phase before */
    TOO_FEW_BYTES,   /* the barrier is told less than comes */
    TOO_MANY_BYTES,  /* more */
    NO_FENCE,        /* none of the registers */
    SUMS_READ_EARLY, /* before the wait: not a message, NaN */
    SUMS_WRITTEN,    /* while a product is under way */
    REFILLED_EARLY,  /* the tile, while a product may read it */
    PLAIN_STORES,    /* to a tile, and no fence */
    NOT_ALL_WARPS,   /* one does not come to the product */
    NO_COPY_WAIT,    /* the block ends before its copy has landed */
    NO_PRODUCT_WAIT, /* or before its product has been waited for */
    ADDED_UNFENCED,  /* sums that plain stores wrote, and no fence */
    NO_ADD_WAIT,     /* the block ends before its sums were added */
    ADDED_OVER,      /* they are written again before they were: not a message, other sums */
    MISTAKES
};

#define ROUNDS 2 /* fills of the one stage */

/* c (64, N) = a (64, 128) . b (N, 128), along columns; then d (64, W) = c as bf16, its first 64 columns, . e (64, W),
 * along rows. */
template <int N, int W, int MISTAKE>
__global__ static void __launch_bounds__(MMA_THREADS)
    multiply(const __grid_constant__ tile_map a, const __grid_constant__ tile_map b, const __grid_constant__ tile_map e,
             float *c, float *d)
{
#if HOPPER_CODE
    DYNAMIC_SHARED(shared);
    char *const memory = tile_memory(shared), *const of_b = memory + 64 * TILE_ROW_BYTES,
                *const of_e = of_b + N * TILE_ROW_BYTES;
    tile_barrier *const filled = (tile_barrier *)(of_e + 64 * TILE_ROW_BYTES * (W / 64)), *const third = filled + 1;
    const int thread = (int)threadIdx.x;
    const unsigned bytes = (64 + N) * TILE_ROW_BYTES;
    float s[N / 2], t[W / 2] = {};
    uint32_t p[16];

    if (thread == 0) {
        barrier_init(filled, 1);
        barrier_init(third, 1);
        if (MISTAKE != UNKNOWN_BARRIER)
            fence_async();
    }
    __syncthreads();
    if (thread == 0) {
        barrier_arrive_for(third, 64 * TILE_ROW_BYTES * (W / 64));
        for (int i = 0; i < W / 64; i++)
            copy_tile(of_e + i * 64 * TILE_ROW_BYTES, &e, third, 64 * i, 0, 0, 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        if (thread == 0) {
            barrier_arrive_for(filled,
                               MISTAKE == TOO_FEW_BYTES ? bytes - 16 : bytes + (MISTAKE == TOO_MANY_BYTES ? 16 : 0));
            copy_tile(memory, &a, filled, 64 * round, 0, 0, 0);
            copy_tile(of_b, &b, filled, 64 * round, 0, 0, 0);
        }
        if (MISTAKE != TOO_EARLY)
            barrier_wait(filled, (unsigned)(MISTAKE == OLD_PHASE ? round - 1 : round) & 1);
        if (MISTAKE == PLAIN_STORES && thread == 0)
            of_b[16]++;
        if (MISTAKE != NO_FENCE)
            mma_fence();
        for (int i = 0; i < 4 && (MISTAKE != NOT_ALL_WARPS || thread < 96); i++)
            mma_tiles(s, along_columns(tile_address(memory) + 32 * i), along_columns(tile_address(of_b) + 32 * i),
                      i > 0 || round > 0);
        mma_commit();
        if (MISTAKE == SUMS_READ_EARLY)
            c[thread * (N / 2)] = s[0];
        if (MISTAKE == SUMS_WRITTEN)
            s[0] = 1.0f;
        if (MISTAKE == REFILLED_EARLY && thread == 0)
            copy_tile(memory, &a, filled, 0, 0, 0, 0);
        if (MISTAKE == NO_PRODUCT_WAIT)
            return;
        mma_wait<0>(s);
        __syncthreads();
    }
    for (int i = MISTAKE == SUMS_READ_EARLY; i < N / 2; i++)
        c[thread * (N / 2) + i] = s[i];
    if (MISTAKE == NO_COPY_WAIT)
        return;
    barrier_wait(third, 0);
    for (int i = 0; i < 16; i++) { /* c / 64, which bf16 holds */
        bf16 pair[2];
        num_store(pair, truncf(s[2 * i] / 64));
        num_store(pair + 1, truncf(s[2 * i + 1] / 64));
        p[i] = pair[0].bits | (uint32_t)pair[1].bits << 16;
    }
    mma_settle(p);
    mma_settle(t);
    mma_fence();
    for (int i = 0; i < 4; i++)
        mma_registers(t, p + 4 * i,
                      along_rows(tile_address(of_e) + i * MMA_DEPTH * TILE_ROW_BYTES, 64 * TILE_ROW_BYTES));
    mma_commit();
    mma_wait<0>(t);
    for (int i = 0; i < W / 2; i++)
        d[thread * (W / 2) + i] = t[i];
#endif
}

/* c (64, N) = a (64, 128) . b (128, N) with b along its rows; A_ROWS: a (128, 64) along its rows, too. */
template <int N, bool A_ROWS>
__global__ static void __launch_bounds__(MMA_THREADS)
    multiply_rows(const __grid_constant__ tile_map a, const __grid_constant__ tile_map b, float *c)
{
#if HOPPER_CODE
    DYNAMIC_SHARED(shared);
    enum { TILE = 64 * TILE_ROW_BYTES };
    char *const of_a = tile_memory(shared), *const of_b = of_a + 2 * TILE;
    tile_barrier *const filled = (tile_barrier *)(of_b + 2 * (N / 64) * TILE);
    const int thread = (int)threadIdx.x;
    float s[N / 2];

    if (thread == 0) {
        barrier_init(filled, 1);
        fence_async();
    }
    __syncthreads();
    if (thread == 0) {
        barrier_arrive_for(filled, (2 + 2 * (N / 64)) * TILE);
        for (int half = 0; half < 2; half++) {
            copy_tile(of_a + half * TILE, &a, filled, A_ROWS ? 0 : 64 * half, A_ROWS ? 64 * half : 0, 0, 0);
            for (int i = 0; i < N / 64; i++)
                copy_tile(of_b + (half * (N / 64) + i) * TILE, &b, filled, 64 * i, 64 * half, 0, 0);
        }
    }
    barrier_wait(filled, 0);
    mma_fence();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t at_a = tile_address(of_a) + i / 4 * TILE, at_b = tile_address(of_b) + i / 4 * (N / 64) * TILE;
        const uint32_t rows = i % 4 * MMA_DEPTH * TILE_ROW_BYTES;
        mma_tiles<A_ROWS, true>(s, A_ROWS ? along_rows(at_a + rows, TILE) : along_columns(at_a + i % 4 * 32),
                                along_rows(at_b + rows, TILE), i > 0);
    }
    mma_commit();
    mma_wait<0>(s);
    for (int i = 0; i < N / 2; i++)
        c[thread * (N / 2) + i] = s[i];
#endif
}

/* c (64, 64), as thread by thread lies in registers, += twice x' . b: x (64, 64) comes to its tile by plain stores. */
template <int MISTAKE>
__global__ static void __launch_bounds__(MMA_THREADS)
    multiply_stored(const __grid_constant__ tile_map b, const bf16 *x, float *c)
{
#if HOPPER_CODE
    DYNAMIC_SHARED(shared);
    enum { TILE = 64 * TILE_ROW_BYTES, OWN = 32 * WARP * (int)sizeof(float) };
    char *const of_x = tile_memory(shared), *const of_b = of_x + TILE;
    tile_barrier *const filled = (tile_barrier *)(of_b + TILE);
    const int thread = (int)threadIdx.x, warp = thread / WARP, lane = thread % WARP;
    char *const sums = (char *)(filled + 2) + warp * OWN;
    float s[32];

    if (thread == 0) {
        barrier_init(filled, 1);
        fence_async();
    }
    __syncthreads();
    if (thread == 0) {
        barrier_arrive_for(filled, TILE);
        copy_tile(of_b, &b, filled, 0, 0, 0, 0);
    }
    for (int i = 0; i < 4; i++) {
        uint32_t square[4];
        for (int j = 0; j < 4; j++) {
            const bf16 *const at = x + (warp * 16 + j % 2 * 8 + lane / 4) * 64 + i * 16 + j / 2 * 8 + lane % 4 * 2;
            square[j] = two_bf16(num_load(at), num_load(at + 1));
        }
        store_square(of_x, warp * 16, i * 16, square);
    }
    fence_stores();
    __syncthreads();
    barrier_wait(filled, 0);
    mma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        mma_tiles<true, true>(s, further(along_rows(tile_address(of_x), TILE), i * MMA_DEPTH * TILE_ROW_BYTES),
                              further(along_rows(tile_address(of_b), TILE), i * MMA_DEPTH * TILE_ROW_BYTES), i > 0);
    mma_commit();
    mma_wait<0>(s);
    for (int twice = 0; twice < 2; twice++) {
        if (lane == 0 && MISTAKE != ADDED_OVER)
            add_wait();
        __syncwarp();
        for (int i = 0; i < 32; i++)
            *(float *)(sums + (i * WARP + lane) * 4) = twice ? 2 * s[i] : s[i];
        if (MISTAKE != ADDED_UNFENCED)
            fence_stores();
        __syncwarp();
        if (lane == 0)
            add_sums(c + warp * 32 * WARP, sums, OWN);
    }
    if (lane == 0 && MISTAKE != NO_ADD_WAIT)
        add_wait();
#endif
}

/* --- data on the host --------------------------------------------------------------------------------------------- */

static int check(cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        printf("# %s: %s\n", what, cudaGetErrorString(e));
    return e == cudaSuccess ? 0 : 1;
}

struct matrix {
    int rows, columns;
    std::vector<float> x;
    void *device;
};

/* Small integers, which any sum of products here holds exactly. */
static int matrix_open(struct matrix *m, int rows, int columns, unsigned seed)
{
    std::vector<bf16> bits((size_t)rows * (size_t)columns);
    m->rows = rows, m->columns = columns, m->x.resize(bits.size());
    for (size_t i = 0; i < bits.size(); i++) {
        seed = seed * 1664525u + 1013904223u;
        m->x[i] = (float)((int)(seed >> 24) % 9 - 4);
        num_store(&bits[i], m->x[i]);
    }
    void *staged = NULL;
    if (check(cudaMalloc(&m->device, bits.size() * 2), "memory") ||
        check(cudaHostAlloc(&staged, bits.size() * 2, 0), "memory"))
        return 1;
    memcpy(staged, bits.data(), bits.size() * 2);
    cudaStream_t stream;
    int bad = check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    bad = bad || check(cudaMemcpyAsync(m->device, staged, bits.size() * 2, cudaMemcpyDefault, stream), "a copy") ||
          check(cudaStreamSynchronize(stream), "a copy") || check(cudaStreamDestroy(stream), "a stream");
    return bad || check(cudaFreeHost(staged), "memory");
}

static int map_of(tile_map *ret, const struct matrix *m, int box_rows)
{
    const struct tile_tensor x = {m->device, m->columns, m->rows,    1,
                                  1,         m->columns, m->columns, (int64_t)m->rows * m->columns};
    return check(tile_map_make(ret, &x, box_rows) ? cudaSuccess : cudaErrorInvalidValue, "a map");
}

/* The element of a tile of 64 rows that is thread t's sum i: its row, its column. */
static int row_of(int t, int i)
{
    return t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
}
static int column_of(int t, int i)
{
    return i / 4 * 8 + t % 4 * 2 + i % 2;
}

/* Of a tensor that ends before its boxes do: zeros behind. */
template <int N, int W, int MISTAKE> static int run(int columns)
{
    struct matrix a = {}, b = {}, e = {};
    tile_map of_a, of_b, of_e;
    float *c = NULL, *d = NULL;
    cudaStream_t stream;
    const int bytes = (64 + N + 64 * (W / 64)) * TILE_ROW_BYTES + 2 * (int)sizeof(tile_barrier) + TILE_ALIGN;
    auto kernel = multiply<N, W, MISTAKE>;
    if (matrix_open(&a, 64, columns, 1) || matrix_open(&b, N, columns, 2) || matrix_open(&e, 64, W, 3) ||
        map_of(&of_a, &a, 64) || map_of(&of_b, &b, N) || map_of(&of_e, &e, 64) ||
        check(cudaHostAlloc((void **)&c, MMA_THREADS * N / 2 * sizeof(float), 0), "memory") ||
        check(cudaHostAlloc((void **)&d, MMA_THREADS * W / 2 * sizeof(float), 0), "memory") ||
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream") ||
        check(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "memory"))
        return 1;
    if (check((cudaError_t)LAUNCH(kernel, 1, MMA_THREADS, bytes, stream, of_a, of_b, of_e, c, d), "a launch") ||
        check(cudaStreamSynchronize(stream), "the kernel"))
        return 1;
    int wrong = 0;
    std::vector<float> sums(64 * N);
    for (int t = 0; t < MMA_THREADS; t++)
        for (int i = 0; i < N / 2; i++) {
            float want = 0;
            for (int k = 0; k < columns; k++)
                want += a.x[(size_t)(row_of(t, i) * columns + k)] * b.x[(size_t)(column_of(t, i) * columns + k)];
            sums[(size_t)(row_of(t, i) * N + column_of(t, i))] = want;
            wrong += !(c[t * (N / 2) + i] == want);
        }
    for (int t = 0; t < MMA_THREADS; t++)
        for (int i = 0; i < W / 2; i++) {
            float want = 0;
            for (int k = 0; k < 64; k++)
                want += truncf(sums[(size_t)(row_of(t, i) * N + k)] / 64) * e.x[(size_t)(k * W + column_of(t, i))];
            wrong += !(d[t * (W / 2) + i] == want);
        }
    printf("%s - tiles of %d columns by 64 and %d rows, then by %d columns: %d sums differ\n", wrong ? "not ok" : "ok",
           columns, N, W, wrong);
    return wrong > 0;
}

template <int N, bool A_ROWS> static int run_rows(int depth)
{
    struct matrix a = {}, b = {};
    tile_map of_a, of_b;
    float *c = NULL;
    cudaStream_t stream;
    const int bytes = (2 + 2 * (N / 64)) * 64 * TILE_ROW_BYTES + 2 * (int)sizeof(tile_barrier) + TILE_ALIGN;
    auto kernel = multiply_rows<N, A_ROWS>;
    if (matrix_open(&a, A_ROWS ? depth : 64, A_ROWS ? 64 : depth, 4) || matrix_open(&b, depth, N, 5) ||
        map_of(&of_a, &a, 64) || map_of(&of_b, &b, 64) ||
        check(cudaHostAlloc((void **)&c, MMA_THREADS * N / 2 * sizeof(float), 0), "memory") ||
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream") ||
        check(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "memory"))
        return 1;
    if (check((cudaError_t)LAUNCH(kernel, 1, MMA_THREADS, bytes, stream, of_a, of_b, c), "a launch") ||
        check(cudaStreamSynchronize(stream), "the kernel"))
        return 1;
    int wrong = 0;
    for (int t = 0; t < MMA_THREADS; t++)
        for (int i = 0; i < N / 2; i++) {
            float want = 0;
            for (int k = 0; k < depth; k++)
                want += a.x[(size_t)(A_ROWS ? k * 64 + row_of(t, i) : row_of(t, i) * depth + k)] *
                        b.x[(size_t)(k * N + column_of(t, i))];
            wrong += !(c[t * (N / 2) + i] == want);
        }
    printf("%s - %d deep, %s by %d columns along rows: %d sums differ\n", wrong ? "not ok" : "ok", depth,
           A_ROWS ? "64 columns along rows" : "64 rows along columns", N, wrong);
    return wrong > 0;
}

template <int MISTAKE> static int run_stored(void)
{
    struct matrix x = {}, b = {};
    tile_map of_b;
    float *c = NULL;
    cudaStream_t stream;
    const int bytes =
        2 * 64 * TILE_ROW_BYTES + 64 * 64 * (int)sizeof(float) + 2 * (int)sizeof(tile_barrier) + TILE_ALIGN;
    auto kernel = multiply_stored<MISTAKE>;
    if (matrix_open(&x, 64, 64, 6) || matrix_open(&b, 64, 64, 7) || map_of(&of_b, &b, 64) ||
        check(cudaHostAlloc((void **)&c, 64 * 64 * sizeof(float), 0), "memory") ||
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream") ||
        check(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "memory"))
        return 1;
    memset(c, 0, 64 * 64 * sizeof(float));
    if (check((cudaError_t)LAUNCH(kernel, 1, MMA_THREADS, bytes, stream, of_b, (const bf16 *)x.device, c),
              "a launch") ||
        check(cudaStreamSynchronize(stream), "the kernel"))
        return 1;
    int wrong = 0;
    for (int t = 0; t < MMA_THREADS; t++)
        for (int i = 0; i < 32; i++) {
            float want = 0;
            for (int k = 0; k < 64; k++)
                want += 3 * x.x[(size_t)(k * 64 + row_of(t, i))] * b.x[(size_t)(k * 64 + column_of(t, i))];
            wrong += !(c[(t / WARP * 32 + i) * WARP + t % WARP] == want);
        }
    printf("%s - a tile that threads wrote, and sums that are added: %d sums differ\n", wrong ? "not ok" : "ok", wrong);
    return wrong > 0;
}

#ifdef TITAN_EMULATE
static const char *const names[MISTAKES] = {
    "none",         "unknown_barrier", "too_early",      "old_phase",      "too_few_bytes", "too_many_bytes",
    "no_fence",     "sums_read_early", "sums_written",   "refilled_early", "plain_stores",  "not_all_warps",
    "no_copy_wait", "no_product_wait", "added_unfenced", "no_add_wait",    "added_over"};

template <int MISTAKE> static int make(const char *name)
{
    if (strcmp(name, names[MISTAKE]) == 0)
        return MISTAKE < ADDED_UNFENCED ? run<64, 64, MISTAKE>(128) : run_stored<MISTAKE>();
    return make<MISTAKE + 1>(name);
}
template <> int make<MISTAKES>(const char *name)
{
    fprintf(stderr, "check_hopper: there is no mistake '%s'\n", name);
    return 2;
}
#endif

int main(int argc, char **argv)
{
#ifdef TITAN_EMULATE
    if (argc > 1)
        return make<NONE>(argv[1]);
#else
    int major = 0;
    (void)argc, (void)argv;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
        printf("1..0 # skip no GPU of compute capability 9.0\n");
        return 0;
    }
#endif
    int bad = run<64, 64, NONE>(128);
    bad += run<128, 128, NONE>(128);
    bad += run<64, 192, NONE>(104);
    bad += run<256, 64, NONE>(128);
    bad += run_rows<256, false>(128);
    bad += run_rows<128, false>(104);
    bad += run_rows<64, true>(128);
    bad += run_rows<128, true>(104);
    bad += run_rows<192, true>(120);
    bad += run_stored<NONE>();
    printf("1..10\n");
    return bad > 0;
}
