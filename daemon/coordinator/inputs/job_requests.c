/* SPDX-License-Identifier: Apache-2.0 */
/* Users' requests about jobs. */
#include "daemon/coordinator/records/core_record.h"

#include <stdio.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/inputs/input.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/messages.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/job_driver.h"
#include "daemon/coordinator/run/job_end.h"
#include "daemon/coordinator/run/worker_end.h"
#include "daemon/coordinator/sched/placement.h"

void core_submitted(struct core *c, const struct job *job, struct core_time now, struct batch *out)
{
    if (core_fenced(c))
        return; /* the job is stored; the next coordinator finds it in the store */
    core_begin(c, now, out);
    sched_submitted(c, core_add_job(c, job));
    core_finish(c);
}

titan_status core_cancel(struct core *c, uint64_t job_id, struct core_cancel *r, struct core_time now,
                         struct batch *out, struct titan_error *err)
{
    TRY(core_accepts(c, err));
    struct jobrec *j = core_find_job(c, job_id);
    if (!j && MUTANT(CANCEL_OF_NONE))
        return TITAN_OK;
    if (!j)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)job_id);
    r->state = j->state;
    if (job_final(j) && !MUTANT(FINAL_LEFT))
        return titan_fail(err, TITAN_ECONFLICT, "job %llu has already ended: %s", (unsigned long long)job_id,
                          sm_name(&job_sm, (int)j->state));
    core_begin(c, now, out);
    job_cancel(c, j, r->reason, r->grace_ms);
    r->state = j->state == JOB_CANCELLING && j->n_workers == 0 ? JOB_CANCELLED : j->state;
    job_advance(c, j);
    core_finish(c);
    return TITAN_OK;
}

static titan_status find_open(struct core *c, uint64_t job_id, struct jobrec **ret, struct titan_error *err)
{
    TRY(core_accepts(c, err));
    struct jobrec *j = core_find_job(c, job_id);
    if (!j)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)job_id);
    if (phase_ends(j))
        return titan_fail(err, TITAN_ECONFLICT, "job %llu has %s: %s", (unsigned long long)job_id,
                          job_final(j) ? "already ended" : "nothing to train any more",
                          sm_name(&job_sm, (int)j->state));
    *ret = j;
    return TITAN_OK;
}

titan_status core_checkpoint(struct core *c, uint64_t job_id, struct core_time now, struct batch *out,
                             uint64_t *ret_step, struct titan_error *err)
{
    struct jobrec *j = NULL;
    if (MUTANT(CHECKPOINT_OF_NONE) && !core_find_job(c, job_id))
        return TITAN_OK;
    TRY(find_open(c, job_id, &j, err));
    const struct workrec *first = j->n_members ? j->rank_slots[0].worker : NULL;
    if (j->state != JOB_RUNNING || j->requeue || !first || !first->node->session)
        return titan_fail(err, TITAN_ECONFLICT, "job %llu is %s: only one that trains can write a checkpoint",
                          (unsigned long long)job_id, sm_name(&job_sm, (int)j->state));
    core_begin(c, now, out);
    *ret_step = j->status.step;
    send_checkpoint(c, j);
    core_finish(c);
    return TITAN_OK;
}

void core_want_checkpoint(struct core *c, uint64_t job_id)
{
    struct jobrec *j = core_find_job(c, job_id);
    if (j)
        j->must_checkpoint = true;
}

