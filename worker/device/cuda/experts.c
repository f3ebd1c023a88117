/* SPDX-License-Identifier: Apache-2.0 */
/* experts.c - the device table's part for mixture of experts: checks shapes, skips what a failed stream must not run,
 * launches. What only the device can find wrong (a choice of no expert, more rows than a buffer holds) fails the stream
 * from within the kernel. */
#include "worker/device/cuda/enqueue.h"

/* For a kernel that may fail the stream. */
static struct fault_words fault_of(struct stream *s)
{
    s->may_fail = true;
    return (struct fault_words){.seen = s->seen, .told = s->told, .fault = s->fault, .status = (int)TITAN_EINVAL};
}

static bool router_fits(const struct router_shape *z)
{
    return compute_type(z->dt) && z->n >= 0 && z->n <= GRID_MAX && z->experts > 0 && z->experts <= CUDA_EXPERTS_MAX &&
           z->top_k > 0 && z->top_k <= z->experts && router_groups_valid(z);
}

static struct router_problem router_problem(const struct router_shape *z)
{
    titan_assert(z->experts > 0 && z->experts <= CUDA_EXPERTS_MAX && z->top_k <= z->experts);
    return (struct router_problem){.bf16 = z->dt == DTYPE_BF16,
                                   .sigmoid = z->sigmoid,
                                   .normalize = z->normalize,
                                   .experts = (int)z->experts,
                                   .top_k = (int)z->top_k,
                                   .n = z->n,
                                   .scale = z->scale,
                                   .groups = (int)z->groups,
                                   .top_groups = (int)z->top_groups,
                                   .group_top_k = (int)z->group_top_k};
}

titan_status cuda_ops_router(struct stream *s, int32_t *chosen, float *weights, float *load, const void *logits,
                             const float *bias, const int32_t *numbers, const struct router_shape *shape)
{
    if (!router_fits(shape))
        return TITAN_EINVAL;
    const struct router_problem problem = router_problem(shape);
    return ENQUEUE(s, "routing", cuda_router(s->native, chosen, weights, load, logits, bias, numbers, &problem));
}

titan_status cuda_ops_router_dgrad(struct stream *s, void *dlogits, const float *dweights, const void *logits,
                                   const int32_t *chosen, const struct router_shape *shape)
{
    if (!router_fits(shape))
        return TITAN_EINVAL;
    const struct router_problem problem = router_problem(shape);
    return ENQUEUE(s, "routing gradient",
                   cuda_router_dgrad(s->native, dlogits, dweights, logits, chosen, &problem, fault_of(s)));
}

titan_status cuda_ops_router_balance(struct stream *s, float *bias, float *load, int64_t experts, float rate)
{
    if (experts <= 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "expert balance", cuda_router_balance(s->native, bias, load, experts, rate, s->seen));
}

static bool rows_placed(const struct token_rows *rows, int64_t n)
{
    return token_rows_valid(rows) && rows->n == n && rows->sequences <= GRID_MAX;
}

static struct token_places token_places(const struct token_rows *rows)
{
    titan_assert(rows->pieces > 0 && rows->length > 0);
    return (struct token_places){rows->sequences, rows->length, rows->first, rows->pieces};
}

titan_status cuda_ops_balance_stats(struct stream *s, float *stats, const void *logits, const int32_t *chosen,
                                    const int32_t *targets, const struct router_shape *shape,
                                    const struct token_rows *rows)
{
    if (!router_fits(shape) || !rows_placed(rows, shape->n))
        return TITAN_EINVAL;
    const struct router_problem problem = router_problem(shape);
    const struct token_places places = token_places(rows);
    return ENQUEUE(s, "balance of experts",
                   cuda_balance_stats(s->native, stats, logits, chosen, targets, &problem, &places));
}

titan_status cuda_ops_balance_loss(struct stream *s, float *losses, float *dscores, const float *stats, int64_t parts,
                                   int64_t sequences, int64_t experts, int64_t top_k, int64_t tokens, float factor)
{
    if (parts <= 0 || sequences <= 0 || sequences > GRID_MAX || experts <= 0 || top_k <= 0 || tokens <= 0)
        return TITAN_EINVAL;
    return ENQUEUE(
        s, "balance loss",
        cuda_balance_loss(s->native, losses, dscores, stats, parts, sequences, experts, top_k, tokens, factor));
}

