/* SPDX-License-Identifier: Apache-2.0 */
/* What is committed, as plain rows: faster than a store, and the judge of every change: states move by their tables
 * (I6), epochs are made once and one after the other (I1), steps and checkpoints belong to their epoch (I3), epochs
 * are of legal sizes and reasons are true (I11), a job that breaks the protocol or crashes pays alone (I12). */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

static struct image_job *job_of(uint64_t id)
{
    CHECK("I5", id >= 1 && id <= SIM_JOBS && S->image.jobs[id].there, "change of job %llu, which is not stored",
          LL(id));
    return &S->image.jobs[id];
}

void image_submit(int job)
{
    struct image_job *j = &S->image.jobs[job];
    j->there = true;
    j->job = S->plan->specs[job];
    j->job.state = JOB_PENDING;
}

static void take_status(struct image_job *j, const struct change *c)
{
    const struct job_status *s = &c->job.status;
    if (s->step < j->job.status.step)
        must_fall(j, s);
    CHECK("I1", s->epoch >= j->job.status.epoch, "job %llu epoch falls", LL(j->job.id));
    j->job.status = *s;
    (void)snprintf(j->checkpoint, sizeof(j->checkpoint), "%s", s->checkpoint ? s->checkpoint : "");
    j->job.status.checkpoint = j->checkpoint;
}

static void add_epoch(struct image_job *j, const struct change *c)
{
    const struct epoch *e = &c->epoch;
    CHECK("sim", e->world_size + e->departing <= SIM_RANKS, "more epochs than the simulator keeps");
    size_t slot = epoch_slot(e->job_id, e->number);
    CHECK("I1", j->epochs[slot].state == EPOCH_NONE, "epoch %llu of job %llu is made twice", LL(e->number),
          LL(j->job.id));
    for (size_t n = 1; n < S->n_numbers[e->job_id]; n++)
        CHECK("I1",
              j->epochs[n].number >= e->number || j->epochs[n].state == EPOCH_NONE ||
                  j->epochs[n].state == EPOCH_REVOKED || j->epochs[n].state == EPOCH_ENDED,
              "epoch %llu of job %llu is made while %llu lives", LL(e->number), LL(j->job.id), LL(j->epochs[n].number));
    struct epoch *copy = &j->epochs[slot];
    *copy = *e;
    copy->state = EPOCH_FORMING;
    copy->workers = j->members[slot];
    memcpy(j->members[slot], e->workers, (e->world_size + e->departing) * sizeof(uint64_t));
    copy->leader = "";
    (void)snprintf(j->paths[slot], sizeof(j->paths[0]), "%s", e->checkpoint ? e->checkpoint : "");
    copy->checkpoint = j->paths[slot];
    j->newest = e->number;
    totals->epochs++;
    /* Agents have formed that one, with those that they reached; or it was there before the store came from a backup.
     */
    j->leader_epochs[slot] = (e->leader && *e->leader) || strcmp(c->event.type, "epoch.restored") == 0;
    if (!j->leader_epochs[slot])
        must_include(copy);
    CHECK("I11", world_set_has(&j->job.spec.worlds, e->world_size), "epoch of a forbidden size %u", e->world_size);
}

static void take_worker(const struct change *c)
{
    CHECK("sim", c->worker.id < SIM_WORKERS, "more workers than the simulator keeps");
    struct image_worker *w = &S->image.workers[c->worker.id];
    if (c->kind == CHANGE_WORKER_PID) {
        w->w.pid = c->worker.pid;
        return;
    }
    bool add = c->kind == CHANGE_WORKER_ADD;
    int from = add ? WORKER_NONE : (int)w->w.state, to = add ? WORKER_STARTING : (int)c->worker.state;
    CHECK("I6", sm_allowed(&worker_sm, from, to), "worker %llu %s -> %s", LL(c->worker.id), sm_name(&worker_sm, from),
          sm_name(&worker_sm, to));
    CHECK("I1", !add || w->w.id == 0, "worker id %llu is used twice", LL(c->worker.id));
    int64_t pid = w->w.pid;
    w->w = c->worker;
    w->w.pid = pid;
    w->w.state = (enum worker_state)to;
    (void)snprintf(w->node, sizeof(w->node), "%s", c->worker.node);
    (void)snprintf(w->address, sizeof(w->address), "%s", c->worker.address ? c->worker.address : "");
    w->w.node = w->node;
    w->w.address = w->address;
    w->w.reason = "";
    S->image.last_worker = MAX(S->image.last_worker, w->w.id);
    struct image_job *j = job_of(c->worker.job_id);
    j->counted += c->worker.counted;
    S->image.lost = c->worker.counted ? c->worker.id : 0;
    if (to == WORKER_EXITED && c->worker.exit_code == 2)
        j->permanent = true;
}

