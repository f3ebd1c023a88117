/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/sched/placement.h"

#include "base/cleanup.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/run/growth.h"
#include "daemon/coordinator/run/slots.h"
#include "daemon/coordinator/sched/preemption.h"

#define WAITS_REPORTED 256 /* at a time; of other jobs the reason is made when it is asked for */

static void report_too_large(struct core *c, struct jobrec *j)
{
    char words[512];
    const uint32_t slots = queue_room(c, j);
    if (slots && !j->waits.lacks && core_job_lacks_nodes(c, j->id, words, sizeof(words)))
        emit_job_needs_nodes(c, j, size_least(j) - slots, words);
}

/* Nodes have come or gone: which jobs could the cluster as it is hold if nothing else ran? */
static void measure_cluster(struct core *c)
{
    uint32_t all[CORE_DEVICES];
    for (size_t i = 0; i < CORE_DEVICES; i++)
        (void)slots_free(c, core_devices[i], &all[i]);
    if (queue_set_all(c, all) || c->unreported)
        queue_each_too_large(c, WAITS_REPORTED, report_too_large);
    c->unreported = false;
}

static void place(struct core *c, struct jobrec *j)
{
    uint32_t spare = slots_free(c, j->device, NULL), taken = slots_claimed(c, j->device, j->spec.priority);
    titan_assert(j->phase == PHASE_QUEUED && spare >= taken);
    emit_job_needs_nodes(c, j, 0, NULL);
    queue_remove(c, j);
    core_list_append(&c->active, &c->active_last, j);
    size_claim(j, size_world(j, spare - taken));
    titan_assert(j->size.claim > 0 && world_set_has(&j->spec.worlds, j->size.claim));
    queue_took(j, j->size.claim);
    move_job(c, j, JOB_FORMING, "");
    growth_start(c, j, j->size.claim);
}

/* It is its turn, but there are too few slots: it waits, and those behind it, for what others can give up. */
static void block(struct core *c, struct jobrec *j)
{
    titan_assert(j->phase == PHASE_QUEUED && j->id);
    c->blocker = j->id;
    for (size_t i = 0; i < CORE_DEVICES; i++) {
        if (!job_fits_device(j, core_devices[i]))
            continue;
        uint32_t spare = slots_free(c, core_devices[i], NULL),
                 taken = slots_claimed(c, core_devices[i], j->spec.priority);
        c->claimed_ahead += taken;
        c->holding = preempt_for(c, j, core_devices[i], spare > taken ? spare - taken : 0);
        if (c->holding)
            return;
    }
}

static void place_queue(struct core *c)
{
    struct jobrec *j;
    c->blocker = 0;
    c->holding = false;
    c->claimed_ahead = 0;
    queue_begin(c);
    while ((j = queue_next(c))) {
        c->counters.queue_looks++;
        if (slots_choose_device(c, j, true)) {
            place(c, j);
        } else {
            block(c, j);
            return;
        }
    }
}

static void grow_all(struct core *c)
{
    for (struct jobrec *j = c->active; j; j = j->next)
        if (slots_held(j))
            grow_job(c, j);
}

void sched_settle(struct core *c)
{
    /* What gives way may have gone at once, when it had not started. */
    for (int round = 0; c->slots_changed && !c->stale && round < 4; round++) {
        c->slots_changed = false;
        preempt_over(c);
        measure_cluster(c);
        grow_all(c);
        bool waited = queue_waits(c);
        place_queue(c);
        if (waited && !queue_waits(c))
            grow_all(c); /* what is left is for running jobs */
    }
}

/* Would it come after the job that the others wait for? */
static bool is_behind(const struct core *c, const struct jobrec *j)
{
    const struct jobrec *head = c->blocker ? core_find_job(c, c->blocker) : NULL;
    if (!head || head->state != JOB_PENDING)
        return false;
    return j->spec.priority < head->spec.priority ||
           (j->spec.priority == head->spec.priority && j->user == head->user && j->id > head->id);
}

void sched_submitted(struct core *c, struct jobrec *j)
{
    if (c->slots_changed)
        return;
    if (queue_too_large(j))
        report_too_large(c, j);
    else
        c->slots_changed = !is_behind(c, j);
}
