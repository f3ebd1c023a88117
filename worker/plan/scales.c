/* SPDX-License-Identifier: Apache-2.0 */
/* scales.c - see scales.h. */
#include "worker/plan/scales.h"

#include <math.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/vec.h"

/* --- rules -------------------------------------------------------------------------------------------------------- */

/* The operands of one action; s: their mean squares. */
struct ruled {
    const struct op_params *q;
    int members, n;
    double *s;
};
#define AT(op, name) (v->s[OPERAND_OF(op, name)])

/* Integers, statistics, and what no product reads. */
static void ones(const struct ruled *v)
{
    for (int i = 0; i < v->n; i++)
        v->s[i] = 1;
}

/* The first operand is made of elements of the second, or of the same ones. */
static void same(const struct ruled *v)
{
    v->s[0] = v->s[v->n > 1];
}

/* What is written is as it was. A rotation keeps each part of a row. */
static void keeps(const struct ruled *v)
{
    (void)v;
}

static void zero(const struct ruled *v)
{
    v->s[0] = 0;
}

static void add(const struct ruled *v)
{
    v->s[0] = AT(add, a) + AT(add, b);
}

static void adds_to(const struct ruled *v)
{
    v->s[0] += v->s[1];
}

static void add_2d(const struct ruled *v)
{
    AT(add_2d, dst) += AT(add_2d, src) * (double)MAX(v->q->add_2d.repeat, 1);
}

static void scale(const struct ruled *v)
{
    AT(scale, out) = AT(scale, x) * v->q->scale.factor * v->q->scale.factor;
}

static void softcap(const struct ruled *v)
{
    AT(softcap, out) = fmin(AT(softcap, x), v->q->softcap.cap * v->q->softcap.cap);
}

/* k: length of the sums */
static void product(const struct ruled *v, double k)
{
    v->s[0] = (v->q->flags & OP_ADD_TO ? v->s[0] : 0) + v->s[1] * v->s[2] * k;
}

static void matmul(const struct ruled *v)
{
    product(v, (double)v->q->matmul.K);
}

static void matmul_grouped(const struct ruled *v)
{
    const struct op_matmul_grouped *const q = &v->q->matmul_grouped;
    product(v, v->q->flags & OP_TA ? (double)q->rows / (double)q->groups : (double)q->K);
}

static void embed(const struct ruled *v)
{
    AT(embed, x) = AT(embed, table);
}

static void embed_wgrad(const struct ruled *v)
{
    const struct op_embed_wgrad *const q = &v->q->embed_wgrad;
    AT(embed_wgrad, dtable) += AT(embed_wgrad, dx) * (double)q->N / (double)q->V;
}

static double gain(const struct ruled *v, double stored)
{
    return v->q->flags & OP_OFFSET ? 1 + stored : stored;
}

static void rmsnorm(const struct ruled *v)
{
    AT(rmsnorm, out) = gain(v, AT(rmsnorm, gain));
    AT(rmsnorm, rstd) = 1;
}

static void add_rmsnorm(const struct ruled *v)
{
    AT(add_rmsnorm, h) = AT(add_rmsnorm, a) + AT(add_rmsnorm, b);
    AT(add_rmsnorm, out) = gain(v, AT(add_rmsnorm, gain));
    AT(add_rmsnorm, rstd) = 1;
}

static double through_norm(const struct ruled *v, double dout, double x, double stored)
{
    return x > 0 ? dout * gain(v, stored) / x : dout;
}

static void rmsnorm_dgrad(const struct ruled *v)
{
    AT(rmsnorm_dgrad, dx) = (v->q->flags & OP_ADD_TO ? AT(rmsnorm_dgrad, dx) : 0) +
                            through_norm(v, AT(rmsnorm_dgrad, dout), AT(rmsnorm_dgrad, x), AT(rmsnorm_dgrad, gain));
}

static void add_rmsnorm_dgrad(const struct ruled *v)
{
    AT(add_rmsnorm_dgrad, dx) =
        AT(add_rmsnorm_dgrad, residual) +
        through_norm(v, AT(add_rmsnorm_dgrad, dout), AT(add_rmsnorm_dgrad, x), AT(add_rmsnorm_dgrad, gain));
}