titan_status cuda_ops_balance_dgrad(struct stream *s, void *dlogits, const void *logits, const float *dscores,
                                    const struct router_shape *shape, const struct token_rows *rows)
{
    if (!router_fits(shape) || !rows_placed(rows, shape->n))
        return TITAN_EINVAL;
    const struct router_problem problem = router_problem(shape);
    const struct token_places places = token_places(rows);
    return ENQUEUE(s, "balance gradient", cuda_balance_dgrad(s->native, dlogits, logits, dscores, &problem, &places));
}

titan_status cuda_ops_permute(struct stream *s, int32_t *place, int32_t *counts, int32_t *rank_counts, float *dropped,
                              const int32_t *chosen, int64_t n, int64_t top_k, int64_t experts, int64_t ranks,
                              int64_t most)
{
    if (n < 0 || most < 0 || top_k <= 0 || experts <= 0 || ranks <= 0 || experts % ranks != 0 || experts > GRID_MAX ||
        n > INT32_MAX / top_k)
        return TITAN_EINVAL;
    return ENQUEUE(s, "expert order",
                   cuda_permute(s->native, place, counts, rank_counts, dropped, chosen, n * top_k, experts, ranks, most,
                                fault_of(s)));
}

titan_status cuda_ops_permute_received(struct stream *s, int32_t *place, int32_t *counts, int32_t *rank_counts,
                                       const int32_t *received, int64_t ld, int64_t ranks, int64_t experts,
                                       int64_t rows, bool by_rank)
{
    if (ranks <= 0 || experts <= 0 || ranks > GRID_MAX / experts || ld < experts || rows < 0 || rows > INT32_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "received order",
                   cuda_permute_received(s->native, place, counts, rank_counts, received, ld, ranks, experts, rows,
                                         by_rank, fault_of(s)));
}

titan_status cuda_ops_split_rounds(struct stream *s, int32_t *split, float *seen, const int32_t *received,
                                   int64_t ranks, int64_t experts, int64_t rounds, int64_t room, bool by_rank)
{
    if (ranks <= 0 || experts <= 0 || experts > CUDA_EXPERTS_MAX || rounds <= 0 || room < 0 || room > INT32_MAX)
        return TITAN_EINVAL;
    if (by_rank && ranks > CUDA_EXPERTS_MAX / experts) /* all experts of a model are no more */
        return TITAN_EINVAL;
    return ENQUEUE(s, "rounds of rows",
                   cuda_split_rounds(s->native, split, seen, received, ranks, experts, rounds, room, EXPERT_SPLIT,
                                     by_rank, fault_of(s)));
}

titan_status cuda_ops_place_round(struct stream *s, int32_t *place, int32_t *origin, int32_t *rank_counts,
                                  const int32_t *split, int64_t ranks, int64_t experts, int64_t rounds, int64_t round,
                                  int64_t rows)
{
    if (ranks <= 0 || experts <= 0 || ranks > GRID_MAX / experts || round < 0 || round >= rounds || rows < 0 ||
        rows > INT32_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "order of a round",
                   cuda_place_round(s->native, place, origin, rank_counts, split, ranks, experts, rounds, round, rows,
                                    fault_of(s)));
}

static bool placed_rows_fit(enum dtype dt, int64_t n, int64_t top_k, int64_t c)
{
    return compute_type(dt) && n >= 0 && top_k > 0 && c > 0 && n <= GRID_MAX / top_k;
}

titan_status cuda_ops_scatter_rows(struct stream *s, void *dst, const void *src, const int32_t *place,
                                   const float *weights, enum dtype dt, int64_t n, int64_t top_k, int64_t c)
{
    if (!placed_rows_fit(dt, n, top_k, c))
        return TITAN_EINVAL;
    return ENQUEUE(s, "rows to experts",
                   cuda_scatter_rows(s->native, dst, src, place, weights, dt == DTYPE_BF16, n, top_k, c));
}

titan_status cuda_ops_combine_rows(struct stream *s, void *out, const void *src, const int32_t *place,
                                   const float *weights, enum dtype dt, int64_t n, int64_t top_k, int64_t c, bool keep)
{
    if (!placed_rows_fit(dt, n, top_k, c))
        return TITAN_EINVAL;
    return ENQUEUE(s, "rows from experts",
                   cuda_combine_rows(s->native, out, src, place, weights, dt == DTYPE_BF16, n, top_k, c, keep));
}

