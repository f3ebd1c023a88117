/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c - the device table: checks shapes, skips operations of a failed stream, launches. */
#include "base/cleanup.h"
#include "worker/device/cuda/cudnn_attention.h"
#include "worker/device/cuda/enqueue.h"
#include "worker/device/cuda/product_plans.h"

titan_status cuda_ops_copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    return ENQUEUE(s, "a copy", (int)cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->native));
}

titan_status cuda_ops_zero(struct stream *s, void *dst, size_t bytes)
{
    return ENQUEUE(s, "clearing memory", (int)cudaMemsetAsync(dst, 0, bytes, s->native));
}

titan_status cuda_ops_cast(struct stream *s, void *dst, enum dtype to, const void *src, enum dtype from, size_t n)
{
    if (to > DTYPE_U8 || from > DTYPE_U8)
        return TITAN_EINVAL;
    return ENQUEUE(s, "a cast", cuda_cast(s->native, dst, to, src, from, n));
}

titan_status cuda_ops_copy_2d(struct stream *s, const struct strided_args *a)
{
    if (a->rows < 0 || a->cols < 0 || a->ldd < a->cols || a->lds < a->cols || a->repeat <= 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "a copy of rows", cuda_copy_2d(s->native, a));
}

titan_status cuda_ops_add_2d(struct stream *s, const struct strided_args *a)
{
    if (!compute_type(a->dt) || a->rows < 0 || a->cols < 0 || a->ldd < a->cols || a->lds < a->cols || a->repeat <= 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "a sum of rows", cuda_add_2d(s->native, a));
}

titan_status cuda_ops_add_bias(struct stream *s, const struct bias_args *a)
{
    if (!compute_type(a->dt) || a->n < 0 || a->c < 0 || a->ld < a->c)
        return TITAN_EINVAL;
    return ENQUEUE(s, "a bias", cuda_add_bias(s->native, a));
}

titan_status cuda_ops_bias_wgrad(struct stream *s, const struct bias_args *a)
{
    if (!compute_type(a->dt) || a->n < 0 || a->c < 0 || a->ld < a->c)
        return TITAN_EINVAL;
    return ENQUEUE(s, "bias gradient", cuda_bias_wgrad(s->native, a));
}

titan_status cuda_ops_float8_largest(struct stream *s, float *largest, const void *x, enum dtype dt, size_t n)
{
    if (!s->dev->float8)
        return TITAN_EUNSUPPORTED;
    if (!compute_type(dt))
        return TITAN_EINVAL;
    return ENQUEUE(s, "a largest magnitude", cuda_float8_largest(s->native, largest, x, dt == DTYPE_BF16, n));
}

titan_status cuda_ops_float8_scales(struct stream *s, float *scales, const float *largest, int64_t ld, int64_t ranks,
                                    int64_t n, bool power_of_two)
{
    if (!s->dev->float8)
        return TITAN_EUNSUPPORTED;
    if (ranks <= 0 || n < 0 || ld < n)
        return TITAN_EINVAL;
    return ENQUEUE(s, "float8 scales", cuda_float8_scales(s->native, scales, largest, ld, ranks, n, power_of_two));
}

titan_status cuda_ops_float8_encode(struct stream *s, uint8_t *codes, const void *x, enum dtype dt, size_t n,
                                    const float *scale)
{
    if (!s->dev->float8)
        return TITAN_EUNSUPPORTED;
    if (!compute_type(dt))
        return TITAN_EINVAL;
    if (n == 0)
        return TITAN_OK;
    return ENQUEUE(s, "float8 codes", cuda_float8_encode(s->native, codes, x, dt == DTYPE_BF16, n, scale));
}

titan_status cuda_ops_embed(struct stream *s, const struct embed_args *a)
{
    if (!compute_type(a->dt) || a->n < 0 || a->c < 0 || a->v < 0 || a->first < 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "embedding", cuda_embed(s->native, a));
}