static void take_checkpoint(const struct change *c)
{
    struct image_job *j = job_of(c->checkpoint.job_id);
    struct image_ckpt *k = NULL;
    for (int i = 0; i < S->image.n_ckpts; i++)
        if (S->image.ckpts[i].c.job_id == c->checkpoint.job_id && S->image.ckpts[i].c.step == c->checkpoint.step)
            k = &S->image.ckpts[i];
    if (c->kind == CHANGE_CHECKPOINT_EXPIRE) {
        CHECK("I8", k && k->state == CHECKPOINT_COMMITTED, "expiry of a checkpoint that is not there");
        k->state = CHECKPOINT_EXPIRED;
        return;
    }
    CHECK_OF(c->checkpoint.job_id, "I3", c->checkpoint.epoch == j->job.status.epoch,
             "checkpoint of epoch %llu stored under epoch %llu", LL(c->checkpoint.epoch), LL(j->job.status.epoch));
    /* An agent may tell a restored store of one that has expired since, and may come back after it was settled. */
    CHECK_OF(c->checkpoint.job_id, "I8",
             disk_has_checkpoint(c->checkpoint.path) ||
                 (S->image.origin.term && (!S->image.origin.settled || disk_had_checkpoint(c->checkpoint.path))),
             "checkpoint '%s' is listed and not durable", c->checkpoint.path);
    if (!k) {
        CHECK("sim", S->image.n_ckpts < SIM_CKPTS, "more checkpoints than the simulator keeps");
        k = &S->image.ckpts[S->image.n_ckpts++];
    }
    k->c = c->checkpoint;
    k->state = CHECKPOINT_COMMITTED;
    (void)snprintf(k->path, sizeof(k->path), "%s", c->checkpoint.path);
    k->c.path = k->path;
}

static void take_node(const struct change *c)
{
    for (int i = 0; i < S->plan->nodes; i++) {
        if (strcmp(S->hosts[i].name, c->node.name) != 0)
            continue;
        struct node *n = &S->image.nodes[i];
        CHECK("I6", n->state == c->node.state || sm_allowed(&node_sm, (int)n->state, (int)c->node.state),
              "node moves %d -> %d", (int)n->state, (int)c->node.state);
        *n = c->node;
        n->name = S->hosts[i].name;
        n->device = "cpu";
        n->address = strcmp(c->node.address, "elsewhere") == 0 ? "elsewhere" : S->hosts[i].name;
        n->version = "1";
    }
}

static void remove_node(const struct change *c)
{
    for (int i = 0; i < S->plan->nodes; i++) {
        struct node *n = &S->image.nodes[i];
        if (strcmp(S->hosts[i].name, c->node.name) != 0)
            continue;
        CHECK("I6", n->state == NODE_LOST, "a node that is %d is removed", (int)n->state);
        *n = (struct node){.state = NODE_NONE};
        S->image.policies[i] = (struct node_policy){.name = NULL};
    }
}

static void take_reason(struct image_job *j, const struct change *c)
{
    (void)snprintf(j->reason, sizeof(j->reason), "%s", c->job.reason);
    if (strncmp(j->reason, "waiting", 7) != 0)
        return;
    totals->waits++;
    enum epoch_state epoch = j->epochs[epoch_slot(j->job.id, j->job.status.epoch)].state;
    CHECK("I11", epoch != EPOCH_FORMING && epoch != EPOCH_RUNNING, "job %llu waits while it trains: %s", LL(c->job.id),
          j->reason);
}

