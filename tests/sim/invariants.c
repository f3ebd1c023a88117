/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold, checked where it could stop holding; image.c has those about what is stored.
 *
 *  I1  an epoch of a job has one membership, one communicator id, one source, whatever sends it and how often
 *  I2  no process acts on an epoch lower than one it has seen; no step is agreed on in an epoch after a later one has
 *      begun or worked on at a node that the coordinator has not heard for the whole lease
 *  I3  a committed step has one content, follows the one before it, and is not lost while a whole set of its parts is
 *      with the members of the next epoch; one that was told of is with the workers that hold a whole set of its epoch
 *  I4  the steps of a job, each with its samples, are made once and in order
 *  I5  acknowledged submits and cancels survive, except those after the backup that a store is restored from
 *  I6  what is stored of jobs, runs, epochs, workers and nodes moves by the state tables only (image.c)
 *  I7  no worker outlives its job
 *  I8  a checkpoint that is listed or named in a command is whole on disk; a backup may list what has expired since
 *  I9  once faults have stopped, every job ends
 *  I10 restarts = counted ends of workers + failed epochs; only a used-up budget, a permanent error or
 *      nodes that refuse it fail a job
 *  I11 epochs have sizes that the job may have, and a job's reason fits its state (image.c)
 *  I12 a job that breaks the protocol or crashes pays alone; made-up messages have no effect (byzantine.c)
 *  I13 the first job in the queue has its slots asked for as soon as those that are free, that come back and of jobs
 * that yield to it are enough: of lower priority, or that have passed it. No others are asked (queue.c) */
#include "tests/sim/sim.h"

#include <string.h>

#include "base/cleanup.h"

#define LEASE_ROUNDING (20 * MS) /* clocks in ms, and their drift */

/* --- commands ----------------------------------------------------------------------------------------------------- */

size_t epoch_slot(uint64_t job, uint64_t epoch)
{
    CHECK("sim", job >= 1 && job <= SIM_JOBS, "job %llu", LL(job));
    size_t n = S->n_numbers[job] ? S->n_numbers[job] : 1; /* the first is that of no epoch */
    for (size_t i = 0; i < n; i++)
        if (S->numbers[job][i] == epoch)
            return i;
    CHECK("sim", n < SIM_EPOCHS, "more epochs than the simulator keeps");
    S->numbers[job][n] = epoch;
    S->n_numbers[job] = n + 1;
    return n;
}

static struct told *told_of(uint64_t job, uint64_t epoch)
{
    return &S->told[job][epoch_slot(job, epoch)];
}

static void first_told(struct told *t, const Titan__Internal__FormEpoch *f)
{
    t->seen = true;
    t->n = f->n_members;
    t->n_holders = f->n_state_holders;
    t->n_departing = f->n_departing;
    t->source = f->source;
    t->resume = f->resume_step;
    memcpy(t->comm, f->comm_id.data, sizeof(t->comm));
    for (size_t i = 0; i < f->n_members; i++)
        t->members[i] = f->members[i]->worker_id;
    for (size_t i = 0; i < f->n_state_holders; i++)
        t->holders[i] = f->state_holders[i];
    for (size_t i = 0; i < f->n_departing; i++)
        t->departing[i] = f->departing[i]->worker_id;
}