titan_status cuda_ops_embed_wgrad(struct stream *s, const struct embed_args *a)
{
    if (!compute_type(a->dt) || a->n < 0 || !rows_fit(a->v, a->c) || a->first < 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "embedding gradient", cuda_embed_wgrad(s->native, a));
}

titan_status cuda_ops_rmsnorm(struct stream *s, const struct norm_args *a)
{
    if (!compute_type(a->dt) || !rows_fit(a->n, a->c))
        return TITAN_EINVAL;
    return ENQUEUE(s, "RMSNorm", cuda_rmsnorm(s->native, a));
}

titan_status cuda_ops_rmsnorm_dgrad(struct stream *s, const struct norm_args *a)
{
    if (!compute_type(a->dt) || !rows_fit(a->n, a->c) || a->dx == a->dout)
        return TITAN_EINVAL;
    return ENQUEUE(s, "RMSNorm gradient", cuda_rmsnorm_dgrad(s->native, a));
}

titan_status cuda_ops_rmsnorm_dgain(struct stream *s, const struct norm_args *a)
{
    if (!compute_type(a->dt) || a->n < 0 || a->c < 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "RMSNorm gain gradient", cuda_rmsnorm_dgain(s->native, a));
}

titan_status cuda_ops_add_rmsnorm(struct stream *s, const struct norm_args *a)
{
    if (!compute_type(a->dt) || !rows_fit(a->n, a->c) || a->out == a->h || a->out == a->a || a->out == a->b)
        return TITAN_EINVAL;
    return ENQUEUE(s, "RMSNorm of a sum", cuda_add_rmsnorm(s->native, a));
}

titan_status cuda_ops_window(struct stream *s, int32_t *start, const int32_t *index, const int32_t *first, int64_t n,
                             int64_t tokens)
{
    if (n < 0 || tokens <= 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "a window", cuda_window(s->native, start, index, first, n, tokens));
}

titan_status cuda_ops_rope(struct stream *s, const struct rope_args *a)
{
    if (!compute_type(a->dt) || a->n < 0 || a->heads < 0 || a->d < 0 || a->d % 2 != 0 || a->ldx < a->heads * a->d)
        return TITAN_EINVAL;
    return ENQUEUE(s, "rotary embedding", cuda_rope(s->native, a));
}

static bool attention_fits(const struct attention_shape *z)
{
    const bool masked = z->index != NULL;
    return compute_type(z->dt) && z->b >= 0 && z->b <= GRID_YZ_MAX && z->tq >= 0 && z->tq <= ROWS_MAX && z->tk >= 0 &&
           z->tk <= ROWS_MAX && z->kv > 0 && z->h >= z->kv && z->h <= GRID_YZ_MAX && z->h % z->kv == 0 && z->d > 0 &&
           z->d <= CUDA_ATTENTION_D_MAX && z->dv > 0 && z->dv <= CUDA_ATTENTION_D_MAX &&
           z->b * z->tq * z->h <= GRID_MAX && masked == (z->start != NULL) && masked == (z->key_index != NULL) &&
           (masked || z->tq == z->tk);
}

static bool strides_fit(const struct attention_args *a)
{
    const struct attention_shape *const z = &a->shape;
    return a->ldq >= z->h * z->d && a->ldk >= z->kv * z->d && a->ldv >= z->kv * z->dv && a->ldo >= z->h * z->dv;
}

static struct attention_problem attention_problem(const struct stream *st, const struct attention_args *a)
{
    const struct attention_shape *const z = &a->shape;
    titan_assert(z->kv > 0 && z->h % z->kv == 0 && z->d <= CUDA_ATTENTION_D_MAX && z->dv <= CUDA_ATTENTION_D_MAX);
    return (struct attention_problem){.bf16 = z->dt == DTYPE_BF16,
                                      .hopper = st->dev->hopper,
                                      .b = (int)z->b,
                                      .tq = (int)z->tq,
                                      .tk = (int)z->tk,
                                      .h = (int)z->h,
                                      .kv = (int)z->kv,
                                      .d = (int)z->d,
                                      .dv = (int)z->dv,
                                      .ldq = a->ldq,
                                      .ldk = a->ldk,
                                      .ldv = a->ldv,
                                      .ldo = a->ldo,
                                      .index = z->index,
                                      .start = z->start,
                                      .key_index = z->key_index,
                                      .scale = attention_scale(z),
                                      .softcap = z->softcap};
}