static void rmsnorm_dgain(const struct ruled *v)
{
    AT(rmsnorm_dgain, dgain) += AT(rmsnorm_dgain, dout) * (double)v->q->rmsnorm_dgain.N;
}

static void bias_wgrad(const struct ruled *v)
{
    AT(bias_wgrad, dbias) += AT(bias_wgrad, dout) * (double)v->q->bias_wgrad.N;
}

static void bias_wgrad_grouped(const struct ruled *v)
{
    const struct op_bias_wgrad_grouped *const q = &v->q->bias_wgrad_grouped;
    AT(bias_wgrad_grouped, dbias) = AT(bias_wgrad_grouped, dout) * (double)q->N / (double)q->groups;
}

/* The mean over tokens of the sum of squares of a token's weights; a token sees itself and the tokens before it, all n.
 * The scores are normal. Few of them: n equal weights have the sum of exp(variance) / n, but among n scores the largest
 * are missing that would make it so; a quarter of the variance in the divisor holds to variances of 4 and n of 64 to
 * 512. */
static double weights_squared(double n, double score_scale, double softcap_at, double width, double q, double k)
{
    const double by = score_scale != 0 ? score_scale : 1 / sqrt(width);
    double variance = by * by * q * k * width;
    if (softcap_at > 0)
        variance = fmin(variance, softcap_at * softcap_at);
    const double alone = exp(variance / (1 + variance / 4)); /* the first tokens see fewer: one weight is nearly all */
    return alone >= n ? 1 : alone / n * (1 + log(n / alone));
}

static void attention(const struct ruled *v)
{
    const struct op_attention *const q = &v->q->attention;
    const double f =
        weights_squared((double)q->Tk, q->scale, q->softcap, (double)q->D, AT(attention, q), AT(attention, k));
    AT(attention, out) = AT(attention, v) * f;
    AT(attention, lse) = 1;
}

static void attention_dgrad(const struct ruled *v)
{
    const struct op_attention_dgrad *const q = &v->q->attention_dgrad;
    const double by = q->scale != 0 ? q->scale : 1 / sqrt((double)q->D), heads = (double)q->H / (double)q->K;
    const double dout = AT(attention_dgrad, dout), query = AT(attention_dgrad, q), key = AT(attention_dgrad, k);
    const double f = weights_squared((double)q->Tk, q->scale, q->softcap, (double)q->D, query, key);
    const double scores = by * by * f * dout * AT(attention_dgrad, v) * (double)q->Dv;

    AT(attention_dgrad, dq) = scores * key;
    AT(attention_dgrad, dk) = scores * query * heads;
    AT(attention_dgrad, dv) = dout * f * heads;
}

static void attention_merge(const struct ruled *v)
{
    AT(attention_merge, out) = fmax(AT(attention_merge, out), AT(attention_merge, other));
}

static void attention_sink(const struct ruled *v)
{
    AT(attention_sink, out) = AT(attention_sink, x);
    AT(attention_sink, lse) = 1;
}

/* E[silu(x)^2] for a normal x, within 6 %: a quarter of its square for a small x, half of it for a large one. */
static double gated(const struct ruled *v, double square)
{
    return square / 4 * (1 + square / (square + (v->q->flags & OP_GELU ? 0.44 : 1.4)));
}

/* E[silu'(x)^2] for a normal x */
static double gate_slope(const struct ruled *v, double square)
{
    return (1 + square / (square + (v->q->flags & OP_GELU ? 0.44 : 1.4))) / 4;
}

static void swiglu(const struct ruled *v)
{
    AT(swiglu, out) = AT(swiglu, up) * gated(v, AT(swiglu, gate));
}

static void swiglu_dgrad(const struct ruled *v)
{
    const double dout = AT(swiglu_dgrad, dout), gate = AT(swiglu_dgrad, gate);
    AT(swiglu_dgrad, dgate) = dout * AT(swiglu_dgrad, up) * gate_slope(v, gate);
    AT(swiglu_dgrad, dup) = dout * gated(v, gate);
}

