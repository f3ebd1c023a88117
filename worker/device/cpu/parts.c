/* SPDX-License-Identifier: Apache-2.0 */
/* parts.c - parts of directions that replicas send each other. Chunks are independent. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/cpu.h"
#include "worker/device/parts.h"

enum { CHUNK = PARTS_CHUNK, GRAIN = 256 };

/* dct[k][j], and the same by columns. */
static float dct[CHUNK][CHUNK], columns[CHUNK][CHUNK];
static pthread_once_t filled = PTHREAD_ONCE_INIT;

static void fill_tables(void)
{
    for (int k = 0; k < CHUNK; k++)
        for (int j = 0; j < CHUNK; j++)
            dct[k][j] = columns[j][k] = k == 0 ? 0.125f : (float)PARTS_WAVE_AT((2 * j + 1) * k % PARTS_WAVE);
}

/* numbers (kept) of the values of largest magnitude, ascending. */
CPU_INLINE void choose(const float *value, int kept, uint8_t *numbers)
{
    int32_t size[CHUNK], before[CHUNK] = {0}; /* magnitudes as bits, and how many others come first */

    memcpy(size, value, sizeof size);
    for (int i = 0; i < CHUNK; i++)
        size[i] &= INT32_MAX;
    for (int j = 0; j < CHUNK; j++) {
        const int32_t other = size[j];
#pragma omp simd
        for (int i = 0; i < CHUNK; i++)
            before[i] += (other > size[i]) | ((other == size[i]) & (j < i));
    }
    for (int i = 0, n = 0; i < CHUNK; i++)
        if (before[i] < kept)
            numbers[n++] = (uint8_t)i;
}

/* out += value times a row of the table. */
CPU_INLINE void add_wave(float *out, float value, int k)
{
    const float *const wave = dct[k];
#pragma omp simd
    for (int j = 0; j < CHUNK; j++)
        out[j] += value * wave[j];
}

CPU_INLINE void parts_extract_items(const struct parts_extract_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    const int kept = a->shape.kept;
    uint8_t *const numbers = (uint8_t *)a->sent + parts_numbers(&a->shape, (int64_t)a->n);

    for (int64_t chunk = begin; chunk < end; chunk++) {
        float *const x = a->x + chunk * CHUNK;
        const float *const residual = a->residual + chunk * CHUNK;
        float d[CHUNK], out[CHUNK] = {0}, value[CHUNK] = {0};
        uint8_t number[CHUNK] = {0};
#pragma omp simd
        for (int i = 0; i < CHUNK; i++)
            d[i] = a->beta * residual[i] + a->scale * x[i];
        if (a->shape.method == PARTS_DCT) {
            for (int j = 0; j < CHUNK; j++) {
                const float factor = d[j];
                const float *const column = columns[j];
#pragma omp simd
                for (int k = 0; k < CHUNK; k++)
                    value[k] += factor * column[k];
            }
            choose(value, kept, number);
            memcpy(numbers + chunk * kept, number, (size_t)kept);
        }
        for (int i = 0; i < kept && a->shape.method != PARTS_DCT; i++)
            number[i] = (uint8_t)parts_place(&a->shape, chunk, i);
        for (int i = 0; i < kept; i++) {
            const int at = number[i];
            store_f32_as(a->sent, chunk * kept + i, dt, a->shape.method == PARTS_DCT ? value[at] : d[at]);
            const float sent = load_as_f32(a->sent, chunk * kept + i, dt);
            if (a->shape.method == PARTS_DCT)
                add_wave(out, sent, at);
            else
                out[at] = sent;
        }
#pragma omp simd
        for (int i = 0; i < CHUNK; i++)
            x[i] = d[i] - out[i];
    }
}

CPU_KERNEL static void parts_extract_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct parts_extract_args *const a = p;

    (void)thread;
    if (a->shape.dt == DTYPE_BF16)
        parts_extract_items(a, begin, end, DTYPE_BF16);
    else
        parts_extract_items(a, begin, end, DTYPE_F32);
}

titan_status cpu_parts_extract(struct stream *s, const struct parts_extract_args *a)
{
    if (!parts_valid(&a->shape, a->n))
        return TITAN_EINVAL;
    (void)pthread_once(&filled, fill_tables);
    return cpu_enqueue_range(s, parts_extract_range, (int64_t)a->n / CHUNK, GRAIN, a, sizeof *a);
}

CPU_INLINE void parts_combine_items(const struct parts_combine_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    const int kept = a->shape.kept;
    const int64_t bytes = parts_bytes(&a->shape, (int64_t)a->n), numbers = parts_numbers(&a->shape, (int64_t)a->n);

    for (int64_t chunk = begin; chunk < end; chunk++) {
        float sum[CHUNK] = {0}, direct[CHUNK] = {0};
        int count[CHUNK] = {0};
        for (int r = 0; r < a->ranks; r++) {
            const uint8_t *const from = (const uint8_t *)a->received + r * bytes;
            for (int i = 0; i < kept; i++) {
                const int at = a->shape.method == PARTS_DCT ? from[numbers + chunk * kept + i] % CHUNK
                                                            : parts_place(&a->shape, chunk, i);
                const float value = load_as_f32(from, chunk * kept + i, dt);
                sum[at] = count[at]++ == 0 ? value : sum[at] + value;
            }
        }
        for (int k = 0; k < CHUNK; k++)
            sum[k] = count[k] > 1 ? sum[k] / (float)count[k] : sum[k];
        float *const out = a->out + chunk * CHUNK, *const whole = a->shape.method == PARTS_DCT ? direct : sum;
        for (int k = 0; k < CHUNK && whole == direct; k++)
            if (count[k] > 0)
                add_wave(direct, sum[k], k);
        for (int i = 0; i < CHUNK; i++) {
            const float w = whole[i], sign = w > 0 ? 1.0f : w < 0 ? -1.0f : w;
            out[i] = a->sign ? sign : w;
        }
    }
}

CPU_KERNEL static void parts_combine_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct parts_combine_args *const a = p;

    (void)thread;
    if (a->shape.dt == DTYPE_BF16)
        parts_combine_items(a, begin, end, DTYPE_BF16);
    else
        parts_combine_items(a, begin, end, DTYPE_F32);
}

titan_status cpu_parts_combine(struct stream *s, const struct parts_combine_args *a)
{
    if (!parts_valid(&a->shape, a->n) || a->ranks < 1)
        return TITAN_EINVAL;
    (void)pthread_once(&filled, fill_tables);
    return cpu_enqueue_range(s, parts_combine_range, (int64_t)a->n / CHUNK, GRAIN, a, sizeof *a);
}
