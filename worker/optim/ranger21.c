/* SPDX-License-Identifier: Apache-2.0 */
/* ranger21.c - Ranger21: AdamW with eight more components (Wright and Demeure 2021, arXiv:2106.13731), each with a key
 * of its own. Rows of a matrix are what its outputs are made by. A step's order, on the gradient g of a matrix w:
 *
 *   clip, centralize, normalize   the gradient's rows (device.h: row_gradient)
 *   momentum, softplus            the direction u of a gradient with moments (moments); without both u is AdamW's
 *   stable_decay, norm_loss       d = u + decay f w; f = 1 / sqrt(mean of the second moments, over the matrix) and, for
 *                                 each row, times 1 - 1 / |row|: it draws rows to norm 1
 *   lookahead                     every LOOKAHEAD steps w becomes the mean of what it would be and what it was then
 *
 * warmup and explore_exploit are in base/optimizers.c. Semantics are those of the authors' second implementation,
 * with all sums by matrix or row. With all components off it is AdamW, to the bit. */
#include <math.h>

#include "worker/optim/whole_methods.h"

#define LOOKAHEAD 5 /* steps */
#define LOOKAHEAD_KEPT 0.5f
#define BETA0 0.9 /* of positive-negative momentum */

enum { STATE_M, STATE_V, STATE_PREVIOUS, STATE_LARGEST, STATE_SLOW };

static bool shapes_gradient(const struct recipe *r)
{
    return r->optimizer.ranger21.clip || r->optimizer.ranger21.centralize || r->optimizer.ranger21.normalize;
}

static bool has_own_moments(const struct recipe *r)
{
    return r->optimizer.ranger21.momentum || r->optimizer.ranger21.softplus;
}

static bool ranger21_decays(const struct recipe *r)
{
    return r->optimizer.ranger21.stable_decay || r->optimizer.ranger21.norm_loss || r->optimizer.ranger21.lookahead;
}

static double ranger21_flops(const struct recipe *r, int64_t rows, int64_t cols, int64_t heads)
{
    (void)heads;
    return (double)rows * (double)cols *
           (12 + 10 * shapes_gradient(r) + 12 * has_own_moments(r) + 10 * ranger21_decays(r));
}

struct ranger21_work {
    float *direction;
    double *total, *blocks;
};

static struct ranger21_work take_work(struct scratch *from, int64_t rows, int64_t cols)
{
    struct ranger21_work w = {.direction = scratch_take(from, (size_t)(rows * cols) * sizeof(float))};

    w.total = scratch_take(from, sizeof(double));
    w.blocks = scratch_take(from, (size_t)whole_sum_blocks(rows * cols) * sizeof(double));
    return w;
}

static size_t ranger21_work_bytes(const struct recipe *r, enum dtype dt, int64_t rows, int64_t cols, int64_t heads)
{
    struct scratch counted = {0};

    (void)r;
    (void)dt;
    (void)heads;
    (void)take_work(&counted, rows, cols);
    return counted.used;
}

/* Brings the states to `next`, but for m and v where AdamW does. The slow weights are the masters behind the last step
 * with a lookahead, which are this step's if that was the one before. */
static titan_status keep_states(const struct whole_step *step, const struct whole_matrix *m,
                                const struct device_ops *ops, struct stream *s)
{
    const size_t n = (size_t)(m->rows * m->cols);

    for (int i = has_own_moments(step->recipe) ? STATE_M : STATE_PREVIOUS; i < OPTIMIZER_STATES && m->state[i]; i++)
        TRY(whole_take_state(step, m, i, n, ops, s));
    if (step->recipe->optimizer.ranger21.lookahead && step->number % LOOKAHEAD == 1 % LOOKAHEAD)
        return ops->copy(s, m->next[STATE_SLOW], m->weights, n * sizeof(float));
    return TITAN_OK;
}

static titan_status ranger21_direction(const struct whole_step *step, const struct whole_matrix *m, void *work,
                                       const struct device_ops *ops, struct stream *s)
{
    const struct recipe *const r = step->recipe;
    const size_t n = (size_t)(m->rows * m->cols);
    const double bias2 = 1 - pow(r->optimizer.beta2, (double)step->number);
    const bool momentum = r->optimizer.ranger21.momentum, looks = r->optimizer.ranger21.lookahead;
    struct scratch from = {.base = work};
    const struct ranger21_work w = take_work(&from, m->rows, m->cols);
    float scale = step->grad_scale;

    if (shapes_gradient(r)) {
        TRY(ops->row_gradient(s, ARGS(row_gradient, .g = m->values, .w = m->weights, .rows = m->rows, .cols = m->cols,
                                      .scale = scale, .clip = r->optimizer.ranger21.clip,
                                      .centralize = r->optimizer.ranger21.centralize,
                                      .normalize = r->optimizer.ranger21.normalize)));
        scale = 1;
    }
    TRY(keep_states(step, m, ops, s));
    if (has_own_moments(r))
        TRY(ops->moments(s, ARGS(moments, .out = w.direction, .m = m->next[STATE_M], .v = m->next[STATE_V],
                                 .previous = momentum ? m->next[STATE_PREVIOUS] : NULL,
                                 .largest = momentum ? m->next[STATE_LARGEST] : NULL, .g = m->values, .scale = scale,
                                 .beta0 = (float)BETA0, .beta1 = (float)r->optimizer.beta1,
                                 .beta2 = (float)r->optimizer.beta2, .eps = (float)r->optimizer.eps,
                                 .bias1 = (float)(1 - pow(r->optimizer.beta1, (double)step->number)),
                                 .bias2 = (float)bias2, .softplus = r->optimizer.ranger21.softplus, .n = n)));
    else
        TRY(whole_adamw(step, m, &(struct whole_gradient){m->values, n, scale, 1}, w.direction, ops, s));
    if (ranger21_decays(r)) {
        const bool stable = r->optimizer.ranger21.stable_decay;
        const bool due = looks && step->number % LOOKAHEAD == 0 && step->lr > 0;
        if (stable) {
            const float *const second = m->next[momentum ? STATE_LARGEST : STATE_V];
            TRY(ops->block_sums(s, w.blocks, second, n, WHOLE_SUM_BLOCK, false));
            TRY(ops->sum(s, w.total, false, w.blocks, (size_t)whole_sum_blocks((int64_t)n)));
        }
        TRY(ops->row_decay(s,
                           ARGS(row_decay, .d = w.direction, .w = m->weights, .slow = due ? m->next[STATE_SLOW] : NULL,
                                .sum = stable ? w.total : NULL, .rows = m->rows, .cols = m->cols,
                                .decay = (float)r->optimizer.weight_decay, .mean = (float)(1 / ((double)n * bias2)),
                                .kept = LOOKAHEAD_KEPT, .lr = step->lr, .norm_loss = r->optimizer.ranger21.norm_loss)));
    }
    return ops->copy(s, m->values, w.direction, n * sizeof *w.direction);
}

const struct whole_method_calls ranger21_calls = {.flops = ranger21_flops,
                                                  .work_bytes = ranger21_work_bytes,
                                                  .direction = ranger21_direction,
                                                  .reads_weights = true,
                                                  .decays = ranger21_decays};
