/* SPDX-License-Identifier: Apache-2.0 */
/* bench_ops.c - each operation of a device at the shapes of one training step of a model, against the machine's limits.
 *
 *   bench_ops [device] [threads] [bf16|fp32] [dim layers heads kv_heads ffn vocab batch seq [op|ceilings]]
 *
 * Prints JSON: first what the device reaches at best, copying and in large products and attention, then per operation
 * its shape, milliseconds, how often a step calls it, GFLOP/s with the fraction of the device's peak for products, GB/s
 * for the rest, and its floor: the time that its products or bytes take at the measured best; at the end the sum over a
 * step, and what is fused by turns with the operations it stands for. op: this one alone, without the ceilings;
 * ceilings: them alone. Only by name: grouped, grouped_dgrad, grouped_wgrad, the experts' products of a rank of
 * DeepSeek V3 16B with 8 of them, at their own sizes whatever the model's are; float8, the products of w1 and w3 in
 * float8 with a scale for each operand, and the casts of their weight: its largest magnitude, its codes, and both in
 * products of STEP rows, along its lines and across them; int8, the products of w1 and w3 in int8 and in the compute
 * type; codecs, those of gradients, beside a copy of the same values.
 *
 * Operands are random numbers. On a GPU the milliseconds are the median of rounds between two events of the driver, and
 * the operands of one call after the other lie in other memory, three times its second-level cache before a place comes
 * again. On the host they are the best of many rounds by the clock, so that other load on the machine counts little. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "worker/device/device.h"
#include "worker/optim/whole_matrix.h"

enum { SLOTS = 6, EXPERTS = 8, GRADS = 4, ROUNDS = 30, PATTERN = 1 << 20, STEP = 16 };
#define ROUND_MS 4.0

/* What the driver measures with: events between which a stream's time passes. NULL without a GPU. */
struct driver_clock {
    int (*record)(void *event, void *stream);
    int (*wait)(void *event);
    int (*elapsed)(float *ms, void *begin, void *end);
    void *begin, *end;
};

struct bench {
    struct device_handle h;
    const struct device_ops *ops;
    struct stream *s;
    struct driver_clock clock;
    enum dtype dt;
    int64_t b, t, n, c, heads, kv, d, f, v, layers;
    size_t cache; /* bytes of the second-level cache; 0: operands stay where they are */
    size_t slot_bytes, grad_bytes;
    char *x[SLOTS];    /* activations and weights */
    char *grad[GRADS]; /* fp32, a unit's size */
    size_t offset;     /* into all of them, of this call's operands */
    float *rstd, *stats;
    struct attention_shape attention;
    int32_t *tokens, *positions, *counts;
    float *angle;
    void *work, *f8_work;
    void *pattern[2];               /* host: random numbers, and without their signs; bf16 pairs in an fp32's place */
    const char *only;               /* NULL: all */
    double budget_ms;               /* of one operation */
    double copy_rate, product_rate; /* bytes and operations a second, at best; 0: not measured */
    double total_ms;
    int rows;
};

struct op_call {
    const char *name;
    char shape[48];
    double flops, bytes; /* of one call */
    int64_t calls;       /* in one step */
    int m, nn, k;        /* products; of codes: codec, pieces, buckets of a piece */
    int kind;
    size_t largest; /* operand, bytes */
};

static void *memory(struct bench *b, size_t bytes)
{
    void *p = NULL;
    struct titan_error err = {0};
    if (b->ops->alloc(b->h.dev, bytes, &p, &err) != TITAN_OK) {
        fprintf(stderr, "bench_ops: %s\n", err.msg);
        exit(1);
    }
    return p;
}

enum {
    MATMUL_NT,
    MATMUL_NN,
    MATMUL_TN,
    GROUPED,
    GROUPED_DX,
    GROUPED_DW,
    NORM,
    NORM_DX,
    NORM_DX_IN_PLACE,
    NORM_DG,
    ADD_NORM,
    ROPE,
    ATTN,
    ATTN_ANY,
    ATTN_FIXED,
    ATTN_DX,
    ATTN_DX_ANY,
    ATTN_DX_FIXED,
    SWIGLU,
    SWIGLU_DX,
    ADD,
    BIAS,
    BIAS_DW,
    WINDOW,
    SCALE,
    SOFTCAP,
    SOFTCAP_DX,
    CLAMPED,
    CLAMPED_DX,
    SINK,
    SINK_DX,
    COPY,
    EMBED,
    EMBED_DW,
    LOSS,
    LOSS_PARTS,
    ADAMW,
    ADAMW_CODES,
    MUON,
    SUMS,
    F8_NT,
    F8_NN,
    F8_TN,
    F8_LARGEST,
    F8_ENCODE,
    FEW_BITS, /* k: enum weight_codec */
    FEW_BITS_BACK,
    I8_NT,
    I8_NN,
    I8_KEEP,
    I8_KEPT,
    CODES,
    CODES_AT_RANDOM,
    CODES_SUM,
    CODES_LARGEST
};

static const struct recipe *muon_recipe(void)
{
    static struct recipe r;

    if (!r.optimizer.name[0]) {
        recipe_init(&r);
        (void)snprintf(r.optimizer.name, sizeof r.optimizer.name, "Muon");
    }
    return &r;
}

