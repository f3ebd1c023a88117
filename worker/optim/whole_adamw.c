/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "worker/optim/whole_methods.h"

titan_status whole_adamw(const struct whole_step *step, const struct whole_matrix *m, const struct whole_gradient *g,
                         float *direction, const struct device_ops *ops, struct stream *s)
{
    const struct recipe *const r = step->recipe;
    const struct update_args args = {.rule = RULE_ADAMW,
                                     .lr = -g->factor,
                                     .beta1 = (float)r->optimizer.beta1,
                                     .beta2 = (float)r->optimizer.beta2,
                                     .eps = (float)r->optimizer.eps,
                                     .grad_scale = g->scale,
                                     .bias1 = (float)(1 - pow(r->optimizer.beta1, (double)step->number)),
                                     .bias2 = (float)(1 - pow(r->optimizer.beta2, (double)step->number)),
                                     .master = DTYPE_F32,
                                     .moment = DTYPE_F32};
    const struct update_piece piece = {
        .master = direction, .state = {m->next[0], m->next[1]}, .grad = g->values, .n = g->n};

    for (int i = 0; i < 2; i++)
        TRY(whole_take_state(step, m, i, g->n, ops, s));
    TRY(ops->zero(s, direction, g->n * sizeof *direction));
    return ops->update(s, &piece, 1, &args);
}