static void move_job(struct image_job *j, const struct change *c)
{
    CHECK("I6", sm_allowed(&job_sm, (int)j->job.state, (int)c->job.state), "job %llu %s -> %s", LL(c->job.id),
          sm_name(&job_sm, (int)j->job.state), sm_name(&job_sm, (int)c->job.state));
    j->job.state = c->job.state;
    (void)snprintf(j->reason, sizeof(j->reason), "%s", c->job.reason);
    CHECK("I11", j->job.state != JOB_RUNNING || strncmp(j->reason, "waiting", 7) != 0, "job %llu runs and waits",
          LL(c->job.id));
    take_status(j, c);
    if (S->plan->late_cancel && sm_final(&job_sm, (int)j->job.state))
        coord_ask_later((int)j->job.id, between(CHANCE_HOST, 0, 30 * MS));
}

static void move_run(struct image_job *j, const struct change *c)
{
    bool add = c->kind == CHANGE_RUN_ADD;
    int from = add ? RUN_NONE : (int)j->run_state, to = add ? RUN_ACTIVE : (int)c->run.state;
    CHECK("I6", c->run.number == j->run + add, "run %u follows %u", c->run.number, j->run);
    CHECK("I6", sm_allowed(&run_sm, from, to), "run %s -> %s", sm_name(&run_sm, from), sm_name(&run_sm, to));
    j->run = c->run.number;
    j->run_state = (enum run_state)to;
}

static void move_epoch(struct image_job *j, const struct change *c)
{
    struct epoch *e = &j->epochs[epoch_slot(c->epoch.job_id, c->epoch.number)];
    CHECK("I6", sm_allowed(&epoch_sm, (int)e->state, (int)c->epoch.state), "epoch %s -> %s",
          sm_name(&epoch_sm, (int)e->state), sm_name(&epoch_sm, (int)c->epoch.state));
    e->state = c->epoch.state;
    j->trained[e - j->epochs] |= e->state == EPOCH_RUNNING;
}

static bool crashed_on(const struct loss *l, int host)
{
    return l->cause == LOSS_CRASH && l->node == S->hosts[host].name;
}

/* One job alone takes no node away from the others, unless it runs well on all the rest. */
static void must_bear_witness(int host)
{
    uint64_t job = 0;
    bool ready = false;
    for (size_t i = 0; i < S->image.n_losses; i++) {
        const struct loss *l = &S->image.losses[i];
        if (!crashed_on(l, host) || l->job_id == job)
            continue;
        if (job)
            return; /* two of them */
        job = l->job_id;
    }
    /* A coordinator that starts again reads only as far back as this, by a clock that may have been set forward. */
    const int64_t since = clock_wall_of(&S->coord_clocks) - CORE_NODE_HISTORY_MS;
    for (int h = 0; h < S->plan->nodes; h++)
        for (size_t i = S->image.undrained[h]; i < S->image.n_losses && h != host; i++) {
            const struct loss *l = &S->image.losses[i];
            CHECK("I12", l->at_ms < since || !crashed_on(l, h) || l->job_id != job,
                  "%s is in quarantine for job %llu, which crashes on %s too", S->hosts[host].name, LL(job),
                  S->hosts[h].name);
        }
    for (uint64_t id = 1; id <= S->image.last_worker && !ready; id++) {
        const struct worker *w = &S->image.workers[id].w;
        ready = w->job_id == job && w->state == WORKER_READY && strcmp(w->node, S->hosts[host].name) != 0;
    }
    CHECK("I12", ready, "%s is in quarantine for job %llu, which is nowhere else", S->hosts[host].name, LL(job));
}

static void take_policy(const struct change *c)
{
    for (int i = 0; i < S->plan->nodes; i++) {
        struct node_policy *p = &S->image.policies[i];
        if (strcmp(S->hosts[i].name, c->policy.name) != 0)
            continue;
        if (c->policy.quarantines > p->quarantines)
            must_bear_witness(i);
        if (c->has_event && strcmp(c->event.type, "node.undrained") == 0)
            S->image.undrained[i] = S->image.n_losses;
        *p = c->policy;
        (void)snprintf(S->image.policy_texts[i][0], sizeof(S->image.policy_texts[i][0]), "%s", c->policy.reason);
        (void)snprintf(S->image.policy_texts[i][1], sizeof(S->image.policy_texts[i][1]), "%s",
                       c->policy.quarantine_reason);
        p->name = S->hosts[i].name;
        p->reason = S->image.policy_texts[i][0];
        p->quarantine_reason = S->image.policy_texts[i][1];
    }
}

