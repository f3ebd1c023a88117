/* SPDX-License-Identifier: Apache-2.0 */
/* checker.c - names the place where any part of the check has found a fault. */
#include "worker/plan/checker.h"

titan_status checker_where(const struct checker *c)
{
    titan_assert(c->err && c->index < c->p->n_actions);
    if (c->index < 0)
        return titan_error_wrap(c->err, "program of pp rank %d", c->p->pp_rank);
    const struct action *a = &c->p->actions[c->index];
    return titan_error_wrap(c->err, "program of pp rank %d, action %d (%s, %s, unit %d, microbatch %d)", c->p->pp_rank,
                            c->index, op_name((enum op)a->op), phase_name((enum phase)a->phase), a->unit,
                            a->microbatch);
}