static void call(struct bench *b, const struct op_call *o)
{
    const struct device_ops *ops = b->ops;
    struct stream *s = b->s;
    int64_t n = b->n, c = b->c, q = (b->heads + 2 * b->kv) * b->d, hd = b->heads * b->d,
            e = (int64_t)dtype_bytes(b->dt);
    char *x[SLOTS];
    float *grad[GRADS];
    for (int i = 0; i < SLOTS; i++)
        x[i] = b->x[i] + b->offset;
    for (int i = 0; i < GRADS; i++)
        grad[i] = (float *)(b->grad[i] + b->offset);
    char *qkv = x[0], *dqkv = x[1];
    size_t params = (size_t)(q * c + hd * c + 3 * b->f * c);
    const struct update_args adam = {.moment = o->kind == ADAMW_CODES ? DTYPE_U8 : DTYPE_F32,
                                     .lr = 1e-3f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .eps = 1e-8f,
                                     .weight_decay = 0.1f,
                                     .grad_scale = 1.0f,
                                     .bias1 = 0.1f,
                                     .bias2 = 0.05f};
    struct attention_shape attention = b->attention;
    attention.order = o->kind == ATTN_ANY || o->kind == ATTN_DX_ANY       ? ATTENTION_ANY
                      : o->kind == ATTN_FIXED || o->kind == ATTN_DX_FIXED ? ATTENTION_FIXED
                                                                          : ATTENTION_REPEATABLE;
    const struct float8_product forward = {.a = FLOAT8_E4M3, .b = FLOAT8_E4M3},
                                backward = {.a = FLOAT8_E5M2, .b = FLOAT8_E4M3};
    const struct int8_product one_scale = {.b_lines = false};
    titan_status st = TITAN_OK;
    switch (o->kind) {
    case MATMUL_NT:
        st = ops->matmul(s, ARGS(matmul, .c = x[0], .c_dt = b->dt, .ldc = o->nn, .a = x[1], .lda = o->k, .b = x[2],
                                 .tb = true, .ldb = o->k, .ab_dt = b->dt, .m = o->m, .n = o->nn, .k = o->k));
        break;
    case MATMUL_NN:
        st = ops->matmul(s, ARGS(matmul, .c = x[0], .c_dt = b->dt, .ldc = o->nn, .a = x[1], .lda = o->k, .b = x[2],
                                 .ldb = o->nn, .ab_dt = b->dt, .m = o->m, .n = o->nn, .k = o->k));
        break;
    case MATMUL_TN:
        st = ops->matmul(s,
                         ARGS(matmul, .c = grad[0], .c_dt = DTYPE_F32, .ldc = o->nn, .a = x[1], .ta = true, .lda = o->m,
                              .b = x[2], .ldb = o->nn, .ab_dt = b->dt, .m = o->m, .n = o->nn, .k = o->k, .beta = 1.0f));
        break;
    case GROUPED:
    case GROUPED_DX:
        st = ops->matmul_grouped(s, ARGS(matmul, .c = x[0], .c_dt = b->dt, .ldc = o->nn, .a = x[1], .lda = o->k,
                                         .b = x[2], .tb = o->kind == GROUPED, .ldb = o->kind == GROUPED ? o->k : o->nn,
                                         .ab_dt = b->dt, .counts = b->counts, .groups = EXPERTS, .parts = 1, .m = o->m,
                                         .n = o->nn, .k = o->k));
        break;
    case GROUPED_DW:
        st =
            ops->matmul_grouped(s, ARGS(matmul, .c = grad[0], .c_dt = DTYPE_F32, .ldc = o->nn, .a = x[1], .ta = true,
                                        .lda = o->m, .b = x[2], .ldb = o->nn, .ab_dt = b->dt, .counts = b->counts,
                                        .groups = EXPERTS, .parts = 1, .m = o->m, .n = o->nn, .k = o->k, .beta = 1.0f));
        break;
    case NORM:
        st = ops->rmsnorm(s, ARGS(norm, .out = x[0], .rstd = b->rstd, .x = x[1], .gain = x[2], .dt = b->dt, .n = n,
                                  .c = c, .eps = 1e-5f));
        break;
    case NORM_DX:
        st = ops->rmsnorm_dgrad(s, ARGS(norm, .dx = x[0], .residual = x[4], .dout = x[1], .x = x[2], .gain = x[3],
                                        .rstd = b->rstd, .dt = b->dt, .n = n, .c = c));
        break;
    case NORM_DX_IN_PLACE:
        st = ops->rmsnorm_dgrad(s, ARGS(norm, .dx = x[0], .residual = x[0], .dout = x[1], .x = x[2], .gain = x[3],
                                        .rstd = b->rstd, .dt = b->dt, .n = n, .c = c));
        break;
    case NORM_DG:
        st = ops->rmsnorm_dgain(
            s, ARGS(norm, .dgain = grad[0], .dout = x[0], .x = x[1], .rstd = b->rstd, .dt = b->dt, .n = n, .c = c));
        break;
    case ADD_NORM:
        st = ops->add_rmsnorm(s, ARGS(norm, .h = x[0], .out = x[1], .rstd = b->rstd, .a = x[0], .b = x[2], .gain = x[3],
                                      .dt = b->dt, .n = n, .c = c, .eps = 1e-5f));
        break;
    case ROPE:
        st = ops->rope(s, ARGS(rope, .x = x[0], .ldx = q, .positions = b->positions, .cos = b->angle, .sin = b->angle,
                               .dt = b->dt, .n = n, .heads = b->heads + b->kv, .d = b->d));
        break;
    case ATTN:
    case ATTN_ANY:
    case ATTN_FIXED:
        st = ops->attention(s, ARGS(attention, .out = x[2], .ldo = hd, .lse = b->rstd, .q = qkv, .ldq = q,
                                    .k = qkv + hd * e, .ldk = q, .v = qkv + (hd + b->kv * b->d) * e, .ldv = q,
                                    .shape = attention));
        break;
    case ATTN_DX:
    case ATTN_DX_ANY:
    case ATTN_DX_FIXED:
        st = ops->attention_dgrad(s, ARGS(attention, .dq = dqkv, .lddq = q, .dk = dqkv + hd * e, .lddk = q,
                                          .dv = dqkv + (hd + b->kv * b->d) * e, .lddv = q, .dout = x[3], .lddo = hd,
                                          .out = x[2], .ldo = hd, .lse = b->rstd, .q = qkv, .ldq = q, .k = qkv + hd * e,
                                          .ldk = q, .v = qkv + (hd + b->kv * b->d) * e, .ldv = q, .shape = attention,
                                          .work = b->work));
        break;
    case SWIGLU:
        st = ops->swiglu(s, ARGS(swiglu, .out = x[0], .gate = x[1], .up = x[1] + b->f * e, .ldgu = 2 * b->f,
                                 .dt = b->dt, .n = n, .f = b->f));
        break;
    case SWIGLU_DX:
        st = ops->swiglu_dgrad(s, ARGS(swiglu, .dgate = x[0], .dup = x[0] + b->f * e, .lddgu = 2 * b->f, .dout = x[2],
                                       .gate = x[1], .up = x[1] + b->f * e, .ldgu = 2 * b->f, .dt = b->dt, .n = n,
                                       .f = b->f));
        break;
    case CLAMPED:
        st = ops->swiglu(s, ARGS(swiglu, .out = x[0], .gate = x[1], .up = x[1] + b->f * e, .ldgu = 2 * b->f,
                                 .dt = b->dt, .n = n, .f = b->f, .limit = 7.0f, .alpha = 1.702f));
        break;
    case CLAMPED_DX:
        st = ops->swiglu_dgrad(s, ARGS(swiglu, .dgate = x[0], .dup = x[0] + b->f * e, .lddgu = 2 * b->f, .dout = x[2],
                                       .gate = x[1], .up = x[1] + b->f * e, .ldgu = 2 * b->f, .dt = b->dt, .n = n,
                                       .f = b->f, .limit = 7.0f, .alpha = 1.702f));
        break;
    case SINK:
        st = ops->attention_sink(s, ARGS(sink, .out = x[2], .lse = b->rstd, .x = x[3], .x_lse = b->rstd, .ldo = hd,
                                         .sinks = x[1], .dt = b->dt, .b = attention.b, .t = attention.tq, .h = b->heads,
                                         .dv = b->d));
        break;
    case SINK_DX:
        st = ops->attention_sink_dgrad(s, ARGS(sink, .dsinks = grad[0], .dout = x[3], .lddo = hd, .x = x[2], .ldo = hd,
                                               .x_lse = b->rstd, .sinks = x[1], .dt = b->dt, .b = attention.b,
                                               .t = attention.tq, .h = b->heads, .dv = b->d));
        break;
    case ADD:
        st = ops->add(s, x[0], x[0], x[1], b->dt, (size_t)(n * c));
        break;
    case BIAS:
        st = ops->add_bias(s, ARGS(bias, .x = x[0], .ld = q, .bias = x[1], .dt = b->dt, .n = n, .c = q));
        break;
    case BIAS_DW:
        st = ops->bias_wgrad(s, ARGS(bias, .dbias = grad[0], .dout = x[0], .ld = q, .dt = b->dt, .n = n, .c = q));
        break;
    case WINDOW:
        st = ops->window(s, (int32_t *)x[0], b->tokens, b->positions, n, 64);
        break;
    case SOFTCAP:
        st = ops->softcap(s, ARGS(softcap, .out = x[0], .x = x[1], .dt = b->dt, .cap = 30.0f, .n = (size_t)(n * b->v)));
        break;
    case SOFTCAP_DX:
        st = ops->softcap_dgrad(
            s, ARGS(softcap, .out = x[0], .dout = x[0], .x = x[1], .dt = b->dt, .cap = 30.0f, .n = (size_t)(n * b->v)));
        break;
    case SCALE:
        st = ops->scale(s, x[0], x[1], b->dt, 0.22f, (size_t)(n * c));
        break;
    case COPY:
        st = ops->copy(s, x[0], x[1], o->largest);
        break;
    case EMBED:
        st = ops->embed(
            s, ARGS(embed, .out = x[0], .tokens = b->tokens, .table = x[1], .dt = b->dt, .n = n, .c = c, .v = b->v));
        break;
    case EMBED_DW:
        st = ops->embed_wgrad(s, ARGS(embed, .dtable = grad[0], .tokens = b->tokens, .dout = x[0], .dt = b->dt, .n = n,
                                      .c = c, .v = b->v));
        break;
    case LOSS:
        st = ops->loss(s, ARGS(loss, .losses = b->rstd, .stats = b->stats, .dlogits = x[0], .logits = x[1],
                               .targets = b->tokens, .dt = b->dt, .n = n, .v = b->v));
        break;
    case LOSS_PARTS:
        st = ops->loss_stats(
            s, ARGS(loss, .stats = b->stats, .logits = x[1], .targets = b->tokens, .dt = b->dt, .n = n, .v = b->v));
        st |= ops->loss_finish(s, ARGS(loss, .losses = b->rstd, .dlogits = x[0], .logits = x[1], .targets = b->tokens,
                                       .stats = b->stats, .parts = 1, .dt = b->dt, .n = n, .v = b->v));
        break;
    case ADAMW:
    case ADAMW_CODES:
        st = ops->update(
            s, &(struct update_piece){grad[0], {grad[1], grad[2]}, grad[3], (uint16_t *)x[4], params, adam.rounding, 0},
            1, &adam);
        break;
    case MUON: {
        const struct whole_step step = {
            .recipe = muon_recipe(), .number = 1, .grad_scale = 1, .dt = b->dt, .moment = DTYPE_F32};
        const struct whole_matrix m = {.name = "w1",
                                       .rows = b->f,
                                       .cols = c,
                                       .heads = 1,
                                       .of = 1,
                                       .values = grad[0],
                                       .state = {grad[1]},
                                       .next = {grad[2]}};
        st = whole_direction(&step, &m, b->work, ops, s);
        break;
    }
    case SUMS:
        st = ops->block_sums(s, (double *)x[5], grad[0], params, 4096, true);
        break;
    case F8_NT:
        st = ops->matmul_f8(s, ARGS(matmul, .c = x[0], .c_dt = b->dt, .ldc = o->nn, .a = x[1], .lda = o->k, .b = x[2],
                                    .tb = true, .ldb = o->k, .ab_dt = b->dt, .m = o->m, .n = o->nn, .k = o->k,
                                    .how = &forward, .work = b->f8_work));
        break;
    case F8_NN:
        st = ops->matmul_f8(s, ARGS(matmul, .c = x[0], .c_dt = b->dt, .ldc = o->nn, .a = x[1], .lda = o->k, .b = x[2],
                                    .ldb = o->nn, .ab_dt = b->dt, .m = o->m, .n = o->nn, .k = o->k, .how = &backward,
                                    .work = b->f8_work));
        break;
    case F8_TN:
        st = ops->matmul_f8(s, ARGS(matmul, .c = grad[0], .c_dt = DTYPE_F32, .ldc = o->nn, .a = x[1], .ta = true,
                                    .lda = o->m, .b = x[2], .ldb = o->nn, .ab_dt = b->dt, .m = o->m, .n = o->nn,
                                    .k = o->k, .beta = 1.0f, .how = &backward, .work = b->f8_work));
        break;
    case I8_NT:
        st = ops->matmul_i8(s, ARGS(matmul, .c = x[0], .c_dt = b->dt, .ldc = o->nn, .a = x[1], .lda = o->k, .b = x[2],
                                    .tb = true, .ldb = o->k, .ab_dt = b->dt, .m = o->m, .n = o->nn, .k = o->k,
                                    .int8 = &one_scale, .work = b->f8_work));
        break;
    case I8_KEEP:
        st = ops->rows_encode(s, ARGS(rows_encode, .codes = b->f8_work, .x = x[1], .dt = b->dt, .n = o->m, .c = o->k));
        break;
    case I8_KEPT:
        st =
            ops->rows_decode(s, ARGS(rows_decode, .out = x[0], .codes = b->f8_work, .dt = b->dt, .n = o->m, .c = o->k));
        break;
    case I8_NN:
        st = ops->matmul_i8(s, ARGS(matmul, .c = x[0], .c_dt = b->dt, .ldc = o->nn, .a = x[1], .lda = o->k, .b = x[2],
                                    .ldb = o->nn, .ab_dt = b->dt, .m = o->m, .n = o->nn, .k = o->k, .int8 = &one_scale,
                                    .work = b->f8_work));
        break;
    case F8_LARGEST:
        st = ops->float8_largest(s, b->stats, x[1], b->dt, (size_t)o->nn * (size_t)o->k);
        break;
    case F8_ENCODE:
        st = ops->float8_encode(s, (uint8_t *)x[0], x[1], b->dt, (size_t)o->nn * (size_t)o->k, b->rstd);
        break;
    case FEW_BITS:
        st = ops->weight_encode(s, ARGS(weight_encode, .codes = (uint8_t *)x[0], .x = x[1], .dt = b->dt,
                                        .codec = (enum weight_codec)o->k, .n = n * c, .bucket = WEIGHT_BUCKET,
                                        .shift = 0.3f));
        break;
    case FEW_BITS_BACK:
        st = ops->weight_decode(s, ARGS(weight_decode, .out = x[0], .codes = (const uint8_t *)x[1], .dt = b->dt,
                                        .codec = (enum weight_codec)o->k, .pieces = 1, .n = n * c,
                                        .bucket = WEIGHT_BUCKET));
        break;
    case CODES:
    case CODES_AT_RANDOM:
        st = ops->encode(s, ARGS(encode, .codec = (enum codec)o->m, .x = grad[0], .codes = (uint8_t *)x[0],
                                 .error = o->m == CODEC_LOCO ? (uint8_t *)x[1] : NULL, .decay = 0.8f, .pieces = o->nn,
                                 .n = (int64_t)o->k * CODEC_BUCKET, .stochastic = o->kind == CODES_AT_RANDOM));
        break;
    case CODES_SUM:
        st = ops->decode_sum(s, ARGS(decode_sum, .codec = (enum codec)o->m, .out = grad[0], .codes = (uint8_t *)x[0],
                                     .pieces = o->nn, .n = (int64_t)o->k * CODEC_BUCKET));
        break;
    case CODES_LARGEST: {
        const int64_t all = (int64_t)o->nn * o->k * CODEC_BUCKET, begins[] = {0, all / 3, all};
        st = ops->bucket_largest(s, ARGS(bucket_largest, .x = grad[0], .error = (uint8_t *)x[1], .pieces = o->nn,
                                         .n = (int64_t)o->k * CODEC_BUCKET, .begins = begins, .tensors = 2,
                                         .largest = (float *)x[0], .of_tensor = b->stats));
        break;
    }
    default:
        break;
    }
    if (st != TITAN_OK) {
        fprintf(stderr, "bench_ops: %s: %s\n", o->name, titan_status_name(st));
        exit(1);
    }
    const size_t step = (o->largest + 255) / 256 * 256;
    b->offset = b->offset + step <= 3 * b->cache ? b->offset + step : 0;
}

