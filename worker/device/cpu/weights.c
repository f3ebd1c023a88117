/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - initial values, drawn on all threads. */
#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/cpu.h"

enum { GRAIN = 1 << 12, DRAWN = 1024 };

struct weights_args {
    void *out;
    enum dtype dt;
    int64_t cols, width, first, n;
    struct rng_weights weights;
};

static void weights_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct weights_args *a = p;
    float drawn[DRAWN];
    (void)thread;
    while (begin < end) {
        const int64_t row = begin / a->cols, col = begin % a->cols;
        const int64_t n = MIN(MIN(a->cols - col, end - begin), (int64_t)DRAWN);
        rng_weights(&a->weights, (uint64_t)(a->first + row * a->width + col), (uint64_t)n, drawn);
        for (int64_t i = 0; i < n; i++)
            store_f32_as(a->out, begin + i, a->dt, drawn[i]);
        begin += n;
    }
}

static titan_status run_weights(const struct cpu_context *ctx, const void *p)
{
    const struct weights_args *a = p;
    titan_assert(a->cols > 0);
    cpu_for(ctx, a->n, GRAIN, weights_range, a);
    return TITAN_OK;
}

titan_status cpu_weights(struct stream *s, void *out, enum dtype dt, int64_t rows, int64_t cols, int64_t width,
                         int64_t first, const struct rng_weights *weights)
{
    if ((dt != DTYPE_F32 && dt != DTYPE_BF16) || rows < 0 || cols < 0 || first < 0 || width < 0)
        return TITAN_EINVAL;
    if (rows == 0 || cols == 0)
        return TITAN_OK;
    const struct weights_args a = {out, dt, cols, width, first, rows * cols, *weights};
    return cpu_enqueue(s, run_weights, &a, sizeof a);
}
