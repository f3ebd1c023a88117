/* SPDX-License-Identifier: Apache-2.0 */
/* embed.c - token embedding and its gradient. */
#include <string.h>

#include "worker/device/cpu/cpu.h"
#include "worker/device/cpu/arith.h"

enum { GRAIN = 64 };

static bool args_valid(const struct embed_args *a)
{
    return a->n >= 0 && a->c > 0 && a->v >= 0 && a->first >= 0 && compute_type(a->dt);
}

/* The table's row for token i; -1: the row is in another rank's part. */
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

titan_status cpu_embed(struct stream *s, const struct embed_args *a)
{
    return args_valid(a) ? cpu_enqueue_range(s, embed_range, a->n, GRAIN, a, sizeof *a) : TITAN_EINVAL;
}

/* The range counts columns. Every thread processes all tokens in order, so each element is summed in one order. */
CPU_INLINE void embed_wgrad_items(const struct embed_args *a, int64_t begin, int64_t end, enum dtype dt)
{
    for (int64_t i = 0; i < a->n; i++) {
        const int64_t row = row_of(a, i);
        if (row < 0)
            continue;
        const void *const restrict dout = at(a->dout, i * a->c, dt);
        float *const restrict sum = a->dtable + row * a->c;
        for (int64_t j = begin; j < end; j++)
            sum[j] += load_as_f32(dout, j, dt);
    }
}
TYPED_RANGE(embed_wgrad, embed_args)

titan_status cpu_embed_wgrad(struct stream *s, const struct embed_args *a)
{
    return args_valid(a) ? cpu_enqueue_range(s, embed_wgrad_range, a->c, GRAIN, a, sizeof *a) : TITAN_EINVAL;
}