void must_told(const coord_message *m)
{
    if (m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK)
        S->leases |= m->ack->leader_lease_ms > 0;
    CHECK("I2",
          !S->store.old || m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_ACK ||
              m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_HEARTBEAT_ANSWER,
          "a coordinator on an old backup gives commands");
    if (m->kind_case != TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM)
        return;
    const Titan__Internal__FormEpoch *f = m->form;
    struct told *t = told_of(f->job_id, f->epoch);
    const struct image_job *j = &S->image.jobs[f->job_id];
    CHECK("sim", f->n_members <= SIM_WORLD && f->n_departing <= SIM_WORLD && f->n_state_holders <= SIM_WORLD,
          "size of an epoch");
    CHECK_OF(f->job_id, "I1", j->epochs[epoch_slot(f->job_id, f->epoch)].state != EPOCH_NONE,
             "epoch %llu of job %llu is told before it is stored", LL(f->epoch), LL(f->job_id));
    CHECK("I1", f->comm_id.len == 16, "communicator id of %zu bytes", f->comm_id.len);
    if (!t->seen)
        first_told(t, f);
    bool same = t->n == f->n_members && memcmp(t->comm, f->comm_id.data, 16) == 0 && t->source == f->source &&
                t->resume == f->resume_step && t->n_holders == f->n_state_holders && t->n_departing == f->n_departing;
    for (size_t i = 0; same && i < f->n_members; i++)
        same &= t->members[i] == f->members[i]->worker_id;
    for (size_t i = 0; same && i < f->n_departing; i++)
        same &= t->departing[i] == f->departing[i]->worker_id;
    CHECK_OF(f->job_id, "I1", same, "job %llu epoch %llu is told in two ways", LL(f->job_id), LL(f->epoch));
}

void must_enter(const struct proc *p, const struct comm *c)
{
    CHECK_OF(c->job, "I2", c->epoch > p->entered, "worker %llu has been in epoch %llu and enters %llu", LL(p->id),
             LL(p->entered), LL(c->epoch));
    for (int i = 0; i < S->n_comms; i++) {
        const struct comm *o = &S->comms[i];
        CHECK_OF(c->job, "I1", o->job != c->job || o->epoch != c->epoch || memcmp(o->id, c->id, sizeof(c->id)) == 0,
                 "job %llu has two epochs %llu", LL(c->job), LL(c->epoch));
    }
}

static const struct comm *comm_that_started(uint64_t job, uint64_t epoch)
{
    for (int i = 0; i < S->n_comms; i++)
        if (S->comms[i].job == job && S->comms[i].epoch == epoch && S->comms[i].recovery_source != SIM_SOURCE_NONE)
            return &S->comms[i];
    return NULL;
}

void must_fall(struct image_job *j, const struct job_status *s)
{
    const struct comm *c = comm_that_started(j->job.id, s->epoch);
    if (j->leader_epochs[epoch_slot(j->job.id, s->epoch)])
        return; /* where its members were before is not known here */
    bool memory = j->epochs[epoch_slot(j->job.id, s->epoch)].source == TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
    CHECK_OF(j->job.id, "I3", memory ? c && c->recovery_source <= SIM_SOURCE_CHECKPOINT : s->world_size > 0,
             "job %llu step falls from %llu to %llu though epoch %llu has it in memory", LL(j->job.id),
             LL(j->job.status.step), LL(s->step), LL(s->epoch));
    CHECK_OF(j->job.id, "I3", !j->fell[epoch_slot(j->job.id, s->epoch)],
             "job %llu step falls from %llu to %llu once more in epoch %llu", LL(j->job.id), LL(j->job.status.step),
             LL(s->step), LL(s->epoch));
    j->fell[epoch_slot(j->job.id, s->epoch)] = true;
}

void must_originate(uint64_t job, uint64_t epoch, const struct epoch_origin *origin)
{
    const struct comm *c = comm_that_started(job, epoch);
    CHECK_OF(job, "I3", c && c->installed, "job %llu epoch %llu is said to have its state, and no worker has", LL(job),
             LL(epoch));
    CHECK_OF(job, "I3",
             origin->recovery_source == (int32_t)(c->recovery_source - SIM_SOURCE_INIT) &&
                 origin->step == c->target.step && origin->params_hash == c->target.content,
             "job %llu epoch %llu: state of step %llu from recovery source %d is stored", LL(job), LL(epoch),
             LL(origin->step), origin->recovery_source);
}

/* --- state -------------------------------------------------------------------------------------------------------- */

