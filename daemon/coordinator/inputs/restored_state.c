/* The core as the store says it was. */
#include "daemon/coordinator/records/core_record.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "daemon/coordinator/outbox/transitions.h"
#include "daemon/coordinator/records/job_table.h"
#include "daemon/coordinator/records/phase.h"
#include "daemon/coordinator/run/job_clock.h"
#include "daemon/coordinator/run/kept_epochs.h"
#include "daemon/coordinator/run/requeue.h"
#include "daemon/coordinator/run/restart_budget.h"

void core_restore_node(struct core *c, const struct node *saved, struct core_time now)
{
    struct noderec *n = core_add_node(c, saved->name);
    n->state = saved->state;
    n->slots = saved->slots;
    core_set_string(&n->device, saved->device);
    core_set_string(&n->address, saved->address);
    core_set_string(&n->version, saved->version);
    n->memory_bytes = saved->memory_bytes;
    n->incarnation = saved->incarnation;
    n->peer_port = saved->peer_port;
    n->seen_wall = saved->last_seen_ms;
    /* It has this long to come back before its workers count as lost. */
    n->seen_mono = now.mono_ms + c->options.adopt_ms - 2 * (int64_t)c->options.node_timeout_ms;
    n->stream_mono = n->seen_mono;
    n->answered_mono = now.mono_ms; /* by the one before us */
}

static void restore_worker(struct core *c, struct jobrec *j, const struct worker *saved)
{
    struct workrec *w = core_alloc(sizeof(*w));
    w->id = saved->id;
    w->job = j;
    w->node = core_expect_node(c, saved->node);
    w->node->used++;
    w->state = saved->state;
    w->address = core_strdup(saved->address);
    w->pid = saved->pid;
    w->away = w->node->state == NODE_LOST;
    w->unseen = c->stale;
    w->started = saved->pid != 0 || saved->state == WORKER_READY;
    w->deadline = c->now.mono_ms + c->options.adopt_ms +
                  (saved->state == WORKER_STARTING ? c->options.start_ms : c->options.stop_ms);
    job_add_worker(j, w);
}

static void restore_bases(struct core *c, struct jobrec *j, const struct core_saved_job *saved)
{
    if (saved->n_bases == 0)
        kept_formed(j);
    for (size_t b = 0; b < saved->n_bases; b++) {
        const struct core_saved_base *base = &saved->bases[b];
        struct kept_member *members = kept_add(j, base->epoch, base->n);
        j->kept[b].source = base->source;
        j->kept[b].complete = base->complete;
        for (uint32_t i = 0; i < base->n; i++) {
            const struct workrec *w = job_worker(j, base->workers[i]);
            members[i] = (struct kept_member){.worker_id = base->workers[i], .node = w ? w->node : NULL, .told = !w};
            for (size_t k = 0; k < saved->n_lost; k++)
                if (saved->lost[k].id == base->workers[i])
                    members[i] = (struct kept_member){.worker_id = base->workers[i],
                                                      .node = core_find_node(c, saved->lost[k].node)};
        }
    }
}

