/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/sched/preemption.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/job_driver.h"
#include "daemon/coordinator/run/requeue.h"
#include "daemon/coordinator/run/slots.h"

struct victim {
    struct jobrec *job;
    uint32_t slots; /* the job's slots on nodes that take workers */
    uint32_t least; /* workers that the job can shrink to */
};

/* Order of victims: jobs with loans first, then lower priority, then younger. */
static int by_priority(const void *a, const void *b)
{
    const struct jobrec *x = ((const struct victim *)a)->job, *y = ((const struct victim *)b)->job;
    if ((x->status.passed != 0) != (y->status.passed != 0))
        return x->status.passed ? -1 : 1;
    if (x->spec.priority != y->spec.priority)
        return x->spec.priority < y->spec.priority ? -1 : 1;
    return x->id < y->id ? 1 : -1;
}

static void shrink(struct core *c, const struct victim *v, const struct jobrec *to, uint32_t *lack)
{
    struct jobrec *j = v->job;
    uint32_t world = size_world(j, v->slots > *lack ? v->slots - *lack : 0);
    world = world ? world : v->least;
    if (world >= v->slots)
        return;
    *lack -= MIN(*lack, v->slots - world);
    titan_assert(world > 0 && world_set_has(&j->spec.worlds, world));
    size_limit(j, world, to->id);
    size_claim(j, MIN(j->size.claim, world));
    emit_event(
        c, j,
        (struct emit){
            .type = "job.squeezed",
            .message = batch_printf(c->out, "shrinks to %u workers: job %llu (priority %d) needs the slots", world,
                                    (unsigned long long)to->id, to->spec.priority),
            .detail = batch_printf(c->out, "{\"workers\":%u,\"for_job\":%llu}", world, (unsigned long long)to->id)});
    job_advance(c, j);
}

bool preempt_for(struct core *c, const struct jobrec *j, const char *device)
{
    const uint32_t least = size_least(j);
    uint32_t have = slots_free(c, device, NULL, NULL);
    /* Slots of stopping workers and of shrinking jobs are on their way back. */
    for (const struct jobrec *a = c->active; a; a = a->next) {
        for (size_t i = 0; i < a->n_workers; i++)
            have += (a->requeue || a->workers[i]->state == WORKER_STOPPING) && node_accepts(a->workers[i]->node) &&
                    strcmp(a->workers[i]->node->device, device) == 0;
        const uint32_t kept = size_kept(a), most = size_max(a);
        if (!job_final(a) && !a->requeue && strcmp(a->device, device) == 0 && kept > most)
            have += kept - most;
    }
    const uint32_t need = least + slots_claimed(c, device, j);
    if (least == 0 || have >= need)
        return least > 0;
    size_t active = 0, n = 0;
    for (const struct jobrec *a = c->active; a; a = a->next)
        active++;
    _cleanup_free_ struct victim *victims = core_alloc((active + 1) * sizeof(*victims));
    uint32_t all = 0, spare = 0, lack = need - have; /* spare: what the victims can give without a stop */
    for (struct jobrec *a = c->active; a; a = a->next) {
        if (phase_ends(a) || a->requeue || !job_yields(a, j) || strcmp(a->device, device) != 0)
            continue;
        uint32_t usable = 0;
        for (size_t i = 0; i < a->n_workers; i++)
            usable += a->workers[i]->state != WORKER_STOPPING && node_accepts(a->workers[i]->node);
        const uint32_t slots = MIN(usable, size_max(a)), keeps = MIN(size_least(a), slots);
        if (slots == 0)
            continue;
        victims[n++] = (struct victim){.job = a, .slots = slots, .least = keeps};
        all += slots;
        spare += slots - keeps;
    }
    if (all < lack)
        return false;
    qsort(victims, n, sizeof(*victims), by_priority);

    size_t stopped = 0;
    for (; lack > spare; stopped++) {
        struct jobrec *a = victims[stopped].job;
        titan_assert(stopped < n && job_yields(a, j) && j->state == JOB_PENDING);
        spare -= victims[stopped].slots - victims[stopped].least;
        lack -= MIN(lack, victims[stopped].slots);
        const char *why =
            batch_printf(c->out, "preempted by job %llu (priority %d)%s", (unsigned long long)j->id, j->spec.priority,
                         a->spec.priority < j->spec.priority ? "" : ", which it had passed");
        emit_event(c, a,
                   (struct emit){.type = "job.preempted",
                                 .message = why,
                                 .detail = batch_printf(c->out, "{\"by_job\":%llu}", (unsigned long long)j->id)});
        if (requeue_begin(a, why))
            job_advance(c, a);
    }
    for (size_t i = stopped; i < n && lack > 0; i++)
        shrink(c, &victims[i], j, &lack);
    return true;
}

void preempt_over(struct core *c)
{
    for (struct jobrec *j = c->active; j; j = j->next) {
        const struct jobrec *to = j->size.limit ? core_find_job(c, j->size.limit_for) : NULL;
        if (j->size.limit && (!to || to->state != JOB_PENDING))
            size_limit(j, 0, 0);
    }
}