/* What p holds of that epoch; NULL = nothing. */
static const struct holding *held(const struct proc *p, uint64_t epoch)
{
    if (epoch && p->installed.epoch == epoch)
        return &p->installed;
    return epoch && p->pending.epoch == epoch ? &p->pending : NULL;
}

bool must_cover(const uint64_t *workers, int n, uint64_t epoch, struct holding *ret, bool *ret_replica,
                bool *ret_rolled)
{
    bool own[SIM_RANKS] = {false}, any[SIM_RANKS] = {false};
    const struct holding *furthest = NULL;
    *ret_rolled = false;
    for (int i = 0; i < n; i++) {
        const struct holding *h = held(&S->procs[workers[i]], epoch);
        if (h && (!furthest || h->step > furthest->step))
            furthest = h;
    }
    if (!furthest)
        return false;
    for (int i = 0; i < n; i++) {
        const struct proc *p = &S->procs[workers[i]];
        const struct holding *h = held(p, epoch);
        if (!h)
            continue;
        bool behind = h->step + 1 == furthest->step && h == &p->installed && p->prepared;
        CHECK_OF(p->job, "I3", h->step == furthest->step || behind,
                 "worker %llu is at step %llu of epoch %llu and cannot finish step %llu, which another one has made",
                 LL(p->id), LL(h->step), LL(epoch), LL(furthest->step));
        *ret_rolled |= behind;
        own[h->rank % h->parts] = any[h->rank % h->parts] = true;
        if (h->ward >= 0)
            any[h->ward % h->parts] = true;
    }
    bool all = true;
    *ret_replica = true;
    for (int part = 0; part < furthest->parts; part++) {
        all &= any[part];
        *ret_replica &= own[part];
    }
    *ret = *furthest;
    return all;
}

/* Is that an epoch with parts that the protocol promises to find among these workers? The newest that any of them holds
 * installed; and the one before it, as long as all that hold a part of that are there. */
static bool promised(const uint64_t *workers, int n, uint64_t job, uint64_t epoch)
{
    const struct comm *c = comm_that_started(job, epoch);
    uint64_t newest = 0;
    int holders = 0;
    for (int i = 0; i < n; i++) {
        const struct proc *p = &S->procs[workers[i]];
        newest = MAX(newest, p->installed.epoch);
        holders += p->installed.epoch == epoch;
    }
    return c && c->installed && (epoch == newest || holders == c->world);
}

static bool names(const struct epoch *e, uint64_t worker)
{
    uint32_t i = 0;
    while (i < e->world_size + e->departing && e->workers[i] != worker)
        i++;
    return i < e->world_size + e->departing;
}

/* Those that held all of the newest step between them are named by the next epoch, as members or departing ranks, as
 * far as they are there: no part is dropped. One that is named and has died since it was is there for all that could be
 * known. */
void must_include(const struct epoch *e)
{
    const struct ledger *l = &S->ledgers[e->job_id];
    uint64_t there[SIM_WORKERS], named[SIM_RANKS];
    int n_there = 0, n_named = 0;
    bool whole = false, kept = false; /* in memory, with all that live; with those in the epoch */
    const uint64_t restores = S->image.origin.term / BACKUP_TERM_STEP; /* each leaves out 2^32 numbers */
    CHECK("I12", e->number < (restores + 1) << 32, "job %llu has come to epoch %llu", LL(e->job_id), LL(e->number));
    for (uint64_t i = 1; i <= S->image.last_worker; i++) {
        const struct image_worker *w = &S->image.workers[i];
        if (w->w.job_id != e->job_id || w->w.state != WORKER_READY)
            continue;
        const bool is_named = names(e, i);
        if (is_named)
            named[n_named++] = i;
        if (is_named || (S->procs[i].alive && S->procs[i].comm == 0))
            there[n_there++] = i;
    }
    for (size_t i = 1; i < S->n_numbers[e->job_id]; i++) {
        uint64_t epoch = S->numbers[e->job_id][i];
        struct holding found, all;
        bool replica, rolled;
        if (epoch >= e->number || !promised(there, n_there, e->job_id, epoch) ||
            !must_cover(there, n_there, epoch, &all, &replica, &rolled) || all.step != l->top ||
            all.content != l->content[l->top])
            continue;
        whole = true; /* one epoch's parts are enough: another may be of the same step */
        kept |= must_cover(named, n_named, epoch, &found, &replica, &rolled) && found.step == all.step;
    }
    CHECK_OF(e->job_id, "I3", !whole || kept,
             "job %llu epoch %llu is formed without a worker that holds a part of step %llu", LL(e->job_id),
             LL(e->number), LL(l->top));
}

