/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/run/stale_store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "daemon/coordinator/cluster/fencing.h"
#include "daemon/coordinator/outbox/events.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_queue.h"
#include "daemon/coordinator/records/job_size.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/checkpoints.h"
#include "daemon/coordinator/run/leader_epochs.h"
#include "daemon/coordinator/run/plausible.h"
#include "daemon/coordinator/run/worker_end.h"

#define TAKEN_EACH 8 /* workers unknown to the store, per worker that the job may have */

bool stale_asks(const struct core *c, const Titan__Internal__AgentRegistration *m)
{
    return c->options.restored_term && !m->lists_epochs;
}

const struct noderec *stale_awaits(const struct core *c)
{
    for (const struct noderec *n = c->nodes; n; n = n->next)
        if (!n->session && !n->given_up && (n->state != NODE_LOST || n->used))
            return n;
    return NULL;
}

void stale_tick(struct core *c)
{
    const int64_t lease = c->options.leader_lease_ms, soon = c->options.adopt_ms;
    if (!c->stale)
        return;
    const int64_t since = c->now.mono_ms - c->stale_since;
    if (since < (!stale_awaits(c) ? soon : MAX(soon, lease ? lease + lease / 20 + 500 : 0)))
        return;
    c->stale = false;
    emit_settled(c);
    for (struct jobrec *j = c->active; j; j = j->next)
        for (size_t i = 0; i < j->n_workers; i++)
            if (j->workers[i]->missing)
                worker_missing(j->workers[i], c->now.mono_ms);
    c->slots_changed = true;
}

void core_restore_taken(struct core *c, uint64_t worker_id)
{
    VEC_MUST_PUSH(c->taken, c->n_taken, c->cap_taken, worker_id);
}

/* Can the worker be the job's? Either the job has it. Or an earlier coordinator started it after the backup, so that
 * the store lacks it. */
static bool knows(const struct core *c, struct jobrec *j, const Titan__Internal__Member *m)
{
    if (job_worker(j, m->worker_id))
        return true;
    for (size_t i = 0; i < c->n_taken; i++)
        if (c->taken[i] == m->worker_id)
            return false;
    return node_name_ok(m->node) && m->worker_id > c->options.backup_worker && m->worker_id <= c->options.gone_worker;
}

static void add_members(struct core *c, struct jobrec *j, Titan__Internal__Member **list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (job_worker(j, list[i]->worker_id))
            continue;
        struct noderec *node = core_expect_node(c, list[i]->node);
        struct workrec *w = job_new_worker(j,
                                           (struct workrec){.id = list[i]->worker_id,
                                                            .node = node,
                                                            .started = true,
                                                            .unseen = true,
                                                            .away = node->state == NODE_LOST},
                                           list[i]->address);
        core_restore_taken(c, w->id);
        j->n_taken++;
        begin_worker(c, w);
        if (node->session) /* the node registered earlier without this worker, so no report of its end will come */
            worker_missing(w, c->stale ? INT64_MAX : c->now.mono_ms);
        move_worker(c, w, WORKER_READY, NULL, false, NULL);
    }
}

static void take_checkpoint(struct core *c, struct jobrec *j, char *path)
{
    const char *name = path ? strrchr(path, '/') : NULL;
    uint64_t step = 0;
    if (!name || sscanf(name, "/step-%20" SCNu64, &step) != 1)
        return;
    if (step <= (j->n_ckpts ? j->ckpts[0].step : 0) || !plausible_step(j, step) || !plausible_path(j, step, path))
        return;
    Titan__Internal__CheckpointWritten m = TITAN__INTERNAL__CHECKPOINT_WRITTEN__INIT;
    m.job_id = j->id;
    m.epoch = j->status.epoch;
    m.step = step;
    m.path = path;
    m.world_size = j->n_members;
    checkpoints_committed(c, j, &m);
}

static void take_job(struct core *c, struct jobrec *j, struct noderec *n, const Titan__Internal__EpochsKnown *k)
{
    const bool over = phase_stops(j);
    if (job_final(j))
        return;
    for (size_t i = 0; i < k->n_epochs; i++) {
        const Titan__Internal__FormEpoch *f = k->epochs[i];
        if (f->epoch <= j->status.epoch)
            continue;
        /* Since the backup, true epochs name the workers of one epoch and some replacements. A report that names more
         * ids than that has invented them. The limit is per job. It counts from the start of this process. */
        const uint64_t most = TAKEN_EACH * (uint64_t)(j->spec.max_workers + 1);
        if (!over && j->n_taken + f->n_members + f->n_departing > most) {
            fence_implausible(c, n, j->id,
                              batch_printf(c->out,
                                           "more workers have been told of since the backup than it can have had, "
                                           "epoch %" PRIu64 " is not taken",
                                           f->epoch));
            continue;
        }
        /* The workers that hold the epoch's state may have come and gone since the backup. */
        const bool sound = f->epoch < core_first_epoch(c) && leader_epochs_sound(c, j, f, knows) &&
                           (!*f->checkpoint_path || plausible_path(j, UINT64_MAX, f->checkpoint_path));
        if (!over && sound && plausible_member(j, n, f) && plausible_step(j, f->resume_step)) {
            /* The store lacks the job's run, because at the backup the job was queued, or between two runs. */
            if (j->state == JOB_PENDING) {
                queue_remove(c, j);
                core_list_append(&c->active, &c->active_last, j);
                move_job(c, j, JOB_FORMING, "");
            }
            if (!j->run_active)
                begin_run(c, j);
            add_members(c, j, f->members, f->n_members);
            add_members(c, j, f->departing, f->n_departing);
            titan_assert(j->n_taken <= most);
            size_claim(j, MAX(j->size.claim, (uint32_t)f->n_members));
            leader_epochs_take(c, j, f, NULL);
            j->quorum.adopt_until = MAX(j->quorum.adopt_until, c->now.mono_ms + (int64_t)c->options.adopt_ms);
            take_checkpoint(c, j, f->checkpoint_path);
        } else {
            c->counters.unknown_rank += !over;
        }
    }
    if (!over && j->state != JOB_PENDING)
        take_checkpoint(c, j, k->checkpoint_path);
}

void stale_registration(struct core *c, struct noderec *n, const Titan__Internal__AgentRegistration *m)
{
    for (size_t i = 0; i < m->n_known && c->options.restored_term; i++) {
        struct jobrec *j = core_find_job(c, m->known[i]->job_id);
        if (j) {
            take_job(c, j, n, m->known[i]);
            continue;
        }
        /* The job was submitted after the backup, so its owner and rights are unknown. */
        const unsigned long long job_id = m->known[i]->job_id;
        unsigned workers = 0;
        for (size_t k = 0; k < m->n_workers; k++)
            workers += m->workers[k]->job_id == job_id;
        if (workers == 0)
            continue;
        const char *words = batch_printf(c->out,
                                         "node %s has %u workers of job %llu, which the restored store does not know: "
                                         "they stop with a checkpoint",
                                         n->name, workers, job_id);
        emit_event(c, NULL,
                   (struct emit){.type = "job.unknown",
                                 .message = words,
                                 .node = n,
                                 .detail = batch_printf(c->out, "{\"job\":%llu,\"workers\":%u}", job_id, workers)});
    }
}
