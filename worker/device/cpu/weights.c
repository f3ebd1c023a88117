/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - initial values, drawn on all threads. */
#include "worker/device/cpu/arith.h"
#include "worker/device/cpu/cpu.h"

enum { GRAIN = 1 << 12, DRAWN = 1024 };

/* Arguments of the range function. The range counts elements. */
struct drawn_args {
    struct weights_args of;
    struct rng_weights weights;
};

static void weights_range(const void *p, int64_t begin, int64_t end, int thread)
{
    const struct drawn_args *d = p;
    const struct weights_args *const a = &d->of;
    float drawn[DRAWN];
    (void)thread;
    while (begin < end) {
        const int64_t row = begin / a->cols, col = begin % a->cols;
        const int64_t n = MIN(MIN(a->cols - col, end - begin), (int64_t)DRAWN);
        rng_weights(&d->weights, (uint64_t)(a->first + row * a->width + col), (uint64_t)n, drawn);
        for (int64_t i = 0; i < n; i++)
            store_f32_as(a->out, begin + i, a->dt, drawn[i]);
        begin += n;
    }
}

titan_status cpu_weights(struct stream *s, const struct weights_args *a)
{
    if (!compute_type(a->dt) || a->rows < 0 || a->cols < 0 || a->first < 0 || a->width < 0)
        return TITAN_EINVAL;
    const struct drawn_args d = {*a, *a->weights};
    return cpu_enqueue_range(s, weights_range, a->rows * a->cols, GRAIN, &d, sizeof d);
}