static void check_forgotten(const struct comm *c, const struct ledger *l)
{
    struct holding found;
    bool replica, rolled;
    for (size_t i = 1; i < S->n_numbers[c->job]; i++) {
        uint64_t epoch = S->numbers[c->job][i];
        CHECK_OF(c->job, "I3",
                 epoch >= c->epoch || !promised(c->workers, c->ranks, c->job, epoch) ||
                     !must_cover(c->workers, c->ranks, epoch, &found, &replica, &rolled) || found.step < l->top ||
                     found.content != l->content[l->top],
                 "job %llu epoch %llu starts from step %llu, and its members hold all of step %llu", LL(c->job),
                 LL(c->epoch), LL(c->target.step), LL(l->top));
    }
}

/* A step that was told of is with every member of its epoch: one that holds a whole state of it, or of a later one, has
 * it. */
static void check_told(const struct comm *c, const struct ledger *l)
{
    struct holding found;
    bool replica, rolled;
    for (size_t i = 1; i < S->n_numbers[c->job]; i++) {
        uint64_t epoch = S->numbers[c->job][i];
        CHECK_OF(c->job, "I3",
                 epoch >= c->epoch || epoch < l->epoch[l->published] ||
                     !promised(c->workers, c->ranks, c->job, epoch) ||
                     !must_cover(c->workers, c->ranks, epoch, &found, &replica, &rolled) || found.step >= l->published,
                 "job %llu epoch %llu starts from step %llu: step %llu was told of, and its members hold all of %llu",
                 LL(c->job), LL(c->epoch), LL(c->target.step), LL(l->published), LL(found.step));
    }
}

void must_tell(const struct proc *p, const struct comm *c)
{
    struct ledger *l = &S->ledgers[c->job];
    if (c->epoch >= l->newest)
        l->published = MAX(l->published, p->installed.step);
}

void must_save(const struct comm *c)
{
    const struct ledger *l = &S->ledgers[c->job];
    CHECK_OF(c->job, "I3", c->epoch < l->newest || c->ckpt_content == l->content[c->ckpt_step],
             "job %llu epoch %llu saves another step %llu than was committed", LL(c->job), LL(c->epoch),
             LL(c->ckpt_step));
}

void must_start(struct comm *c)
{
    struct ledger *l = &S->ledgers[c->job];
    if (!S->leases && c->epoch <= l->newest) { /* on the far side of a cut, and no agent has promised to stop it */
        c->over = true;
        return;
    }
    CHECK_OF(c->job, "I2", c->epoch > l->newest, "job %llu starts epoch %llu after %llu", LL(c->job), LL(c->epoch),
             LL(l->newest));
    l->newest = c->epoch;
    CHECK_OF(c->job, "I3",
             told_of(c->job, c->epoch)->seen || c->recovery_source >= SIM_SOURCE_MEMORY || c->target.step == l->top,
             "an acting leader's epoch %llu of job %llu starts from step %llu, and %llu is the newest", LL(c->epoch),
             LL(c->job), LL(c->target.step), LL(l->top));
    l->content[0] = chance_mix(c->job, 1);
    /* It was committed (must_save); of a past that the run has left where its report was lost with its writer. */
    if (c->recovery_source == SIM_SOURCE_CHECKPOINT) {
        l->top = MAX(l->top, c->target.step);
        l->content[c->target.step] = c->target.content;
    }
    CHECK_OF(c->job, "I3", c->target.step <= l->top,
             "job %llu epoch %llu starts from step %llu, and %llu is the newest", LL(c->job), LL(c->epoch),
             LL(c->target.step), LL(l->top));
    CHECK_OF(c->job, "I3", c->target.content == l->content[c->target.step],
             "job %llu epoch %llu starts from another step %llu than was committed", LL(c->job), LL(c->epoch),
             LL(c->target.step));
    if (c->target.step < l->top)
        check_forgotten(c, l);
    if (c->target.step < l->published)
        check_told(c, l);
    l->published = MIN(l->published, c->target.step);
}

