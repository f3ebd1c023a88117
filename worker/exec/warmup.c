/* SPDX-License-Identifier: Apache-2.0 */
/* warmup.c - makes each distinct library call of a program once, which loads the library's kernels (executor.h). */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/exec/executor.h"

/* May the device leave this operation to a library? Attention with separate documents is the device's own operation. */
static bool has_library(const struct action *a, const struct op_params *p)
{
    return a->op == OP_MATMUL || ((a->op == OP_ATTENTION || a->op == OP_ATTENTION_DGRAD) && !(p->flags & OP_MASKED));
}

static bool same_call(const struct exec *e, const struct action *a, const struct action *b)
{
    return a->op == b->op && op_params_same((enum op)a->op, action_params(e->p, a), action_params(e->p, b));
}

titan_status exec_run_distinct(struct exec *e, bool (*wanted)(const struct action *a, const struct op_params *p),
                               bool (*same)(const struct exec *e, const struct action *a, const struct action *b),
                               struct titan_error *err)
{
    const struct program *const p = e->p;
    _cleanup_free_ int *done = calloc((size_t)p->n_actions, sizeof *done);
    int n = 0;

    if (!done)
        return titan_fail(err, TITAN_ENOMEM, "no memory for %d actions", p->n_actions);
    for (int i = 0; i < p->n_actions; i++) {
        const struct call c = exec_call(e, i, err);
        int known = 0;
        if (!wanted(c.a, c.p))
            continue;
        titan_debug_assert(c.a->stream == STREAM_COMPUTE);
        while (known < n && !same(e, &p->actions[done[known]], c.a))
            known++;
        if (known < n)
            continue;
        TRY(exec_dispatch(&c));
        done[n++] = i;
    }
    return e->ops->stream_sync(e->opt.streams[STREAM_COMPUTE], err);
}

titan_status exec_warm_up(struct exec *e, struct titan_error *err)
{
    if (e->opt.device->info.host_memory || e->p->mesh.world == 1)
        return TITAN_OK;
    return exec_run_distinct(e, has_library, same_call, err);
}