static void restore_epoch(struct core *c, struct jobrec *j, const struct core_saved_job *saved)
{
    const struct epoch *e = saved->epoch;
    j->epoch_state = MUTANT(EPOCH_REUSED) && e->state == EPOCH_FORMING ? EPOCH_REVOKED : e->state;
    j->status.epoch = e->number - (MUTANT(EPOCH_REUSED) && e->state == EPOCH_FORMING);
    j->source = e->source;
    j->source_epoch = e->source_epoch;
    j->resume_step = e->resume_step;
    j->epoch_checkpoint = core_strdup(e->checkpoint);
    memcpy(j->comm_id, e->comm_id, sizeof(j->comm_id));
    j->comm_id[0] ^= MUTANT(EPOCH_REDRAWN);
    j->keyed = e->keyed;
    memcpy(j->key, e->key, sizeof(j->key));
    job_new_seats(j, e->world_size, e->state == EPOCH_RUNNING ? 0 : e->leavers);
    for (uint32_t i = 0; i < j->n_seats + j->n_leavers; i++)
        job_set_seat(j, i, e->workers[i], job_worker(j, e->workers[i]));
    restore_bases(c, j, saved);
    j->holders = core_alloc((saved->n_holders + 1) * sizeof(*j->holders));
    j->n_holders = saved->n_holders;
    if (saved->n_holders)
        memcpy(j->holders, saved->holders, saved->n_holders * sizeof(*j->holders));
    if (e->state == EPOCH_FORMING)
        j->epoch_deadline = c->now.mono_ms + c->options.adopt_ms + c->options.form_ms;
    else if (e->state == EPOCH_REVOKED)
        j->epoch_deadline = c->now.mono_ms + c->options.adopt_ms + c->options.quiesce_ms;
    else if (j->state == JOB_RESIZING)
        j->epoch_deadline = c->now.mono_ms + c->options.adopt_ms + c->options.pause_ms;
    else if (e->state == EPOCH_RUNNING)
        clock_moved_on(c, j);
}

static void restore_phase(struct jobrec *j)
{
    if (j->phase == PHASE_QUEUED)
        return;
    if (j->state == JOB_CANCELLING)
        move_phase(j, PHASE_CANCELLING);
    else if (j->epoch_state == EPOCH_ENDED)
        move_phase(j, PHASE_FINISHING);
    else
        move_phase(j, phase_by_epoch(j));
    if (j->epoch_state != EPOCH_NONE)
        requeue_restored(j);
}

/* How long its workers had to stop is not stored. They may be at their last checkpoint, and are not told to hurry: what
 * their agents have heard before holds. */
static void restore_stopping(struct jobrec *j)
{
    if (phase_ends(j))
        j->grace_ms = LAST_CHECKPOINT_MS;
    for (size_t i = 0; i < j->n_workers; i++)
        if (j->workers[i]->state == WORKER_STOPPING)
            j->workers[i]->deadline += j->grace_ms;
}

void core_restore_job(struct core *c, const struct core_saved_job *saved, struct core_time now)
{
    c->now = now;
    struct jobrec *j = core_add_job(c, &saved->job);
    j->run = saved->run;
    j->run_active = saved->run_active;
    j->target = j->spec.min_workers;
    for (size_t i = 0; i < saved->n_workers; i++)
        restore_worker(c, j, &saved->workers[i]);
    if (saved->n_workers)
        strncpy(j->device, j->workers[0]->node->device, sizeof(j->device) - 1);
    if (saved->epoch)
        restore_epoch(c, j, saved);
    restore_phase(j);
    /* What the coordinator before us heard of delegates' numbers while it was being queued again is not stored. */
    j->above_delegates =
        c->options.delegate_lease_ms && j->status.epoch && (j->phase == PHASE_QUEUED || j->phase == PHASE_REQUEUEING);
    restore_stopping(j);
    j->target = MAX(j->target, MAX(j->n_seats, (uint32_t)saved->n_workers));
    j->ckpts = core_alloc((saved->n_checkpoints + 1) * sizeof(*j->ckpts));
    j->n_ckpts = j->cap_ckpts = saved->n_checkpoints;
    for (size_t i = 0; i < saved->n_checkpoints; i++)
        j->ckpts[i] = (struct ckptrec){.step = saved->checkpoints[i].step,
                                       .epoch = saved->checkpoints[i].epoch,
                                       .path = core_strdup(saved->checkpoints[i].path)};
    if (j->state == JOB_PENDING && saved->job.reason && strncmp(saved->job.reason, "waiting", 7) != 0)
        core_set_string(&j->stop_why, saved->job.reason);
    for (size_t i = 0; i < saved->n_losses; i++)
        budget_restore(j, &saved->losses[i]);
    if (j->state == JOB_RECOVERING)
        j->recovery = (struct recovery){.lost = now.mono_ms, .from_step = j->status.step};
    j->metric_step = j->status.step;
    c->slots_changed = true;
}
