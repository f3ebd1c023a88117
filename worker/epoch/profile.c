/* SPDX-License-Identifier: Apache-2.0 */
/* profile.c - which steps are traced, and their traces' files. */
#include "worker/epoch/profile.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "worker/epoch/epoch.h"
#include "worker/plan/timeline.h"

/* Is the step traced on this rank? The chosen ranks trace the last profiler_active steps up to each multiple of
 * profile_freq. */
static bool traced(const struct epoch *e, uint64_t step)
{
    const struct recipe *r = e->t->recipe;
    const uint64_t every = (uint64_t)r->profiling.profile_freq;
    return r->profiling.enable_profiling && (step - 1) % every >= every - (uint64_t)r->profiling.profiler_active &&
           recipe_traces_rank(r, e->view.rank);
}

/* The number of the current step. */
static uint64_t this_step(const struct epoch *e)
{
    return e->state.shards.own->step + 1;
}

void profile_begin_step(struct epoch *e)
{
    if (!e->t->recipe->profiling.enable_profiling)
        return;
    exec_take_times(e->exec, traced(e, this_step(e)));
}

static titan_status append(struct epoch *e, struct titan_error *err)
{
    const struct program *p = e->plan.program;
    struct exec_times times;
    _cleanup_free_ double *start = calloc((size_t)p->n_actions, sizeof *start);
    _cleanup_free_ double *end = calloc((size_t)p->n_actions, sizeof *end);
    struct buf *const out = &e->profile.trace;

    if (!start || !end)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    TRY(exec_times(e->exec, &times, err));
    for (int i = 0; i < p->n_actions; i++) {
        start[i] = (double)times.began[i] * 1e-9;
        end[i] = (double)times.ended[i] * 1e-9;
    }
    if (out->len == 0) {
        char name[32];
        (void)snprintf(name, sizeof name, "rank %d", e->view.rank);
        out->limit = (size_t)1 << 30;
        timeline_begin(out);
        timeline_name(out, e->view.rank, name, p);
    }
    timeline_actions(out, e->view.rank, p, 0, start, end);
    return TITAN_OK;
}

static titan_status write_trace(struct epoch *e, uint64_t step, struct titan_error *err)
{
    const struct recipe *r = e->t->recipe;
    char folder[PATH_MAX + 256], path[PATH_MAX + 320];

    timeline_end(&e->profile.trace);
    (void)snprintf(folder, sizeof folder, "%s/%s/iteration_%lu", e->t->members->job_dir,
                   r->profiling.save_traces_folder, (unsigned long)step);
    (void)snprintf(path, sizeof path, "%s/rank%d_trace.json", folder, e->view.rank);
    if (buf_failed(&e->profile.trace))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    TRY(dir_make_named(folder, err));
    return file_replace(path, e->profile.trace.data, e->profile.trace.len, err);
}

titan_status profile_end_step(struct epoch *e, struct titan_error *err)
{
    const struct recipe *r = e->t->recipe;
    const uint64_t step = this_step(e);
    struct titan_error why = {0};

    if (!traced(e, step))
        return TITAN_OK;
    TRY(exec_wait_for_update(e->exec, err));
    titan_status status = append(e, &why);
    if (status == TITAN_OK && step % (uint64_t)r->profiling.profile_freq != 0)
        return TITAN_OK;
    if (status == TITAN_OK)
        status = write_trace(e, step, &why);
    if (status == TITAN_OK)
        tlog_info(&e->t->log, "trace written", "step=%lu bytes=%zu", (unsigned long)step, e->profile.trace.len);
    else
        tlog_warn(&e->t->log, "trace not written", "step=%lu reason=\"%s\"", (unsigned long)step, why.msg);
    profile_close(e);
    return TITAN_OK;
}

void profile_close(struct epoch *e)
{
    buf_free(&e->profile.trace);
    e->profile.trace = (struct buf){0};
}