uint64_t must_commit(const struct proc *p, const struct comm *c)
{
    struct ledger *l = &S->ledgers[c->job];
    uint64_t step = p->installed.step + 1, nonce = 0;
    memcpy(&nonce, c->id, sizeof(nonce));
    uint64_t content = chance_mix(p->installed.content, step ^ nonce);
    CHECK("sim", step <= SIM_STEPS, "step %llu", LL(step));
    if (c->epoch < l->newest)
        return content; /* it stood still behind the barrier and no agent hears of it */
    /* The first step after a fall: only now the others are gone. */
    if (step <= l->top && l->epoch[step] != c->epoch && step == c->target.step + 1) {
        TRACE("job %llu: step %llu is forgotten down to %llu", LL(c->job), LL(l->top), LL(c->target.step));
        totals->rolled_back += l->top - c->target.step;
        l->top = c->target.step;
    }
    CHECK_OF(c->job, "I3", p->installed.content == l->content[step - 1], "worker %llu goes on from another step %llu",
             LL(p->id), LL(step - 1));
    CHECK_OF(c->job, "I4", step <= l->top + 1, "worker %llu makes step %llu after %llu", LL(p->id), LL(step),
             LL(l->top));
    CHECK_OF(c->job, "I3", step > l->top || (l->content[step] == content && l->epoch[step] == c->epoch),
             "job %llu commits step %llu in epoch %llu and in %llu", LL(c->job), LL(step), LL(l->epoch[step]),
             LL(c->epoch));
    if (step > l->top) {
        l->top = step;
        l->content[step] = content;
        l->epoch[step] = c->epoch;
    }
    return content;
}

void must_agree(const struct comm *c)
{
    CHECK_OF(c->job, "I2", !S->leases || c->epoch >= S->ledgers[c->job].newest,
             "job %llu makes a step in epoch %llu, and %llu has begun", LL(c->job), LL(c->epoch),
             LL(S->ledgers[c->job].newest));
}

