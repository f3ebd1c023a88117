/* SPDX-License-Identifier: Apache-2.0 */
/* segments.c - runs of actions that the host enqueues with one call (struct run in executor.h). A run has actions of
 * the compute stream from before the agreement, whose arguments are the same in every step. Actions that use tokens,
 * learning rates, the step's number or the agreement on the statistics stay outside runs. So a run never changes. A run
 * ends at an action that another stream waits for, and before an action that waits for another stream. It has at most
 * as many actions as lie between two marks of lookahead.c. So no more work is enqueued than without runs, and a revoke
 * takes effect just as soon. Runs are found and kept in an executor's second step, because libraries do their one-time
 * work in the first step. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/progress.h"
#include "worker/exec/executor.h"

titan_status segments_open(struct exec *e, struct titan_error *err)
{
    struct segments *const g = &e->segments;
    const size_t n = (size_t)e->p->n_actions;

    if (!e->opt.segments || !e->ops->segment_begin)
        return TITAN_OK;
    g->runs = calloc(n, sizeof *g->runs);
    g->run_of = calloc(n, sizeof *g->run_of);
    if (!g->runs || !g->run_of)
        return titan_fail(err, TITAN_ENOMEM, "segments: out of memory");
    g->on = true;
    return TITAN_OK;
}

void segments_close(struct exec *e)
{
    struct segments *const g = &e->segments;

    for (int i = 0; i < g->n; i++)
        if (g->runs[i].kept)
            e->ops->segment_close(g->runs[i].kept);
    free(g->runs);
    free(g->run_of);
    *g = (struct segments){0};
}

static void end_run(struct segments *g, struct run *r)
{
    if (r->n > 1) {
        g->runs[g->n++] = *r;
    } else if (r->n == 1) {
        g->run_of[r->first] = -1;
    }
    r->n = 0;
}

titan_status segments_begin(struct exec *e, struct titan_error *err)
{
    struct segments *const g = &e->segments;
    const struct program *const p = e->p;
    const int most = e->lookahead.every;
    struct run r = {0};

    if (!g->on || g->found || g->steps++ == 0)
        return TITAN_OK;
    titan_assert(most >= 1 && g->n == 0);
    _cleanup_free_ bool *is_final = calloc((size_t)p->n_actions, sizeof *is_final);
    if (!is_final)
        return titan_fail(err, TITAN_ENOMEM, "segments: out of memory");
    for (int i = 0; i < e->n_finals; i++)
        is_final[e->finals[i].writer] = true;
    for (int i = 0; i < p->n_actions; i++)
        g->run_of[i] = -1;
    for (int i = 0; i < e->agree; i++) {
        const struct action *const a = &p->actions[i];
        const enum op_class class = op_class((enum op)a->op);
        if (a->stream != STREAM_COMPUTE)
            continue;
        /* Actions in a run need only the device and are the same in every step. The host has nothing to do right after
         * such an action. */
        const bool member = class != OP_CLASS_FROM_HOST && class != OP_CLASS_NO_TIME &&
                            !op_is_transfer((enum op)a->op) && a->op != OP_OPTIMISE && a->op != OP_BALANCE &&
                            a->op != OP_WEIGHT_ENCODE && a->op != OP_WEIGHT_LEARN && a->op != OP_HELD_SCALES &&
                            (a->op != OP_FLOAT8_LARGEST || p->scales_every <= 1) && i != e->sync_point && !is_final[i];
        if (r.n > 0 && (!member || a->n_waits > 0 || r.n == most))
            end_run(g, &r);
        if (!member)
            continue;
        if (r.n++ == 0)
            r.first = i;
        r.last = i;
        g->run_of[i] = g->n;
        if (a->signal)
            end_run(g, &r);
    }
    end_run(g, &r);
    g->found = true;
    return TITAN_OK;
}

struct run *segments_run_of(const struct exec *e, int index)
{
    const struct segments *const g = &e->segments;
    const int run = g->on && g->found && !e->timed ? g->run_of[index] : -1; /* a timed step times single actions */

    return run >= 0 ? &g->runs[run] : NULL;
}

/* --- a run -------------------------------------------------------------------------------------------------------- */

/* The next action of the compute stream. */
static int next_of(const struct exec *e, int index)
{
    do
        index++;
    while (e->p->actions[index].stream != STREAM_COMPUTE);
    titan_debug_assert(index < e->agree);
    return index;
}

static titan_status keep(struct exec *e, struct run *r, struct titan_error *err)
{
    struct stream *const s = e->opt.streams[STREAM_COMPUTE];
    struct titan_error fault = {0};
    titan_status status = TITAN_OK;

    TRY(e->ops->segment_begin(s, err));
    for (int i = 0, at = r->first; i < r->n && status == TITAN_OK; i++) {
        const struct call c = exec_call(e, at, &fault);
        status = exec_dispatch(&c);
        if (i + 1 < r->n)
            at = next_of(e, at);
    }
    const titan_status ended = e->ops->segment_end(s, &r->kept, err);
    if (status == TITAN_OK || ended != TITAN_OK)
        return ended;
    e->ops->segment_close(TAKE(r->kept));
    return titan_fail(err, TITAN_EUNSUPPORTED, "an operation cannot be kept: %s",
                      fault.msg[0] ? fault.msg : titan_status_text(status));
}

titan_status segments_launch(struct exec *e, struct run *r, bool *ret_done, struct titan_error *err)
{
    struct titan_error why = {0};

    *ret_done = false;
    if (!r->kept) {
        const titan_status status = keep(e, r, &why);
        if (status == TITAN_EUNSUPPORTED) {
            /* From now on actions are enqueued one by one. Kept segments may still run, so they stay until the executor
             * closes. */
            struct log log;
            e->segments.on = false;
            log_init(&log, "exec", "%s", "");
            tlog_warn(&log, "operations are launched one by one, as the device keeps no segments", "reason=\"%s\"",
                      why.msg);
            return TITAN_OK;
        }
        if (status != TITAN_OK && err)
            *err = why;
        TRY(status);
    }
    titan_assert(r->kept && r->n > 1);
    for (int i = 0, at = r->first; i < r->n; i++) { /* each action is recorded as if it had been enqueued alone */
        const struct call c = exec_call(e, at, NULL);
        progress_action();
        if (e->recorded) {
            recorder_begin(&c, at);
            recorder_end(&c, at);
        }
        if (i + 1 < r->n)
            at = next_of(e, at);
    }
    *ret_done = true;
    return e->ops->segment_launch(r->kept, e->opt.streams[STREAM_COMPUTE]);
}
