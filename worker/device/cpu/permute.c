/* SPDX-License-Identifier: Apache-2.0 */
/* permute.c - moves rows into the order of their experts and back. One pass over the choices counts where each row
 * goes. Moving the rows is the expensive part and is shared out by tokens. */
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

/* Takes scratch for experts + 1 starts: the last start is the total number of rows. */
static titan_status take_starts(const struct cpu_context *ctx, int64_t experts, int64_t **ret)
{
    void *scratch;
    TRY(cpu_scratch_take(ctx, (size_t)(experts + 1) * sizeof(int64_t), &scratch));
    *ret = scratch;
    return TITAN_OK;
}

/* starts[e] = rows of the experts before e. */
static void starts_of(int64_t *starts, const int32_t *counts, int64_t experts)
{
    starts[0] = 0;
    for (int64_t e = 0; e < experts; e++)
        starts[e + 1] = starts[e] + counts[e];
}

static titan_status run_permute(const struct cpu_context *ctx, const void *p)
{
    const struct permute_args *a = p;
    titan_assert(a->ranks > 0 && a->experts % a->ranks == 0 && a->top_k > 0);
    const int64_t each = a->experts / a->ranks;
    int64_t *next, beyond = 0;
    memset(a->counts, 0, (size_t)a->experts * sizeof(int32_t));
    memset(a->rank_counts, 0, (size_t)a->ranks * sizeof(int32_t));
    for (int64_t i = 0; i < a->n * a->top_k; i++) {
        if (a->chosen[i] < 0 || a->chosen[i] >= a->experts)
            return titan_fail(ctx->err, TITAN_EINVAL, "permute: choice %lld is expert %d of %lld", (long long)i,
                              a->chosen[i], (long long)a->experts);
        a->counts[a->chosen[i]]++;
    }
    for (int64_t e = 0; e < a->experts; e++) {
        const int64_t kept = a->most > 0 ? MIN(a->counts[e], a->most) : a->counts[e];
        beyond += a->counts[e] - kept;
        a->counts[e] = (int32_t)kept;
        a->rank_counts[e / each] += a->counts[e];
    }
    if (a->dropped)
        *a->dropped += (float)beyond; /* exact up to 2^24 */

    TRY(take_starts(ctx, 2 * a->experts, &next));
    starts_of(next, a->counts, a->experts);
    int64_t *const ends = next + a->experts;
    for (int64_t e = 0; e < a->experts; e++)
        ends[e] = next[e] + a->counts[e];
    for (int64_t i = 0; i < a->n * a->top_k; i++) {
        const int32_t e = a->chosen[i];
        a->place[i] = next[e] < ends[e] ? (int32_t)next[e]++ : -1;
    }
    cpu_scratch_give(ctx);
    return TITAN_OK;
}

titan_status cpu_permute(struct stream *s, const struct permute_args *a)
{
    if (a->n < 0 || a->most < 0 || a->top_k <= 0 || a->experts <= 0 || a->ranks <= 0 || a->experts % a->ranks != 0 ||
        a->n > INT32_MAX / a->top_k)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_permute, a, sizeof *a);
}

static titan_status run_permute_received(const struct cpu_context *ctx, const void *p)
{
    const struct received_args *a = p;
    titan_assert(a->ranks > 0 && a->experts > 0);
    int64_t *next, total = 0, row = 0;
    memset(a->counts, 0, (size_t)(a->experts * (a->by_rank ? a->ranks : 1)) * sizeof(int32_t));
    memset(a->rank_counts, 0, (size_t)a->ranks * sizeof(int32_t));
    for (int64_t i = 0; i < a->ranks * a->experts; i++) {
        int64_t rows = a->received[i / a->experts * a->ld + i % a->experts];
        if (rows < 0 || total + rows > a->rows)
            return titan_fail(ctx->err, TITAN_EINVAL,
                              "permute: rank %lld sent %lld rows to expert %lld, after %lld others of %lld at most",
                              (long long)(i / a->experts), (long long)rows, (long long)(i % a->experts),
                              (long long)total, (long long)a->rows);
        total += rows;
        a->counts[a->by_rank ? i : i % a->experts] += (int32_t)rows;
        a->rank_counts[i / a->experts] += (int32_t)rows;
    }

    for (; a->by_rank && row < total; row++)
        a->place[row] = (int32_t)row;
    TRY(take_starts(ctx, a->experts, &next));
    starts_of(next, a->counts, a->experts);
    for (int64_t r = 0; r < a->ranks && !a->by_rank; r++)
        for (int64_t e = 0; e < a->experts; e++)
            for (int32_t j = 0; j < a->received[r * a->ld + e]; j++)
                a->place[row++] = (int32_t)next[e]++;
    for (; row < a->rows; row++)
        a->place[row] = -1;
    cpu_scratch_give(ctx);
    return TITAN_OK;
}

