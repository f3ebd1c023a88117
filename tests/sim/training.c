/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's training thread: docs/membership.md as a model. Members of an epoch pass barriers together: connect, agree
 * on where the state comes from, seal it, then for each step "prepared" and "agreed". A step with a direction section
 * has three, "reduced", "agreed" and "committed", and is prepared from its coming to the last on. Every member passes a
 * barrier by itself, so one that is killed or revoked between may have passed it or not. Parts have contents, as one
 * number for the whole state. */
#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"
#include "base/error.h"

enum { CONNECT, PLAN, SEAL, FIRST_STEP };
#define CKPT_EVERY 4

static struct comm *comm_of(const struct proc *p)
{
    return p->comm ? &S->comms[p->comm - 1] : NULL;
}

/* Where in a step a barrier is: 0 is the first. */
static int place_of(const struct comm *c, int barrier)
{
    return barrier < FIRST_STEP ? -1 : (barrier - FIRST_STEP) % (S->plan->directed[c->job] ? 3 : 2);
}

static bool agrees(const struct comm *c, int barrier)
{
    return place_of(c, barrier) == 1;
}

static bool commits(const struct comm *c, int barrier)
{
    return place_of(c, barrier) == (S->plan->directed[c->job] && !MUTANT(COMMITS_AT_AGREE) ? 2 : 1);
}

static uint64_t steps_of(uint64_t job)
{
    return S->plan->specs[job].spec.steps;
}

/* --- leaving an epoch --------------------------------------------------------------------------------------------- */

static void on_failed(const struct ev *e);
static const struct handler failed = {"peers are gone", on_failed, TARGET_TRAINING};
static void on_poke(const struct ev *e);
static const struct handler poke = {"training looks", on_poke, TARGET_TRAINING};

/* This member is out of it: those connected to it notice, mostly. */
static void peers_notice(struct comm *c, int rank, usec within)
{
    c->over |= rank < c->world || !c->installed;
    if (!c->over)
        return;
    for (int r = MAX(rank - SIM_NOTICES, 0); r < MIN(rank + SIM_NOTICES, c->ranks); r++) {
        struct proc *o = &S->procs[c->workers[r]];
        if (r == rank || !c->workers[r] || c->out[r] || !o->alive || chance(CHANCE_WORK, 25))
            continue;
        if (net_reaches(S->procs[c->workers[rank]].host, o->host))
            (void)at(S->now + between(CHANCE_WORK, 0, within), &failed, o->id, (uint64_t)o->comm);
    }
}

static void leave(struct proc *p, bool paused)
{
    struct comm *c = comm_of(p);
    int rank = p->rank;
    TRACE("worker %llu leaves epoch %llu, %s, at step %llu of %llu%s", LL(p->id), LL(c->epoch),
          paused ? "paused" : "revoked", LL(p->installed.step), LL(p->installed.epoch),
          p->prepared ? ", prepared" : "");
    totals->quiet_unasked += !paused && !member_state(p->member)->in_revoked;
    totals->left_in_direction += p->decided && !p->prepared;
    p->comm = 0;
    p->pausing = p->waiting = p->decided = false;
    c->out[rank] = true;
    CHECK_OF(p->job, "I3", !p->held || p->installed.epoch || (rank >= c->world && c->installed),
             "worker %llu held the state of job %llu, and nothing when it leaves epoch %llu", LL(p->id), LL(p->job),
             LL(c->epoch));
    struct quiesced q = {.epoch = c->epoch,
                         .last_step = p->installed.epoch ? p->installed.step : 0,
                         .paused = paused,
                         .prepared = p->prepared,
                         .installed_epoch = p->installed.epoch,
                         .pending_epoch = p->pending.epoch};
    member_quiesced(p->member, &q);
    if (!paused)
        peers_notice(c, rank, 50 * MS);
    (void)at(S->now + between(CHANCE_WORK, 10, 2 * MS), &poke, p->id, 0);
}