static void take_loss(const struct change *c)
{
    CHECK("sim", S->image.n_losses < SIM_LOSSES, "more losses than the simulator keeps");
    struct loss *l = &S->image.losses[S->image.n_losses++];
    *l = c->loss;
    l->node = "";
    bool turned = false; /* its agent may have made up how the worker ended */
    for (int i = 0; i < S->plan->nodes; i++)
        if (strcmp(S->hosts[i].name, c->loss.node) == 0) {
            l->node = S->hosts[i].name;
            turned = S->hosts[i].turned;
        }
    CHECK("I12", l->cause != LOSS_CRASH || !S->image.lost || !S->procs[S->image.lost].faulty || turned,
          "worker %llu broke the protocol, and its node %s is charged with it", LL(S->image.lost), l->node);
    S->image.lost = 0;
}

static void take_origin(const struct change *c)
{
    job_of(c->epoch_origin.job_id)->complete[epoch_slot(c->epoch_origin.job_id, c->epoch_origin.number)] = true;
    must_originate(c->epoch_origin.job_id, c->epoch_origin.number, &c->epoch_origin.is);
}

static void take_event(const struct change *c)
{
    if (strcmp(c->event.type, "epoch.failed") == 0)
        job_of(c->event.job_id)->failed_epochs++;
    if (strcmp(c->event.type, "job.refused") == 0)
        job_of(c->event.job_id)->refused = true;
    CHECK("I9", !strstr(c->event.detail ? c->event.detail : "", "ms\":-"), "%s: %s", c->event.type, c->event.detail);
    totals->recoveries += strcmp(c->event.type, "recovery.finished") == 0;
    totals->resizes += strcmp(c->event.type, "resize.finished") == 0;
}

void image_apply(const struct change *c)
{
    hash_stored(c);
    TRACE("    stored %-18s job %llu epoch %llu step %llu: %s", c->has_event ? c->event.type : "(status)",
          LL(c->event.job_id), LL(c->event.epoch), LL(c->event.step), c->has_event ? c->event.message : "");
    switch (c->kind) {
    case CHANGE_JOB_MOVE:
        move_job(job_of(c->job.id), c);
        break;
    case CHANGE_JOB_UPDATE:
        take_status(job_of(c->job.id), c);
        break;
    case CHANGE_JOB_REASON:
        take_reason(job_of(c->job.id), c);
        break;
    case CHANGE_RUN_ADD:
    case CHANGE_RUN_MOVE:
        move_run(job_of(c->run.job_id), c);
        break;
    case CHANGE_EPOCH_ADD:
        add_epoch(job_of(c->epoch.job_id), c);
        break;
    case CHANGE_EPOCH_MOVE:
        move_epoch(job_of(c->epoch.job_id), c);
        break;
    case CHANGE_WORKER_ADD:
    case CHANGE_WORKER_MOVE:
    case CHANGE_WORKER_PID:
        take_worker(c);
        break;
    case CHANGE_CHECKPOINT_COMMIT:
    case CHANGE_CHECKPOINT_EXPIRE:
        take_checkpoint(c);
        break;
    case CHANGE_NODE_PUT:
        take_node(c);
        break;
    case CHANGE_NODE_REMOVE:
        remove_node(c);
        break;
    case CHANGE_EVENT:
        take_event(c);
        break;
    case CHANGE_EPOCH_ORIGIN:
        take_origin(c);
        break;
    case CHANGE_STORE_SETTLED:
        S->image.origin.settled = true;
        totals->settled++;
        break;
    case CHANGE_JOB_DESIRED:
        job_of(c->job.id)->job.desired = c->job.desired;
        break;
    case CHANGE_NODE_POLICY:
        take_policy(c);
        break;
    case CHANGE_LOSS_ADD:
        take_loss(c);
        break;
    default:
        CHECK("sim", S->store.db, "change %d is not known to the simulator", (int)c->kind);
        break;
    }
}

/* --- back into a core --------------------------------------------------------------------------------------------- */

static int newer(const void *a, const void *b)
{
    const struct checkpoint *x = a, *y = b;
    return x->step < y->step ? 1 : -1;
}

static int lower_number(const void *a, const void *b)
{
    const struct core_saved_base *x = a, *y = b;
    return x->epoch < y->epoch ? -1 : 1;
}