/* The gradient is a row's probabilities less 1 at its target. At first each probability is 1 / V. */
static double logits_gradient(int64_t v, int members)
{
    return 1 / ((double)v * members);
}

static void loss(const struct ruled *v)
{
    const double gradient = logits_gradient(v->q->loss.V, v->members);
    ones(v);
    if (!(v->q->flags & OP_NO_GRADIENT))
        v->s[v->n - 1] = gradient;
}

static void loss_finish(const struct ruled *v)
{
    const double gradient = logits_gradient(v->q->loss_finish.V, v->members);
    ones(v);
    if (!(v->q->flags & OP_NO_GRADIENT))
        AT(loss_finish, dlogits) = gradient;
}

/* A token's weights are some 1 / top_k of the factor. */
static void route(const struct ruled *v)
{
    const double factor = v->q->route.scale != 0 ? v->q->route.scale : 1, weight = factor / (double)v->q->route.top_k;
    ones(v);
    AT(route, weights) = weight * weight;
}

/* A score changes its weight by at most a quarter of its change. */
static void route_dgrad(const struct ruled *v)
{
    const struct op_route_dgrad *const q = &v->q->route_dgrad;
    AT(route_dgrad, dlogits) = AT(route_dgrad, dweights) * (double)q->top_k / (double)q->E / 16;
}

static void scatter_rows(const struct ruled *v)
{
    const int weights = OPERAND_OF(scatter_rows, place) + 1;
    AT(scatter_rows, dst) = AT(scatter_rows, src) * (v->n > weights ? v->s[weights] : 1);
}

static void combine_rows(const struct ruled *v)
{
    const int weights = OPERAND_OF(combine_rows, place) + 1;
    AT(combine_rows, out) =
        AT(combine_rows, src) * (double)v->q->combine_rows.top_k * (v->n > weights ? v->s[weights] : 1);
}

static void combine_dweights(const struct ruled *v)
{
    AT(combine_dweights, dweights) =
        AT(combine_dweights, dout) * AT(combine_dweights, src) * (double)v->q->combine_dweights.C;
}

/* Pairs of output and input. */
static void all_gather(const struct ruled *v)
{
    for (int i = 0; i + 1 < v->n; i += 2)
        v->s[i] = v->s[i + 1];
}

static void reduce_scatter(const struct ruled *v)
{
    for (int i = 0; i + 1 < v->n; i += 2)
        v->s[i] = v->s[i + 1] * v->members;
}

static void all_reduce(const struct ruled *v)
{
    for (int i = 0; i < v->n; i++)
        v->s[i] *= v->members;
}

static void all_to_all_v(const struct ruled *v)
{
    AT(all_to_all_v, out) = AT(all_to_all_v, in);
}

static void sum_tree(const struct ruled *v)
{
    AT(sum_tree, sum) = AT(sum_tree, slices) * v->members;
}