static void on_failed(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    if (p->alive && p->comm && (uint64_t)p->comm == e->b)
        leave(p, false);
}

static void on_revoked(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    if (p->alive && p->comm && (uint64_t)p->comm == e->b)
        leave(p, false);
}

void training_revoked(struct proc *p)
{
    static const struct handler revoked = {"training is revoked", on_revoked, TARGET_TRAINING};
    if (p->comm)
        (void)at(S->now + between(CHANCE_WORK, 50, chance(CHANCE_WORK, 80) ? 5 * MS : 60 * MS), &revoked, p->id,
                 (uint64_t)p->comm);
}

void training_ended(struct proc *p)
{
    struct comm *c = comm_of(p);
    if (!c)
        return;
    c->out[p->rank] = true;
    if (S->hosts[p->host].up)
        peers_notice(c, p->rank, 60 * MS);
    else
        c->over |= p->rank < c->world || !c->installed;
    p->comm = 0;
}

/* All in it leave it. */
static void break_comm(struct comm *c)
{
    c->over = true;
    for (int r = 0; r < c->ranks; r++)
        if (c->workers[r] && !c->out[r])
            (void)at(S->now + between(CHANCE_WORK, 0, 60 * MS), &failed, c->workers[r],
                     (uint64_t)S->procs[c->workers[r]].comm);
}

/* A communicator breaks though all its members live: they leave the epoch by themselves. */
void training_break(uint32_t pick)
{
    const struct proc *p = proc_pick(pick);
    struct comm *c = p ? comm_of(p) : NULL;
    if (!c)
        return;
    TRACE("epoch %llu of job %llu breaks", LL(c->epoch), LL(c->job));
    break_comm(c);
}

/* --- where the state comes from ----------------------------------------------------------------------------------- */

static int parts_of(enum redundancy how, int world)
{
    return how == REDUNDANCY_REPLICA && world % 2 == 0 ? world / 2 : world;
}

/* The rank of the part that this one keeps a copy of: the buddy is the next one on another node. */
static int ward_of(const struct comm *c, int rank)
{
    if (S->plan->redundancy[c->job] != REDUNDANCY_BUDDY)
        return -1;
    for (int d = 1; d < c->world; d++) {
        int ward = (rank + c->world - d) % c->world;
        if (S->procs[c->workers[ward]].host != S->procs[c->workers[rank]].host)
            return ward;
    }
    return -1;
}

static void mutate_target(struct comm *c, uint64_t epoch)
{
    bool all_prepared = true;
    for (int r = 0; r < c->ranks; r++) {
        const struct proc *p = &S->procs[c->workers[r]];
        if (p->installed.epoch != epoch)
            continue;
        all_prepared &= p->prepared;
        if (MUTANT(GOES_BACK) && p->installed.step < c->target.step) {
            c->target.step = p->installed.step;
            c->target.content = p->installed.content;
        }
    }
    if (MUTANT(ROLLED_TOO_FAR) && all_prepared && !c->rolled_forward) {
        c->rolled_forward = true;
        c->target.content = chance_mix(c->target.content, ++c->target.step);
    }
}

static bool from_memory(struct comm *c)
{
    struct holding found = {0};
    bool replica = false, rolled = false;
    if (c->source != STATE_FROM_MEMORY)
        return false;
    uint64_t epoch = c->source_epoch;
    for (int r = 0; r < c->ranks && !c->source_epoch; r++)
        epoch = MAX(epoch, S->procs[c->workers[r]].installed.epoch);
    if (!must_cover(c->workers, c->ranks, epoch, &found, &replica, &rolled))
        return false;
    int there = 0;
    for (int r = 0; r < c->ranks; r++) {
        const struct proc *p = &S->procs[c->workers[r]];
        there += p->installed.epoch == epoch || p->pending.epoch == epoch;
        totals->installed_in_part += p->pending.epoch == epoch;
    }
    c->recovery_source = there == found.world ? SIM_SOURCE_MEMORY : replica ? SIM_SOURCE_REPLICA : SIM_SOURCE_BUDDY;
    c->rolled_forward = rolled;
    c->target = found;
    mutate_target(c, epoch);
    return true;
}

