/* SPDX-License-Identifier: Apache-2.0 */
/* bench_ops.c - each operation of a device at the shapes of one training step of a model, against the machine's limits.
 *
 *   bench_ops [device] [threads] [bf16|fp32] [dim layers heads kv_heads ffn vocab batch seq [op]]
 *
 * Prints JSON: per operation its shape, milliseconds, how often a step calls it, GFLOP/s with the fraction of the
 * device's peak for products, GB/s for the rest; at the end the sum over a step. op: this one alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "worker/device/device.h"

struct bench {
    struct device_handle h;
    const struct device_ops *ops;
    struct stream *s;
    enum dtype dt;
    int64_t b, t, n, c, heads, kv, d, f, v, layers;
    void *x[6];     /* activations, large enough for all */
    float *grad[4]; /* fp32, a unit's size */
    float *rstd, *stats;
    struct attention_shape attention;
    int32_t *tokens;
    float *angle;
    void *work;
    const char *only; /* NULL: all */
    double total_ms;
    int rows;
};

struct op_call {
    const char *name;
    char shape[48];
    double flops, bytes; /* of one call */
    int64_t calls;       /* in one step */
    int m, nn, k;        /* products */
    int kind;
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
    NORM,
    NORM_DX,
    NORM_DG,
    ROPE,
    ATTN,
    ATTN_DX,
    SWIGLU,
    SWIGLU_DX,
    ADD,
    COPY,
    EMBED,
    EMBED_DW,
    LOSS,
    ADAMW,
    SUMS
};

static void call(struct bench *b, const struct op_call *o)
{
    const struct device_ops *ops = b->ops;
    struct stream *s = b->s;
    int64_t n = b->n, c = b->c, q = (b->heads + 2 * b->kv) * b->d, hd = b->heads * b->d,
            e = (int64_t)dtype_bytes(b->dt);
    char *qkv = b->x[0], *dqkv = b->x[1];
    size_t params = (size_t)(q * c + hd * c + 3 * b->f * c);
    const struct adamw_args adam = {.lr = 1e-3f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .grad_scale = 1.0f,
                                    .bias1 = 0.1f,
                                    .bias2 = 0.05f};
    titan_status st = TITAN_OK;
    switch (o->kind) {
    case MATMUL_NT:
        st = ops->matmul(s, b->x[0], b->dt, o->nn, b->x[1], false, o->k, b->x[2], true, o->k, b->dt, o->m, o->nn, o->k,
                         0.0f);
        break;
    case MATMUL_NN:
        st = ops->matmul(s, b->x[0], b->dt, o->nn, b->x[1], false, o->k, b->x[2], false, o->nn, b->dt, o->m, o->nn,
                         o->k, 0.0f);
        break;
    case MATMUL_TN:
        st = ops->matmul(s, b->grad[0], DTYPE_F32, o->nn, b->x[1], true, o->m, b->x[2], false, o->nn, b->dt, o->m,
                         o->nn, o->k, 1.0f);
        break;
    case NORM:
        st = ops->rmsnorm(s, b->x[0], b->rstd, b->x[1], b->x[2], b->dt, n, c, 1e-5f);
        break;
    case NORM_DX:
        st = ops->rmsnorm_dgrad(s, b->x[0], true, b->x[1], b->x[2], b->x[3], b->rstd, b->dt, n, c);
        break;
    case NORM_DG:
        st = ops->rmsnorm_dgain(s, b->grad[0], b->x[0], b->x[1], b->rstd, b->dt, n, c);
        break;
    case ROPE:
        st = ops->rope(s, b->x[0], q, b->tokens, b->angle, b->angle, b->dt, n, b->heads + b->kv, b->d, false);
        break;
    case ATTN:
        st = ops->attention(s, b->x[2], hd, b->rstd, qkv, q, qkv + hd * e, q, qkv + (hd + b->kv * b->d) * e, q,
                            &b->attention);
        break;
    case ATTN_DX:
        st = ops->attention_dgrad(s, dqkv, q, dqkv + hd * e, q, dqkv + (hd + b->kv * b->d) * e, q, b->x[3], hd, b->x[2],
                                  hd, b->rstd, qkv, q, qkv + hd * e, q, qkv + (hd + b->kv * b->d) * e, q, &b->attention,
                                  b->work);
        break;
    case SWIGLU:
        st = ops->swiglu(s, b->x[0], b->x[1], (char *)b->x[1] + b->f * e, 2 * b->f, b->dt, n, b->f);
        break;
    case SWIGLU_DX:
        st = ops->swiglu_dgrad(s, b->x[0], (char *)b->x[0] + b->f * e, 2 * b->f, b->x[2], b->x[1],
                               (char *)b->x[1] + b->f * e, 2 * b->f, b->dt, n, b->f);
        break;
    case ADD:
        st = ops->add(s, b->x[0], b->x[0], b->x[1], b->dt, (size_t)(n * c));
        break;
    case COPY:
        st = ops->copy(s, b->x[0], b->x[1], (size_t)(n * c * e));
        break;
    case EMBED:
        st = ops->embed(s, b->x[0], b->tokens, b->x[1], b->dt, n, c, b->v, 0);
        break;
    case EMBED_DW:
        st = ops->embed_wgrad(s, b->grad[0], b->tokens, b->x[0], b->dt, n, c, b->v, 0);
        break;
    case LOSS:
        st = ops->loss_stats(s, b->stats, b->x[1], b->tokens, b->dt, n, b->v, 0);
        st |= ops->loss_finish(s, b->rstd, b->x[0], b->x[1], b->tokens, b->stats, 1, b->dt, n, b->v, 0);
        break;
    case ADAMW:
        st = ops->adamw(s, b->grad[0], b->grad[1], b->grad[2], b->grad[3], b->x[4], params, &adam);
        break;
    case SUMS:
        st = ops->block_sums(s, (double *)b->x[5], b->grad[0], params, 4096, true);
        break;
    default:
        break;
    }
    if (st != TITAN_OK) {
        fprintf(stderr, "bench_ops: %s: %s\n", o->name, titan_status_name(st));
        exit(1);
    }
}