/* Whether attention_hopper.cu is used before cuDNN. Times in ms on an H200 with 8,192 tokens, ours and cuDNN's. Heads
 * of 128: forward 0.96 and 0.99, repeatable gradients 3.07 and 4.60, gradients in any order 2.63 and 2.85. Heads of 64:
 * forward 1.35 and 1.25, repeatable gradients 4.18 and 5.68, in any order 3.31 by cuDNN. */
static bool in_one_pass(const struct device *dev, const struct attention_shape *z)
{
    return dev->hopper && z->softcap == 0 && z->order == ATTENTION_ANY &&
           cuda_attention_hopper_any_order(z->dt == DTYPE_BF16, z->d, z->dv);
}
static bool before_cudnn(const struct device *dev, const struct attention_shape *z, bool backward)
{
    if (z->softcap > 0) /* only attention.cu has a cap: cuDNN's graphs have none */
        return true;
    return dev->hopper && cuda_attention_hopper_fits(z->dt == DTYPE_BF16, z->d, z->dv) &&
           (backward ? z->order != ATTENTION_ANY || in_one_pass(dev, z) : z->d > 64);
}

/* Bytes of delta; the sums begin after it. */
static size_t delta_bytes(const struct attention_shape *z)
{
    return ((size_t)z->b * (size_t)z->tq * (size_t)z->h * sizeof(float) + 15) / 16 * 16;
}

titan_status cuda_ops_attention(struct stream *s, const struct attention_args *a)
{
    if (!attention_fits(&a->shape) || !strides_fit(a))
        return TITAN_EINVAL;
    if (stream_skips(s) || (!before_cudnn(s->dev, &a->shape, false) && cudnn_attention(s, a, false)))
        return TITAN_OK;
    const struct attention_problem problem = attention_problem(s, a);
    return ENQUEUE(s, "attention", cuda_attention(s->native, a, &problem));
}

titan_status cuda_ops_attention_dgrad(struct stream *s, const struct attention_args *a)
{
    const struct attention_shape *const z = &a->shape;
    if (!attention_fits(z) || !strides_fit(a) || a->lddq < z->h * z->d || a->lddk < z->kv * z->d ||
        a->lddv < z->kv * z->dv || a->lddo < z->h * z->dv || !a->work)
        return TITAN_EINVAL;
    if (stream_skips(s) || (!before_cudnn(s->dev, z, true) && cudnn_attention(s, a, true)))
        return TITAN_OK;
    const struct attention_problem problem = attention_problem(s, a);
    float *const sums = in_one_pass(s->dev, z) ? (float *)((char *)a->work + delta_bytes(z)) : NULL;
    return ENQUEUE(s, "attention gradient", cuda_attention_dgrad(s->native, a, &problem, sums));
}

size_t cuda_ops_attention_work_bytes(struct device *dev, const struct attention_shape *z)
{
    const size_t delta = delta_bytes(z);
    if (in_one_pass(dev, z))
        return delta + cuda_attention_hopper_sums(z->b, z->tq, z->h);
    return before_cudnn(dev, z, true) ? delta : MAX(delta, cudnn_attention_work_bytes(dev, z));
}

titan_status cuda_ops_attention_merge(struct stream *s, const struct merge_args *a)
{
    if (!compute_type(a->dt) || a->b < 0 || a->b > GRID_YZ_MAX || a->t < 0 || a->t > ROWS_MAX || a->h <= 0 ||
        a->dv <= 0 || a->ld < a->h * a->dv || a->b * a->t > GRID_MAX / a->h)
        return TITAN_EINVAL;
    return ENQUEUE(s, "merging attention", cuda_attention_merge(s->native, a));
}