/* Can the job run on n workers? The error names the legal numbers next to n, as "2 and 4". */
static titan_status check_number(const struct jobrec *j, uint32_t n, struct titan_error *err)
{
    const struct job_spec *s = &j->spec;
    if ((n >= s->min_workers && n <= s->max_workers && world_set_has(&s->worlds, n)) || MUTANT(RESIZE_UNBOUNDED))
        return TITAN_OK;
    uint32_t below = MIN(n, s->max_workers), above = MAX(n, s->min_workers);
    while (below > 0 && !world_set_has(&s->worlds, below))
        below--;
    while (above <= s->max_workers && !world_set_has(&s->worlds, above))
        above++;
    char near[32];
    if (below == 0 || above > s->max_workers)
        (void)snprintf(near, sizeof(near), "%u", below == 0 ? above : below);
    else
        (void)snprintf(near, sizeof(near), "%u and %u", below, above);
    titan_fail(err, TITAN_EINVAL, "job %llu cannot run on %u workers%s%s; nearest: %s", (unsigned long long)j->id, n,
               *s->mesh ? " with the mesh " : "", s->mesh, near);
    if (err)
        titan_error_hint(err, "its recipe allows %u to %u", s->min_workers, s->max_workers);
    return TITAN_EINVAL;
}

titan_status core_resize(struct core *c, uint64_t job_id, struct core_resize *r, struct core_time now,
                         struct batch *out, struct titan_error *err)
{
    struct jobrec *j = NULL;
    TRY(find_open(c, job_id, &j, err));
    if (r->workers && (r->min || r->max))
        return titan_fail(err, TITAN_EINVAL, "resize: either a number of workers or a range");
    if (r->workers) {
        TRY(check_number(j, r->workers, err));
    } else if (r->min || r->max) {
        if ((r->min < 1 || r->min > r->max) && !MUTANT(RANGE_UPSIDE_DOWN))
            return titan_fail(err, TITAN_EINVAL, "resize: %u:%u is not a range of workers", r->min, r->max);
        TRY(check_number(j, r->min, err));
        TRY(check_number(j, r->max, err));
    }
    /* The slots that the user's limit leaves to the job are no fewer than the job has. */
    uint32_t others = 0, allowed = MAX(queue_allows(c, j, &others), size_kept(j));
    if (j->state == JOB_PENDING && c->options.user_slots)
        allowed = c->options.user_slots; /* the user's other jobs will end */
    if ((r->workers ? r->workers : r->min) > allowed) {
        titan_fail(err, TITAN_ELIMIT, "%s may have %u slots (limits.user_slots), and other jobs of theirs have %u",
                   queue_user_name(j->user), c->options.user_slots, others);
        titan_error_hint(err, "ask for %u workers at most, or cancel another job", allowed);
        return TITAN_ELIMIT;
    }

    core_begin(c, now, out);
    j->desired.min = r->min;
    j->desired.max = r->workers ? r->workers : r->max;
    j->desired.number++;
    if (j->state == JOB_PENDING) { /* the number of slots that the job needs may have changed */
        queue_remove(c, j);
        queue_add(c, j);
    }
    size_limit(j, 0, 0);
    /* The requested workers get free slots before the queue does. */
    if (j->state != JOB_PENDING)
        size_claim(j, MIN(j->desired.max ? j->desired.max : MIN(j->size.claim, size_max(j)), allowed));
    r->desired = j->desired;
    r->least = size_min(j);
    r->most = size_max(j);
    r->state = j->state;
    r->world_size = j->status.world_size;
    emit_job_desired(c, j,
                     r->least == r->most || r->workers
                         ? batch_printf(out, "asked to run on %u workers", r->most)
                         : batch_printf(out, "asked to run on %u to %u workers", r->least, r->most));
    c->slots_changed = true;
    job_advance(c, j);
    core_finish(c);
    return TITAN_OK;
}

void core_quarantine(struct core *c, uint64_t job_id, struct core_time now, struct batch *out)
{
    core_begin(c, now, out);
    struct jobrec *j = core_find_job(c, job_id);
    c->counters.quarantined++;
    if (j) {
        if (j->state == JOB_PENDING) {
            queue_remove(c, j);
            core_list_append(&c->active, &c->active_last, j);
        }
        while (j->n_workers) {
            struct workrec *w = j->workers[j->n_workers - 1];
            send_stop(c, w->node->session, j->id, w->id, 0, "the job store contradicts what was decided about its job");
            worker_forget(c, w);
        }
        core_forget(c, j);
    }
    core_finish(c);
}
