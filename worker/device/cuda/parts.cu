/* SPDX-License-Identifier: Apache-2.0 */
/* parts.cu - parts of directions that replicas send each other. A warp has a chunk; its threads have elements lane and
 * lane + 32 of it. */
#include "worker/device/cuda/kernel.cuh"

#define PARTS_INLINE __host__ __device__ static inline
#define PARTS_MIX mix
#include "worker/device/parts.h"

enum { WARPS = THREADS / WARP };

/* Fills the table that dct_at() reads; the block meets behind it. */
__device__ static inline void fill_wave(float *wave)
{
    for (int m = (int)threadIdx.x; m < PARTS_WAVE; m += THREADS)
        wave[m] = (float)PARTS_WAVE_AT(m);
    __syncthreads();
}

__device__ static inline float dct_at(const float *wave, int k, int j)
{
    return k == 0 ? 0.125f : wave[(2 * j + 1) * k % PARTS_WAVE];
}

/* Whether magnitude `other` of element j comes before magnitude `size` of element i. */
__device__ static inline int first_of(int32_t other, int j, int32_t size, int i)
{
    return other > size || (other == size && j < i);
}

template <class T> __global__ static void __launch_bounds__(THREADS) parts_extract(struct parts_extract_args a)
{
    __shared__ float wave[PARTS_WAVE], values[WARPS][PARTS_CHUNK], outs[WARPS][PARTS_CHUNK];
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, kept = a.shape.kept;
    const int64_t chunks = (int64_t)(a.n / PARTS_CHUNK), step = (int64_t)gridDim.x * WARPS;
    const bool transformed = a.shape.method == PARTS_DCT;
    uint8_t *const numbers = (uint8_t *)a.sent + parts_numbers(&a.shape, (int64_t)a.n);
    T *const sent = (T *)a.sent;
    float *const v = values[warp], *const out = outs[warp];

    fill_wave(wave);
    for (int64_t chunk = (int64_t)blockIdx.x * WARPS + warp; chunk < chunks; chunk += step) {
        float d[2], own[2] = {0, 0};
        int places[2] = {-1, -1};
        for (int h = 0; h < 2; h++) {
            const int64_t i = chunk * PARTS_CHUNK + h * WARP + lane;
            d[h] = fmaf(a.beta, a.residual[i], a.scale * a.x[i]);
            v[h * WARP + lane] = d[h];
        }
        __syncwarp();
        if (transformed) {
            float sum[2] = {0, 0};
            for (int j = 0; j < PARTS_CHUNK; j++)
                for (int h = 0; h < 2; h++)
                    sum[h] = fmaf(v[j], dct_at(wave, h * WARP + lane, j), sum[h]);
            __syncwarp();
            v[lane] = sum[0];
            v[WARP + lane] = sum[1];
            __syncwarp();
            int32_t size[2];
            int before[2] = {0, 0};
            for (int h = 0; h < 2; h++) {
                memcpy(&size[h], &sum[h], sizeof sum[h]);
                size[h] &= INT32_MAX;
            }
            for (int j = 0; j < PARTS_CHUNK; j++) {
                int32_t other;
                memcpy(&other, &v[j], sizeof other);
                for (int h = 0; h < 2; h++)
                    before[h] += first_of(other & INT32_MAX, j, size[h], h * WARP + lane);
            }
            const unsigned low = __ballot_sync(FULL_WARP, before[0] < kept);
            const unsigned high = __ballot_sync(FULL_WARP, before[1] < kept), below = (1u << lane) - 1;
            places[0] = before[0] < kept ? __popc(low & below) : -1;
            places[1] = before[1] < kept ? __popc(low) + __popc(high & below) : -1;
            own[0] = sum[0];
            own[1] = sum[1];
        } else {
            const int stride = PARTS_CHUNK / kept;
            for (int h = 0; h < 2; h++) {
                const int at = h * WARP + lane, i = at / stride;
                places[h] = parts_place(&a.shape, chunk, i) == at ? i : -1;
                own[h] = d[h];
            }
        }
        /* What is sent, in the places of the values; 0 elsewhere. */
        for (int h = 0; h < 2; h++) {
            float rounded = 0;
            if (places[h] >= 0) {
                const int64_t to = chunk * kept + places[h];
                num_store(sent + to, own[h]);
                rounded = num_load(sent + to);
                if (transformed)
                    numbers[to] = (uint8_t)(h * WARP + lane);
            }
            out[h * WARP + lane] = rounded;
        }
        __syncwarp();
        for (int h = 0; h < 2; h++) {
            const int j = h * WARP + lane;
            float gone = transformed ? 0 : out[j];
            for (int k = 0; k < PARTS_CHUNK && transformed; k++)
                gone = fmaf(out[k], dct_at(wave, k, j), gone);
            a.x[chunk * PARTS_CHUNK + j] = d[h] - gone;
        }
        __syncwarp();
    }
}

