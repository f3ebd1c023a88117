/* SPDX-License-Identifier: Apache-2.0 */
/* attention_keys.c - which keys a block of queries sees. A mask is two bounds for each query and a place for each key.
 * So the least and the greatest place of a tile of keys decide: no query sees the tile, all queries see it, or its
 * pairs are checked one by one. Causal attention without masks works in the same way, with places 0, 1, 2, ... */
#include <limits.h>
#include <math.h>

#include "worker/device/cpu/attention.h"

size_t attention_keys_layout(struct attention_keys *k, float *base, int64_t count, int64_t tile)
{
    int64_t tiles = (count + tile - 1) / tile;
    int32_t *p = (int32_t *)base;
    k->count = (int32_t)count;
    k->tile = (int32_t)tile;
    k->tiles = (int32_t)tiles;
    k->place = p, p += tiles * tile;
    k->low = p, p += tiles;
    k->high = p, p += tiles;
    k->partly = p, p += tiles;
    k->runs = (struct key_run *)p, p += (tiles / 2 + 1) * 3;
    return (size_t)((p - (int32_t *)base + 15) / 16 * 16);
}

void attention_keys_load(struct attention_keys *k, const struct attention_shape *shape, int64_t sequence)
{
    titan_assert(sequence >= 0 && sequence < shape->b);
    const int32_t *places = shape->key_index ? shape->key_index + sequence * shape->tk : NULL;
    for (int32_t j = 0; j < k->tiles * k->tile; j++)
        k->place[j] = j >= k->count ? INT32_MAX : places ? places[j] : j;
    for (int32_t t = 0; t < k->tiles; t++) {
        const int32_t *place = k->place + t * k->tile;
        int32_t low = INT32_MAX, high = INT32_MIN;
        for (int32_t j = 0; j < k->tile; j++) {
            low = MIN(low, place[j]);
            high = MAX(high, place[j]);
        }
        k->low[t] = low;
        k->high[t] = high;
    }
}

/* Extremes of the first and last places that the queries of a block see. */
struct extremes {
    int32_t first_min, first_max, last_min, last_max;
};

CPU_KERNEL static struct extremes block_bounds(struct attention_keys *k, const int32_t *restrict start,
                                               const int32_t *restrict index, int64_t rows)
{
    struct extremes x = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
    for (int64_t i = 0; i < rows; i++) {
        k->first[i] = start[i];
        k->last[i] = index[i];
    }
    for (int64_t i = 0; i < rows; i++) {
        x.first_min = MIN(x.first_min, k->first[i]);
        x.first_max = MAX(x.first_max, k->first[i]);
        x.last_min = MIN(x.last_min, k->last[i]);
        x.last_max = MAX(x.last_max, k->last[i]);
    }
    return x;
}

void attention_keys_see(struct attention_keys *k, const struct attention_shape *shape, int64_t sequence, int64_t i0,
                        int64_t rows)
{
    titan_assert(rows > 0 && rows <= ATTENTION_ROWS_MAX && i0 >= 0 && i0 + rows <= shape->tq);
    const int64_t row = sequence * shape->tq + i0;
    struct extremes x = {0, 0, (int32_t)i0, (int32_t)(i0 + rows) - 1}; /* if causal */
    if (shape->index)
        x = block_bounds(k, shape->start + row, shape->index + row, rows);
    for (int32_t i = 0; i < rows && !shape->index; i++) {
        k->first[i] = 0;
        k->last[i] = (int32_t)i0 + i;
    }
    k->rows = (int32_t)rows;
    k->n_runs = k->columns = 0;
    struct key_run *run = NULL;
    for (int32_t t = 0; t < k->tiles; t++) {
        if (k->low[t] > x.last_max || k->high[t] < x.first_min) {
            run = NULL;
            continue;
        }
        k->partly[t] = k->low[t] < x.first_max || k->high[t] > x.last_min;
        if (!run) {
            run = &k->runs[k->n_runs++];
            *run = (struct key_run){.from = t * k->tile, .at = k->columns};
        }
        run->to = MIN((t + 1) * k->tile, k->count);
        k->columns += k->tile;
    }
}

CPU_INLINE void mask_tile(const struct attention_keys *k, float *restrict s, int64_t ld, const int32_t *restrict place,
                          const int tile)
{
    for (int32_t i = 0; i < k->rows; i++) {
        int32_t first = k->first[i], last = k->last[i];
#pragma omp simd
        for (int j = 0; j < tile; j++)
            s[i * ld + j] = place[j] >= first && place[j] <= last ? s[i * ld + j] : -INFINITY;
    }
}

CPU_KERNEL void attention_keys_mask(const struct attention_keys *k, float *s, int64_t ld, int64_t pad)
{
    titan_assert(k->tile == 16 || k->tile == 32);
    for (int32_t r = 0; r < k->n_runs; r++) {
        const struct key_run *run = &k->runs[r];
        for (int32_t j = run->from; j < run->to; j += k->tile) {
            if (!k->partly[j / k->tile])
                continue;
            if (k->tile == 32)
                mask_tile(k, s + run->at + j - run->from, ld, k->place + j, 32);
            else
                mask_tile(k, s + run->at + j - run->from, ld, k->place + j, 16);
        }
    }
    for (int32_t i = 0; i < k->rows && k->columns % pad; i++)
        for (int64_t j = k->columns; j % pad; j++)
            s[i * ld + j] = -INFINITY;
}
