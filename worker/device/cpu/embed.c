/* embed.c - token embedding and its gradient. */
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct embed_args {
    void *out;
    const int32_t *tokens;
    const void *table;
    enum dtype dt;
    int64_t n, c, v;
};

/* Tokens come from data on disk, so one outside the table fails the stream. */
static titan_status tokens_check(const struct cpu_context *ctx, const int32_t *tokens, int64_t n, int64_t v)
{
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= v)
            return titan_fail(ctx->err, TITAN_EINVAL, "token %d at position %lld is outside the vocabulary of %lld",
                              tokens[i], (long long)i, (long long)v);
    }
    return TITAN_OK;
}

static void embed_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct embed_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        memcpy(at_mut(a->out, i * a->c, a->dt), at(a->table, a->tokens[i] * a->c, a->dt),
               (size_t)a->c * dtype_bytes(a->dt));
}

static titan_status run_embed(const struct cpu_context *ctx, const void *p)
{
    const struct embed_args *a = p;
    TRY(tokens_check(ctx, a->tokens, a->n, a->v));
    cpu_for(ctx, a->n, 64, embed_range, a);
    return TITAN_OK;
}

titan_status cpu_embed(struct stream *s, void *out, const int32_t *tokens, const void *table, enum dtype dt, int64_t n,
                       int64_t c, int64_t v)
{
    if (n < 0 || c <= 0 || v <= 0 || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct embed_args a = {out, tokens, table, dt, n, c, v};
    return cpu_enqueue(s, run_embed, &a, sizeof(a));
}

CPU_KERNEL static void row_add(float *restrict acc, const void *restrict row, int64_t n, enum dtype dt)
{
    if (dt == DTYPE_BF16) {
        for (int64_t i = 0; i < n; i++)
            acc[i] += load_as_f32(row, i, DTYPE_BF16);
    } else {
        for (int64_t i = 0; i < n; i++)
            acc[i] += load_as_f32(row, i, DTYPE_F32);
    }
}

/* Cut by columns: every thread walks all tokens in order, so each element is summed in one order. */
static void embed_wgrad_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct embed_args *a = p;
    float *dtable = a->out;
    (void)thread;
    for (int64_t i = 0; i < a->n; i++)
        row_add(dtable + a->tokens[i] * a->c + begin, at(a->table, i * a->c + begin, a->dt), end - begin, a->dt);
}

static titan_status run_embed_wgrad(const struct cpu_context *ctx, const void *p)
{
    const struct embed_args *a = p;
    TRY(tokens_check(ctx, a->tokens, a->n, a->v));
    cpu_for(ctx, a->c, 64, embed_wgrad_range, a);
    return TITAN_OK;
}

titan_status cpu_embed_wgrad(struct stream *s, float *dtable, const int32_t *tokens, const void *dout, enum dtype dt,
                             int64_t n, int64_t c, int64_t v)
{
    if (n < 0 || c <= 0 || v <= 0 || (dt != DTYPE_BF16 && dt != DTYPE_F32))
        return TITAN_EINVAL;
    struct embed_args a = {dtable, tokens, dout, dt, n, c, v};
    return cpu_enqueue(s, run_embed_wgrad, &a, sizeof(a));
}