void must_have_lease(const struct proc *p)
{
    const usec silent = S->now - S->hosts[p->host].heard_at;
    if (!S->plan->lease_ms || S->now == p->went_on) /* its control thread has not run yet */
        return;
    CHECK_OF(
        p->job, "I2", silent <= S->plan->lease_ms * MS + LEASE_ROUNDING,
        "worker %llu trains in epoch %llu, and the coordinator has not heard its node for %lld ms of a lease of %u",
        LL(p->id), LL(p->entered), (long long)(silent / MS), S->plan->lease_ms);
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

/* A worker that its own agent has said has ended is no other agent's to end. */
static bool left(const struct proc *p)
{
    return p->alive && !(S->lied_about[p->job] && S->hosts[p->host].turned);
}

bool must_be_over(void)
{
    for (int id = 1; id <= S->plan->jobs; id++)
        if (!S->store.lost[id] && (!S->image.jobs[id].there || !sm_final(&job_sm, (int)S->image.jobs[id].job.state)))
            return false;
    for (uint64_t i = 1; i <= S->last_proc; i++)
        if (left(&S->procs[i]))
            return false;
    return S->coord.core && !S->coord.pending && !S->store.old;
}

/* Losses of a job that count against the budget of that cause; windows are longer than schedules. */
static uint32_t losses_of(const struct image_job *j, enum loss_cause cause)
{
    uint32_t n = 0;
    for (size_t i = 0; i < S->image.n_losses; i++) {
        const struct loss *l = &S->image.losses[i];
        bool own = l->cause == LOSS_NODE || l->cause == LOSS_HANG || l->cause == LOSS_OOM || l->cause == LOSS_FAULTY;
        n += l->job_id == j->job.id && (own ? l->cause : LOSS_CRASH) == cause;
    }
    return n;
}

static bool budget_used(const struct image_job *j)
{
    const struct job_spec *spec = &j->job.spec;
    if (spec->restart_window_s == 0)
        return j->job.status.restarts > spec->max_restarts;
    return losses_of(j, LOSS_CRASH) > spec->max_restarts || losses_of(j, LOSS_NODE) > spec->max_node_losses ||
           losses_of(j, LOSS_HANG) > spec->max_hangs || losses_of(j, LOSS_OOM) > spec->max_ooms ||
           losses_of(j, LOSS_FAULTY) > spec->max_restarts;
}

static void check_budget(const struct image_job *j)
{
    const struct job_status *s = &j->job.status;
    CHECK_OF(j->job.id, "I10", s->restarts == j->counted + j->failed_epochs,
             "job %llu: %u restarts, %u counted, %u failed", LL(j->job.id), s->restarts, j->counted, j->failed_epochs);
    if (j->job.state == JOB_FAILED)
        CHECK_OF(j->job.id, "I10", budget_used(j) || j->permanent || j->refused, "job %llu failed with %u of %u: %s",
                 LL(j->job.id), s->restarts, j->job.spec.max_restarts, j->reason);
    else if (j->job.state == JOB_COMPLETED)
        CHECK_OF(j->job.id, "I10", !budget_used(j), "job %llu went on with %u of %u", LL(j->job.id), s->restarts,
                 j->job.spec.max_restarts);
}

static void check_job(int id)
{
    const struct image_job *j = &S->image.jobs[id];
    const char *state = sm_name(&job_sm, (int)j->job.state);
    if (S->store.lost[id]) { /* submitted after the backup; its number is not given again */
        CHECK("I5", !j->there, "job %d is there, and was submitted after the backup", id);
        return;
    }
    CHECK("I5", !S->coord.job_acked[id] || j->there, "job %d was acknowledged and is gone", id);
    CHECK("I9", j->there && sm_final(&job_sm, (int)j->job.state), "job %d is still %s (%s), step %llu", id, state,
          j->reason, LL(j->job.status.step));
    CHECK("I5", !S->coord.cancel_acked[id] || j->job.state == JOB_CANCELLED, "cancelled job %d is %s", id, state);
    CHECK_OF((uint64_t)id, "I4", j->job.state != JOB_COMPLETED || S->ledgers[id].top == j->job.spec.steps,
             "job %d is complete with step %llu of %llu", id, LL(S->ledgers[id].top), LL(j->job.spec.steps));
    check_budget(j);
    totals->completed += j->job.state == JOB_COMPLETED;
    totals->failed += j->job.state == JOB_FAILED;
    totals->cancelled += j->job.state == JOB_CANCELLED;
}

void must_at_end(void)
{
    for (int id = 1; id <= S->plan->jobs; id++)
        check_job(id);
    for (uint64_t i = 1; i <= S->last_proc; i++)
        CHECK("I7", !left(&S->procs[i]), "worker %llu of job %llu is left%s%s", LL(i), LL(S->procs[i].job),
              S->procs[i].stopped ? ", stopped" : "", S->procs[i].connected ? ", connected" : "");
}