static void wait_for(struct bench *b, const struct op_call *o)
{
    struct titan_error err = {0};
    if (b->ops->stream_sync(b->s, &err) != TITAN_OK) {
        fprintf(stderr, "bench_ops: %s: %s\n", o->name, err.msg);
        exit(1);
    }
}

/* Milliseconds of one call, the mean of count. */
static double time_calls(struct bench *b, const struct op_call *o, int count)
{
    const struct driver_clock *clock = &b->clock;
    if (clock->record) {
        void *stream = b->ops->stream_native(b->s);
        float ms = 0;
        int failed = clock->record(clock->begin, stream);
        for (int i = 0; i < count; i++)
            call(b, o);
        failed = failed || clock->record(clock->end, stream) || clock->wait(clock->end) ||
                 clock->elapsed(&ms, clock->begin, clock->end);
        if (failed) {
            fprintf(stderr, "bench_ops: %s: the driver's events failed\n", o->name);
            exit(1);
        }
        wait_for(b, o);
        return (double)ms / count;
    }
    const int64_t start = clock_mono_ns();
    for (int i = 0; i < count; i++) {
        call(b, o);
        wait_for(b, o);
    }
    return (double)(clock_mono_ns() - start) / 1e6 / count;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure(struct bench *b, const struct op_call *o)
{
    double ms[ROUNDS], spent = 0;
    int rounds = 0;
    call(b, o);
    wait_for(b, o);
    double once = time_calls(b, o, 1);
    const int count = once > 0 && once < ROUND_MS ? (int)(ROUND_MS / once) + 1 : 1;
    for (; rounds < ROUNDS && (rounds < 3 || spent < b->budget_ms); rounds++) {
        ms[rounds] = time_calls(b, o, count);
        spent += ms[rounds] * count;
    }
    qsort(ms, (size_t)rounds, sizeof(ms[0]), by_value);
    return b->clock.record ? ms[rounds / 2] : ms[0];
}

/* Random numbers of both signs, between 1/8 and 2 in magnitude; positive: without the sign. Read as fp32 or as pairs of
 * bf16 they are that. */
static void make_patterns(struct bench *b)
{
    uint64_t random = 20261124;
    for (int positive = 0; positive < 2; positive++) {
        struct titan_error err = {0};
        if (b->ops->alloc_host(b->h.dev, PATTERN * 4, &b->pattern[positive], &err) != TITAN_OK) {
            fprintf(stderr, "bench_ops: %s\n", err.msg);
            exit(1);
        }
        const uint32_t keep = positive ? 0x01ff01ffu : 0x81ff81ffu; /* sign, two bits of the exponent, mantissa */
        for (int i = 0; i < PATTERN; i++)
            ((uint32_t *)b->pattern[positive])[i] = ((uint32_t)hash_draw(&random) & keep) | 0x3e003e00u;
    }
}

/* The pattern, and then as much as there is by itself. */
static void fill(struct bench *b, void *p, size_t bytes, bool positive)
{
    const struct op_call what = {.name = "random numbers"};
    size_t done = bytes < PATTERN * 4 ? bytes : PATTERN * 4;
    titan_status st = b->ops->copy(b->s, p, b->pattern[positive], done);
    while (st == TITAN_OK && done < bytes) {
        const size_t more = bytes - done < done ? bytes - done : done;
        st = b->ops->copy(b->s, (char *)p + done, p, more);
        done += more;
    }
    if (st != TITAN_OK) {
        fprintf(stderr, "bench_ops: %s: %s\n", what.name, titan_status_name(st));
        exit(1);
    }
    wait_for(b, &what);
}

static void run(struct bench *b, struct op_call o)
{
    if (b->only && strcmp(b->only, o.name) != 0)
        return;
    b->offset = 0;
    fill(b, b->x[0], b->slot_bytes, false); /* what results of the ones before have made of them grows */
    fill(b, b->x[1], b->slot_bytes, false);
    double ms = measure(b, &o);
    double peak = device_peak(&b->h.info, b->dt);
    b->total_ms += ms * (double)o.calls;
    printf("%s    {\"op\": \"%s\", \"shape\": \"%s\", \"ms\": %.4f, \"calls_per_step\": %lld", b->rows++ ? ",\n" : "",
           o.name, o.shape, ms, (long long)o.calls);
    if (o.flops > 0.0)
        printf(", \"gflops\": %.1f, \"of_peak\": %.3f", o.flops / ms / 1e6, o.flops / ms * 1e3 / peak);
    if (o.bytes > 0.0)
        printf(", \"gbytes_per_s\": %.2f", o.bytes / ms / 1e6);
    if (b->copy_rate > 0.0) {
        const double floor_ms = 1e3 * (o.flops > 0.0 ? o.flops / b->product_rate : o.bytes / b->copy_rate);
        printf(", \"floor_ms\": %.4f, \"of_floor\": %.3f", floor_ms, floor_ms / ms);
    }
    printf("}");
}

static int64_t largest_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct op_call product(struct bench *b, const char *name, int kind, int64_t m, int64_t n, int64_t k,
                              int64_t calls)
{
    struct op_call o = {.name = name, .kind = kind, .m = (int)m, .nn = (int)n, .k = (int)k, .calls = calls};
    const int64_t e = (int64_t)dtype_bytes(b->dt);
    o.largest = (size_t)largest_of(m * n * (kind == MATMUL_TN || kind == F8_TN ? 4 : e), largest_of(m * k, n * k) * e);
    snprintf(o.shape, sizeof(o.shape), "%lldx%lldx%lld", (long long)m, (long long)n, (long long)k);
    o.flops = 2.0 * (double)m * (double)n * (double)k;
    return o;
}

static void run_linear(struct bench *b, const char *layer, int64_t out, int64_t in, int64_t calls)
{
    static const char *const way[] = {"forward", "dgrad", "wgrad"};
    char name[3][64];
    for (int i = 0; i < 3; i++)
        snprintf(name[i], sizeof(name[i]), "matmul %s %s", layer, way[i]);
    run(b, product(b, name[0], MATMUL_NT, b->n, out, in, calls));
    run(b, product(b, name[1], MATMUL_NN, b->n, in, out, calls));
    run(b, product(b, name[2], MATMUL_TN, out, in, b->n, calls));
}

static int64_t qkv_width(const struct bench *b)
{
    return (b->heads + 2 * b->kv) * b->d;
}
/* Parameters of a layer without its norms. */
static int64_t layer_params(const struct bench *b)
{
    return qkv_width(b) * b->c + b->heads * b->d * b->c + 3 * b->f * b->c;
}

/* Causal: what has to be computed. */
static double attention_flops(const struct bench *b)
{
    return 4.0 * (double)b->n * (double)(b->t + 1) / 2.0 * (double)(b->heads * b->d);
}

static void run_rest(struct bench *b)
{
    double n = (double)b->n, c = (double)b->c, f = (double)b->f, e = (double)dtype_bytes(b->dt);
    double q = (double)qkv_width(b), attention = attention_flops(b), params = (double)layer_params(b);
    int64_t l = b->layers;
    const size_t es = dtype_bytes(b->dt), row = (size_t)(b->n * b->c) * es, wide = (size_t)(b->n * qkv_width(b)) * es,
                 ffn = (size_t)(b->n * 2 * b->f) * es, vocab = (size_t)(b->v * b->c),
                 unit = (size_t)layer_params(b) * 4;
    const struct op_call ops[] = {
        {.name = "attention", .kind = ATTN, .calls = l, .flops = attention, .largest = wide},
        {.name = "attention_dgrad", .kind = ATTN_DX, .calls = l, .flops = 2.5 * attention, .largest = wide},
        {.name = "attention, any order", .kind = ATTN_ANY, .flops = attention, .largest = wide},
        {.name = "attention_dgrad, any order", .kind = ATTN_DX_ANY, .flops = 2.5 * attention, .largest = wide},
        {.name = "attention, fixed order", .kind = ATTN_FIXED, .flops = attention, .largest = wide},
        {.name = "attention_dgrad, fixed order", .kind = ATTN_DX_FIXED, .flops = 2.5 * attention, .largest = wide},
        {.name = "rope", .kind = ROPE, .calls = 2 * l, .bytes = 2 * n * q * e, .largest = wide},
        {.name = "rmsnorm", .kind = NORM, .calls = 1, .bytes = 2 * n * c * e, .largest = row},
        {.name = "rmsnorm_dgrad", .kind = NORM_DX, .calls = 2 * l + 1, .bytes = 4 * n * c * e, .largest = row},
        {.name = "rmsnorm_dgain", .kind = NORM_DG, .calls = 2 * l + 1, .bytes = 2 * n * c * e, .largest = row},
        {.name = "add_rmsnorm", .kind = ADD_NORM, .calls = 2 * l, .bytes = 4 * n * c * e, .largest = row},
        {.name = "swiglu", .kind = SWIGLU, .calls = l, .bytes = 3 * n * f * e, .largest = ffn},
        {.name = "swiglu_dgrad", .kind = SWIGLU_DX, .calls = l, .bytes = 5 * n * f * e, .largest = ffn},
        {.name = "clamped_swiglu", .kind = CLAMPED, .calls = 0, .bytes = 3 * n * f * e, .largest = ffn},
        {.name = "clamped_swiglu_dgrad", .kind = CLAMPED_DX, .calls = 0, .bytes = 5 * n * f * e, .largest = ffn},
        {.name = "attention_sink", .kind = SINK, .calls = 0, .bytes = 2 * (double)row, .largest = wide},
        {.name = "attention_sink_dgrad", .kind = SINK_DX, .calls = 0, .bytes = 2 * (double)row, .largest = wide},
        {.name = "add", .kind = ADD, .calls = 0, .bytes = 3 * n * c * e, .largest = row},
        {.name = "add_bias", .kind = BIAS, .calls = 0, .bytes = 2 * (double)wide, .largest = wide},
        {.name = "bias_wgrad", .kind = BIAS_DW, .calls = 0, .bytes = (double)wide, .largest = wide},
        {.name = "window", .kind = WINDOW, .calls = 0, .bytes = 12 * n, .largest = (size_t)n * 4},
        {.name = "softcap",
         .kind = SOFTCAP,
         .calls = 0,
         .bytes = 2 * n * (double)b->v * e,
         .largest = (size_t)(b->n * b->v) * es},
        {.name = "softcap_dgrad",
         .kind = SOFTCAP_DX,
         .calls = 0,
         .bytes = 3 * n * (double)b->v * e,
         .largest = (size_t)(b->n * b->v) * es},
        {.name = "scale", .kind = SCALE, .calls = 0, .bytes = 2 * n * c * e, .largest = row},
        {.name = "copy", .kind = COPY, .calls = 0, .bytes = 2 * n * c * e, .largest = row},
        /* beside a copy of the values */
        {.name = "weight_encode int8", .kind = FEW_BITS, .k = WEIGHTS_INT8, .bytes = 2 * n * c * e, .largest = row},
        {.name = "weight_encode int6", .kind = FEW_BITS, .k = WEIGHTS_INT6, .bytes = 2 * n * c * e, .largest = row},
        {.name = "weight_encode int4", .kind = FEW_BITS, .k = WEIGHTS_INT4, .bytes = 2 * n * c * e, .largest = row},
        {.name = "weight_decode int8",
         .kind = FEW_BITS_BACK,
         .k = WEIGHTS_INT8,
         .bytes = 2 * n * c * e,
         .largest = row},
        {.name = "weight_decode int6",
         .kind = FEW_BITS_BACK,
         .k = WEIGHTS_INT6,
         .bytes = 2 * n * c * e,
         .largest = row},
        {.name = "weight_decode int4",
         .kind = FEW_BITS_BACK,
         .k = WEIGHTS_INT4,
         .bytes = 2 * n * c * e,
         .largest = row},
        {.name = "embed",
         .kind = EMBED,
         .calls = 1,
         .bytes = 2 * n * c * e,
         .largest = row > vocab * es ? row : vocab * es},
        {.name = "embed_wgrad",
         .kind = EMBED_DW,
         .calls = 1,
         .bytes = n * c * (e + 8),
         .largest = row > vocab * 4 ? row : vocab * 4},
        {.name = "loss in parts",
         .kind = LOSS_PARTS,
         .calls = 0,
         .bytes = 3 * n * (double)b->v * e,
         .largest = (size_t)(b->n * b->v) * es},
        {.name = "loss",
         .kind = LOSS,
         .calls = 1,
         .bytes = 2 * n * (double)b->v * e,
         .largest = (size_t)(b->n * b->v) * es},
        {.name = "adamw", .kind = ADAMW, .calls = l, .bytes = 30 * params, .largest = unit},
        {.name = "adamw, state in codes",
         .kind = ADAMW_CODES,
         .calls = 0,
         .bytes = (14 + 4 * 260.0 / 256) * params,
         .largest = unit},
        {.name = "muon of w1", /* a direction: one matrix's Newton-Schulz steps, and what is around them */
         .kind = MUON,
         .calls = 0,
         .flops = whole_flops(muon_recipe(), b->f, b->c, 1),
         .largest = (size_t)(b->f * b->c) * 4},
        {.name = "block_sums", .kind = SUMS, .calls = l, .bytes = 4 * params, .largest = unit},
    };
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        run(b, ops[i]);
}

static void run_float8(struct bench *b)
{
    struct bench named = *b;
    const int64_t n = b->n, out = 2 * b->f, in = b->c, calls = b->layers;
    const double e = (double)dtype_bytes(b->dt), weight = (double)(out * in);
    if (!b->only || strncmp(b->only, "float8", 6) != 0 || !b->h.info.float8)
        return;
    const size_t nt = b->ops->matmul_f8_work_bytes(b->h.dev, b->dt, false, n, out, in),
                 nn = b->ops->matmul_f8_work_bytes(b->h.dev, b->dt, false, n, in, out),
                 tn = b->ops->matmul_f8_work_bytes(b->h.dev, b->dt, false, out, in, n);
    named.only = strcmp(b->only, "float8") == 0 ? NULL : b->only;
    named.f8_work = memory(b, nt + nn + tn);
    struct op_call casts[] = {
        product(b, "float8_largest", F8_LARGEST, STEP, out, in, calls),
        product(b, "float8_encode", F8_ENCODE, STEP, out, in, calls),
        product(b, "float8 casts along", F8_NT, STEP, out, in, calls),
        product(b, "float8 casts across", F8_NN, STEP, in, out, calls),
    };
    const double bytes[] = {e, e + 1, e + e + 1 + 1, e + e + 1 + 1}; /* a product reads the codes as well */
    run(&named, product(b, "float8 forward", F8_NT, n, out, in, calls));
    run(&named, product(b, "float8 dgrad", F8_NN, n, in, out, calls));
    run(&named, product(b, "float8 wgrad", F8_TN, out, in, n, calls));
    for (size_t i = 0; i < sizeof(casts) / sizeof(casts[0]); i++) {
        casts[i].flops = 0;
        casts[i].bytes = weight * bytes[i];
        run(&named, casts[i]);
    }
    b->ops->release(b->h.dev, named.f8_work);
    b->total_ms = named.total_ms;
}

/* The products of a linear layer in int8, as SwitchBack has them, beside those in the compute type. The weight's
 * gradient is in the compute type in both. An input that is kept as codes, and its values. */
static void run_int8(struct bench *b)
{
    struct bench named = *b;
    const int64_t n = b->n, out = 2 * b->f, in = b->c, calls = b->layers;
    if (!b->only || strncmp(b->only, "int8", 4) != 0)
        return;
    named.only = strcmp(b->only, "int8") == 0 ? NULL : b->only;
    named.f8_work = memory(b, b->ops->matmul_i8_work_bytes(b->h.dev, b->dt, n, out, in) +
                                  b->ops->matmul_i8_work_bytes(b->h.dev, b->dt, n, in, out));
    run(&named, product(b, "int8 forward", I8_NT, n, out, in, calls));
    run(&named, product(b, "int8 dgrad", I8_NN, n, in, out, calls));
    run(&named, product(b, "int8 plain forward", MATMUL_NT, n, out, in, calls));
    run(&named, product(b, "int8 plain dgrad", MATMUL_NN, n, in, out, calls));
    run(&named, product(b, "int8 wgrad", MATMUL_TN, out, in, n, calls));
    struct op_call kept = product(b, "int8 keep", I8_KEEP, n, out, in, calls);
    kept.flops = 0;
    kept.bytes = (size_t)(n * in) * (dtype_bytes(b->dt) + 1);
    run(&named, kept);
    kept.name = "int8 kept";
    kept.kind = I8_KEPT;
    run(&named, kept);
    b->ops->release(b->h.dev, named.f8_work);
    b->total_ms = named.total_ms;
}

/* A fused operation and those it stands for, by turns; the best round of each. */
static void run_fused(struct bench *b)
{
    const size_t e = dtype_bytes(b->dt), row = (size_t)(b->n * b->c) * e, logits = (size_t)(b->n * b->v) * e;
    const struct {
        struct op_call fused, apart[2];
        int n;
    } all[] = {
        {{.name = "add_rmsnorm", .kind = ADD_NORM, .largest = row},
         {{.name = "add", .kind = ADD, .largest = row}, {.name = "rmsnorm", .kind = NORM, .largest = row}},
         2},
        {{.name = "add_rmsnorm_dgrad", .kind = NORM_DX, .largest = row},
         {{.name = "copy", .kind = COPY, .largest = row},
          {.name = "rmsnorm_dgrad", .kind = NORM_DX_IN_PLACE, .largest = row}},
         2},
        {{.name = "loss", .kind = LOSS, .largest = logits},
         {{.name = "loss", .kind = LOSS_PARTS, .largest = logits}},
         1},
    };
    const char *comma = "";
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        double fused = 1e30, apart = 1e30;
        if (b->only && strcmp(b->only, all[i].fused.name) != 0)
            continue;
        for (int round = 0; round < 4 * ROUNDS; round++) {
            const double once = time_calls(b, &all[i].fused, 1);
            double parts = 0;
            for (int k = 0; k < all[i].n; k++)
                parts += time_calls(b, &all[i].apart[k], 1);
            fused = once < fused ? once : fused;
            apart = parts < apart ? parts : apart;
        }
        printf("%s\n    {\"op\": \"%s\", \"ms\": %.4f, \"apart_ms\": %.4f, \"ratio\": %.3f}", comma, all[i].fused.name,
               fused, apart, fused / apart);
        comma = ",";
    }
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void open_memory(struct bench *b)
{
    const size_t e = dtype_bytes(b->dt), spare = 3 * b->cache + 256;
    const int64_t q = qkv_width(b), widest = largest_of(largest_of(2 * b->f, b->v), largest_of(q, b->c));
    const int64_t params = largest_of(layer_params(b), b->v * b->c);
    b->slot_bytes = (size_t)largest_of(b->n * widest, widest * b->c) * e;
    b->slot_bytes = b->slot_bytes > (size_t)params * 2 ? b->slot_bytes : (size_t)params * 2; /* AdamW's bf16 weights */
    b->slot_bytes += spare;
    b->grad_bytes = (size_t)params * 4 + spare;
    for (int i = 0; i < SLOTS; i++)
        b->x[i] = memory(b, b->slot_bytes);
    for (int i = 0; i < GRADS; i++)
        b->grad[i] = memory(b, b->grad_bytes);
    const size_t rows = (size_t)(b->n * b->heads);
    b->rstd = memory(b, rows * 4);
    b->tokens = memory(b, (size_t)b->n * 4);
    b->positions = memory(b, (size_t)b->n * 4);
    b->angle = memory(b, (size_t)(b->t * b->d) * 4);
    b->stats = memory(b, (size_t)b->n * 12);
    b->attention = (struct attention_shape){
        .dt = b->dt, .b = b->b, .tq = b->t, .tk = b->t, .h = b->heads, .kv = b->kv, .d = b->d, .dv = b->d};
    size_t work = whole_work_bytes(muon_recipe(), b->dt, b->f, b->c, 1);
    for (int order = ATTENTION_FIXED; order <= ATTENTION_ANY; order++) {
        struct attention_shape z = b->attention;
        z.order = (enum attention_order)order;
        const size_t bytes = b->ops->attention_work_bytes(b->h.dev, &z);
        work = bytes > work ? bytes : work;
    }
    b->work = memory(b, work);
}

static void close_memory(struct bench *b)
{
    for (int i = 0; i < SLOTS; i++)
        b->ops->release(b->h.dev, b->x[i]);
    for (int i = 0; i < GRADS; i++)
        b->ops->release(b->h.dev, b->grad[i]);
    void *const others[] = {b->rstd, b->tokens, b->positions, b->angle, b->stats, b->work};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        b->ops->release(b->h.dev, others[i]);
}

static void fill_memory(struct bench *b)
{
    uint64_t random = 1;
    int32_t *host[2] = {malloc((size_t)b->n * 4), malloc((size_t)b->n * 4)};
    if (!host[0] || !host[1])
        exit(1);
    for (int64_t i = 0; i < b->n; i++) {
        host[0][i] = (int32_t)(hash_draw(&random) % (uint64_t)b->v);
        host[1][i] = (int32_t)(i % b->t);
    }
    const struct op_call what = {.name = "tokens"};
    (void)b->ops->copy(b->s, b->tokens, host[0], (size_t)b->n * 4);
    (void)b->ops->copy(b->s, b->positions, host[1], (size_t)b->n * 4);
    wait_for(b, &what);
    free(host[0]);
    free(host[1]);
    for (int i = 0; i < SLOTS; i++)
        fill(b, b->x[i], b->slot_bytes, false);
    for (int i = 0; i < GRADS; i++)
        fill(b, b->grad[i], b->grad_bytes, i == 2); /* the second moment */
    fill(b, b->rstd, (size_t)(b->n * b->heads) * 4, true);
    fill(b, b->angle, (size_t)(b->t * b->d) * 4, false);
}

/* --- experts ------------------------------------------------------------------------------------------------------ */

/* Rows that come to a rank's experts, some of which get four times those of others; no group begins at a tile. */
static void fill_counts(struct bench *b, int64_t rows)
{
    static const int64_t sixteenths[EXPERTS] = {1, 2, 2, 3, 1, 4, 1, 2};
    int32_t counts[EXPERTS];
    int64_t left = rows;
    for (int e = 0; e < EXPERTS; e++) {
        counts[e] = (int32_t)(e + 1 < EXPERTS ? rows * sixteenths[e] / 16 - 7 * (e % 3) : left);
        left -= counts[e];
    }
    const struct op_call what = {.name = "counts"};
    (void)b->ops->copy(b->s, b->counts, counts, sizeof(counts));
    wait_for(b, &what);
}

/* Each form of the products to an expert's hidden rows and back. */
static void run_grouped(struct bench *b)
{
    const int64_t rows = b->h.info.host_memory ? 1024 : 98304, dim = 2048, hidden = 1408;
    const size_t spare = 3 * b->cache + 256;
    b->slot_bytes = (size_t)(rows > EXPERTS * hidden ? rows : EXPERTS * hidden) * (size_t)dim * dtype_bytes(b->dt);
    b->slot_bytes += spare;
    b->grad_bytes = (size_t)(EXPERTS * dim * hidden) * 4 + spare;
    for (int i = 0; i < 3; i++) {
        b->x[i] = memory(b, b->slot_bytes);
        fill(b, b->x[i], b->slot_bytes, false);
    }
    b->grad[0] = memory(b, b->grad_bytes);
    fill(b, b->grad[0], b->grad_bytes, false);
    b->counts = memory(b, EXPERTS * sizeof(*b->counts));
    fill_counts(b, rows);
    for (int back = 0; back < 2; back++) {
        const int64_t out = back ? dim : hidden, in = back ? hidden : dim;
        run(b, product(b, "grouped", GROUPED, rows, out, in, 1));
        run(b, product(b, "grouped_dgrad", GROUPED_DX, rows, in, out, 1));
        run(b, product(b, "grouped_wgrad", GROUPED_DW, out, in, rows, 1));
    }
    for (int i = 0; i < 3; i++)
        b->ops->release(b->h.dev, b->x[i]);
    b->ops->release(b->h.dev, b->grad[0]);
    b->ops->release(b->h.dev, b->counts);
}

/* --- codes of gradients ------------------------------------------------------------------------------------------- */

/* One row, with the rate of fp32 values beside that of a copy of the same values, which is measured in turn with it. */
static void run_code(struct bench *b, struct op_call o)
{
    const double values = (double)o.k * CODEC_BUCKET * o.nn;
    const struct op_call copy = {.name = "copy", .kind = COPY, .largest = (size_t)values * 4};
    double ms = 1e30, copy_ms = 1e30;
    o.largest = copy.largest;
    for (int turn = 0; turn < 3; turn++) {
        const double once = measure(b, &o), again = measure(b, &copy);
        ms = once < ms ? once : ms;
        copy_ms = again < copy_ms ? again : copy_ms;
        fill(b, b->grad[0], b->grad_bytes, false);
    }
    const double floor_ms = o.bytes * copy_ms / (8 * values);
    printf("%s    {\"op\": \"%s\", \"shape\": \"%s\", \"ms\": %.4f, \"copy_ms\": %.4f, \"of_copy\": %.3f, "
           "\"gbytes_per_s\": %.2f, \"floor_ms\": %.4f, \"of_floor\": %.3f}",
           b->rows++ ? ",\n" : "", o.name, o.shape, ms, copy_ms, copy_ms / ms, o.bytes / ms / 1e6, floor_ms,
           floor_ms / ms);
}

/* Codes of 16 million values (a GPU: 256) in 8 pieces, and the sum of as many. The bytes of a floor: values and codes,
 * each read or written once, and LoCo's error read and written. */
static void run_codecs(struct bench *b)
{
    const int pieces = 8, buckets = (b->h.info.host_memory ? 2 : 32) << 10;
    const double values = (double)pieces * buckets * CODEC_BUCKET;
    const size_t spare = 3 * b->cache + 256;
    b->slot_bytes = b->grad_bytes = (size_t)values * 4 + spare;
    b->stats = memory(b, 64);
    for (int i = 0; i < 2; i++) { /* memory that was never written is read from a cache */
        b->x[i] = memory(b, b->slot_bytes);
        fill(b, b->x[i], b->slot_bytes, false);
    }
    b->grad[0] = memory(b, b->grad_bytes);
    fill(b, b->grad[0], b->grad_bytes, false);
    for (int c = CODEC_F32; c < CODECS; c++) {
        const double coded = (double)pieces * (double)codec_bytes((enum codec)c, (int64_t)buckets * CODEC_BUCKET);
        struct op_call o = {.name = "encode", .kind = CODES, .m = c, .nn = pieces, .k = buckets};
        const char *const name = codec_row((enum codec)c)->name;
        (void)snprintf(o.shape, sizeof o.shape, "%s %.0f", name, values);
        o.bytes = 4 * values + coded + (c == CODEC_LOCO ? 2 * values : 0);
        run_code(b, o);
        if (codec_row((enum codec)c)->stochastic) {
            o.name = "encode at random";
            o.kind = CODES_AT_RANDOM;
            run_code(b, o);
        }
        o.name = "decode_sum";
        o.kind = CODES_SUM;
        o.bytes = 4 * values / pieces + coded;
        run_code(b, o);
        o.nn = 1;
        o.k = pieces * buckets;
        (void)snprintf(o.shape, sizeof o.shape, "%s %.0f, one piece", name, values);
        o.bytes = 4 * values + coded;
        run_code(b, o);
    }
    struct op_call o = {.name = "bucket_largest", .kind = CODES_LARGEST, .nn = pieces, .k = buckets};
    (void)snprintf(o.shape, sizeof o.shape, "loco %.0f", values);
    o.bytes = 5 * values;
    run_code(b, o);
    for (int i = 0; i < 2; i++)
        b->ops->release(b->h.dev, b->x[i]);
    b->ops->release(b->h.dev, b->grad[0]);
    b->ops->release(b->h.dev, b->stats);
}

/* --- the device's best -------------------------------------------------------------------------------------------- */

/* A copy, a large product and causal attention, in any order, as in Llama 3 8B; on the host, smaller ones. The product
 * on zeros as well: where that is faster, power is the limit. */
static void measure_ceilings(struct bench *b)
{
    struct bench best = *b;
    const bool host = b->h.info.host_memory;
    const int64_t most = host ? 1024 : 8192;
    best.b = 1;
    best.n = best.t = 4 * b->t < most ? 4 * b->t : most;
    best.heads = best.n < 8192 ? 8 : 32;
    best.kv = best.heads / 4;
    best.d = best.n < 8192 ? 64 : 128;
    best.c = best.heads * best.d;
    best.f = best.n / 2;
    best.v = best.n * (host ? 16 : 4);
    best.budget_ms = best.n == 8192 ? 2000 : 100;
    open_memory(&best);
    const struct op_call matmul = product(&best, "ceiling: matmul", MATMUL_NT, best.n, best.n, best.n, 1);
    const size_t wide = (size_t)(best.n * qkv_width(&best)) * dtype_bytes(best.dt);
    const struct op_call attention = {.name = "ceiling: attention", .kind = ATTN_ANY, .largest = wide};
    const struct op_call attention_dgrad = {.name = "ceiling: attention_dgrad", .kind = ATTN_DX_ANY, .largest = wide};
    const struct op_call copy = {
        .name = "ceiling: copy", .kind = COPY, .largest = best.slot_bytes - 3 * best.cache - 256};
    const double zeros_ms = measure(&best, &matmul);
    fill_memory(&best);
    const double copy_ms = measure(&best, &copy), matmul_ms = measure(&best, &matmul);
    fill_memory(&best);
    const double attention_ms = measure(&best, &attention), dgrad_ms = measure(&best, &attention_dgrad);
    b->copy_rate = 2.0 * (double)copy.largest / copy_ms * 1e3;
    b->product_rate = matmul.flops / matmul_ms * 1e3;
    printf("  \"ceilings\": {\"copy_gbytes_per_s\": %.2f, \"matmul_gflops\": %.1f, \"matmul_zeros_gflops\": %.1f, "
           "\"attention_gflops\": %.1f, \"attention_dgrad_gflops\": %.1f}",
           b->copy_rate / 1e9, b->product_rate / 1e9, matmul.flops / zeros_ms / 1e6,
           attention_flops(&best) / attention_ms / 1e6, 2.5 * attention_flops(&best) / dgrad_ms / 1e6);
    close_memory(&best);
}

/* The driver's events and its card's cache, without the toolkit's headers; nothing where there is no driver. */
static void open_driver(struct bench *b)
{
    enum { L2_CACHE_SIZE = 38 }; /* CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE */
    if (!b->ops->stream_native(b->s))
        return;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    int (*create)(void **event, unsigned flags) = NULL, (*attribute)(int *value, int which, int device) = NULL;
    struct driver_clock clock = {0};
    if (driver) {
        *(void **)&create = dlsym(driver, "cuEventCreate");
        *(void **)&attribute = dlsym(driver, "cuDeviceGetAttribute");
        *(void **)&clock.wait = dlsym(driver, "cuEventSynchronize");
        *(void **)&clock.elapsed = dlsym(driver, "cuEventElapsedTime");
        *(void **)&clock.record = dlsym(driver, "cuEventRecord");
    }
    int cache = 0;
    if (!create || !attribute || !clock.wait || !clock.elapsed || !clock.record ||
        attribute(&cache, L2_CACHE_SIZE, 0) != 0 || create(&clock.begin, 0) != 0 || create(&clock.end, 0) != 0) {
        fprintf(stderr, "bench_ops: the driver has no events or no context\n");
        exit(1);
    }
    b->clock = clock;
    b->cache = (size_t)cache;
}

int main(int argc, char **argv)
{
    struct bench b = {.c = 256, .layers = 8, .heads = 8, .kv = 4, .f = 768, .v = 256, .b = 4, .t = 256};
    int64_t *const dims[] = {&b.c, &b.layers, &b.heads, &b.kv, &b.f, &b.v, &b.b, &b.t};
    struct device_options options = {.threads = argc > 2 ? atoi(argv[2]) : 1};
    struct titan_error err = {0};
    for (int i = 0; i < 8 && argc > 4 + i; i++)
        *dims[i] = atoll(argv[4 + i]);
    b.only = argc > 12 ? argv[12] : NULL;
    setenv("TITAN_PLUGIN_DIR", TITAN_BUILD_DIR "/lib/titan", 0);
    if (device_open(argc > 1 ? argv[1] : "cpu", &options, &b.h, &err) != TITAN_OK) {
        fprintf(stderr, "bench_ops: %s\n", err.msg);
        return 1;
    }
    b.ops = b.h.ops;
    b.dt = argc > 3 && strcmp(argv[3], "fp32") == 0 ? DTYPE_F32 : DTYPE_BF16;
    b.n = b.b * b.t;
    b.d = b.c / b.heads;
    if (b.ops->stream_open(b.h.dev, "compute", true, &b.s, &err) != TITAN_OK)
        return 1;
    open_driver(&b);
    make_patterns(&b);
    b.budget_ms = ROUNDS * ROUND_MS * 4;
    const bool ceilings = b.only && strcmp(b.only, "ceilings") == 0;

    printf("{\n  \"device\": \"%s\", \"dtype\": \"%s\", \"peak_gflops_bf16\": %.1f, \"peak_gflops_fp32\": %.1f,\n"
           "  \"dim\": %lld, \"layers\": %lld, \"heads\": %lld, \"kv_heads\": %lld, \"ffn\": %lld, \"vocab\": %lld, "
           "\"batch\": %lld, \"seq\": %lld,\n  \"clock\": \"%s\", \"cache_bytes\": %zu,\n",
           b.h.info.name, b.dt == DTYPE_BF16 ? "bf16" : "fp32", b.h.info.peak_flops_bf16 / 1e9,
           b.h.info.peak_flops_f32 / 1e9, (long long)b.c, (long long)b.layers, (long long)b.heads, (long long)b.kv,
           (long long)b.f, (long long)b.v, (long long)b.b, (long long)b.t,
           b.clock.record ? "events, median" : "host, best", b.cache);
    if (!b.only || ceilings)
        measure_ceilings(&b);
    if (ceilings) {
        printf("\n}\n");
        return 0;
    }
    printf("%s  \"ops\": [\n", b.only ? "" : ",\n");
    if (b.only && strncmp(b.only, "grouped", strlen("grouped")) == 0) {
        run_grouped(&b);
        printf("\n  ]\n}\n");
        return 0;
    }
    if (b.only && strcmp(b.only, "codecs") == 0) {
        run_codecs(&b);
        printf("\n  ]\n}\n");
        return 0;
    }
    open_memory(&b);
    fill_memory(&b);
    const int64_t q = qkv_width(&b);
    run_linear(&b, "qkv", q, b.c, b.layers);
    run_linear(&b, "wo", b.c, b.heads * b.d, b.layers);
    run_linear(&b, "w1w3", 2 * b.f, b.c, b.layers);
    run_linear(&b, "w2", b.c, b.f, b.layers);
    run_linear(&b, "head", b.v, b.c, 1);
    run_rest(&b);
    run_float8(&b);
    run_int8(&b);
    double flops = 6.0 * (double)b.n * (double)(b.layers * (q * b.c + b.c * b.c + 3 * b.f * b.c) + b.v * b.c) +
                   12.0 * (double)b.n * (double)(b.layers * b.c * b.t);
    printf("\n  ],\n  \"fused\": [");
    run_fused(&b);
    printf("\n  ],\n  \"step_ms\": %.2f, \"tokens_per_second\": %.0f, \"step_gflops\": %.1f\n}\n", b.total_ms,
           (double)b.n / b.total_ms * 1e3, flops / b.total_ms / 1e6);
    return 0;
}
