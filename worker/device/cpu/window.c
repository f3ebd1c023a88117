/* SPDX-License-Identifier: Apache-2.0 */
/* window.c - the first token that each token sees through a sliding window. */
#include "base/cleanup.h"
#include "worker/device/cpu/cpu.h"

struct window_args {
    int32_t *start;
    const int32_t *index, *first;
    int64_t n, tokens;
};

static void window_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct window_args *a = p;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        a->start[i] = (int32_t)MAX(a->first[i], a->index[i] - a->tokens + 1);
}

static titan_status run_window(const struct cpu_context *ctx, const void *p)
{
    const struct window_args *a = p;
    titan_assert(a->n >= 0 && a->tokens > 0);
    cpu_for(ctx, a->n, 1 << 14, window_range, a);
    return TITAN_OK;
}

titan_status cpu_window(struct stream *s, int32_t *start, const int32_t *index, const int32_t *first, int64_t n,
                        int64_t tokens)
{
    if (n < 0 || tokens <= 0)
        return TITAN_EINVAL;
    struct window_args a = {start, index, first, n, tokens};
    return cpu_enqueue(s, run_window, &a, sizeof(a));
}