titan_status cpu_permute_received(struct stream *s, const struct received_args *a)
{
    if (a->ranks <= 0 || a->experts <= 0 || a->ld < a->experts || a->rows < 0 || a->rows > INT32_MAX)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_permute_received, a, sizeof *a);
}

/* --- rounds ------------------------------------------------------------------------------------------------------- */

static titan_status run_split_rounds(const struct cpu_context *ctx, const void *p)
{
    const struct split_args *a = p;
    int64_t *done, rest = 0, all, taken = 0;
    titan_assert(a->ranks > 0 && a->experts > 0 && a->rounds > 0);
    for (int64_t i = 0; i < a->ranks * a->experts; i++) {
        if (a->received[i] < 0)
            return titan_fail(ctx->err, TITAN_EINVAL, "rounds: %d rows for an expert", a->received[i]);
        rest += a->received[i];
    }
    all = rest;
    const int64_t n = a->experts * (a->by_rank ? a->ranks : 1);
    TRY(take_starts(ctx, n, &done));
    memset(done, 0, (size_t)n * sizeof *done);
    for (int64_t q = 0; q < a->rounds; q++) {
        int64_t room = a->room;
        taken += rest > 0;
        for (int64_t i = 0; i < n; i++) {
            /* the next rows to take: rows for one expert, from ranks [from_rank, to_rank) */
            const int64_t expert = a->by_rank ? i % a->experts : i, from_rank = a->by_rank ? i / a->experts : 0,
                          to_rank = a->by_rank ? from_rank + 1 : a->ranks;
            int64_t take = -done[i], begin = 0;
            for (int64_t r = from_rank; r < to_rank; r++)
                take += a->received[r * a->experts + expert];
            if (take > room) {
                take = room / EXPERT_SPLIT * EXPERT_SPLIT;
                room = take; /* the round is full */
            }
            for (int64_t r = from_rank; r < to_rank; r++) {
                const int64_t end = begin + a->received[r * a->experts + expert];
                a->split[(r * a->rounds + q) * a->experts + expert] =
                    (int32_t)MAX(0, MIN(end, done[i] + take) - MAX(begin, done[i]));
                begin = end;
            }
            done[i] += take;
            room -= take;
            rest -= take;
        }
    }
    cpu_scratch_give(ctx);
    if (a->seen) {
        a->seen[0] += (float)MAX(taken - 1, 0);
        a->seen[1] = MAX(a->seen[1], (float)all);
    }
    return rest == 0 ? TITAN_OK
                     : titan_fail(ctx->err, TITAN_EINVAL, "rounds: %lld rows more than %lld rounds of %lld hold",
                                  (long long)rest, (long long)a->rounds, (long long)a->room);
}

titan_status cpu_split_rounds(struct stream *s, const struct split_args *a)
{
    if (a->ranks <= 0 || a->experts <= 0 || a->rounds <= 0 || a->room < 0 || a->room > INT32_MAX)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_split_rounds, a, sizeof *a);
}

/* Rows of a rank for an expert in the first `rounds` rounds. */
static int64_t rows_before(const struct round_args *a, int64_t rank, int64_t expert, int64_t rounds)
{
    int64_t rows = 0;
    for (int64_t q = 0; q < rounds; q++)
        rows += a->split[(rank * a->rounds + q) * a->experts + expert];
    return rows;
}

static titan_status run_place_round(const struct cpu_context *ctx, const void *p)
{
    const struct round_args *a = p;
    int64_t row = 0, next = 0;
    titan_assert(a->round >= 0 && a->round < a->rounds);
    for (int64_t i = 0; i < a->rows; i++)
        a->place[i] = a->origin[i] = -1;
    for (int64_t r = 0; r < a->ranks; r++) {
        const int64_t first = next;
        for (int64_t e = 0; e < a->experts; e++) {
            const int64_t mine = a->split[(r * a->rounds + a->round) * a->experts + e];
            const int64_t from = row + rows_before(a, r, e, a->round), all = rows_before(a, r, e, a->rounds);
            if (mine < 0 || from < row || from - row + mine > all || row + all > a->rows)
                return titan_fail(ctx->err, TITAN_EINVAL, "rounds: %lld rows of %lld at most", (long long)(row + all),
                                  (long long)a->rows);
            for (int64_t i = 0; i < mine; i++) {
                a->place[from + i] = (int32_t)next;
                a->origin[next++] = (int32_t)(from + i);
            }
            row += all;
        }
        a->rank_counts[r] = (int32_t)(next - first);
    }
    return TITAN_OK;
}

