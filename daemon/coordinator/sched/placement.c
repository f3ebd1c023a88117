/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/sched/placement.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/run/growth.h"
#include "daemon/coordinator/run/slots.h"
#include "daemon/coordinator/sched/backfill.h"
#include "daemon/coordinator/sched/preemption.h"

#define WAITS_REPORTED 256 /* per placement; the reason of other jobs is made on request */

static void report_too_large(struct core *c, struct jobrec *j)
{
    char words[512];
    const uint32_t slots = queue_room(c, j);
    if (slots && !j->waits.lacks && core_job_lacks_nodes(c, j->id, words, sizeof(words)))
        emit_job_needs_nodes(c, j, size_least(j) - slots, words);
}

static void place_queue(struct core *c)
{
    memset(c->heads, 0, sizeof(c->heads));
    queue_begin(c);
    for (struct jobrec *j; (j = queue_next(c));) {
        uint32_t room[CORE_DEVICES];
        size_t device = CORE_DEVICES;
        const uint32_t allowed = queue_allows(c, j, NULL);
        c->counters.queue_looks++;
        if (size_world(j, allowed) == 0) { /* the job waits for its own user's jobs, and no other job waits for it */
            queue_narrow_user(c, j, allowed);
            continue;
        }
        for (size_t i = CORE_DEVICES; i-- > 0;) {
            const bool fits = job_fits_device(j, core_devices[i]);
            if (!c->heads[i].job && !j->n_refusals && fits)
                backfills_fall_due(c, j, core_devices[i]);
            room[i] = 0; /* the job may not have the device's slots, or they are kept for the first job */
            if (fits && (!c->heads[i].held || MUTANT(BACKFILL_DELAYS))) {
                const uint32_t spare = slots_free(c, core_devices[i], j, NULL);
                room[i] = spare - MIN(spare, slots_claimed(c, core_devices[i], j));
            }
            device = size_world(j, room[i]) > 0 ? i : device;
        }
        if (device < CORE_DEVICES) {
            const uint32_t most = MIN(room[device], allowed);
            const struct jobrec *first = c->heads[device].job;
            titan_assert(j->phase == PHASE_QUEUED && job_fits_device(j, core_devices[device]));
            emit_job_needs_nodes(c, j, 0, NULL);
            queue_remove(c, j);
            core_list_append(&c->active, &c->active_last, j);
            slots_set_device(j, core_devices[device]);
            size_claim(j, size_world(j, most));
            titan_assert(j->size.claim > 0 && world_set_has(&j->spec.worlds, j->size.claim));
            queue_took(j, j->size.claim);
            backfill_begin(c, j);
            move_job(c, j, JOB_FORMING,
                     first ? batch_printf(c->out, BACKFILL_WORDS, (unsigned long long)first->id) : "");
            growth_start(c, j, j->size.claim);
            continue;
        }
        if (j->n_refusals) /* the job waits for slots of some nodes only, and no other job waits for it */
            continue;
        /* It is the job's turn, but there are too few slots. The job waits for slots that others can give up. If these
         * slots will suffice, the jobs behind the job wait too. */
        bool held = false;
        for (size_t i = 0; i < CORE_DEVICES; i++) {
            struct queue_head *head = &c->heads[i];
            const bool fits = job_fits_device(j, core_devices[i]);
            room[i] = fits ? room[i] : UINT32_MAX;
            if (held || head->job || !fits)
                continue;
            head->job = j;
            head->claimed = slots_claimed(c, core_devices[i], j);
            held = head->held = preempt_for(c, j, core_devices[i]);
            room[i] = held && !MUTANT(BACKFILL_DELAYS) ? 0 : room[i];
        }
        queue_narrow(c, room); /* later jobs have no more room than this job */
    }
    for (size_t i = 0; i < CORE_DEVICES; i++)
        c->idle[i] = c->heads[i].job ? slots_free(c, core_devices[i], NULL, NULL) : 0;
    backfills_end(c);
}

static void grow_all(struct core *c)
{
    for (struct jobrec *j = c->active; j; j = j->next)
        if (slots_held(j))
            grow_job(c, j);
}

void sched_settle(struct core *c)
{
    /* A worker that had not started may have gone at once, so placement repeats. */
    for (int round = 0; c->slots_changed && !c->stale && round < 4; round++) {
        const bool waited = c->pending > c->too_large;
        preempt_over(c);
        /* Nodes may have come or gone: which jobs could the cluster hold if nothing else ran? */
        uint32_t all[CORE_DEVICES];
        for (size_t i = 0; i < CORE_DEVICES; i++)
            (void)slots_free(c, core_devices[i], NULL, &all[i]);
        if (queue_set_all(c, all) || c->unreported)
            queue_each_too_large(c, WAITS_REPORTED, report_too_large);
        c->unreported = false;
        grow_all(c);
        c->slots_changed = false;
        place_queue(c);
        if (waited)
            grow_all(c); /* running jobs grow if no job waits */
    }
}

void sched_submitted(struct core *c, struct jobrec *j)
{
    if (c->slots_changed)
        return;
    if (queue_too_large(j)) {
        report_too_large(c, j);
        return;
    }
    /* Could the job come before waiting jobs, or pass them? */
    for (size_t i = 0; i < CORE_DEVICES; i++) {
        const struct queue_head *head = &c->heads[i];
        const struct jobrec *first = head->job;
        if (c->all[i] > 0 && job_fits_device(j, core_devices[i]))
            c->slots_changed |=
                !first || (!head->held && size_least(j) <= c->idle[i]) || j->spec.priority > first->spec.priority ||
                (j->spec.priority == first->spec.priority && (j->user != first->user || j->id < first->id));
    }
}
