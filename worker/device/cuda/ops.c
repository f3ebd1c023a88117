/* ops.c - the device table: checks shapes, skips what a failed stream must not run, launches. */
#include "worker/device/cuda/cuda.h"
#include "worker/device/cuda/kernels.h"

_Static_assert((int)NUM_F32 == (int)DTYPE_F32 && (int)NUM_BF16 == (int)DTYPE_BF16 && (int)NUM_F64 == (int)DTYPE_F64 &&
                   (int)NUM_I32 == (int)DTYPE_I32 && (int)NUM_U8 == (int)DTYPE_U8,
               "kernels.h numbers element types as device.h does");

#define GRID_MAX 0x7fffffffL /* blocks in a launch's first dimension */
#define GRID_YZ_MAX 65535    /* in the others */

/* Enqueue unless the stream has failed. */
#define ENQUEUE(s, what, call) (stream_skips(s) ? TITAN_OK : stream_enqueued((s), (what), (call)))

static bool compute_type(enum dtype dt)
{
    return dt == DTYPE_F32 || dt == DTYPE_BF16;
}
static bool rows_fit(int64_t n, int64_t c)
{
    return n >= 0 && c >= 0 && n <= GRID_MAX;
}

static titan_status copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    return ENQUEUE(s, "a copy", (int)cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->native));
}

static titan_status zero(struct stream *s, void *dst, size_t bytes)
{
    return ENQUEUE(s, "clearing memory", (int)cudaMemsetAsync(dst, 0, bytes, s->native));
}

static titan_status cast(struct stream *s, void *dst, enum dtype to, const void *src, enum dtype from, size_t n)
{
    if (to > DTYPE_U8 || from > DTYPE_U8)
        return TITAN_EINVAL;
    return ENQUEUE(s, "a cast", cuda_cast(s->native, dst, (enum num)to, src, (enum num)from, n));
}

static titan_status embed(struct stream *s, void *out, const int32_t *tokens, const void *table, enum dtype dt,
                          int64_t n, int64_t c, int64_t v)
{
    if (!compute_type(dt) || n < 0 || c < 0 || v < 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "embedding", cuda_embed(s->native, out, tokens, table, dt == DTYPE_BF16, n, c, v));
}

static titan_status embed_wgrad(struct stream *s, float *dtable, const int32_t *tokens, const void *dout, enum dtype dt,
                                int64_t n, int64_t c, int64_t v)
{
    if (!compute_type(dt) || n < 0 || !rows_fit(v, c))
        return TITAN_EINVAL;
    return ENQUEUE(s, "embedding gradient",
                   cuda_embed_wgrad(s->native, dtable, tokens, dout, dt == DTYPE_BF16, n, c, v));
}

static titan_status rmsnorm(struct stream *s, void *out, float *rstd, const void *x, const void *gain, enum dtype dt,
                            int64_t n, int64_t c, float eps)
{
    if (!compute_type(dt) || !rows_fit(n, c))
        return TITAN_EINVAL;
    return ENQUEUE(s, "RMSNorm", cuda_rmsnorm(s->native, out, rstd, x, gain, dt == DTYPE_BF16, n, c, eps));
}

static titan_status rmsnorm_dgrad(struct stream *s, void *dx, bool accumulate, const void *dout, const void *x,
                                  const void *gain, const float *rstd, enum dtype dt, int64_t n, int64_t c)
{
    if (!compute_type(dt) || !rows_fit(n, c) || dx == dout)
        return TITAN_EINVAL;
    return ENQUEUE(s, "RMSNorm gradient",
                   cuda_rmsnorm_dgrad(s->native, dx, accumulate, dout, x, gain, rstd, dt == DTYPE_BF16, n, c));
}

