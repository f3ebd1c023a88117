/* SPDX-License-Identifier: Apache-2.0 */
/* embed.c - token embedding and its gradient. */
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

struct embed_args {
    void *out;
    const int32_t *tokens;
    const void *table;
    enum dtype dt;
    int64_t n, c, v, first;
};

static bool args_valid(const struct embed_args *a)
{
    return a->n >= 0 && a->c > 0 && a->v >= 0 && a->first >= 0 && (a->dt == DTYPE_BF16 || a->dt == DTYPE_F32);
}

/* Row of the table, -1: another part has it. */
CPU_INLINE int64_t row_of(const struct embed_args *a, int64_t i)
{
    int64_t row = a->tokens[i] - a->first;
    return row >= 0 && row < a->v ? row : -1;
}

static void embed_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct embed_args *a = p;
    const size_t bytes = (size_t)a->c * dtype_bytes(a->dt);
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = row_of(a, i);
        if (row < 0)
            memset(at_mut(a->out, i * a->c, a->dt), 0, bytes);
        else
            memcpy(at_mut(a->out, i * a->c, a->dt), at(a->table, row * a->c, a->dt), bytes);
    }
}

static titan_status run_embed(const struct cpu_context *ctx, const void *p)
{
    const struct embed_args *a = p;
    titan_assert(a->n >= 0 && a->c >= 0 && a->first >= 0);
    cpu_for(ctx, a->n, 64, embed_range, a);
    return TITAN_OK;
}

titan_status cpu_embed(struct stream *s, void *out, const int32_t *tokens, const void *table, enum dtype dt, int64_t n,
                       int64_t c, int64_t v, int64_t first)
{
    struct embed_args a = {out, tokens, table, dt, n, c, v, first};
    return args_valid(&a) ? cpu_enqueue(s, run_embed, &a, sizeof(a)) : TITAN_EINVAL;
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
    for (int64_t i = 0; i < a->n; i++) {
        int64_t row = row_of(a, i);
        if (row >= 0)
            row_add(dtable + row * a->c + begin, at(a->table, i * a->c + begin, a->dt), end - begin, a->dt);
    }
}

static titan_status run_embed_wgrad(const struct cpu_context *ctx, const void *p)
{
    const struct embed_args *a = p;
    titan_assert(a->n >= 0 && a->v >= 0 && a->first >= 0);
    cpu_for(ctx, a->c, 64, embed_wgrad_range, a);
    return TITAN_OK;
}

titan_status cpu_embed_wgrad(struct stream *s, float *dtable, const int32_t *tokens, const void *dout, enum dtype dt,
                             int64_t n, int64_t c, int64_t v, int64_t first)
{
    struct embed_args a = {dtable, tokens, dout, dt, n, c, v, first};
    return args_valid(&a) ? cpu_enqueue(s, run_embed_wgrad, &a, sizeof(a)) : TITAN_EINVAL;
}