/* Epochs to count by: the newest that made a step and those since; and the workers of unknown end. */
static void restore_bases(int id, const struct image_job *j, struct core_saved_job *saved)
{
    static struct core_saved_base bases[SIM_EPOCHS];
    static struct worker lost[SIM_WORKERS];
    uint64_t first = 0;
    for (size_t n = 1; n < S->n_numbers[id]; n++)
        if (j->trained[n])
            first = MAX(first, j->epochs[n].number);
    for (size_t n = 1; n < S->n_numbers[id]; n++)
        if (j->epochs[n].state != EPOCH_NONE && j->epochs[n].number >= first)
            bases[saved->n_bases++] = (struct core_saved_base){.epoch = j->epochs[n].number,
                                                               .n = j->epochs[n].world_size,
                                                               .workers = j->members[n],
                                                               .source = j->epochs[n].source_epoch,
                                                               .complete = j->complete[n] || j->trained[n]};
    qsort(bases, saved->n_bases, sizeof(*bases), lower_number);
    for (uint64_t w = 1; w <= S->image.last_worker; w++)
        if (S->image.workers[w].w.job_id == (uint64_t)id && S->image.workers[w].w.state == WORKER_LOST)
            lost[saved->n_lost++] = S->image.workers[w].w;
    saved->bases = bases;
    saved->lost = lost;
}

static void restore_job(struct core *core, int id, struct core_time now)
{
    static struct worker live[SIM_WORKERS];
    static struct checkpoint ckpts[SIM_CKPTS];
    static struct loss losses[SIM_LOSSES];
    struct image_job *j = &S->image.jobs[id];
    struct core_saved_job saved = {.job = j->job, .run = j->run, .run_active = j->run_state == RUN_ACTIVE};
    for (uint64_t w = 1; w <= S->image.last_worker; w++)
        if (S->image.workers[w].w.job_id == (uint64_t)id && !sm_final(&worker_sm, (int)S->image.workers[w].w.state))
            live[saved.n_workers++] = S->image.workers[w].w;
    for (int k = 0; k < S->image.n_ckpts; k++)
        if (S->image.ckpts[k].c.job_id == (uint64_t)id && S->image.ckpts[k].state == CHECKPOINT_COMMITTED)
            ckpts[saved.n_checkpoints++] = S->image.ckpts[k].c;
    qsort(ckpts, saved.n_checkpoints, sizeof(*ckpts), newer);
    const struct epoch *e = j->job.status.epoch ? &j->epochs[epoch_slot((uint64_t)id, j->job.status.epoch)] : NULL;
    saved.job.reason = j->reason;
    saved.workers = live;
    saved.checkpoints = ckpts;
    saved.epoch = e;
    if (e && e->source_epoch) {
        size_t source = epoch_slot((uint64_t)id, e->source_epoch);
        saved.holders = j->members[source];
        saved.n_holders = j->epochs[source].world_size;
    }
    for (size_t i = 0; i < S->image.n_losses && j->job.spec.restart_window_s; i++)
        if (S->image.losses[i].job_id == (uint64_t)id &&
            S->image.losses[i].at_ms >= now.wall_ms - (int64_t)j->job.spec.restart_window_s * 1000)
            losses[saved.n_losses++] = S->image.losses[i];
    saved.losses = losses;
    if (e)
        restore_bases(id, j, &saved);
    core_restore_job(core, &saved, now);
}

void image_restore(struct core *core, struct core_time now)
{
    const struct backup_origin *origin = &S->image.origin;
    for (uint64_t w = origin->backup_worker + 1; origin->term && w <= MIN(origin->gone_worker, S->image.last_worker);
         w++)
        if (S->image.workers[w].w.id)
            core_restore_taken(core, w);
    for (int i = 0; i < S->plan->nodes; i++)
        if (S->image.nodes[i].state != NODE_NONE)
            core_restore_node(core, &S->image.nodes[i], now);
    for (int i = 0; i < S->plan->nodes; i++)
        if (S->image.policies[i].name)
            core_restore_policy(core, &S->image.policies[i], now);
    for (size_t i = 0; i < S->image.n_losses; i++)
        if (S->image.losses[i].at_ms >= now.wall_ms - CORE_NODE_HISTORY_MS)
            core_restore_loss(core, &S->image.losses[i], now);
    for (int id = 1; id <= SIM_JOBS; id++)
        if (S->image.jobs[id].there && !sm_final(&job_sm, (int)S->image.jobs[id].job.state))
            restore_job(core, id, now);
}