titan_status cpu_place_round(struct stream *s, const struct round_args *a)
{
    if (a->ranks <= 0 || a->experts <= 0 || a->round < 0 || a->round >= a->rounds || a->rows < 0 || a->rows > INT32_MAX)
        return TITAN_EINVAL;
    return cpu_enqueue(s, run_place_round, a, sizeof *a);
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

static titan_status enqueue_rows(struct stream *s, cpu_range fn, const struct placed_args *a)
{
    if (!compute_type(a->dt) || a->n < 0 || a->top_k <= 0 || a->c <= 0)
        return TITAN_EINVAL;
    return cpu_enqueue_range(s, fn, a->n, 1 + (1 << 14) / (a->c * a->top_k), a, sizeof *a);
}

CPU_INLINE void scatter_items(const struct placed_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin * a->top_k; i < end * a->top_k; i++) {
        if (a->place[i] < 0)
            continue;
        const void *const restrict src = at(a->src, i / a->top_k * a->c, dt);
        void *const restrict dst = at_mut(a->dst, a->place[i] * a->c, dt);
        const float weight = a->weights ? a->weights[i] : 1.0f;
        if (!a->weights) {
            memcpy(dst, src, (size_t)a->c * dtype_bytes(dt));
            continue;
        }
#pragma omp simd
        for (int64_t j = 0; j < a->c; j++)
            store_f32_as(dst, j, dt, load_as_f32(src, j, dt) * weight);
    }
}
TYPED_RANGE(scatter, placed_args)

titan_status cpu_scatter_rows(struct stream *s, const struct placed_args *a)
{
    return enqueue_rows(s, scatter_range, a);
}

enum { STRETCH = 256 }; /* columns summed at a time: the sums stay in registers and the first-level cache */

CPU_INLINE void combine_stretch(const struct placed_args *a, int64_t i, int64_t from, enum dtype dt)
{
    const int64_t n = MIN(STRETCH, a->c - from);
    float sums[STRETCH] = {0};
    for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++) {
        if (a->place[j] < 0)
            continue;
        const void *src = at(a->src, a->place[j] * a->c + from, dt);
        float weight = a->weights ? a->weights[j] : 1.0f;
#pragma omp simd
        for (int64_t e = 0; e < n; e++)
            sums[e] += load_as_f32(src, e, dt) * weight;
    }
    void *dst = at_mut(a->dst, i * a->c + from, dt);
#pragma omp simd
    for (int64_t e = 0; e < n; e++)
        store_f32_as(dst, e, dt, sums[e]);
}

CPU_INLINE void combine_items(const struct placed_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin; i < end; i++) {
        bool gets = !a->keep;
        for (int64_t j = i * a->top_k; j < (i + 1) * a->top_k; j++)
            gets |= a->place[j] >= 0;
        for (int64_t from = 0; from < a->c && gets; from += STRETCH)
            combine_stretch(a, i, from, dt);
    }
}
TYPED_RANGE(combine, placed_args)

titan_status cpu_combine_rows(struct stream *s, const struct placed_args *a)
{
    return enqueue_rows(s, combine_range, a);
}

CPU_INLINE float dot(const void *restrict a, const void *restrict b, int64_t n, enum dtype dt)
{
    float lanes[LANES] = {0};
    int64_t whole = n / LANES * LANES;
    for (int64_t j = 0; j < whole; j += LANES)
#pragma omp simd
        for (int l = 0; l < LANES; l++)
            lanes[l] += load_as_f32(a, j + l, dt) * load_as_f32(b, j + l, dt);
    for (int64_t j = whole; j < n; j++)
        lanes[j - whole] += load_as_f32(a, j, dt) * load_as_f32(b, j, dt);
    return lanes_sum(lanes);
}

CPU_INLINE void dweights_items(const struct placed_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = begin * a->top_k; i < end * a->top_k; i++)
        a->dweights[i] = a->place[i] < 0
                             ? 0.0f
                             : dot(at(a->dout, i / a->top_k * a->c, dt), at(a->src, a->place[i] * a->c, dt), a->c, dt);
}
TYPED_RANGE(dweights, placed_args)

titan_status cpu_combine_dweights(struct stream *s, const struct placed_args *a)
{
    return enqueue_rows(s, dweights_range, a);
}