static void (*const rules[OP_COUNT])(const struct ruled *) = {
    [OP_LOAD] = ones,
    [OP_EMBED] = embed,
    [OP_EMBED_WGRAD] = embed_wgrad,
    [OP_RMSNORM] = rmsnorm,
    [OP_RMSNORM_DGRAD] = rmsnorm_dgrad,
    [OP_RMSNORM_DGAIN] = rmsnorm_dgain,
    [OP_ADD_RMSNORM] = add_rmsnorm,
    [OP_ADD_RMSNORM_DGRAD] = add_rmsnorm_dgrad,
    [OP_MATMUL] = matmul,
    [OP_ROPE] = keeps,
    [OP_ATTENTION] = attention,
    [OP_ATTENTION_DGRAD] = attention_dgrad,
    [OP_ATTENTION_MERGE] = attention_merge,
    [OP_SWIGLU] = swiglu,
    [OP_SWIGLU_DGRAD] = swiglu_dgrad,
    [OP_ADD] = add,
    [OP_COPY] = same,
    [OP_COPY_2D] = same,
    [OP_ADD_2D] = add_2d,
    [OP_CAST] = same,
    [OP_ZERO] = zero,
    [OP_ACCUMULATE] = adds_to,
    [OP_LOSS_STATS] = ones,
    [OP_LOSS_FINISH] = loss_finish,
    [OP_LOSS] = loss,
    [OP_LOSS_SUM] = ones,
    [OP_CHECK] = ones,
    [OP_ROUTE] = route,
    [OP_ROUTE_DGRAD] = route_dgrad,
    [OP_PERMUTE] = ones,
    [OP_PERMUTE_RECEIVED] = ones,
    [OP_SPLIT_ROUNDS] = ones,
    [OP_PLACE_ROUND] = ones,
    [OP_SCATTER_ROWS] = scatter_rows,
    [OP_COMBINE_ROWS] = combine_rows,
    [OP_COMBINE_DWEIGHTS] = combine_dweights,
    [OP_MATMUL_GROUPED] = matmul_grouped,
    [OP_EXPERT_LOAD] = ones,
    [OP_EXPERT_ROUNDS] = ones,
    [OP_BALANCE] = ones,
    [OP_ALL_GATHER] = all_gather,
    [OP_REDUCE_SCATTER] = reduce_scatter,
    [OP_ALL_REDUCE] = all_reduce,
    [OP_ALL_TO_ALL] = same,
    [OP_ALL_TO_ALL_V] = all_to_all_v,
    [OP_SHIFT] = same,
    [OP_SEND] = keeps,
    [OP_RECV] = ones, /* a program of one rank receives nothing */
    [OP_FLOAT8_LARGEST] = ones,
    [OP_FLOAT8_SCALES] = ones,
    [OP_FLOAT8_PACK] = ones, /* codes are read with their scales */
    [OP_PACK] = same,
    [OP_SUM_TREE] = sum_tree,
    [OP_NORM] = ones,
    [OP_AGREE] = ones,
    [OP_DECIDE] = ones,
    [OP_OPTIMISE] = ones,
    [OP_RELEASE] = keeps,
    [OP_ADD_BIAS] = adds_to,
    [OP_BIAS_WGRAD] = bias_wgrad,
    [OP_WINDOW] = ones,
    [OP_SCALE] = scale,
    [OP_SOFTCAP] = softcap,
    [OP_SOFTCAP_DGRAD] = same,
    [OP_BALANCE_STATS] = ones,
    [OP_BALANCE_LOSS] = ones,
    [OP_BALANCE_LOSS_SUM] = ones,
    [OP_BALANCE_DGRAD] = keeps, /* adds little to the router's gradient */
    [OP_ADD_BIAS_GROUPED] = adds_to,
    [OP_BIAS_WGRAD_GROUPED] = bias_wgrad_grouped,
    [OP_CLAMPED_SWIGLU] = swiglu,
    [OP_CLAMPED_SWIGLU_DGRAD] = swiglu_dgrad,
    [OP_ATTENTION_SINK] = attention_sink,
    [OP_ATTENTION_SINK_DGRAD] = ones,
    [OP_MTP_LOSS_SUM] = ones,
    [OP_TENSOR_SUMS] = ones,
    [OP_COMMIT] = ones,
    [OP_TO_OWNERS] = ones,
    [OP_FROM_OWNERS] = ones,
    [OP_WHOLE] = ones,
    [OP_ADOPT] = ones,
    [OP_ROTATE] = keeps,
    [OP_WEIGHT_ENCODE] = ones,
    [OP_WEIGHT_DECODE] = ones, /* the program that is looked at gathers nothing */
    [OP_WEIGHT_COUNT] = ones,
    [OP_WEIGHT_LEARN] = ones,
    [OP_WEIGHT_ENCODE_BY] = ones,
    [OP_WEIGHT_DECODE_BY] = ones,
    [OP_PARTS_EXTRACT] = ones,
    [OP_PARTS_COMBINE] = ones,
    [OP_ENCODE] = ones,
    [OP_BUCKET_LARGEST] = ones,
    [OP_DECODE_SUM] = ones,
    [OP_DECODE] = ones,
    [OP_HELD_SCALES] = ones,
    [OP_ROWS_ENCODE] = ones, /* codes are read with their scales */
    [OP_ROWS_DECODE] = ones, /* no converter has static scales and kept codes */
};

bool scales_has_rule(enum op op)
{
    return rules[op] != NULL;
}

