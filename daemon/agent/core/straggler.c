/* SPDX-License-Identifier: Apache-2.0 */
/* straggler.c - detects a worker with much longer steps than the other workers of its job on this node. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "daemon/agent/core/agent_core_internal.h"

#define STRAGGLER_STEPS 20  /* minimum steps of a window */
#define STRAGGLER_MS 5000   /* minimum time of a window, because short steps are noisy */
#define STRAGGLER_RATIO 1.5 /* a straggler's time, relative to the median */

static int by_value(const void *a, const void *b)
{
    const double *x = (const double *)a, *y = (const double *)b;
    return (*x > *y) - (*x < *y);
}

/* Compares the worker's own time per step, over windows of several steps, with the median over its job's workers
 * here. */
void agent_straggler_sample(struct agent_core *c, struct agent_worker *w, int64_t now, struct agent_actions *out)
{
    const struct agent_sample *s = &w->sample;
    if (s->epoch != w->step_time.epoch || s->step < w->step_time.step || s->busy_ns < w->step_time.busy_ns) {
        w->step_time.epoch = s->epoch;
        w->step_time.step = s->step;
        w->step_time.busy_ns = s->busy_ns;
        w->step_time.at = now;
        w->step_time.busy_ms = 0;
        w->step_time.straggles = false;
        return;
    }
    uint64_t steps = s->step - w->step_time.step;
    if (steps < STRAGGLER_STEPS || now - w->step_time.at < STRAGGLER_MS)
        return;
    w->step_time.busy_ms = (double)(s->busy_ns - w->step_time.busy_ns) / 1e6 / (double)steps;
    w->step_time.step = s->step;
    w->step_time.busy_ns = s->busy_ns;
    w->step_time.at = now;
    titan_assert(w->step_time.busy_ms >= 0);

    /* Computes the lower median of the last windows of the job's workers here; 0 with fewer than two workers. */
    size_t n = 0, all = agent_workers_alive(c);
    _cleanup_free_ double *values = calloc(all + 1, sizeof(*values));
    titan_assert(values);
    for (const struct agent_worker *v = c->workers; v; v = v->next)
        if (v->job_id == w->job_id && v->step_time.epoch == s->epoch && v->step_time.busy_ms > 0)
            values[n++] = v->step_time.busy_ms;
    titan_assert(n <= all);
    qsort(values, n, sizeof(*values), by_value);
    const double median = n < 2 ? 0 : values[(n - 1) / 2];
    bool before = w->step_time.straggles;
    w->step_time.straggles = median > 0 && w->step_time.busy_ms > STRAGGLER_RATIO * median;
    if (!w->step_time.straggles || before)
        return;
    Titan__Internal__WorkerStraggles m = TITAN__INTERNAL__WORKER_STRAGGLES__INIT;
    m.job_id = w->job_id;
    m.worker_id = w->id;
    m.epoch = s->epoch;
    m.busy_ms = w->step_time.busy_ms;
    m.median_ms = median;
    m.steps = (uint32_t)steps;
    MESSAGE(message, STRAGGLES, straggles, &m);
    agent_send(c, &message, out);
}