/* Milliseconds of one call: the best of many short rounds, so that other load on the machine counts little. */
static double measure(struct bench *b, const struct op_call *o)
{
    double best = 1e30;
    struct titan_error err = {0};
    call(b, o);
    if (b->ops->stream_sync(b->s, &err) != TITAN_OK) {
        fprintf(stderr, "bench_ops: %s: %s\n", o->name, err.msg);
        exit(1);
    }
    for (int round = 0; round < 30; round++) {
        int64_t start = clock_mono_ns(), ns;
        int count = 0;
        do {
            call(b, o);
            (void)b->ops->stream_sync(b->s, NULL);
            count++;
            ns = clock_mono_ns() - start;
        } while (ns < 4000000);
        best = best < (double)ns / 1e6 / count ? best : (double)ns / 1e6 / count;
    }
    return best;
}

static void run(struct bench *b, struct op_call o)
{
    if (b->only && strcmp(b->only, o.name) != 0)
        return;
    double ms = measure(b, &o);
    double peak = b->dt == DTYPE_BF16 ? b->h.info.peak_flops_bf16 : b->h.info.peak_flops_f32;
    b->total_ms += ms * (double)o.calls;
    printf("%s    {\"op\": \"%s\", \"shape\": \"%s\", \"ms\": %.4f, \"calls_per_step\": %lld", b->rows++ ? ",\n" : "",
           o.name, o.shape, ms, (long long)o.calls);
    if (o.flops > 0.0)
        printf(", \"gflops\": %.1f, \"of_peak\": %.3f", o.flops / ms / 1e6, o.flops / ms * 1e3 / peak);
    if (o.bytes > 0.0)
        printf(", \"gbytes_per_s\": %.2f", o.bytes / ms / 1e6);
    printf("}");
}

static void run_matmul(struct bench *b, const char *name, int kind, int64_t m, int64_t n, int64_t k, int64_t calls)
{
    struct op_call o = {.name = name, .kind = kind, .m = (int)m, .nn = (int)n, .k = (int)k, .calls = calls};
    snprintf(o.shape, sizeof(o.shape), "%lldx%lldx%lld", (long long)m, (long long)n, (long long)k);
    o.flops = 2.0 * (double)m * (double)n * (double)k;
    run(b, o);
}

static void run_linear(struct bench *b, const char *layer, int64_t out, int64_t in, int64_t calls)
{
    static const char *const way[] = {"forward", "dgrad", "wgrad"};
    char name[3][64];
    for (int i = 0; i < 3; i++)
        snprintf(name[i], sizeof(name[i]), "matmul %s %s", layer, way[i]);
    run_matmul(b, name[0], MATMUL_NT, b->n, out, in, calls);
    run_matmul(b, name[1], MATMUL_NN, b->n, in, out, calls);
    run_matmul(b, name[2], MATMUL_TN, out, in, b->n, calls);
}