static const struct disk_ckpt *find_checkpoint(const char *path)
{
    for (int i = S->n_ckpts - 1; i >= 0 && *path; i--)
        if (strcmp(S->ckpts[i].path, path) == 0)
            return &S->ckpts[i];
    return NULL;
}

/* The one of the latest step in the job's folder. */
static const struct disk_ckpt *look_in_folder(uint64_t job)
{
    const struct disk_ckpt *latest = NULL;
    char folder[32];
    const int n = snprintf(folder, sizeof(folder), "/jobs/%llu/", LL(job));
    for (int i = S->n_ckpts - 1; i >= 0; i--)
        if (strncmp(S->ckpts[i].path, folder, (size_t)n) == 0 && (!latest || S->ckpts[i].step > latest->step))
            latest = &S->ckpts[i];
    return latest;
}

/* Workers look into the folder whatever the command names (worker/elastic/restore.c). */
static bool from_checkpoint(struct comm *c)
{
    const struct disk_ckpt *k = look_in_folder(c->job);
    const bool restored = S->image.origin.term; /* what its backup lists may have expired since */
    CHECK_OF(c->job, "I8", find_checkpoint(c->checkpoint) || restored || c->source != STATE_FROM_CHECKPOINT,
             "checkpoint '%s' of job %llu epoch %llu is not on disk", c->checkpoint, LL(c->job), LL(c->epoch));
    if (!k)
        return false;
    c->recovery_source = SIM_SOURCE_CHECKPOINT;
    c->target = (struct holding){.step = k->step, .content = k->content};
    return true;
}

/* The fallback order: all members come to the same answer, so it is found once. */
static void decide(struct comm *c)
{
    bool covered = from_memory(c);
    if (!covered && c->memory_only) {
        TRACE("job %llu epoch %llu: its members do not hold the whole state", LL(c->job), LL(c->epoch));
        totals->not_covered++;
        break_comm(c);
        return;
    }
    if (!covered && !from_checkpoint(c)) {
        c->recovery_source = SIM_SOURCE_INIT;
        c->target = (struct holding){.step = 0, .content = chance_mix(c->job, 1)};
    }
    c->target.epoch = c->epoch;
    c->target.world = c->world;
    c->target.parts = parts_of(S->plan->redundancy[c->job], c->world);
    TRACE("job %llu epoch %llu: rung %d, step %llu%s", LL(c->job), LL(c->epoch), (int)c->recovery_source,
          LL(c->target.step), c->rolled_forward ? ", rolled forward" : "");
    must_start(c);
    totals->from_init += c->source == STATE_FROM_INIT;
    totals->from_checkpoint += c->source == STATE_FROM_CHECKPOINT;
    totals->from_memory += c->source == STATE_FROM_MEMORY;
    totals->source_init += c->recovery_source == SIM_SOURCE_INIT;
    totals->source_checkpoint += c->recovery_source == SIM_SOURCE_CHECKPOINT;
    totals->source_memory += c->recovery_source == SIM_SOURCE_MEMORY;
    totals->source_replica += c->recovery_source == SIM_SOURCE_REPLICA;
    totals->source_buddy += c->recovery_source == SIM_SOURCE_BUDDY;
    totals->rolled_forward += c->rolled_forward;
    totals->directed_forward += c->rolled_forward && S->plan->directed[c->job];
}

/* --- barriers ----------------------------------------------------------------------------------------------------- */

static void on_arrive(const struct ev *e);
static const struct handler arrive = {"arrives", on_arrive, TARGET_TRAINING};
static void on_pass(const struct ev *e);
static const struct handler pass = {"passes", on_pass, TARGET_TRAINING};

