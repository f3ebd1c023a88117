/* SPDX-License-Identifier: Apache-2.0 */
/* The queue is served (I13), as seen from outside of the scheduler: which job has started before which one is kept
 * here, and what the first one in the queue could have with the slots of all that yield to it. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/cluster/fencing.h"
#include "daemon/coordinator/records/core_record.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/slots.h"

/* All jobs are one user's. */
static bool comes_before(uint64_t a, uint64_t b)
{
    const int32_t x = S->plan->specs[a].spec.priority, y = S->plan->specs[b].spec.priority;
    return x != y ? x > y : a < b;
}

static bool could_start(uint64_t job)
{
    const struct jobrec *j = core_find_job(S->coord.core, job);
    return j && j->phase == PHASE_QUEUED && !queue_too_large(j) && !j->n_refusals;
}

static void see_start(uint64_t job)
{
    struct queued *q = &S->queued[job];
    q->waits = false;
    for (uint64_t id = 1; id <= (uint64_t)S->plan->jobs && !S->coord.core->stale; id++)
        if (S->queued[id].waits && could_start(id) && comes_before(id, job))
            q->passed |= 1u << id;
    q->lent = q->passed != 0;
    totals->passed += q->lent;
}

static void see_preemption(const struct event *e)
{
    unsigned long long by = 0;
    if (strcmp(e->type, "job.preempted") == 0)
        CHECK("sim", sscanf(e->detail, "{\"by_job\":%llu}", &by) == 1, "%s", e->detail);
    else if (strcmp(e->type, "job.squeezed") == 0)
        CHECK("sim", sscanf(e->detail, "{\"workers\":%*u,\"for_job\":%llu}", &by) == 1, "%s", e->detail);
    if (by)
        CHECK("I13",
              S->plan->specs[by].spec.priority > S->plan->specs[e->job_id].spec.priority ||
                  (S->queued[e->job_id].lent && comes_before(by, e->job_id)),
              "job %llu gives way to job %llu, which it has not passed", LL(e->job_id), by);
}

/* Of one that runs: to the first in the queue. */
static bool must_yield(const struct jobrec *j, const struct jobrec *first)
{
    return j->spec.priority < first->spec.priority || (S->queued[j->id].passed >> first->id & 1);
}

/* What it could have: slots that are free or come back anyway, and those of jobs that yield to it. */
static void check_first(const struct jobrec *first)
{
    const struct core *c = S->coord.core;
    uint32_t room = slots_free(c, "cpu", NULL, NULL), coming = 0, claims = 0, lent = 0;
    for (const struct noderec *n = c->nodes; n; n = n->next)
        if (n->state == NODE_READY && !n->session)
            return; /* it comes back, or is lost: then this is decided */
    for (const struct jobrec *j = c->active; j; j = j->next) {
        const uint32_t kept = size_kept(j), most = size_max(j);
        uint32_t usable = 0;
        for (size_t i = 0; i < j->n_workers; i++) {
            const bool stays = j->workers[i]->state != WORKER_STOPPING, back = node_accepts(j->workers[i]->node);
            usable += stays && back;
            coming += (j->requeue || !stays) && back;
        }
        if (!job_final(j) && !j->requeue && kept > most)
            coming += kept - most;
        if (slots_held(j) && !must_yield(j, first) && kept < j->size.claim)
            claims += j->size.claim - kept;
        if (!phase_ends(j) && !j->requeue && must_yield(j, first))
            lent += MIN(usable, most);
    }
    const uint32_t needed = size_least(first) + claims;
    CHECK("I13", room + coming >= needed || room + coming + lent < needed,
          "job %llu and %u that come first wait for %u slots: %u free, %u on their way, and %u of jobs that yield to "
          "it are "
          "not asked for",
          LL(first->id), claims, needed, room, coming, lent);
}

void must_serve(const struct batch *b)
{
    const struct core *c = S->coord.core;
    const struct jobrec *first = NULL;
    for (uint64_t id = 1; id <= (uint64_t)S->plan->jobs; id++)
        if (!S->queued[id].seen && core_find_job(c, id))
            S->queued[id] = (struct queued){.seen = true, .waits = true};
    for (const struct change *k = b->changes; k; k = k->next) {
        if (k->has_event)
            see_preemption(&k->event);
        if (k->kind == CHANGE_JOB_MOVE && k->job.state == JOB_FORMING)
            see_start(k->job.id);
        else if (k->kind == CHANGE_JOB_MOVE && (k->job.state == JOB_PENDING || sm_final(&job_sm, (int)k->job.state)))
            S->queued[k->job.id] = (struct queued){.seen = true, .waits = k->job.state == JOB_PENDING};
    }
    for (uint64_t id = 1; id <= (uint64_t)S->plan->jobs; id++) {
        if (could_start(id) && (!first || comes_before(id, first->id)))
            first = core_find_job(c, id);
        for (uint64_t k = 1; !could_start(id) && k <= (uint64_t)S->plan->jobs; k++)
            S->queued[k].passed &= ~(1u << id); /* nothing is kept for it while the nodes are too few */
    }
    if (first && !c->stale && !c->slots_changed && !c->unsettled && !core_fenced(c))
        check_first(first);
}

void queue_restarted(void)
{
    for (int id = 1; id <= S->plan->jobs; id++) {
        const struct image_job *j = &S->image.jobs[id];
        struct queued *q = &S->queued[id];
        q->seen = j->there;
        q->waits = j->there && j->job.state == JOB_PENDING;
        q->lent = !q->waits && j->job.status.passed;
        if (!q->lent || S->image.origin.term)
            q->passed = 0;
    }
}
