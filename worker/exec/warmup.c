/* SPDX-License-Identifier: Apache-2.0 */
/* warmup.c - the first call of a library's kernel (executor.h). */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/exec/executor.h"

/* Operations that a device may leave to a library; attention with documents apart is its own. */
static bool has_library(const struct action *a, const struct op_params *p)
{
    return a->op == OP_MATMUL || ((a->op == OP_ATTENTION || a->op == OP_ATTENTION_DGRAD) && !(p->flags & OP_MASKED));
}

static bool same_call(const struct program *p, const struct action *a, const struct action *b)
{
    return a->op == b->op && op_params_same((enum op)a->op, action_params(p, a), action_params(p, b));
}

titan_status exec_warm_up(struct exec *e, struct titan_error *err)
{
    const struct program *const p = e->p;
    _cleanup_free_ int *done = calloc((size_t)p->n_actions, sizeof *done);
    int n = 0;

    if (!done)
        return titan_fail(err, TITAN_ENOMEM, "warming up: out of memory");
    if (e->opt.device->info.host_memory || p->mesh.world == 1)
        return TITAN_OK;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *const a = &p->actions[i];
        const struct call c = {.e = e,
                               .a = a,
                               .o = action_operands(p, a),
                               .p = action_params(p, a),
                               .ops = e->ops,
                               .s = e->opt.streams[a->stream],
                               .err = err};
        int known = 0;
        if (!has_library(a, c.p))
            continue;
        while (known < n && !same_call(p, &p->actions[done[known]], a))
            known++;
        if (known < n)
            continue;
        TRY(exec_dispatch(&c));
        done[n++] = i;
    }
    return e->ops->stream_sync(e->opt.streams[STREAM_COMPUTE], err);
}
