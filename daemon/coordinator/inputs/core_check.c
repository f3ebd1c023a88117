/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/inputs/core_check.h"

#include "base/cleanup.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/node_slots.h"
#include "daemon/coordinator/records/phase.h"

static void check_epoch(struct jobrec *j)
{
    titan_assert(j->epoch_state == EPOCH_NONE || j->status.epoch > 0);
    if (j->epoch_state == EPOCH_NONE)
        return;
    const bool live = epoch_live(j);
    titan_assert(!live || (j->n_members > 0 && j->n_members == j->status.world_size));
    titan_assert(!live || world_set_has(&j->spec.worlds, j->n_members));
    titan_assert(!live || j->source.epoch < j->status.epoch);
    titan_assert(j->source.epoch == 0 || j->source.kind == TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY);
    for (uint32_t i = 0; i < j->n_members + j->n_departing; i++) {
        const struct rank_slot *rank_slot = &j->rank_slots[i];
        if (!rank_slot->worker)
            continue;
        titan_assert(rank_slot->worker->id == rank_slot->worker_id && rank_slot->worker->job == j);
        titan_assert(job_rank_slot(j, rank_slot->worker) ==
                     rank_slot); /* so the worker has no other rank slot; the agent reports its epoch */
    }
    titan_assert(j->n_kept > 0 && j->kept[j->n_kept - 1].epoch == j->status.epoch);
    for (size_t b = 0; b < j->n_kept; b++) {
        titan_assert(b == 0 || j->kept[b - 1].epoch < j->kept[b].epoch);
        titan_assert(j->kept[b].source < j->kept[b].epoch);
    }
}

static void check_job(const struct core *c, struct jobrec *j)
{
    const bool live = epoch_live(j), pausing = j->state == JOB_RESIZING && j->epoch_state == EPOCH_RUNNING;
    titan_assert(core_find_job(c, j->id) == j);
    titan_assert(j->spec.min_workers <= j->spec.max_workers);
    titan_assert(j->status.step <= MAX(j->spec.steps, j->source.resume_step));
    titan_assert(j->size.limit == 0 || j->size.limit_for != 0);
    titan_assert(j->budget.n_past <= j->budget.cap_past);

    titan_assert((j->phase == PHASE_QUEUED) == (j->state == JOB_PENDING));
    titan_assert((j->phase == PHASE_QUEUED) == (j->lane != NULL));
    titan_assert((j->phase == PHASE_CANCELLING) == (j->state == JOB_CANCELLING));
    titan_assert((j->phase == PHASE_ENDED) == job_final(j));
    switch (j->phase) {
    case PHASE_NONE:
        titan_assert(!"a job without a phase");
        break;
    case PHASE_QUEUED:
        titan_assert(j->n_workers == 0 && !j->run_active && !live && !j->requeue);
        break;
    case PHASE_ASSEMBLING:
        titan_assert(!live && (j->state == JOB_FORMING || j->state == JOB_RECOVERING));
        break;
    case PHASE_TRAINING:
        titan_assert(live && !pausing && j->run_active);
        titan_assert((j->state == JOB_RUNNING) == (j->epoch_state == EPOCH_RUNNING));
        break;
    case PHASE_PAUSING:
        titan_assert(pausing && j->run_active && j->resize.begun_mono >= 0);
        break;
    case PHASE_REQUEUEING:
        titan_assert(j->requeue && j->must_checkpoint && j->stop.why);
        break;
    case PHASE_FINISHING:
        titan_assert(!live);
        break;
    case PHASE_CANCELLING:
        break;
    case PHASE_ENDED:
        titan_assert(!live && !j->run_active);
        break;
    }
    titan_assert(!phase_stops(j) || size_staying(j) == 0); /* all workers are told to stop, and no worker is started */

    check_epoch(j);
    for (size_t i = 0; i < j->n_workers; i++) {
        const struct workrec *w = j->workers[i];
        titan_assert(w->job == j && w->node && core_find_node(c, w->node->name) == w->node);
        titan_assert(i == 0 || j->workers[i - 1]->id < w->id);
        titan_assert(w->id < c->next_worker_id || c->options.restored_term);
        titan_assert(w->state == WORKER_STARTING || w->state == WORKER_READY || w->state == WORKER_STOPPING);
        titan_assert(w->state != WORKER_READY || (w->started && w->address));
        titan_assert(!w->away || w->node->state == NODE_LOST);
        titan_assert(!w->chosen);
    }
    for (size_t i = 1; i < j->n_ckpts; i++)
        titan_assert(j->ckpts[i - 1].step > j->ckpts[i].step);
}

void core_check(const struct core *c)
{
    uint32_t connected = 0;
    size_t pending = 0, too_large = 0, active = 0, listed = 0;
    if (core_fenced(c))
        return; /* fencing stops the core in the middle of an input */
    for (const struct noderec *n = c->nodes; n; n = n->next) {
        titan_assert(n->state == NODE_READY || n->state == NODE_LOST);
        titan_assert(core_find_node(c, n->name) == n);
        titan_assert(!n->session || n->state == NODE_READY);
        titan_assert(!n->session || core_find_session(c, n->session) == n);
        titan_assert(n->state == NODE_READY || (!n->probe.at && !n->steady_at));
        titan_assert(n->probe.reached + n->probe.denied <= n->probe.asked);
        titan_assert(!n->key_had || n->keyed);
        titan_assert(!n->quarantine_end || n->policy.quarantines > 0);
        titan_assert(!n->in_window || n->policy.window_until_ms);
        titan_assert(node_slots(c, n) <= n->slots);
        uint32_t used = 0;
        for (const struct jobrec *j = c->active; j; j = j->next)
            for (size_t i = 0; i < j->n_workers; i++)
                used += j->workers[i]->node == n;
        titan_assert(n->used == used);
        connected += n->session != 0;
    }
    for (size_t b = 0; b < CORE_BUCKETS; b++)
        for (struct jobrec *j = c->buckets[b]; j; j = j->hash_next) {
            check_job(c, j);
            pending += j->phase == PHASE_QUEUED;
            too_large += j->phase == PHASE_QUEUED && queue_too_large(j);
            active += j->phase != PHASE_QUEUED;
        }
    for (const struct jobrec *j = c->active; j; j = j->next)
        listed++;
    titan_assert(connected == c->connected && pending == c->pending && active == listed);
    titan_assert(too_large == c->too_large);
}