titan_status cuda_ops_attention_sink(struct stream *s, const struct sink_args *a)
{
    if (!compute_type(a->dt) || a->b < 0 || a->t < 0 || a->h <= 0 || a->dv <= 0 || a->ldo < a->h * a->dv ||
        a->b > GRID_YZ_MAX || a->t > ROWS_MAX || a->b * a->t > GRID_MAX / a->h)
        return TITAN_EINVAL;
    return ENQUEUE(s, "attention sinks", cuda_attention_sink(s->native, a));
}

titan_status cuda_ops_attention_sink_dgrad(struct stream *s, const struct sink_args *a)
{
    if (!compute_type(a->dt) || a->b < 0 || a->t < 0 || a->h <= 0 || a->h > GRID_MAX || a->dv <= 0 ||
        a->ldo < a->h * a->dv || a->lddo < a->h * a->dv)
        return TITAN_EINVAL;
    return ENQUEUE(s, "gradient of attention sinks", cuda_attention_sink_dgrad(s->native, a));
}

static bool swiglu_fits(const struct swiglu_args *a)
{
    return compute_type(a->dt) && a->n >= 0 && a->f >= 0 && a->ldgu >= a->f && (!a->counts || a->parts > 0) &&
           (a->limit == 0 || (a->limit > 0 && !a->gelu));
}

titan_status cuda_ops_swiglu(struct stream *s, const struct swiglu_args *a)
{
    return swiglu_fits(a) ? ENQUEUE(s, "SwiGLU", cuda_swiglu(s->native, a)) : TITAN_EINVAL;
}

titan_status cuda_ops_swiglu_dgrad(struct stream *s, const struct swiglu_args *a)
{
    if (!swiglu_fits(a) || a->lddgu < a->f)
        return TITAN_EINVAL;
    return ENQUEUE(s, "SwiGLU gradient", cuda_swiglu_dgrad(s->native, a));
}

titan_status cuda_ops_add(struct stream *s, void *out, const void *a, const void *b, enum dtype dt, size_t n)
{
    if (!compute_type(dt))
        return TITAN_EINVAL;
    return ENQUEUE(s, "a sum", cuda_add(s->native, out, a, b, dt == DTYPE_BF16, n));
}

titan_status cuda_ops_loss_stats(struct stream *s, const struct loss_args *a)
{
    if (!compute_type(a->dt) || !rows_fit(a->n, a->v) || a->v == 0 || a->first < 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "loss statistics", cuda_loss_stats(s->native, a));
}

titan_status cuda_ops_loss_finish(struct stream *s, const struct loss_args *a)
{
    if (!compute_type(a->dt) || !rows_fit(a->n, a->v) || a->v == 0 || a->first < 0 || a->parts <= 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "cross-entropy", cuda_loss_finish(s->native, a));
}

titan_status cuda_ops_loss(struct stream *s, const struct loss_args *a)
{
    if (!compute_type(a->dt) || !rows_fit(a->n, a->v) || a->v == 0 || a->first < 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "cross-entropy", cuda_loss(s->native, a));
}

titan_status cuda_ops_accumulate(struct stream *s, float *dst, const float *src, size_t n)
{
    return ENQUEUE(s, "a sum", cuda_accumulate(s->native, dst, src, n));
}

titan_status cuda_ops_scale(struct stream *s, void *out, const void *x, enum dtype dt, float factor, size_t n)
{
    if (!compute_type(dt))
        return TITAN_EINVAL;
    return ENQUEUE(s, "scaling", cuda_scale(s->native, out, x, dt == DTYPE_BF16, factor, n));
}

titan_status cuda_ops_softcap(struct stream *s, const struct softcap_args *a)
{
    if (!compute_type(a->dt) || !(a->cap > 0))
        return TITAN_EINVAL;
    return ENQUEUE(s, "a cap", cuda_softcap(s->native, a));
}