int cuda_parts_extract(void *stream, const struct parts_extract_args *a)
{
    if (a->n == 0)
        return 0;
    return TYPED(a->shape.dt, LAUNCH(parts_extract<T>, grid_blocks(a->n / PARTS_CHUNK * WARP), THREADS, 0, stream, *a));
}

template <class T> __global__ static void __launch_bounds__(THREADS) parts_combine(struct parts_combine_args a)
{
    __shared__ float wave[PARTS_WAVE], means[WARPS][PARTS_CHUNK];
    __shared__ int counts[WARPS][PARTS_CHUNK];
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, kept = a.shape.kept;
    const int64_t chunks = (int64_t)(a.n / PARTS_CHUNK), step = (int64_t)gridDim.x * WARPS;
    const int64_t bytes = parts_bytes(&a.shape, (int64_t)a.n), behind = parts_numbers(&a.shape, (int64_t)a.n);
    const bool transformed = a.shape.method == PARTS_DCT;
    float *const mean = means[warp];
    int *const count = counts[warp];

    fill_wave(wave);
    for (int64_t chunk = (int64_t)blockIdx.x * WARPS + warp; chunk < chunks; chunk += step) {
        for (int at = lane; at < PARTS_CHUNK; at += WARP) {
            mean[at] = 0;
            count[at] = 0;
        }
        __syncwarp();
        for (int r = 0; r < a.ranks; r++) { /* a rank's values have places of their own */
            const uint8_t *const from = (const uint8_t *)a.received + r * bytes;
            for (int i = lane; i < kept; i += WARP) {
                const int64_t of = chunk * kept + i;
                const int at = transformed ? from[behind + of] % PARTS_CHUNK : parts_place(&a.shape, chunk, i);
                const float value = num_load((const T *)from + of);
                mean[at] = count[at] == 0 ? value : mean[at] + value;
                count[at]++;
            }
            __syncwarp();
        }
        for (int at = lane; at < PARTS_CHUNK; at += WARP)
            mean[at] = count[at] > 1 ? mean[at] / (float)count[at] : mean[at];
        __syncwarp();
        for (int h = 0; h < 2; h++) {
            const int j = h * WARP + lane;
            float w = transformed ? 0 : mean[j];
            for (int k = 0; k < PARTS_CHUNK && transformed; k++)
                if (count[k] > 0)
                    w = fmaf(mean[k], dct_at(wave, k, j), w);
            const float sign = w > 0 ? 1.0f : w < 0 ? -1.0f : w;
            a.out[chunk * PARTS_CHUNK + j] = a.sign ? sign : w;
        }
        __syncwarp();
    }
}

int cuda_parts_combine(void *stream, const struct parts_combine_args *a)
{
    if (a->n == 0)
        return 0;
    return TYPED(a->shape.dt, LAUNCH(parts_combine<T>, grid_blocks(a->n / PARTS_CHUNK * WARP), THREADS, 0, stream, *a));
}