static titan_status rmsnorm_dgain(struct stream *s, float *dgain, const void *dout, const void *x, const float *rstd,
                                  enum dtype dt, int64_t n, int64_t c)
{
    if (!compute_type(dt) || n < 0 || c < 0)
        return TITAN_EINVAL;
    return ENQUEUE(s, "RMSNorm gain gradient",
                   cuda_rmsnorm_dgain(s->native, dgain, dout, x, rstd, dt == DTYPE_BF16, n, c));
}

static titan_status rope(struct stream *s, void *x, int64_t ldx, const int32_t *positions, const float *cosines,
                         const float *sines, enum dtype dt, int64_t n, int64_t heads, int64_t d, bool backward)
{
    if (!compute_type(dt) || n < 0 || heads < 0 || d < 0 || d % 2 != 0 || ldx < heads * d)
        return TITAN_EINVAL;
    return ENQUEUE(s, "rotary embedding",
                   cuda_rope(s->native, x, ldx, positions, cosines, sines, dt == DTYPE_BF16, n, heads, d, backward));
}

static bool attention_fits(const struct attention_shape *a, enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t kv,
                           int64_t d)
{
    return compute_type(dt) && b >= 0 && b <= GRID_YZ_MAX && t >= 0 && t <= 0x7fffff00L && kv > 0 && h >= kv &&
           h <= GRID_YZ_MAX && h % kv == 0 && d > 0 && d <= CUDA_ATTENTION_D_MAX && a->ldq >= h * d &&
           a->ldkv >= kv * d && a->ldo >= h * d && b * t * h <= GRID_MAX;
}

static titan_status attention(struct stream *s, void *out, int64_t ldo, float *lse, const void *q, int64_t ldq,
                              const void *k, const void *v, int64_t ldkv, enum dtype dt, int64_t b, int64_t t,
                              int64_t h, int64_t kv, int64_t d)
{
    const struct attention_shape shape = {.bf16 = dt == DTYPE_BF16,
                                          .b = (int)b,
                                          .t = (int)t,
                                          .h = (int)h,
                                          .kv = (int)kv,
                                          .d = (int)d,
                                          .ldq = ldq,
                                          .ldkv = ldkv,
                                          .ldo = ldo};
    if (!attention_fits(&shape, dt, b, t, h, kv, d))
        return TITAN_EINVAL;
    return ENQUEUE(s, "attention", cuda_attention(s->native, out, lse, q, k, v, &shape));
}

static titan_status attention_dgrad(struct stream *s, void *dq, int64_t lddq, void *dk, void *dv, int64_t lddkv,
                                    const void *dout, int64_t lddo, const void *out, int64_t ldo, const float *lse,
                                    const void *q, int64_t ldq, const void *k, const void *v, int64_t ldkv,
                                    enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t kv, int64_t d, void *work)
{
    const struct attention_shape shape = {.bf16 = dt == DTYPE_BF16,
                                          .b = (int)b,
                                          .t = (int)t,
                                          .h = (int)h,
                                          .kv = (int)kv,
                                          .d = (int)d,
                                          .ldq = ldq,
                                          .ldkv = ldkv,
                                          .ldo = ldo};
    if (!attention_fits(&shape, dt, b, t, h, kv, d) || lddq < h * d || lddkv < kv * d || lddo < h * d || !work)
        return TITAN_EINVAL;
    return ENQUEUE(
        s, "attention gradient",
        cuda_attention_dgrad(s->native, dq, lddq, dk, dv, lddkv, dout, lddo, out, lse, q, k, v, &shape, work));
}

static size_t attention_work_bytes(struct device *dev, enum dtype dt, int64_t b, int64_t t, int64_t h, int64_t kv,
                                   int64_t d)
{
    (void)dev, (void)dt, (void)kv, (void)d;
    return (size_t)b * (size_t)t * (size_t)h * sizeof(float);
}