titan_status cuda_ops_softcap_dgrad(struct stream *s, const struct softcap_args *a)
{
    if (!compute_type(a->dt) || !(a->cap > 0))
        return TITAN_EINVAL;
    return ENQUEUE(s, "gradient of a cap", cuda_softcap_dgrad(s->native, a));
}

titan_status cuda_ops_block_sums(struct stream *s, double *out, const float *x, size_t n, size_t block, bool square)
{
    if (block == 0 || n / block >= (size_t)GRID_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "block sums", cuda_block_sums(s->native, out, x, n, block, square));
}

titan_status cuda_ops_sum(struct stream *s, double *out, bool add_to, const double *x, size_t n)
{
    return ENQUEUE(s, "a sum", cuda_sum(s->native, out, add_to, x, n));
}

titan_status cuda_ops_hash(struct stream *s, const struct hash_args *a)
{
    if (!compute_type(a->dt) || a->rows < 0 || a->cols < 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "a hash", cuda_hash(s->native, a));
}

titan_status cuda_ops_unit(struct stream *s, const struct unit_args *a)
{
    if (!compute_type(a->dt) || !(a->eps >= 0))
        return TITAN_EINVAL;
    return ENQUEUE(s, "a unit vector", cuda_unit(s->native, a));
}

titan_status cuda_ops_polynomial(struct stream *s, const struct polynomial_args *a)
{
    if (!compute_type(a->dt) || a->n < 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "a polynomial", cuda_polynomial(s->native, a));
}

titan_status cuda_ops_orthonormal(struct stream *s, const struct orthonormal_args *a)
{
    if (a->rows < 0 || a->rows > a->cols || a->rows > GRID_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "an orthonormal basis", cuda_orthonormal(s->native, a));
}

titan_status cuda_ops_jacobi(struct stream *s, const struct jacobi_args *a)
{
    if (a->rows < 0 || a->rows > a->cols || a->rows > a->ycols || a->rows > GRID_MAX || a->kept > a->rows)
        return TITAN_EINVAL;
    TRY(cuda_ops_zero(s, a->work, jacobi_work_bytes(a->rows)));
    return ENQUEUE(s, "rotations", cuda_jacobi(s->native, a));
}

titan_status cuda_ops_row_gradient(struct stream *s, const struct row_gradient_args *a)
{
    if (a->rows < 0 || a->cols <= 0 || (a->clip && !a->w) || a->rows > GRID_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "a gradient's rows", cuda_row_gradient(s->native, a));
}

titan_status cuda_ops_moments(struct stream *s, const struct moments_args *a)
{
    return ENQUEUE(s, "moments", cuda_moments(s->native, a));
}

titan_status cuda_ops_row_decay(struct stream *s, const struct row_decay_args *a)
{
    if (a->rows < 0 || a->cols <= 0 || (a->slow && !(a->lr > 0)) || a->rows > GRID_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "decay of rows", cuda_row_decay(s->native, a));
}

titan_status cuda_ops_parts_extract(struct stream *s, const struct parts_extract_args *a)
{
    if (!parts_valid(&a->shape, a->n))
        return TITAN_EINVAL;
    return ENQUEUE(s, "parts of a direction", cuda_parts_extract(s->native, a));
}

titan_status cuda_ops_parts_combine(struct stream *s, const struct parts_combine_args *a)
{
    if (!parts_valid(&a->shape, a->n) || a->ranks < 1)
        return TITAN_EINVAL;
    return ENQUEUE(s, "a direction of parts", cuda_parts_combine(s->native, a));
}

titan_status cuda_ops_encode(struct stream *s, const struct encode_args *a)
{
    if (!encode_valid(a) || a->pieces * codec_buckets(a->n) > GRID_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "codes of a gradient", cuda_encode(s->native, a, codec_places(a->codec, a->n)));
}

titan_status cuda_ops_decode_sum(struct stream *s, const struct decode_sum_args *a)
{
    if (!decode_sum_valid(a))
        return TITAN_EINVAL;
    return ENQUEUE(s, "a sum of codes", cuda_decode_sum(s->native, a, codec_places(a->codec, a->n)));
}