void scales_rule(enum op op, const struct op_params *params, int members, double *squares, int n)
{
    const struct ruled v = {.q = params, .members = members, .n = n, .s = squares};

    titan_assert(op < OP_COUNT && scales_has_rule(op) && members >= 1);
    rules[op](&v);
}

/* --- a program ---------------------------------------------------------------------------------------------------- */

/* What has been written to bytes [from, to) of a buffer. Columns of one matrix overlap as bytes. */
struct stretch {
    size_t from, to;
    double square;
};
struct written {
    struct stretch *parts;
    int n, cap;
};

static double tensor_square(const struct model_tensor *t, double growth)
{
    const double size = (double)t->std * (t->ndim == 2 ? growth : 1);
    return t->init == INIT_ZEROS ? 0 : t->init == INIT_ONES ? 1 : size * size;
}

/* The weights in an operand that no action has written. *ret_tensor: the first of them; -1: it has none. */
static double weights_square(const struct program *p, double growth, const struct operand *o, int *ret_tensor)
{
    const struct buffer *const b = &p->buffers[o->buffer];
    const struct layout *const l = p->layout;
    double most = 0;

    *ret_tensor = -1;
    if (b->kind != BUF_SHARD || b->unit < 0 || l->units[b->unit].shard <= 0)
        return 1;
    const struct model_unit *const unit = &l->model->units[b->unit];
    const size_t elem = b->bytes / (size_t)l->units[b->unit].shard;
    for (int i = unit->first_tensor; i < unit->first_tensor + unit->n_tensors; i++) {
        const struct local_tensor *const t = &l->tensors[i];
        const size_t from = (size_t)t->offset * elem, to = from + (size_t)(t->rows * t->cols) * elem;
        if (from >= o->offset + o->bytes || to <= o->offset)
            continue;
        most = fmax(most, tensor_square(&l->model->tensors[i], growth));
        if (*ret_tensor < 0)
            *ret_tensor = i;
    }
    return most;
}

/* The largest of the parts that an operand has elements of; the part with its very bytes alone, if there is one. */
static double read_square(const struct program *p, double growth, const struct written *w, const struct operand *o)
{
    double most = -1;
    int tensor;

    for (int i = 0; i < w->n; i++) {
        const struct stretch *const part = &w->parts[i];
        if (part->from == o->offset && part->to == o->offset + o->bytes)
            return part->square;
        if (part->from < o->offset + o->bytes && part->to > o->offset)
            most = fmax(most, part->square);
    }
    return most >= 0 ? most : weights_square(p, growth, o, &tensor);
}

static bool write_square(struct written *w, const struct operand *o, double square)
{
    const struct stretch part = {.from = o->offset, .to = o->offset + o->bytes, .square = square};
    int kept = 0;

    for (int i = 0; i < w->n; i++)
        if (w->parts[i].from < part.from || w->parts[i].to > part.to)
            w->parts[kept++] = w->parts[i];
    w->n = kept;
    return VEC_PUSH(w->parts, w->n, w->cap, part);
}

titan_status scales_propagate(const struct program *p, double growth, double *squares, struct titan_error *err)
{
    struct written *const written = calloc((size_t)p->n_buffers + 1, sizeof *written);
    bool ok = written;

    for (int i = 0; ok && i < p->n_actions; i++) {
        const struct action *const a = &p->actions[i];
        const struct operand *const o = action_operands(p, a);
        const enum group group = a->channel >= 0 ? channel_group((enum channel)a->channel) : GROUP_TP;
        double *const s = squares + a->operand;
        double after[FORMS_MAX];
        titan_assert(a->n_operands <= FORMS_MAX);
        for (int k = 0; k < a->n_operands; k++)
            after[k] = s[k] = o[k].access & ACCESS_READ ? read_square(p, growth, &written[o[k].buffer], &o[k]) : 0;
        scales_rule((enum op)a->op, action_params(p, a), mesh_group_size(&p->mesh, group), after, a->n_operands);
        for (int k = 0; ok && k < a->n_operands && rules[a->op] != keeps; k++) {
            if (!(o[k].access & ACCESS_WRITE) || o[k].bytes == 0)
                continue;
            s[k] = o[k].access & ACCESS_READ ? s[k] : after[k];
            ok = write_square(&written[o[k].buffer], &o[k], after[k]);
        }
    }
    for (int i = 0; written && i < p->n_buffers; i++)
        free(written[i].parts);
    free(written);
    return ok ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "static scales: out of memory");
}