static titan_status swiglu(struct stream *s, void *out, const void *gate, const void *up, int64_t ldgu, enum dtype dt,
                           int64_t n, int64_t f)
{
    if (!compute_type(dt) || n < 0 || f < 0 || ldgu < f)
        return TITAN_EINVAL;
    return ENQUEUE(s, "SwiGLU", cuda_swiglu(s->native, out, gate, up, ldgu, dt == DTYPE_BF16, n, f));
}

static titan_status swiglu_dgrad(struct stream *s, void *dgate, void *dup, int64_t lddgu, const void *dout,
                                 const void *gate, const void *up, int64_t ldgu, enum dtype dt, int64_t n, int64_t f)
{
    if (!compute_type(dt) || n < 0 || f < 0 || ldgu < f || lddgu < f)
        return TITAN_EINVAL;
    return ENQUEUE(s, "SwiGLU gradient",
                   cuda_swiglu_dgrad(s->native, dgate, dup, lddgu, dout, gate, up, ldgu, dt == DTYPE_BF16, n, f));
}

static titan_status add(struct stream *s, void *out, const void *a, const void *b, enum dtype dt, size_t n)
{
    if (!compute_type(dt))
        return TITAN_EINVAL;
    return ENQUEUE(s, "a sum", cuda_add(s->native, out, a, b, dt == DTYPE_BF16, n));
}

static titan_status cross_entropy(struct stream *s, float *losses, void *dlogits, const void *logits,
                                  const int32_t *targets, enum dtype dt, int64_t n, int64_t v, float grad_scale)
{
    if (!compute_type(dt) || !rows_fit(n, v))
        return TITAN_EINVAL;
    return ENQUEUE(s, "cross-entropy",
                   cuda_cross_entropy(s->native, losses, dlogits, logits, targets, dt == DTYPE_BF16, n, v, grad_scale));
}

static titan_status accumulate(struct stream *s, float *dst, const float *src, size_t n)
{
    return ENQUEUE(s, "a sum", cuda_accumulate(s->native, dst, src, n));
}

static titan_status scale(struct stream *s, float *x, float factor, size_t n)
{
    return ENQUEUE(s, "scaling", cuda_scale(s->native, x, factor, n));
}

static titan_status block_sums(struct stream *s, double *out, const float *x, size_t n, size_t block, bool square)
{
    if (block == 0 || n / block >= (size_t)GRID_MAX)
        return TITAN_EINVAL;
    return ENQUEUE(s, "block sums", cuda_block_sums(s->native, out, x, n, block, square));
}

static titan_status adamw(struct stream *s, float *master, float *m, float *v, const float *grad, uint16_t *shadow,
                          size_t n, const struct adamw_args *args)
{
    const struct adamw_factors factors = {
        .lr = args->lr,
        .beta1 = args->beta1,
        .beta2 = args->beta2,
        .eps = args->eps,
        .weight_decay = args->weight_decay,
        .grad_scale = args->grad_scale,
        .bias1 = args->bias1,
        .bias2 = args->bias2,
    };
    return ENQUEUE(s, "AdamW", cuda_adamw(s->native, master, m, v, grad, shadow, n, factors, s->seen));
}

const struct device_ops cuda_ops = {
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .alloc_host = cuda_alloc_host,
    .release_host = cuda_release_host,
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
    .copy = copy,
    .zero = zero,
    .cast = cast,
    .matmul = cuda_matmul,
    .embed = embed,
    .embed_wgrad = embed_wgrad,
    .rmsnorm = rmsnorm,
    .rmsnorm_dgrad = rmsnorm_dgrad,
    .rmsnorm_dgain = rmsnorm_dgain,
    .rope = rope,
    .attention = attention,
    .attention_dgrad = attention_dgrad,
    .attention_work_bytes = attention_work_bytes,
    .swiglu = swiglu,
    .swiglu_dgrad = swiglu_dgrad,
    .add = add,
    .cross_entropy = cross_entropy,
    .accumulate = accumulate,
    .scale = scale,
    .block_sums = block_sums,
    .adamw = adamw,
};