titan_status cuda_ops_bucket_largest(struct stream *s, const struct bucket_largest_args *a)
{
    const struct codec_places at = codec_places(CODEC_LOCO, a->n);

    if (!bucket_largest_valid(a) || a->pieces * at.buckets > GRID_MAX)
        return TITAN_EINVAL;
    TRY(cuda_ops_zero(s, a->of_tensor, (size_t)a->tensors * sizeof *a->of_tensor));
    struct tensor_places some = {0};
    for (int64_t from = 0; some.end_bucket < a->pieces * at.buckets; from += some.count) {
        some.count = (int)MIN(a->tensors - from, CUDA_CODEC_TENSORS);
        if (some.count > 0)
            memcpy(some.begins, a->begins + from, (size_t)(some.count + 1) * sizeof *a->begins);
        some.first_bucket = some.end_bucket;
        some.end_bucket = from + some.count == a->tensors ? a->pieces * at.buckets
                                                          : codec_bucket_of(&at, a->n, some.begins[some.count]);
        if (some.first_bucket < some.end_bucket)
            TRY(ENQUEUE(s, "largest of tensors", cuda_bucket_largest(s->native, a, at, a->of_tensor + from, &some)));
    }
    return TITAN_OK;
}

titan_status cuda_ops_weights(struct stream *s, const struct weights_args *a)
{
    if (!compute_type(a->dt) || a->rows < 0 || a->cols < 0 || a->first < 0 || a->width < 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "initial values", cuda_weights(s->native, a));
}

static struct update_factors factors_of(const struct update_args *args)
{
    const bool coupled = args->l2 || args->rule == RULE_SGD;
    struct update_factors f = {
        .rule = args->rule,
        .beta1 = args->beta1,
        .beta2 = args->beta2,
        .eps = args->eps,
        .unbias1 = 1.0f / args->bias1,
        .unbias2 = 1.0f / args->bias2,
        .weight_decay = coupled ? 0.0f : args->weight_decay,
        .l2 = coupled ? args->weight_decay : 0.0f,
        .grad_scale = args->grad_scale,
        .mean = args->mean,
        .clip = args->clip,
        .keeps_state = update_keeps_state(args),
        .bf16_master = args->master == DTYPE_BF16,
        .bf16_moment = args->moment == DTYPE_BF16,
        .coded_moment = args->moment == DTYPE_U8,
        .random_moments = args->rounding.random,
        .step = args->rounding.step,
    };

    memcpy(f.own, args->own, sizeof f.own);
    return f;
}

titan_status cuda_ops_update(struct stream *s, const struct update_piece *pieces, int count,
                             const struct update_args *args)
{
    const struct update_factors factors = factors_of(args);

    titan_assert(count >= 0);
    for (int i = 0; i < count; i++) {
        struct update_args with = *args;
        with.rounding = pieces[i].rounding;
        if (!update_valid(&with, &pieces[i]) || with.rounding.random != args->rounding.random)
            return TITAN_EINVAL;
    }
    for (int from = 0; from < count; from += CUDA_UPDATE_PIECES) {
        struct update_parts parts = {.count = MIN(count - from, CUDA_UPDATE_PIECES)};
        for (int i = 0; i < parts.count; i++) {
            const struct update_piece *const p = &pieces[from + i];
            parts.of[i] = (struct update_part){.rate = p->excess > 1.0f ? args->lr / p->excess : args->lr,
                                               .master = p->master,
                                               .state = {p->state[0], p->state[1], p->state[2]},
                                               .grad = p->grad,
                                               .shadow = p->shadow,
                                               .n = p->n,
                                               .key = {p->rounding.key.k[0], p->rounding.key.k[1]},
                                               .first = p->rounding.first,
                                               .cols = p->rounding.cols,
                                               .ld = p->rounding.ld,
                                               .origin = p->rounding.origin};
        }
        TRY(ENQUEUE(s, "update", cuda_update(s->native, &parts, &factors, s->seen)));
    }
    return TITAN_OK;
}