/* --- scales of products ------------------------------------------------------------------------------------------- */

int scales_power(double square, enum float8 type)
{
    int exponent = 0; /* square = m 2^exponent, m in [1/2, 1) */

    if (!(square > 0) || !isfinite(square))
        return 0;
    (void)frexp(square, &exponent);
    const int root = (exponent - 1) >> 1; /* 2^root <= sqrt(square) < 2^(root + 1) */
    const int power = -root - (type == FLOAT8_E4M3 ? SCALES_MARGIN : 0);
    return MIN(MAX(power, -POWERS_ZERO), POWERS - 1 - POWERS_ZERO);
}

/* Takes the largest inputs and output gradients of each converted layer: a layer may be computed in parts. */
static titan_status take_products(const struct program *p, struct converters *c, struct titan_error *err)
{
    const int n = p->layout->model->n_tensors;
    _cleanup_free_ double *grown = calloc((size_t)p->n_operands + 1, sizeof *grown);
    _cleanup_free_ double *first = calloc((size_t)p->n_operands + 1, sizeof *first);
    _cleanup_free_ double *of = calloc(2 * (size_t)n + 1, sizeof *of); /* input, output gradient */

    if (!grown || !first || !of)
        return titan_fail(err, TITAN_ENOMEM, "static scales: out of memory");
    TRY(scales_propagate(p, SCALES_GROWTH, grown, err));
    TRY(scales_propagate(p, 1, first, err));
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *const a = &p->actions[i];
        const struct op_params *const q = action_params(p, a);
        const int operand = a->operand + OPERAND_OF(matmul, a);
        int tensor;
        if (a->op != OP_MATMUL || !(q->flags & OP_F8) || q->flags & OP_TA)
            continue;
        (void)weights_square(p, 1, &action_operands(p, a)[OPERAND_OF(matmul, b)], &tensor);
        titan_assert(tensor >= 0 && c->converted[tensor]);
        double *const most = &of[2 * tensor + (q->flags & OP_TB ? 0 : 1)];
        *most = fmax(*most, q->flags & OP_TB ? grown[operand] : first[operand]);
    }
    for (int i = 0; i < n; i++)
        c->powers[i] = (struct product_powers){.x = (int8_t)scales_power(of[2 * i], FLOAT8_E4M3),
                                               .dy = (int8_t)scales_power(of[2 * i + 1], FLOAT8_E5M2)};
    return TITAN_OK;
}

titan_status scales_choose(const struct build_options *like, int64_t t, struct converters *converters,
                           struct titan_error *err)
{
    const struct model *const model = like->layout->model;
    const struct layout_options one_rank = {.model = model, .mesh = {.world = 1, .size = {1, 1, 1, 1, 1}, .ep = 1}};
    const size_t layers = (size_t)model_all_layers(model);
    _cleanup_free_ enum checkpointing *nothing = calloc(layers + 1, sizeof *nothing); /* CHECKPOINT_NONE */
    struct layout *layout = NULL;
    struct program *p = NULL;

    titan_assert(converters && converters->powers && t > 0);
    if (!nothing)
        return titan_fail(err, TITAN_ENOMEM, "static scales: out of memory");
    TRY(layout_open(&one_rank, &layout, err));
    const struct build_options one = {.layout = layout,
                                      .dt = like->dt,
                                      .types = like->types,
                                      .b = 1,
                                      .t = t,
                                      .loss_chunks = 1,
                                      .expert_capacity = like->expert_capacity,
                                      .converters = converters,
                                      .ops = like->ops,
                                      .dev = like->dev,
                                      .microbatches = 1,
                                      .checkpointing = nothing,
                                      .draft = true};
    titan_status status = program_build(&one, 0, &p, err);
    if (status == TITAN_OK)
        status = take_products(p, converters, err);
    program_close(p);
    layout_close(layout);
    return status;
}