titan_status cuda_ops_combine_dweights(struct stream *s, float *dweights, const void *dout, const void *src,
                                       const int32_t *place, enum dtype dt, int64_t n, int64_t top_k, int64_t c)
{
    if (!placed_rows_fit(dt, n, top_k, c))
        return TITAN_EINVAL;
    return ENQUEUE(s, "gradient of expert weights",
                   cuda_combine_dweights(s->native, dweights, dout, src, place, dt == DTYPE_BF16, n, top_k, c));
}

titan_status cuda_ops_matmul_grouped(struct stream *s, void *c, enum dtype c_dt, int64_t ldc, const void *a, bool ta,
                                     int64_t lda, const void *b, bool tb, int64_t ldb, enum dtype ab_dt,
                                     const int32_t *counts, int64_t groups, int64_t parts, int64_t m, int64_t n,
                                     int64_t k, float beta)
{
    const bool types = compute_type(ab_dt) && (c_dt == ab_dt || c_dt == DTYPE_F32) && (!ta || c_dt == DTYPE_F32);
    const bool shapes = m >= 0 && n >= 0 && k >= 0 && lda >= (ta ? m : k) && ldb >= (tb ? k : n) && ldc >= n;
    const bool limits = groups >= 0 && groups <= GRID_YZ_MAX && parts >= 1 && parts <= GRID_YZ_MAX && m < GRID_MAX &&
                        n < GRID_YZ_MAX * 64L;
    if (!types || !shapes || !limits || (ta && tb) || (beta != 0.0f && beta != 1.0f))
        return TITAN_EINVAL;
    if (m == 0 || n == 0 || groups == 0 || stream_skips(s))
        return TITAN_OK;
    const struct grouped_problem problem = {.ta = ta,
                                            .tb = tb,
                                            .add = beta == 1.0f,
                                            .hopper = s->dev->hopper,
                                            .counts = counts,
                                            .groups = groups,
                                            .parts = parts,
                                            .split = EXPERT_SPLIT,
                                            .m = m,
                                            .n = n,
                                            .k = k,
                                            .lda = lda,
                                            .ldb = ldb,
                                            .ldc = ldc,
                                            .fault = fault_of(s)};
    return stream_enqueued(s, "grouped product",
                           cuda_matmul_grouped(s->native, c, c_dt == DTYPE_BF16, a, b, ab_dt == DTYPE_BF16, &problem));
}

static bool packed_rows_fit(enum dtype dt, int64_t groups, int64_t parts, int64_t n, int64_t c, int64_t ld)
{
    return compute_type(dt) && groups >= 1 && groups <= GRID_YZ_MAX && parts >= 1 && parts <= GRID_YZ_MAX &&
           rows_fit(n, c) && ld >= c;
}

/* Rows (n,c), ld apart, as a grouped product has them. */
static struct grouped_problem packed_rows(struct stream *s, const int32_t *counts, int64_t groups, int64_t parts,
                                          int64_t n, int64_t c, int64_t ld)
{
    return (struct grouped_problem){.counts = counts,
                                    .groups = groups,
                                    .parts = parts,
                                    .split = EXPERT_SPLIT,
                                    .m = n,
                                    .n = c,
                                    .ldc = ld,
                                    .fault = fault_of(s)};
}

titan_status cuda_ops_add_bias_grouped(struct stream *s, void *x, int64_t ldx, const void *bias, enum dtype dt,
                                       const int32_t *counts, int64_t groups, int64_t parts, int64_t n, int64_t c)
{
    if (!packed_rows_fit(dt, groups, parts, n, c, ldx))
        return TITAN_EINVAL;
    const struct grouped_problem rows = packed_rows(s, counts, groups, parts, n, c, ldx);
    return ENQUEUE(s, "biases of experts", cuda_add_bias_grouped(s->native, x, bias, dt == DTYPE_BF16, &rows));
}

titan_status cuda_ops_bias_wgrad_grouped(struct stream *s, float *dbias, const void *dout, int64_t ldo, enum dtype dt,
                                         const int32_t *counts, int64_t groups, int64_t parts, int64_t n, int64_t c,
                                         float beta)
{
    if (!packed_rows_fit(dt, groups, parts, n, c, ldo) || (beta != 0.0f && beta != 1.0f))
        return TITAN_EINVAL;
    struct grouped_problem rows = packed_rows(s, counts, groups, parts, n, c, ldo);
    rows.add = beta == 1.0f;
    return ENQUEUE(s, "gradient of experts' biases",
                   cuda_bias_wgrad_grouped(s->native, dbias, dout, dt == DTYPE_BF16, &rows));
}