static uint64_t about(const struct proc *p, int barrier)
{
    return (uint64_t)p->comm << 32 | (uint32_t)barrier;
}

static int barrier_ranks(const struct comm *c, int barrier)
{
    return barrier <= SEAL ? c->ranks : c->world;
}

static void on_struck(const struct ev *e)
{
    proc_end(e->a, -1, 9, "fault");
}

/* One of them dies while the others pass, some before and some after they would hear of it. */
static usec strike_at(const struct comm *c, int barrier, int n)
{
    static const struct handler struck = {"killed at a barrier", on_struck, TARGET_WORLD};
    uint32_t *armed = place_of(c, barrier) > 0 ? &S->kill_at_agree : barrier == SEAL ? &S->kill_at_seal : NULL;
    if (!armed || !*armed || n == 1)
        return 0;
    if (S->plan->directed[c->job] && barrier != SEAL && agrees(c, barrier) != (*armed >> 8 & 1))
        return 0; /* it is for the other one */
    uint64_t victim = c->workers[*armed % (uint32_t)n];
    *armed = 0;
    (void)at(S->now + between(CHANCE_WORK, 0, 2 * MS), &struck, victim, 0);
    return 20 * MS;
}

/* Each of the first n ranks reaches each other one. */
static bool all_reach(const struct comm *c, int n)
{
    for (int r = 0; r < n; r++)
        for (int o = S->cuts ? 0 : r; o < (S->cuts ? n : MIN(r + 2, n)); o++)
            if (!net_reaches(S->procs[c->workers[r]].host, S->procs[c->workers[o]].host))
                return false; /* without a cut it is enough to look at neighbours: is each host up? */
    return true;
}

static void try_open(struct comm *c)
{
    int barrier = c->opened, n = barrier_ranks(c, barrier);
    if (c->over)
        return;
    for (int r = 0; r < n; r++)
        if (c->arrived[r] <= barrier || c->out[r])
            return;
    if (!all_reach(c, n))
        return; /* training_network_changed() */
    c->opened++;
    if (barrier == PLAN)
        decide(c);
    if (c->over)
        return;
    if (commits(c, barrier))
        must_agree(c);
    if (agrees(c, barrier)) {
        c->agreed = c->commands;
        c->commands = 0;
    }
    usec spread = strike_at(c, barrier, n);
    for (int r = 0; r < n; r++) {
        struct proc *p = &S->procs[c->workers[r]];
        usec most = chance(CHANCE_WORK, 80) ? MS : 20 * MS, takes = between(CHANCE_WORK, 20, MAX(most, spread));
        (void)at(S->now + takes, &pass, p->id, about(p, barrier));
    }
}

static void on_arrive(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    struct comm *c = comm_of(p);
    int barrier = (int)(uint32_t)e->b;
    if (!p->alive || !c || e->b >> 32 != (uint64_t)p->comm || member_state(p->member)->in_revoked)
        return;
    if (barrier >= FIRST_STEP)
        must_have_lease(p);
    if (barrier == SEAL && MUTANT(INSTALLED_FREED))
        p->installed = (struct holding){0};
    if (barrier == SEAL && p->rank < c->world) {
        p->pending = c->target;
        p->pending.rank = p->rank;
        p->pending.ward = ward_of(c, p->rank);
    }
    if (agrees(c, barrier))
        c->commands |= member_commands(p->member);
    if (place_of(c, barrier) == 2 && commits(c, barrier))
        p->prepared = true;
    c->arrived[p->rank] = barrier + 1;
    p->actions++;
    p->waiting = true;
    try_open(c);
}

void training_network_changed(void)
{
    for (int i = 0; i < S->n_comms; i++)
        if (!S->comms[i].over && S->comms[i].opened < S->comms[i].arrived[0])
            try_open(&S->comms[i]);
}