titan_status cuda_ops_encode_moments(struct stream *s, void *blocks, const float *values, size_t n, bool square)
{
    return ENQUEUE(s, "moments to codes",
                   cuda_moment_codes(s->native, blocks, (float *)values, n / MOMENT_BLOCK, square, true));
}

titan_status cuda_ops_decode_moments(struct stream *s, float *values, const void *blocks, size_t n, bool square)
{
    return ENQUEUE(
        s, "codes to moments",
        cuda_moment_codes(s->native, (struct moment_block *)blocks, values, n / MOMENT_BLOCK, square, false));
}

titan_status cuda_ops_update_sum(struct stream *s, double *sum, const void *v, const float *grad, size_t n,
                                 const struct update_args *args)
{
    const struct update_factors factors = factors_of(args);

    return ENQUEUE(s, "sum of an update", cuda_update_sum(s->native, sum, (struct update_terms){v, grad, n}, &factors));
}

titan_status cuda_ops_weight_encode(struct stream *s, const struct weight_encode_args *a)
{
    if (!weight_codes_valid(a->dt, a->codec, a->n, a->bucket) || a->runs < 0 || a->runs > WEIGHT_RUNS ||
        weight_buckets(a->n, a->bucket) > GRID_MAX || (a->table && !weight_learns(a->codec)))
        return TITAN_EINVAL;
    return ENQUEUE(s, "weights to codes", cuda_weight_encode(s->native, a));
}

titan_status cuda_ops_weight_decode(struct stream *s, const struct weight_decode_args *a)
{
    if (!weight_codes_valid(a->dt, a->codec, a->n, a->bucket) || a->pieces < 0 ||
        (a->pieces > 0 && weight_buckets(a->n, a->bucket) > GRID_MAX / a->pieces) ||
        (a->table && !weight_learns(a->codec)))
        return TITAN_EINVAL;
    return ENQUEUE(s, "codes to weights", cuda_weight_decode(s->native, a));
}

titan_status cuda_ops_weight_count(struct stream *s, int32_t *counts, const struct weight_encode_args *a)
{
    if (!weight_codes_valid(a->dt, a->codec, a->n, a->bucket) || a->runs < 0 || a->runs > WEIGHT_RUNS ||
        weight_buckets(a->n, a->bucket) > GRID_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "weights in bins", cuda_weight_count(s->native, counts, a));
}

titan_status cuda_ops_weight_learn(struct stream *s, const struct weight_learn_args *a)
{
    if (!weight_learns(a->codec) || a->ranks < 0 || a->ld < WEIGHT_BINS)
        return TITAN_EINVAL;
    return ENQUEUE(s, "learned levels", cuda_weight_learn(s->native, a));
}

const struct device_ops cuda_ops = {
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .memory_peak = cuda_memory_peak,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .alloc_host = cuda_alloc_host,
    .release_host = cuda_release_host,
    .pin_host = cuda_pin_host,
    .unpin_host = cuda_unpin_host,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .stream_sync = cuda_stream_sync,
    .stream_clear = cuda_stream_clear,
    .stream_call = cuda_stream_call,
    .stream_native = cuda_stream_native,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
    .timestamps_open = cuda_timestamps_open,
    .timestamps_close = cuda_timestamps_close,
    .timestamps_begin = cuda_timestamps_begin,
    .timestamp = cuda_timestamp,
    .timestamps_read = cuda_timestamps_read,
    .segment_begin = cuda_segment_begin,
    .segment_end = cuda_segment_end,
    .segment_launch = cuda_segment_launch,
    .segment_close = cuda_segment_close,
    .products_note = cuda_products_note,
    .products_noted = cuda_products_noted,
    .product_time = cuda_product_time,
    .product_choose = cuda_product_choose,
/* clang-format off */
#define X(name) .name = cuda_ops_##name,
    DEVICE_OPS(X)
#undef X
    /* clang-format on */
};