static void run_rest(struct bench *b)
{
    double n = (double)b->n, c = (double)b->c, f = (double)b->f, e = (double)dtype_bytes(b->dt);
    double q = (double)((b->heads + 2 * b->kv) * b->d), pairs = n * (double)(b->t + 1) / 2.0;
    double attention = 4.0 * pairs * (double)(b->heads * b->d); /* causal: what has to be computed */
    double params = q * c + (double)(b->heads * b->d) * c + 3.0 * f * c;
    int64_t l = b->layers;
    run(b, (struct op_call){.name = "attention", .shape = "", .kind = ATTN, .calls = l, .flops = attention});
    run(b, (struct op_call){.name = "attention_dgrad", .kind = ATTN_DX, .calls = l, .flops = 2.5 * attention});
    run(b, (struct op_call){.name = "rope", .kind = ROPE, .calls = 2 * l, .bytes = 2 * n * q * e});
    run(b, (struct op_call){.name = "rmsnorm", .kind = NORM, .calls = 2 * l + 1, .bytes = 2 * n * c * e});
    run(b, (struct op_call){.name = "rmsnorm_dgrad", .kind = NORM_DX, .calls = 2 * l + 1, .bytes = 4 * n * c * e});
    run(b, (struct op_call){.name = "rmsnorm_dgain", .kind = NORM_DG, .calls = 2 * l + 1, .bytes = 2 * n * c * e});
    run(b, (struct op_call){.name = "swiglu", .kind = SWIGLU, .calls = l, .bytes = 3 * n * f * e});
    run(b, (struct op_call){.name = "swiglu_dgrad", .kind = SWIGLU_DX, .calls = l, .bytes = 5 * n * f * e});
    run(b, (struct op_call){.name = "add", .kind = ADD, .calls = 2 * l, .bytes = 3 * n * c * e});
    run(b, (struct op_call){.name = "copy", .kind = COPY, .calls = 2 * l, .bytes = 2 * n * c * e});
    run(b, (struct op_call){.name = "embed", .kind = EMBED, .calls = 1, .bytes = 2 * n * c * e});
    run(b, (struct op_call){.name = "embed_wgrad", .kind = EMBED_DW, .calls = 1, .bytes = n * c * (e + 8)});
    run(b, (struct op_call){.name = "loss", .kind = LOSS, .calls = 1, .bytes = 3 * n * (double)b->v * e});
    run(b, (struct op_call){.name = "adamw", .kind = ADAMW, .calls = l, .bytes = 30 * params});
    run(b, (struct op_call){.name = "block_sums", .kind = SUMS, .calls = l, .bytes = 4 * params});
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
    setenv("OMP_WAIT_POLICY", "passive", 0); /* as the worker does */
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
    int64_t q = (b.heads + 2 * b.kv) * b.d, widest = 2 * b.f > b.v ? 2 * b.f : b.v;
    int64_t rows = b.n > widest ? b.n : widest, params = q * b.c + b.c * b.c + 3 * b.f * b.c;
    widest = widest > q ? widest : q;
    params = params > b.v * b.c ? params : b.v * b.c;
    for (int i = 0; i < 6; i++)
        b.x[i] = memory(&b, (size_t)(rows * widest) * dtype_bytes(b.dt) + (size_t)params * 2);
    for (int i = 0; i < 4; i++)
        b.grad[i] = memory(&b, (size_t)params * 4);
    b.rstd = memory(&b, (size_t)(b.n * b.heads) * 4);
    b.tokens = memory(&b, (size_t)b.n * 4);
    b.angle = memory(&b, (size_t)(b.t * b.d) * 4);
    b.stats = memory(&b, (size_t)b.n * 12);
    b.attention = (struct attention_shape){
        .dt = b.dt, .b = b.b, .tq = b.t, .tk = b.t, .h = b.heads, .kv = b.kv, .d = b.d, .dv = b.d};
    b.work = memory(&b, b.ops->attention_work_bytes(b.h.dev, &b.attention));

    printf("{\n  \"device\": \"%s\", \"dtype\": \"%s\", \"peak_gflops_bf16\": %.1f, \"peak_gflops_fp32\": %.1f,\n"
           "  \"dim\": %lld, \"layers\": %lld, \"heads\": %lld, \"kv_heads\": %lld, \"ffn\": %lld, \"vocab\": %lld, "
           "\"batch\": %lld, \"seq\": %lld,\n  \"ops\": [\n",
           b.h.info.name, b.dt == DTYPE_BF16 ? "bf16" : "fp32", b.h.info.peak_flops_bf16 / 1e9,
           b.h.info.peak_flops_f32 / 1e9, (long long)b.c, (long long)b.layers, (long long)b.heads, (long long)b.kv,
           (long long)b.f, (long long)b.v, (long long)b.b, (long long)b.t);
    run_linear(&b, "qkv", q, b.c, b.layers);
    run_linear(&b, "wo", b.c, b.heads * b.d, b.layers);
    run_linear(&b, "w1w3", 2 * b.f, b.c, b.layers);
    run_linear(&b, "w2", b.c, b.f, b.layers);
    run_linear(&b, "head", b.v, b.c, 1);
    run_rest(&b);
    double flops = 6.0 * (double)b.n * (double)(b.layers * (q * b.c + b.c * b.c + 3 * b.f * b.c) + b.v * b.c) +
                   12.0 * (double)b.n * (double)(b.layers * b.c * b.t);
    printf("\n  ],\n  \"step_ms\": %.2f, \"tokens_per_second\": %.0f, \"step_gflops\": %.1f\n}\n", b.total_ms,
           (double)b.n / b.total_ms * 1e3, flops / b.total_ms / 1e6);
    return 0;
}