static void work_towards(struct proc *p, int barrier)
{
    usec takes = 0;
    switch (barrier) {
    case CONNECT:
    case PLAN:
        takes = between(CHANCE_WORK, 200, 15 * MS);
        break;
    case SEAL:
        takes = chance(CHANCE_WORK, 80) ? between(CHANCE_WORK, MS, 30 * MS) : between(CHANCE_WORK, 20 * MS, 400 * MS);
        break;
    default:
        if (place_of(comm_of(p), barrier) == 2) { /* the direction section */
            takes = between(CHANCE_WORK, 50, 5 * MS);
            break;
        }
        takes = place_of(comm_of(p), barrier) > 0 || p->pausing ? between(CHANCE_WORK, 50, 500)
                : S->plan->scale ? S->plan->pace * between(CHANCE_WORK, 90 * MS, 100 * MS)
                                 : S->plan->pace * between(CHANCE_WORK, 15 * MS, 60 * MS);
        break;
    }
    p->waiting = false;
    p->busy_ns += (uint64_t)takes * 1000;
    (void)at(S->now + takes, &arrive, p->id, about(p, barrier));
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

bool disk_has_checkpoint(const char *path)
{
    return find_checkpoint(path) != NULL;
}

void disk_remove_checkpoint(const char *path)
{
    struct disk_ckpt *k = (struct disk_ckpt *)find_checkpoint(path);
    if (!k)
        return;
    memcpy(k->removed, k->path, sizeof(k->removed));
    k->path[0] = '\0';
}

bool disk_had_checkpoint(const char *path)
{
    for (int i = 0; i < S->n_ckpts; i++)
        if (strcmp(S->ckpts[i].removed, path) == 0)
            return true;
    return false;
}

static void finish(struct proc *p);

/* All have its installed step. */
static void tell(struct proc *p, const struct comm *c)
{
    struct step_report r = {.step = p->installed.step, .epoch = c->epoch, .step_ms = 40, .world = c->world};
    if (!p->unpublished)
        return;
    p->unpublished = false;
    must_tell(p, c);
    member_progress(p->member, &r, clock_wall_of(&S->hosts[p->host].clocks));
}

/* All members' parts are durable: it is a checkpoint, and what waited for it goes on. */
static void publish(struct comm *c)
{
    CHECK("sim", S->n_ckpts < SIM_CKPTS, "more checkpoints than the simulator keeps");
    struct disk_ckpt *k = &S->ckpts[S->n_ckpts++];
    (void)snprintf(k->path, sizeof(k->path), "/jobs/%llu/epoch-%llu/step-%llu", LL(c->job), LL(c->epoch),
                   LL(c->ckpt_step));
    k->step = c->ckpt_step;
    k->content = c->ckpt_content;
    c->ckpt_parts = 0;
    totals->checkpoints++;
    for (int r = 0; r < c->world; r++) {
        struct proc *p = &S->procs[c->workers[r]];
        if (c->out[r])
            continue;
        if (k->step == p->installed.step)
            tell(p, c);
        if (r == 0)
            member_checkpoint_written(p->member, &(struct checkpoint_report){
                                                     .step = k->step, .bytes = 1, .path = k->path, .world = c->world});
        if (p->installed.step >= steps_of(c->job))
            finish(p);
        else if (p->pausing && k->step == p->installed.step)
            leave(p, true);
    }
}

static void on_part(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    struct comm *c = comm_of(p);
    if (!p->alive || !c || c->ckpt_number != e->b)
        return;
    if (++c->ckpt_parts == 1 && MUTANT(CHECKPOINT_EARLY) && c->world > 1) {
        char path[64];
        (void)snprintf(path, sizeof(path), "/jobs/%llu/step-%llu-epoch-%llu", LL(c->job), LL(c->ckpt_step),
                       LL(c->epoch));
        member_checkpoint_written(
            p->member, &(struct checkpoint_report){.step = c->ckpt_step, .bytes = 1, .path = path, .world = c->world});
    }
    if (c->ckpt_parts == c->world)
        publish(c);
}

/* Returns whether one is being written for this step. */
static bool write_checkpoint(struct proc *p, struct comm *c)
{
    static const struct handler part = {"part is written", on_part, TARGET_TRAINING};
    uint64_t step = p->installed.step;
    bool due = step % CKPT_EVERY == 0 || step == steps_of(c->job) || (c->agreed & COMMAND_CHECKPOINT);
    if (!due)
        return false;
    if (c->ckpt_step != step) { /* the first of them to come here */
        totals->checkpoints_torn += c->ckpt_parts > 0;
        c->ckpt_step = step;
        c->ckpt_content = p->installed.content;
        must_save(c);
        c->ckpt_number = ++S->ckpt_numbers;
        c->ckpt_parts = 0;
    }
    (void)at(S->now + between(CHANCE_WORK, 100, chance(CHANCE_WORK, 80) ? 20 * MS : 150 * MS), &part, p->id,
             c->ckpt_number);
    return true;
}

/* --- what a member does when it is through ------------------------------------------------------------------------ */

static void on_exit_in_order(const struct ev *e)
{
    proc_end(e->a, 0, 0, "");
}
static const struct handler exits = {"worker exits", on_exit_in_order, TARGET_TRAINING};

static void on_finish(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    if (!p->alive || !p->comm || (uint64_t)p->comm != e->b || member_state(p->member)->in_revoked)
        return;
    S->comms[p->comm - 1].out[p->rank] = true;
    p->comm = 0;
    p->exiting = true;
    member_finished(p->member, p->installed.step);
    (void)at(S->now + between(CHANCE_WORK, MS, 200 * MS), &exits, p->id, 0);
}

static void finish(struct proc *p)
{
    static const struct handler finished = {"worker finishes", on_finish, TARGET_TRAINING};
    (void)at(S->now + between(CHANCE_WORK, 50, 5 * MS), &finished, p->id, (uint64_t)p->comm);
}

static void commit(struct proc *p, struct comm *c, int barrier)
{
    p->installed.content = must_commit(p, c);
    p->installed.step++;
    p->prepared = p->decided = false;
    p->unpublished = true;
    totals->steps++;
    totals->directed += S->plan->directed[c->job];
    if (c->world == 1 || MUTANT(PUBLISHED_ALONE))
        tell(p, c);
    p->pausing = c->agreed & (COMMAND_PAUSE | COMMAND_STOP);
    bool writes = write_checkpoint(p, c);
    if (p->installed.step >= steps_of(c->job) || (writes && p->pausing))
        return; /* on_part() */
    work_towards(p, barrier + 1);
}

/* The next step's work is done, or all leave together: each of them has the last step. */
static void meet(struct proc *p, struct comm *c, int barrier)
{
    tell(p, c);
    if (p->pausing) {
        leave(p, true);
        return;
    }
    p->prepared = !S->plan->directed[c->job];
    work_towards(p, barrier + 1);
}

static void seal(struct proc *p, struct comm *c)
{
    c->installed = true;
    if (p->rank >= c->world) { /* a departing rank is out */
        p->installed = p->pending = (struct holding){0};
        p->prepared = false;
        leave(p, true);
        return;
    }
    p->installed = p->pending;
    p->pending = (struct holding){0};
    p->prepared = false;
    p->unpublished = p->rank == 0 && p->installed.step > S->ledgers[c->job].published;
    if (p->rank == 0)
        member_state_ready(p->member, &(struct state_ready){.epoch = c->epoch,
                                                            .step = c->target.step,
                                                            .recovery_source = (enum recovery_source)(
                                                                c->recovery_source - SIM_SOURCE_INIT),
                                                            .params_hash = c->target.content,
                                                            .rolled_forward = c->rolled_forward,
                                                            .damaged_checkpoint = ""});
    p->unpublished |= p->installed.step >= steps_of(c->job);
    tell(p, c);
    if (p->installed.step >= steps_of(c->job) && write_checkpoint(p, c))
        return;
    work_towards(p, FIRST_STEP);
}

static void on_pass(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    struct comm *c = comm_of(p);
    int barrier = (int)(uint32_t)e->b;
    if (!p->alive || !c || e->b >> 32 != (uint64_t)p->comm || member_state(p->member)->in_revoked)
        return;
    p->actions++;
    p->waiting = false;
    if (barrier == PLAN && c->rolled_forward && p->prepared && p->installed.step + 1 == c->target.step) {
        p->installed.step = c->target.step;
        p->installed.content = c->target.content;
        p->prepared = false;
    }
    if (barrier == SEAL) {
        seal(p, c);
    } else if (commits(c, barrier)) {
        commit(p, c, barrier);
    } else if (place_of(c, barrier) == 0) {
        meet(p, c, barrier);
    } else {
        p->decided = agrees(c, barrier);
        work_towards(p, barrier + 1);
    }
}

/* --- entering an epoch -------------------------------------------------------------------------------------------- */

static struct comm *comm_for(const struct proc *p, const struct epoch_view *v)
{
    for (int i = S->n_comms - 1; i >= 0; i--) {
        struct comm *c = &S->comms[i];
        if (c->job == p->job && c->epoch == v->epoch && memcmp(c->id, v->comm_id, sizeof(c->id)) == 0)
            return c;
    }
    CHECK("sim", S->n_comms < SIM_COMMS && v->world + v->departing <= SIM_RANKS,
          "more epochs than the simulator keeps");
    struct comm *c = &S->comms[S->n_comms++];
    *c = (struct comm){.job = p->job,
                       .epoch = v->epoch,
                       .source_epoch = v->source_epoch,
                       .resume = v->resume_step,
                       .source = v->source,
                       .memory_only = v->memory_only,
                       .world = v->world,
                       .ranks = v->world + v->departing};
    memcpy(c->id, v->comm_id, sizeof(c->id));
    (void)snprintf(c->checkpoint, sizeof(c->checkpoint), "%.63s", v->checkpoint_path);
    return c;
}

static void enter(struct proc *p, const struct epoch_view *v)
{
    struct comm *c = comm_for(p, v);
    TRACE("worker %llu enters epoch %llu as rank %d of %d", LL(p->id), LL(v->epoch), v->rank, v->world);
    CHECK_OF(p->job, "I1", !c->workers[v->rank] || c->workers[v->rank] == p->id,
             "two workers have rank %d of epoch %llu", v->rank, LL(v->epoch));
    must_enter(p, c);
    c->workers[v->rank] = p->id;
    p->comm = (int)(c - S->comms) + 1;
    p->rank = v->rank;
    p->entered = v->epoch;
    p->held = p->installed.epoch != 0;
    if (c->over) /* a member came and went before */
        (void)at(S->now + between(CHANCE_WORK, MS, 100 * MS), &failed, p->id, (uint64_t)p->comm);
    work_towards(p, CONNECT);
}

static void on_poke(const struct ev *e)
{
    struct proc *p = &S->procs[e->a];
    struct epoch_view view;
    if (!p->alive || p->comm || p->exiting)
        return;
    switch (member_next(p->member, &view)) {
    case MEMBER_FORM:
        enter(p, &view);
        break;
    case MEMBER_STOPPED:
        p->exiting = true;
        (void)at(S->now + between(CHANCE_WORK, 100, 50 * MS), &exits, p->id, 0);
        break;
    case MEMBER_WAIT:
        break;
    }
}

void training_poke(struct proc *p)
{
    const struct member_state *m = member_state(p->member);
    if (m->opened && !p->comm && !p->exiting && (m->offered || m->stopped))
        (void)at(S->now + between(CHANCE_WORK, 10, 2 * MS), &poke, p->id, 0);
}
