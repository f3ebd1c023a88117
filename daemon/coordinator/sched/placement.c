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

#define QUEUE_LOOK_AHEAD 256 /* queued jobs too large for the cluster that are stepped over */

/* Could the cluster as it is hold the job if nothing else ran? If not, the job says what it lacks. all: the slots of
 * all nodes together, of each device. */
static bool fits_at_all(struct core *c, struct jobrec *j, const uint32_t all[SLOTS_DEVICES])
{
    uint32_t slots = 0;
    for (size_t i = 0; i < SLOTS_DEVICES; i++)
        if (all[i] > slots && slots_fit_device(j, slots_devices[i]))
            slots = all[i];
    bool fits = size_world(j, slots) > 0;
    if (slots > 0 || fits)
        emit_job_needs_nodes(c, j, fits ? 0 : size_least(j) - slots, slots);
    return fits;
}

static void place(struct core *c, struct jobrec *j)
{
    uint32_t spare = slots_free(c, j->device, NULL), taken = slots_claimed(c, j->device, j->spec.priority);
    titan_assert(j->phase == PHASE_QUEUED && spare >= taken);
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
    for (size_t i = 0; i < SLOTS_DEVICES; i++) {
        if (!slots_fit_device(j, slots_devices[i]))
            continue;
        uint32_t spare = slots_free(c, slots_devices[i], NULL),
                 taken = slots_claimed(c, slots_devices[i], j->spec.priority);
        c->claimed_ahead += taken;
        c->holding = preempt_for(c, j, slots_devices[i], spare > taken ? spare - taken : 0);
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
    uint32_t all[SLOTS_DEVICES] = {0}; /* the same for every job: nodes come and go between two of these */
    for (size_t i = 0; i < SLOTS_DEVICES; i++)
        (void)slots_free(c, slots_devices[i], &all[i]);
    queue_begin(c);
    for (int looked = 0; looked < QUEUE_LOOK_AHEAD && (j = queue_next(c));) {
        if (!fits_at_all(c, j, all)) {
            looked++;
        } else if (slots_choose_device(c, j, true)) {
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
        grow_all(c);
        bool waited = c->pending > 0;
        if (waited)
            place_queue(c);
        if (waited && c->pending == 0)
            grow_all(c); /* no job waits any more: what is left is for running jobs */
    }
}

bool sched_behind(const struct core *c, const struct jobrec *j)
{
    const struct jobrec *head = c->blocker ? core_find_job(c, c->blocker) : NULL;
    if (!head || head->state != JOB_PENDING)
        return false;
    return j->spec.priority < head->spec.priority ||
           (j->spec.priority == head->spec.priority && j->user == head->user && j->id > head->id);
}
