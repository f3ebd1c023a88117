/* SPDX-License-Identifier: Apache-2.0 */
/* experts.c - the device table's part for mixture of experts: checks shapes, skips operations of a failed stream,
 * launches. Some errors only the device can find: a choice of no expert, more rows than a buffer holds. Then the kernel
 * itself makes the stream fail. */
#include "worker/device/cuda/enqueue.h"

/* The fault words of a stream, for a kernel that may make it fail. */
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

titan_status cuda_ops_router(struct stream *s, const struct router_args *a)
{
    if (!router_fits(&a->shape))
        return TITAN_EINVAL;
    return ENQUEUE(s, "routing", cuda_router(s->native, a));
}

titan_status cuda_ops_router_dgrad(struct stream *s, const struct router_args *a)
{
    if (!router_fits(&a->shape))
        return TITAN_EINVAL;
    return ENQUEUE(s, "routing gradient", cuda_router_dgrad(s->native, a, fault_of(s)));
}

titan_status cuda_ops_router_balance(struct stream *s, float *bias, float *load, int64_t experts, float rate)
{
    if (experts <= 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "expert balance", cuda_router_balance(s->native, bias, load, experts, rate, s->seen));
}

static bool balance_fits(const struct balance_args *a)
{
    return router_fits(&a->shape) && token_rows_valid(&a->rows) && a->rows.n == a->shape.n &&
           a->rows.sequences <= GRID_MAX;
}

titan_status cuda_ops_balance_stats(struct stream *s, const struct balance_args *a)
{
    if (!balance_fits(a))
        return TITAN_EINVAL;
    return ENQUEUE(s, "balance of experts", cuda_balance_stats(s->native, a));
}

titan_status cuda_ops_balance_loss(struct stream *s, const struct balance_loss_args *a)
{
    if (a->parts <= 0 || a->sequences <= 0 || a->sequences > GRID_MAX || a->experts <= 0 || a->top_k <= 0 ||
        a->tokens <= 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "balance loss", cuda_balance_loss(s->native, a));
}

titan_status cuda_ops_balance_dgrad(struct stream *s, const struct balance_args *a)
{
    if (!balance_fits(a))
        return TITAN_EINVAL;
    return ENQUEUE(s, "balance gradient", cuda_balance_dgrad(s->native, a));
}

titan_status cuda_ops_permute(struct stream *s, const struct permute_args *a)
{
    if (a->n < 0 || a->most < 0 || a->top_k <= 0 || a->experts <= 0 || a->ranks <= 0 || a->experts % a->ranks != 0 ||
        a->experts > GRID_MAX || a->n > INT32_MAX / a->top_k)
        return TITAN_EINVAL;
    return ENQUEUE(s, "expert order", cuda_permute(s->native, a, fault_of(s)));
}

titan_status cuda_ops_permute_received(struct stream *s, const struct received_args *a)
{
    if (a->ranks <= 0 || a->experts <= 0 || a->ranks > GRID_MAX / a->experts || a->ld < a->experts || a->rows < 0 ||
        a->rows > INT32_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "received order", cuda_permute_received(s->native, a, fault_of(s)));
}

titan_status cuda_ops_split_rounds(struct stream *s, const struct split_args *a)
{
    if (a->ranks <= 0 || a->experts <= 0 || a->experts > CUDA_EXPERTS_MAX || a->rounds <= 0 || a->room < 0 ||
        a->room > INT32_MAX)
        return TITAN_EINVAL;
    /* all ranks together have at most CUDA_EXPERTS_MAX experts */
    if (a->by_rank && a->ranks > CUDA_EXPERTS_MAX / a->experts)
        return TITAN_EINVAL;
    return ENQUEUE(s, "rounds of rows", cuda_split_rounds(s->native, a, fault_of(s)));
}

titan_status cuda_ops_place_round(struct stream *s, const struct round_args *a)
{
    if (a->ranks <= 0 || a->experts <= 0 || a->ranks > GRID_MAX / a->experts || a->round < 0 || a->round >= a->rounds ||
        a->rows < 0 || a->rows > INT32_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "order of a round", cuda_place_round(s->native, a, fault_of(s)));
}

static bool placed_rows_fit(const struct placed_args *a)
{
    return compute_type(a->dt) && a->n >= 0 && a->top_k > 0 && a->c > 0 && a->n <= GRID_MAX / a->top_k;
}

titan_status cuda_ops_scatter_rows(struct stream *s, const struct placed_args *a)
{
    if (!placed_rows_fit(a))
        return TITAN_EINVAL;
    return ENQUEUE(s, "rows to experts", cuda_scatter_rows(s->native, a));
}

titan_status cuda_ops_combine_rows(struct stream *s, const struct placed_args *a)
{
    if (!placed_rows_fit(a))
        return TITAN_EINVAL;
    return ENQUEUE(s, "rows from experts", cuda_combine_rows(s->native, a));
}

titan_status cuda_ops_combine_dweights(struct stream *s, const struct placed_args *a)
{
    if (!placed_rows_fit(a))
        return TITAN_EINVAL;
    return ENQUEUE(s, "gradient of expert weights", cuda_combine_dweights(s->native, a));
}

titan_status cuda_ops_matmul_grouped(struct stream *s, const struct matmul_args *a)
{
    const bool limits = a->groups >= 0 && a->groups <= GRID_YZ_MAX && a->parts >= 1 && a->parts <= GRID_YZ_MAX &&
                        a->m < GRID_MAX && a->n < GRID_YZ_MAX * 64L;
    if (!matmul_args_valid(a) || !limits || (a->ta && (a->tb || a->c_dt != DTYPE_F32)))
        return TITAN_EINVAL;
    if (a->m == 0 || a->n == 0 || a->groups == 0 || stream_skips(s))
        return TITAN_OK;
    return stream_enqueued(s, "grouped product", cuda_matmul_grouped(s->native, a, s->dev->hopper, fault_of(s)));
}

static bool packed_rows_fit(const struct bias_args *a)
{
    return compute_type(a->dt) && a->groups >= 1 && a->groups <= GRID_YZ_MAX && a->parts >= 1 &&
           a->parts <= GRID_YZ_MAX && rows_fit(a->n, a->c) && a->ld >= a->c;
}

titan_status cuda_ops_add_bias_grouped(struct stream *s, const struct bias_args *a)
{
    if (!packed_rows_fit(a))
        return TITAN_EINVAL;
    return ENQUEUE(s, "biases of experts", cuda_add_bias_grouped(s->native, a, fault_of(s)));
}

titan_status cuda_ops_bias_wgrad_grouped(struct stream *s, const struct bias_args *a)
{
    if (!packed_rows_fit(a) || (a->beta != 0.0f && a->beta != 1.0f))
        return TITAN_EINVAL;
    return ENQUEUE(s, "gradient of experts' biases", cuda_bias_wgrad_grouped(s->native, a, fault_of(s)));
}
