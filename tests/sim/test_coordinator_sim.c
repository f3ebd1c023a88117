/* A cluster in one thread: the coordinator's core, agents and workers made of a few states, a network that delays, and
 * a clock that jumps from event to event. Faults strike at random until a time, then stop. Everything follows from the
 * seed.
 *
 *   SEED=n       run that schedule only      TRACE=1   print what happens
 *   SCHEDULES=n  how many (default 2000)
 *
 * Checked at every step, or at the end:
 *  I1  an epoch of a job has one membership, one communicator id, one source, whoever sends it and how often
 *  I2  a worker is never told to form an epoch lower than one it has seen
 *  I3  the stored step falls once in an epoch, when its state comes from a checkpoint or nowhere, and never when it
 *      comes from memory; a checkpoint is stored only under the job's newest epoch; state comes from memory when every
 *      part is with its holder or a keeper, else from a checkpoint that is on disk, or from nowhere only when there is
 *      none
 *  I5  acknowledged submits and cancels survive
 *  I6  states move by the tables only; final ones are final
 *  I7  no worker outlives its job
 *  I9  once faults have stopped, every job ends
 *  I10 restarts = counted ends of workers + failed epochs; only a used-up budget or a permanent error fails a job
 *  I11 every epoch is of a legal size; a job says that it waits only while it has no epoch, and when it runs, the
 *      reason is gone
 * Every 40th schedule also keeps a real store (SQLite in memory) and restores from that instead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/coordinator/core.h"
#include "daemon/coordinator/restore.h"
#include "state/schema.h"
#include "titan/internal/worker.pb-c.h"

#define NODES 3
#define JOBS 5
#define WORKERS 400 /* of one schedule */
#define EPOCHS 200  /* of one job */
#define CKPTS 400
#define FAULTS_UNTIL 12000
#define END_AT 900000
#define BEAT_MS 400
#define LEASE_MS 8000

typedef Titan__Internal__AgentMessage agent_message;
typedef Titan__Internal__CoordinatorMessage coord_message;

/* --- the store's image: committed changes ------------------------------------------------------------------------ */

struct image_job {
    bool there;
    struct job job;
    char checkpoint[64], reason[512];
    uint32_t run;
    enum run_state run_state;
    struct epoch epochs[EPOCHS];
    uint64_t members[EPOCHS][16];
    bool fell[EPOCHS];
    uint32_t counted, failed_epochs;
    bool permanent;
};
struct image_worker {
    struct worker w;
    char node[8], address[32];
};
struct image_ckpt {
    struct checkpoint c;
    char path[64];
    enum checkpoint_state state;
};

/* --- the cluster ---------------------------------------------------------------------------------------------------
 */

struct fworker {
    bool alive, started, hung, crash_at_start, permanent;
    int node;
    uint64_t id, job;
    Titan__Internal__WorkerPhase phase;
    uint64_t epoch;      /* newest seen */
    uint64_t step;       /* state it holds ... */
    uint64_t held_epoch; /* ... as a shard of this epoch */
    bool pause;
    int64_t ready_at;
    int64_t lease_until; /* 0 = its agent is there */
};

struct link_end {
    int64_t last; /* delivery time of the newest message: order is kept */
};

struct agent {
    bool alive, connected, partitioned;
    uint64_t session;
    uint64_t incarnation;
    struct link_end up, down;
    struct {
        int64_t at; /* when it was sent; INT64_MAX = not yet */
        void *bytes;
        size_t len;
    } kept[64]; /* reports that are sent (again) on a new session */
    int n_kept;
};

enum kind {
    EV_UP,     /* agent's message arrives; n = node, id = session */
    EV_DOWN,   /* coordinator's message arrives */
    EV_TICK,   /* core_tick; id = coordinator's life */
    EV_COMMIT, /* oldest batch is durable; id = life */
    EV_BEAT,
    EV_CONNECT, /* an agent opens its session */
    EV_READY,   /* worker is up */
    EV_FORMED,  /* all members have the epoch: first step begins; n = job */
    EV_STEP,    /* n = job, id = epoch */
    EV_DIE,     /* worker id ends; n = exit code (-9: signal) */
    EV_QUIET,   /* worker id is out of its epoch */
    EV_CKPT,    /* checkpoint of n = job is on disk; id = packed */
    EV_FAULT,
    EV_AGENT_UP,
    EV_COORD_UP,
    EV_CLIENT,
    EV_LEASE,
    EV_HEAL,
};
struct ev {
    int64_t at;
    uint64_t seq;
    enum kind kind;
    int n;
    uint64_t id, id2;
    void *bytes;
    size_t len;
};

struct pending {
    struct pending *next;
    struct batch batch;
    int submit; /* job index or -1 */
    int cancel;
};

struct sim {
    uint64_t seed, rng;
    bool trace, faults;
    int64_t now;
    struct ev *heap;
    size_t n_heap, cap_heap;
    uint64_t seq;

    struct core *core; /* NULL while the coordinator is down */
    uint64_t life, next_session, next_worker, term;
    struct pending *pending, **pending_tail;
    int64_t commit_last, tick_at;

    struct image_job jobs[JOBS + 1];
    struct image_worker workers[WORKERS];
    struct image_ckpt ckpts[CKPTS];
    int n_ckpts;
    struct node nodes[NODES];
    char node_names[NODES][8];
    struct db *db; /* real twin; may be NULL */

    struct agent agents[NODES];
    struct fworker fworkers[WORKERS];
    bool job_acked[JOBS + 1], cancel_acked[JOBS + 1], submitted[JOBS + 1];
    struct job specs[JOBS + 1];
    struct {
        bool seen;
        uint64_t members[16], holders[8]; /* members: and leavers */
        size_t n, n_leavers, n_holders;
        uint32_t source, rung;
        uint64_t resume, source_epoch;
        uint64_t step; /* committed by all */
        char path[64];
        unsigned char comm[16];
        bool formed;
    } forms[JOBS + 1][EPOCHS];
    char disk[CKPTS][64];
    int n_disk;
    uint64_t core_steps;
};

/* What the schedules went through, all together: a simulator that no longer gets anywhere shows here. */
static struct {
    uint64_t inputs, completed, failed, cancelled, from_init, from_checkpoint, from_memory, from_buddy, leavers,
        recoveries, resizes, crashes, waits;
} totals;

static struct sim *S;

#define CHECK(cond, ...)                                                                                               \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            printf("# SEED=%llu at %lld ms: ", (unsigned long long)S->seed, (long long)S->now);                        \
            printf(__VA_ARGS__);                                                                                       \
            printf(" [%s]\n", #cond);                                                                                  \
            fflush(stdout);                                                                                            \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)
#define TRACE(...)                                                                                                     \
    do {                                                                                                               \
        if (S->trace) {                                                                                                \
            printf("# %7lld ", (long long)S->now);                                                                     \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
        }                                                                                                              \
    } while (0)
#define LL(x) ((unsigned long long)(x))

static uint64_t rnd(void)
{ /* splitmix64, Steele et al. 2014 */
    uint64_t z = (S->rng += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}
static int64_t between(int64_t lo, int64_t hi)
{
    return lo + (int64_t)(rnd() % (uint64_t)(hi - lo + 1));
}
static bool chance(int percent)
{
    return rnd() % 100 < (uint64_t)percent;
}

static bool before(const struct ev *a, const struct ev *b)
{
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static struct ev *at(int64_t when, enum kind kind, int n, uint64_t id)
{
    if (S->n_heap == S->cap_heap) {
        S->cap_heap = S->cap_heap ? 2 * S->cap_heap : 256;
        S->heap = realloc(S->heap, S->cap_heap * sizeof(*S->heap));
        assert_non_null(S->heap);
    }
    struct ev e = {.at = when, .seq = S->seq++, .kind = kind, .n = n, .id = id};
    size_t i = S->n_heap++;
    for (; i > 0 && before(&e, &S->heap[(i - 1) / 2]); i = (i - 1) / 2)
        S->heap[i] = S->heap[(i - 1) / 2];
    S->heap[i] = e;
    return &S->heap[i];
}

static struct ev pop(void)
{
    struct ev top = S->heap[0], last = S->heap[--S->n_heap];
    size_t i = 0;
    for (;;) {
        size_t kid = 2 * i + 1;
        if (kid >= S->n_heap)
            break;
        if (kid + 1 < S->n_heap && before(&S->heap[kid + 1], &S->heap[kid]))
            kid++;
        if (!before(&S->heap[kid], &last))
            break;
        S->heap[i] = S->heap[kid];
        i = kid;
    }
    if (S->n_heap)
        S->heap[i] = last;
    return top;
}

static struct core_time now_time(void)
{
    return (struct core_time){.mono_ms = S->now + 1, .wall_ms = 1000000 + S->now};
}

/* --- the image ------------------------------------------------------------------------------------------------------
 */

static struct image_job *image_job(uint64_t id)
{
    CHECK(id >= 1 && id <= JOBS && S->jobs[id].there, "change of job %llu, which is not stored", LL(id));
    return &S->jobs[id];
}

static void image_status(struct image_job *j, const struct change *c)
{
    const struct job_status *s = &c->job.status;
    if (s->step < j->job.status.step) {
        typeof(&S->forms[0][0]) f = &S->forms[j->job.id][s->epoch];
        bool memory = j->epochs[s->epoch].source == TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY;
        CHECK(memory ? f->formed && f->rung <= TITAN__INTERNAL__STATE_RUNG__RUNG_CHECKPOINT : s->world_size > 0,
              "I3: job %llu step falls from %llu to %llu though epoch %llu has it in memory", LL(j->job.id),
              LL(j->job.status.step), LL(s->step), LL(s->epoch));
        CHECK(!j->fell[s->epoch], "I3: job %llu step falls from %llu to %llu in epoch %llu", LL(j->job.id),
              LL(j->job.status.step), LL(s->step), LL(s->epoch));
        j->fell[s->epoch] = true;
    }
    CHECK(s->epoch >= j->job.status.epoch, "I1: job %llu epoch falls", LL(j->job.id));
    j->job.status = *s;
    snprintf(j->checkpoint, sizeof(j->checkpoint), "%s", s->checkpoint);
    j->job.status.checkpoint = j->checkpoint;
}

static void image_epoch_add(struct image_job *j, const struct change *c)
{
    const struct epoch *e = &c->epoch;
    CHECK(e->number < EPOCHS, "more epochs than the simulator keeps");
    CHECK(j->epochs[e->number].state == EPOCH_NONE, "I1: epoch %llu of job %llu is made twice", LL(e->number),
          LL(j->job.id));
    for (uint64_t n = e->number - 1; n > 0; n--)
        CHECK(j->epochs[n].state == EPOCH_REVOKED || j->epochs[n].state == EPOCH_ENDED,
              "I1: epoch %llu of job %llu is made while %llu lives", LL(e->number), LL(j->job.id), LL(n));
    struct epoch *copy = &j->epochs[e->number];
    *copy = *e;
    copy->workers = j->members[e->number];
    memcpy(j->members[e->number], e->workers, (e->world_size + e->leavers) * sizeof(uint64_t));
    copy->delegate = "";
    copy->checkpoint = "";
    for (int i = 0; i < S->n_ckpts; i++)
        if (strcmp(S->ckpts[i].path, e->checkpoint) == 0)
            copy->checkpoint = S->ckpts[i].path;
    CHECK(world_set_has(&j->job.spec.worlds, e->world_size), "I11: epoch of a forbidden size %u", e->world_size);
}

static void image_worker(const struct change *c)
{
    CHECK(c->worker.id < WORKERS, "more workers than the simulator keeps");
    struct image_worker *w = &S->workers[c->worker.id];
    if (c->kind == CHANGE_WORKER_PID) {
        w->w.pid = c->worker.pid;
        return;
    }
    int from = c->kind == CHANGE_WORKER_ADD ? WORKER_NONE : (int)w->w.state;
    int to = c->kind == CHANGE_WORKER_ADD ? WORKER_STARTING : (int)c->worker.state;
    CHECK(sm_allowed(&worker_sm, from, to), "I6: worker %llu %s -> %s", LL(c->worker.id), sm_name(&worker_sm, from),
          sm_name(&worker_sm, to));
    int64_t pid = w->w.pid;
    w->w = c->worker;
    w->w.pid = pid;
    w->w.state = (enum worker_state)to;
    snprintf(w->node, sizeof(w->node), "%s", c->worker.node);
    snprintf(w->address, sizeof(w->address), "%s", c->worker.address);
    w->w.node = w->node;
    w->w.address = w->address;
    struct image_job *j = image_job(c->worker.job_id);
    j->counted += c->worker.counted;
    if (to == WORKER_EXITED && c->worker.exit_code == 2)
        j->permanent = true;
}

static void image_ckpt(const struct change *c)
{
    struct image_job *j = image_job(c->checkpoint.job_id);
    struct image_ckpt *k = NULL;
    for (int i = 0; i < S->n_ckpts; i++)
        if (S->ckpts[i].c.job_id == c->checkpoint.job_id && S->ckpts[i].c.step == c->checkpoint.step)
            k = &S->ckpts[i];
    if (c->kind == CHANGE_CHECKPOINT_EXPIRE) {
        CHECK(k && k->state == CHECKPOINT_COMMITTED, "expiry of a checkpoint that is not there");
        k->state = CHECKPOINT_EXPIRED;
        return;
    }
    CHECK(c->checkpoint.epoch == j->job.status.epoch, "I3: checkpoint of epoch %llu stored under epoch %llu",
          LL(c->checkpoint.epoch), LL(j->job.status.epoch));
    if (!k) {
        CHECK(S->n_ckpts < CKPTS, "more checkpoints than the simulator keeps");
        k = &S->ckpts[S->n_ckpts++];
    }
    k->c = c->checkpoint;
    k->state = CHECKPOINT_COMMITTED;
    snprintf(k->path, sizeof(k->path), "%s", c->checkpoint.path);
    k->c.path = k->path;
}

static void image_node(const struct change *c)
{
    for (int i = 0; i < NODES; i++) {
        if (strcmp(S->node_names[i], c->node.name) != 0)
            continue;
        int from = (int)S->nodes[i].state, to = (int)c->node.state;
        CHECK(from == to || sm_allowed(&node_sm, from, to), "I6: node moves %d -> %d", from, to);
        S->nodes[i] = c->node;
        S->nodes[i].name = S->node_names[i];
        S->nodes[i].device = S->nodes[i].address = S->nodes[i].version = "cpu";
    }
}

static void image_apply(const struct change *c)
{
    TRACE("    stored %-18s job %llu epoch %llu step %llu: %s", c->has_event ? c->event.type : "(status)",
          LL(c->event.job_id), LL(c->event.epoch), LL(c->event.step), c->has_event ? c->event.message : "");
    switch (c->kind) {
    case CHANGE_JOB_MOVE: {
        struct image_job *j = image_job(c->job.id);
        CHECK(sm_allowed(&job_sm, (int)j->job.state, (int)c->job.state), "I6: job %llu %s -> %s", LL(c->job.id),
              sm_name(&job_sm, (int)j->job.state), sm_name(&job_sm, (int)c->job.state));
        j->job.state = c->job.state;
        snprintf(j->reason, sizeof(j->reason), "%s", c->job.reason);
        CHECK(j->job.state != JOB_RUNNING || strncmp(j->reason, "waiting", 7) != 0, "I11: job %llu runs and waits",
              LL(c->job.id));
        image_status(j, c);
        break;
    }
    case CHANGE_JOB_UPDATE:
        image_status(image_job(c->job.id), c);
        break;
    case CHANGE_NODE_POLICY:
    case CHANGE_LOSS_ADD:
    case CHANGE_JOB_WISH: /* nobody asks for anything here */
        break;
    case CHANGE_JOB_REASON: {
        struct image_job *j = image_job(c->job.id);
        snprintf(j->reason, sizeof(j->reason), "%s", c->job.reason);
        if (!*j->reason)
            break;
        totals.waits++;
        enum epoch_state epoch = j->epochs[j->job.status.epoch].state;
        CHECK(epoch != EPOCH_FORMING && epoch != EPOCH_RUNNING, "I11: job %llu waits while it trains: %s",
              LL(c->job.id), j->reason);
        break;
    }
    case CHANGE_RUN_ADD:
    case CHANGE_RUN_MOVE: {
        struct image_job *j = image_job(c->run.job_id);
        int from = c->kind == CHANGE_RUN_ADD ? RUN_NONE : (int)j->run_state;
        int to = c->kind == CHANGE_RUN_ADD ? RUN_ACTIVE : (int)c->run.state;
        CHECK(c->run.number == j->run + (c->kind == CHANGE_RUN_ADD), "run numbers");
        CHECK(sm_allowed(&run_sm, from, to), "I6: run %s -> %s", sm_name(&run_sm, from), sm_name(&run_sm, to));
        j->run = c->run.number;
        j->run_state = (enum run_state)to;
        break;
    }
    case CHANGE_EPOCH_ADD:
        image_epoch_add(image_job(c->epoch.job_id), c);
        break;
    case CHANGE_EPOCH_MOVE: {
        struct epoch *e = &image_job(c->epoch.job_id)->epochs[c->epoch.number];
        CHECK(sm_allowed(&epoch_sm, (int)e->state, (int)c->epoch.state), "I6: epoch %s -> %s",
              sm_name(&epoch_sm, (int)e->state), sm_name(&epoch_sm, (int)c->epoch.state));
        e->state = c->epoch.state;
        break;
    }
    case CHANGE_EPOCH_ORIGIN: {
        typeof(&S->forms[0][0]) f = &S->forms[c->epoch_origin.job_id][c->epoch_origin.number];
        CHECK(f->formed && (uint32_t)c->epoch_origin.is.rung == f->rung, "the origin of epoch %llu",
              LL(c->epoch_origin.number));
        break;
    }
    case CHANGE_WORKER_ADD:
    case CHANGE_WORKER_MOVE:
    case CHANGE_WORKER_PID:
        image_worker(c);
        break;
    case CHANGE_CHECKPOINT_COMMIT:
    case CHANGE_CHECKPOINT_EXPIRE:
        image_ckpt(c);
        break;
    case CHANGE_NODE_PUT:
        image_node(c);
        break;
    case CHANGE_EVENT:
        if (strcmp(c->event.type, "epoch.failed") == 0)
            image_job(c->event.job_id)->failed_epochs++;
        totals.recoveries += strcmp(c->event.type, "recovery.finished") == 0;
        totals.resizes += strcmp(c->event.type, "resize.finished") == 0;
        break;
    }
}

static void store_apply(const struct change *list)
{
    for (const struct change *c = list; c; c = c->next)
        image_apply(c);
    if (!S->db || !list)
        return;
    struct titan_error err = {0};
    assert_int_equal(db_exec(S->db, "BEGIN", &err), TITAN_OK);
    CHECK(change_apply(S->db, list, &err) == TITAN_OK, "store: %s", err.msg);
    assert_int_equal(db_exec(S->db, "COMMIT", &err), TITAN_OK);
}

static int ckpt_newer(const void *a, const void *b)
{
    const struct checkpoint *x = a, *y = b;
    return x->step < y->step ? 1 : -1;
}

static void image_restore(void)
{
    for (int i = 0; i < NODES; i++)
        if (S->nodes[i].state != NODE_NONE)
            core_restore_node(S->core, &S->nodes[i], now_time());
    for (int id = 1; id <= JOBS; id++) {
        struct image_job *j = &S->jobs[id];
        if (!j->there || sm_final(&job_sm, (int)j->job.state))
            continue;
        struct worker live[WORKERS];
        struct checkpoint ckpts[CKPTS];
        struct core_saved_job saved = {.job = j->job, .run = j->run, .run_active = j->run_state == RUN_ACTIVE};
        for (int w = 0; w < WORKERS; w++)
            if (S->workers[w].w.job_id == (uint64_t)id && !sm_final(&worker_sm, (int)S->workers[w].w.state))
                live[saved.n_workers++] = S->workers[w].w;
        for (int k = 0; k < S->n_ckpts; k++)
            if (S->ckpts[k].c.job_id == (uint64_t)id && S->ckpts[k].state == CHECKPOINT_COMMITTED)
                ckpts[saved.n_checkpoints++] = S->ckpts[k].c;
        qsort(ckpts, saved.n_checkpoints, sizeof(*ckpts), ckpt_newer);
        const struct epoch *e = j->job.status.epoch ? &j->epochs[j->job.status.epoch] : NULL;
        saved.workers = live;
        saved.checkpoints = ckpts;
        saved.epoch = e;
        if (e && e->source_epoch) {
            saved.holders = j->members[e->source_epoch];
            saved.n_holders = j->epochs[e->source_epoch].world_size;
        }
        core_restore_job(S->core, &saved, now_time());
    }
}

/* --- the coordinator ------------------------------------------------------------------------------------------------
 */

static void coord_start(void)
{
    struct core_options options = {.term = ++S->term,
                                   .seed = S->seed * 1000 + S->term,
                                   .next_worker_id = S->next_worker,
                                   .jobs_dir = "/jobs",
                                   .beat_ms = BEAT_MS,
                                   .node_timeout_ms = 2000,
                                   .start_ms = 4000,
                                   .quiesce_ms = 1500,
                                   .pause_ms = 3000,
                                   .form_ms = 5000,
                                   .stall_ms = 3000,
                                   .stop_ms = 1000,
                                   .starve_ms = 4000};
    S->next_worker = 1;
    for (uint64_t i = 1; i < WORKERS; i++)
        if (S->workers[i].w.id)
            options.next_worker_id = S->next_worker = i + 1;
    if (options.next_worker_id == 0)
        options.next_worker_id = 1;
    S->life++;
    S->commit_last = S->now;
    assert_int_equal(core_new(&options, &S->core, NULL), TITAN_OK);
    struct titan_error err = {0};
    if (S->db)
        CHECK(core_restore(S->core, S->db, now_time(), &err) == TITAN_OK, "restore: %s", err.msg);
    else
        image_restore();
    TRACE("coordinator up, term %llu", LL(S->term));
    S->tick_at = S->now;
    at(S->now, EV_TICK, 0, S->life);
}

static void coord_crash(void)
{
    if (!S->core)
        return;
    TRACE("coordinator crashes");
    totals.crashes++;
    core_free(S->core);
    S->core = NULL;
    for (struct pending *p = S->pending, *next; p; p = next) {
        next = p->next;
        batch_free(&p->batch);
        free(p);
    }
    S->pending = NULL;
    S->pending_tail = &S->pending;
    for (int n = 0; n < NODES; n++) {
        if (!S->agents[n].connected)
            continue;
        S->agents[n].connected = false;
        at(S->now + between(10, 1500), EV_CONNECT, n, 0);
    }
    at(S->now + between(20, 4000), EV_COORD_UP, 0, 0);
}

/* What the core wants goes to the disk; messages follow when it is there. */
static void coord_out(struct batch *b, int submit, int cancel)
{
    int64_t due = core_deadline(S->core) - 1;
    due = due < S->now + BEAT_MS ? due : S->now + BEAT_MS;
    due = due > S->now ? due : S->now + 1;
    if (S->tick_at <= S->now || due < S->tick_at) {
        S->tick_at = due;
        at(due, EV_TICK, 0, S->life);
    }
    S->core_steps++;
    if (batch_empty(b) && submit < 0 && cancel < 0) {
        batch_free(b);
        return;
    }
    struct pending *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    p->batch = *b;
    if (!b->changes)
        p->batch.changes_tail = &p->batch.changes;
    p->submit = submit;
    p->cancel = cancel;
    *S->pending_tail = p;
    S->pending_tail = &p->next;
    int64_t when = S->now + (chance(5) ? between(5, 200) : between(0, 3));
    S->commit_last = when > S->commit_last ? when : S->commit_last;
    at(S->commit_last, EV_COMMIT, 0, S->life);
}

static void send_down(int n, const coord_message *m)
{
    struct agent *a = &S->agents[n];
    size_t len = titan__internal__coordinator_message__get_packed_size(m);
    void *bytes = malloc(len + 1);
    titan__internal__coordinator_message__pack(m, bytes);
    int64_t when = S->now + (chance(10) ? between(5, 120) : between(0, 4));
    a->down.last = when > a->down.last ? when : a->down.last;
    struct ev *e = at(a->down.last, EV_DOWN, n, a->session);
    e->bytes = bytes;
    e->len = len;
}

static void on_commit(uint64_t life)
{
    if (life != S->life || !S->pending || !S->core)
        return;
    struct pending *p = S->pending;
    S->pending = p->next;
    if (!S->pending)
        S->pending_tail = &S->pending;
    if (p->submit >= 0) {
        struct image_job *j = &S->jobs[p->submit];
        j->there = true;
        j->job = S->specs[p->submit];
        j->job.state = JOB_PENDING;
        if (S->db) {
            uint64_t existing = 0;
            struct titan_error err = {0};
            CHECK(job_submit(S->db, &j->job, "recipe", &existing, &err) == TITAN_OK, "store: %s", err.msg);
        }
    }
    store_apply(p->batch.changes);
    if (S->faults && chance(1)) { /* durable, but nobody was told */
        batch_free(&p->batch);
        free(p);
        coord_crash();
        return;
    }
    for (const struct batch_message *m = p->batch.messages; m; m = m->next)
        for (int n = 0; n < NODES; n++)
            if (S->agents[n].connected && S->agents[n].session == m->session)
                send_down(n, m->message);
    for (const struct batch_drop *d = p->batch.drops; d; d = d->next)
        for (int n = 0; n < NODES; n++)
            if (S->agents[n].connected && S->agents[n].session == d->session) {
                S->agents[n].connected = false;
                at(S->now + between(10, 500), EV_CONNECT, n, 0);
            }
    if (p->cancel > 0)
        S->cancel_acked[p->cancel] = true;
    int submitted = p->submit;
    batch_free(&p->batch);
    free(p);
    if (submitted >= 0) {
        S->job_acked[submitted] = true;
        struct batch b;
        batch_init(&b);
        core_submitted(S->core, &S->jobs[submitted].job, now_time(), &b);
        coord_out(&b, -1, -1);
    }
}

static void on_tick(uint64_t life)
{
    if (life != S->life || !S->core || S->now < S->tick_at)
        return;
    struct batch b;
    batch_init(&b);
    core_tick(S->core, now_time(), &b);
    coord_out(&b, -1, -1);
}

/* --- agents ---------------------------------------------------------------------------------------------------------
 */

static void send_packed(int n, void *bytes, size_t len)
{
    struct agent *a = &S->agents[n];
    int64_t when = S->now + (chance(10) ? between(5, 120) : between(0, 4));
    a->up.last = when > a->up.last ? when : a->up.last;
    struct ev *e = at(a->up.last, EV_UP, n, a->session);
    e->bytes = bytes;
    e->len = len;
}

static void send_up(int n, const agent_message *m, bool keep)
{
    struct agent *a = &S->agents[n];
    size_t len = titan__internal__agent_message__get_packed_size(m);
    uint8_t *bytes = malloc(len + 1);
    titan__internal__agent_message__pack(m, bytes);
    if (keep) {
        if (a->n_kept == 64) {
            free(a->kept[0].bytes);
            memmove(a->kept, a->kept + 1, 63 * sizeof(a->kept[0]));
            a->n_kept--;
        }
        void *copy = malloc(len + 1);
        memcpy(copy, bytes, len);
        a->kept[a->n_kept].at = a->connected ? S->now : INT64_MAX;
        a->kept[a->n_kept].bytes = copy;
        a->kept[a->n_kept++].len = len;
    }
    if (a->alive && a->connected)
        send_packed(n, bytes, len);
    else
        free(bytes);
}

#define MESSAGE(name, CASE, member, body)                                                                              \
    agent_message name = TITAN__INTERNAL__AGENT_MESSAGE__INIT;                                                         \
    (name).kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_##CASE;                                                    \
    (name).member = &(body)

static Titan__Internal__WorkerQuiesced what_it_holds(const struct fworker *w, bool paused)
{
    Titan__Internal__WorkerQuiesced q = TITAN__INTERNAL__WORKER_QUIESCED__INIT;
    q.job_id = w->job;
    q.worker_id = w->id;
    q.epoch = w->epoch;
    q.last_step = w->step;
    q.paused = paused;
    q.sealed_epoch = w->held_epoch;
    return q;
}

static void agent_connect(int n)
{
    struct agent *a = &S->agents[n];
    if (!a->alive || a->connected)
        return;
    if (!S->core || a->partitioned) {
        at(S->now + between(20, 800), EV_CONNECT, n, 0);
        return;
    }
    a->connected = true;
    a->session = S->next_session++;
    a->up.last = a->down.last = S->now;
    Titan__Internal__LiveWorker live[WORKERS], *list[WORKERS];
    Titan__Internal__WorkerQuiesced quiet[WORKERS];
    Titan__Internal__AgentHello hello = TITAN__INTERNAL__AGENT_HELLO__INIT;
    hello.node = S->node_names[n];
    hello.slots = 3;
    hello.device = (char *)"cpu";
    hello.incarnation = a->incarnation;
    for (uint64_t i = 1; i < WORKERS; i++) {
        const struct fworker *w = &S->fworkers[i];
        if (!w->alive || w->node != n)
            continue;
        titan__internal__live_worker__init(&live[hello.n_workers]);
        live[hello.n_workers].job_id = w->job;
        live[hello.n_workers].worker_id = w->id;
        live[hello.n_workers].epoch = w->epoch;
        live[hello.n_workers].step = w->step;
        live[hello.n_workers].state = w->phase;
        live[hello.n_workers].address = (char *)(S->now >= w->ready_at ? "host:1" : "");
        if (w->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED) {
            quiet[hello.n_workers] = what_it_holds(w, false);
            live[hello.n_workers].quiesced = &quiet[hello.n_workers];
        }
        list[hello.n_workers] = &live[hello.n_workers];
        hello.n_workers++;
    }
    hello.workers = list;
    TRACE("node %d says hello with %zu workers, session %llu", n, hello.n_workers, LL(a->session));
    MESSAGE(m, HELLO, hello, hello);
    send_up(n, &m, false);
    for (int i = 0; i < a->n_kept; i++) {
        if (a->kept[i].at != INT64_MAX && S->now - a->kept[i].at > 5000)
            continue;
        a->kept[i].at = S->now;
        void *copy = malloc(a->kept[i].len + 1);
        memcpy(copy, a->kept[i].bytes, a->kept[i].len);
        send_packed(n, copy, a->kept[i].len);
    }
    at(S->now + BEAT_MS * 3 / 4, EV_BEAT, n, a->session);
}

static void worker_ends(struct fworker *w, int code, const char *why)
{
    if (!w->alive)
        return;
    w->alive = false;
    TRACE("worker %llu of job %llu ends: %d %s", LL(w->id), LL(w->job), code, why);
    /* The step that was under way may have been finished by some and not by others. */
    for (uint64_t i = 1; i < WORKERS; i++) {
        struct fworker *o = &S->fworkers[i];
        if (o->alive && o->job == w->job && o->epoch == w->epoch && o->held_epoch == o->epoch &&
            o->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING && o->step < S->specs[o->job].spec.steps &&
            o->step == S->forms[o->job][o->epoch].step && chance(20))
            o->step++;
    }
    if (!S->agents[w->node].alive)
        return;
    Titan__Internal__WorkerExited x = TITAN__INTERNAL__WORKER_EXITED__INIT;
    x.job_id = w->job;
    x.worker_id = w->id;
    x.exit_code = code == -9 ? -1 : code;
    x.signal = code == -9 ? 9 : 0;
    x.reason = (char *)why;
    MESSAGE(m, WORKER_EXITED, worker_exited, x);
    send_up(w->node, &m, true);
}

static void agent_crash(int n, bool power)
{
    struct agent *a = &S->agents[n];
    if (!a->alive)
        return;
    TRACE("agent %d crashes%s", n, power ? " with its node" : "");
    a->alive = a->connected = false;
    for (int i = 0; i < a->n_kept; i++)
        free(a->kept[i].bytes);
    a->n_kept = 0;
    for (uint64_t i = 1; i < WORKERS; i++) {
        struct fworker *w = &S->fworkers[i];
        if (!w->alive || w->node != n)
            continue;
        if (power) {
            worker_ends(w, -9, "power");
        } else {
            w->lease_until = S->now + LEASE_MS;
            at(w->lease_until, EV_LEASE, 0, w->id);
        }
    }
    if (S->core)
        at(S->now, EV_UP, n, a->session); /* end of stream */
    at(S->now + between(100, chance(30) ? 12000 : 1500), EV_AGENT_UP, n, 0);
}

static void on_agent_up(int n)
{
    struct agent *a = &S->agents[n];
    a->alive = true;
    a->incarnation++;
    for (uint64_t i = 1; i < WORKERS; i++)
        if (S->fworkers[i].alive && S->fworkers[i].node == n)
            S->fworkers[i].lease_until = 0;
    agent_connect(n);
}

static void report_quiet(struct fworker *w, bool paused)
{
    Titan__Internal__WorkerQuiesced q = what_it_holds(w, paused);
    MESSAGE(m, WORKER_QUIESCED, worker_quiesced, q);
    send_up(w->node, &m, true);
}

static void on_form(int n, const Titan__Internal__FormEpoch *f)
{
    CHECK(f->epoch < EPOCHS && f->n_members <= 8 && f->n_leavers <= 8, "size of epoch");
    typeof(&S->forms[0][0]) seen = &S->forms[f->job_id][f->epoch];
    struct image_job *j = image_job(f->job_id);
    CHECK(j->epochs[f->epoch].state != EPOCH_NONE, "epoch %llu was told before it was stored", LL(f->epoch));
    if (!seen->seen) {
        seen->seen = true;
        seen->n = f->n_members;
        seen->n_leavers = f->n_leavers;
        seen->n_holders = f->n_state_holders;
        seen->source_epoch = f->source_epoch;
        seen->source = f->source;
        seen->resume = f->resume_step;
        snprintf(seen->path, sizeof(seen->path), "%s", f->checkpoint_path);
        memcpy(seen->comm, f->comm_id.data, 16);
        for (size_t i = 0; i < f->n_members; i++)
            seen->members[i] = f->members[i]->worker_id;
        for (size_t i = 0; i < f->n_leavers; i++)
            seen->members[f->n_members + i] = f->leavers[i]->worker_id;
        for (size_t i = 0; i < f->n_state_holders; i++)
            seen->holders[i] = f->state_holders[i];
    }
    CHECK(seen->n == f->n_members && memcmp(seen->comm, f->comm_id.data, 16) == 0 && seen->source == f->source &&
              seen->resume == f->resume_step && seen->n_holders == f->n_state_holders &&
              seen->n_leavers == f->n_leavers && strcmp(seen->path, f->checkpoint_path) == 0,
          "I1: job %llu epoch %llu was told in two ways", LL(f->job_id), LL(f->epoch));
    for (size_t i = 0; i < f->n_members + f->n_leavers; i++) {
        uint64_t id = i < f->n_members ? f->members[i]->worker_id : f->leavers[i - f->n_members]->worker_id;
        CHECK(seen->members[i] == id, "I1: members of epoch %llu", LL(f->epoch));
        struct fworker *w = &S->fworkers[id];
        if (!w->alive || w->node != n || w->hung || f->epoch == w->epoch)
            continue;
        CHECK(f->epoch > w->epoch, "I2: worker %llu saw epoch %llu and is told %llu", LL(w->id), LL(w->epoch),
              LL(f->epoch));
        w->epoch = f->epoch;
        w->phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING;
        w->pause = false;
    }
    at(S->now + between(5, 300), EV_FORMED, (int)f->job_id, f->epoch);
}

static struct fworker *member(uint64_t job, uint64_t epoch, size_t i)
{
    return &S->fworkers[S->forms[job][epoch].members[i]];
}

static bool on_disk(const char *path)
{
    for (int i = 0; i < S->n_disk; i++)
        if (*path && strcmp(S->disk[i], path) == 0)
            return true;
    return false;
}

/* Has the holder of that rank its part, and can it give it? */
static bool present(typeof(&S->forms[0][0]) f, uint64_t epoch, size_t rank)
{
    const struct fworker *w = &S->fworkers[f->holders[rank]];
    return w->alive && w->epoch == epoch && w->held_epoch == f->source_epoch;
}

/* The rung the members find, and its step. Every other job keeps a copy of each part with the next rank. */
static uint64_t find_rung(int job, uint64_t epoch)
{
    typeof(&S->forms[0][0]) f = &S->forms[job][epoch];
    uint64_t furthest = 0, last = UINT64_MAX;
    bool whole = f->source == TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY, missing = false;
    for (size_t i = 0; i < f->n_holders; i++) {
        const struct fworker *w = &S->fworkers[f->holders[i]];
        bool here = present(f, epoch, i), kept = job % 2 && present(f, epoch, (i + 1) % f->n_holders);
        missing |= !here;
        whole &= here || kept;
        furthest = here && w->step > furthest ? w->step : furthest;
        last = here && w->step < last ? w->step : last;
    }
    if (whole) {
        CHECK(furthest <= last + 1 && furthest <= f->resume, "I3: steps %llu to %llu in memory, %llu told", LL(last),
              LL(furthest), LL(f->resume));
        CHECK(missing || furthest == f->resume, "I3: everybody is there at step %llu, not %llu", LL(furthest),
              LL(f->resume));
        f->rung = missing ? TITAN__INTERNAL__STATE_RUNG__RUNG_BUDDY : TITAN__INTERNAL__STATE_RUNG__RUNG_MEMORY;
        return furthest;
    }
    f->rung = *f->path ? TITAN__INTERNAL__STATE_RUNG__RUNG_CHECKPOINT : TITAN__INTERNAL__STATE_RUNG__RUNG_INIT;
    CHECK(!*f->path || on_disk(f->path), "I3: checkpoint '%s' of job %d epoch %llu is not on disk", f->path, job,
          LL(epoch));
    unsigned long long step = 0;
    CHECK(!*f->path || sscanf(f->path, "job%*d-step%llu", &step) == 1, "path '%s'", f->path);
    if (f->source != TITAN__INTERNAL__STATE_SOURCE__STATE_MEMORY)
        CHECK(f->resume == step, "resumes at %llu, not %llu", LL(f->resume), step);
    return step;
}

static void say_state_ready(const struct fworker *w, typeof(&S->forms[0][0]) f, uint64_t step)
{
    Titan__Internal__StateReady r = TITAN__INTERNAL__STATE_READY__INIT;
    r.job_id = w->job;
    r.worker_id = w->id;
    r.epoch = w->epoch;
    r.rung = (Titan__Internal__StateRung)f->rung;
    r.step = step;
    MESSAGE(m, STATE_READY, state_ready, r);
    send_up(w->node, &m, true);
}

/* Are all members and leavers in it? Then the state is found and steps begin. */
static void on_formed(int job, uint64_t epoch)
{
    typeof(&S->forms[0][0]) f = &S->forms[job][epoch];
    if (f->formed)
        return;
    for (size_t i = 0; i < f->n + f->n_leavers; i++) {
        struct fworker *w = member((uint64_t)job, epoch, i);
        if (!w->alive || w->hung || w->epoch != epoch || w->phase != TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING)
            return;
    }
    f->formed = true;
    f->step = find_rung(job, epoch);
    totals.from_init += f->rung == TITAN__INTERNAL__STATE_RUNG__RUNG_INIT;
    totals.from_checkpoint += f->rung == TITAN__INTERNAL__STATE_RUNG__RUNG_CHECKPOINT;
    totals.from_memory += f->rung == TITAN__INTERNAL__STATE_RUNG__RUNG_MEMORY;
    totals.from_buddy += f->rung == TITAN__INTERNAL__STATE_RUNG__RUNG_BUDDY;
    totals.leavers += f->n_leavers;
    for (size_t i = 0; i < f->n; i++) {
        struct fworker *w = member((uint64_t)job, epoch, i);
        w->phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING;
        w->step = f->step;
        w->held_epoch = epoch;
    }
    for (size_t i = f->n; i < f->n + f->n_leavers; i++) {
        struct fworker *w = member((uint64_t)job, epoch, i);
        w->phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED;
        w->held_epoch = 0;
        report_quiet(w, false);
    }
    TRACE("job %d epoch %llu trains with %zu from step %llu, rung %u", job, LL(epoch), f->n, LL(f->step), f->rung);
    say_state_ready(member((uint64_t)job, epoch, 0), f, f->step);
    at(S->now + between(20, 150), EV_STEP, job, epoch);
}

static void report_progress(struct fworker *w, size_t world)
{
    Titan__Internal__WorkerProgress p = TITAN__INTERNAL__WORKER_PROGRESS__INIT;
    p.job_id = w->job;
    p.worker_id = w->id;
    p.epoch = w->epoch;
    p.step = w->step;
    p.step_ms = 50;
    p.world_size = (uint32_t)world;
    MESSAGE(m, PROGRESS, progress, p);
    send_up(w->node, &m, false);
}

static void on_step(int job, uint64_t epoch)
{
    typeof(&S->forms[0][0]) f = &S->forms[job][epoch];
    uint64_t steps = S->specs[job].spec.steps, step = 0;
    bool pause = false;
    for (size_t i = 0; i < f->n; i++) {
        struct fworker *w = member((uint64_t)job, epoch, i);
        if (!w->alive || w->epoch != epoch || w->phase != TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING)
            return; /* the collective does not end; somebody will revoke it */
        if (w->hung) {
            at(S->now + 200, EV_STEP, job, epoch);
            return;
        }
        pause |= w->pause;
        step = w->step > step ? w->step : step;
    }
    step = step < steps ? step + 1 : steps;
    f->step = step;
    for (size_t i = 0; i < f->n; i++) {
        struct fworker *w = member((uint64_t)job, epoch, i);
        w->step = step;
        report_progress(w, f->n);
    }
    struct fworker *first = member((uint64_t)job, epoch, 0);
    if (step % 4 == 0 || step == steps)
        at(S->now + between(0, 150), EV_CKPT, job, first->id)->id2 = step << 32 | epoch;
    if (step == steps) {
        for (size_t i = 0; i < f->n; i++)
            member((uint64_t)job, epoch, i)->phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE;
        return; /* finished is reported after the last checkpoint */
    }
    for (size_t i = 0; i < f->n && pause; i++) {
        struct fworker *w = member((uint64_t)job, epoch, i);
        w->phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED;
        report_quiet(w, true);
    }
    if (!pause)
        at(S->now + between(20, 150), EV_STEP, job, epoch);
}

static void on_ckpt(int job, uint64_t worker, uint64_t packed)
{
    struct fworker *w = &S->fworkers[worker];
    uint64_t step = packed >> 32, epoch = packed & 0xffffffff;
    typeof(&S->forms[0][0]) f = &S->forms[job][epoch];
    bool all = true;
    for (size_t i = 0; i < f->n; i++)
        all &= member((uint64_t)job, epoch, i)->alive;
    if (!all)
        return;
    char path[64];
    snprintf(path, sizeof(path), "job%d-step%llu-epoch%llu", job, LL(step), LL(epoch));
    CHECK(S->n_disk < CKPTS, "disk");
    snprintf(S->disk[S->n_disk++], 64, "%s", path);
    Titan__Internal__CheckpointWritten k = TITAN__INTERNAL__CHECKPOINT_WRITTEN__INIT;
    k.job_id = (uint64_t)job;
    k.worker_id = worker;
    k.epoch = epoch;
    k.step = step;
    k.path = path;
    k.bytes = 1;
    k.world_size = (uint32_t)f->n;
    MESSAGE(m, CHECKPOINT, checkpoint, k);
    send_up(w->node, &m, true);
    if (step < S->specs[job].spec.steps)
        return;
    for (size_t i = 0; i < f->n; i++) {
        struct fworker *d = member((uint64_t)job, epoch, i);
        if (!d->alive || d->epoch != epoch)
            continue;
        Titan__Internal__WorkerFinished done = TITAN__INTERNAL__WORKER_FINISHED__INIT;
        done.job_id = d->job;
        done.worker_id = d->id;
        done.epoch = epoch;
        done.step = step;
        MESSAGE(fm, FINISHED, finished, done);
        send_up(d->node, &fm, true);
        if (chance(50))
            at(S->now + between(0, 100), EV_DIE, 0, d->id);
    }
}

static void on_start(int n, const Titan__Internal__StartWorkers *m)
{
    for (size_t i = 0; i < m->n_worker_ids; i++) {
        uint64_t id = m->worker_ids[i];
        CHECK(id < WORKERS, "worker id %llu", LL(id));
        struct fworker *w = &S->fworkers[id];
        if (w->id)
            continue; /* told twice */
        *w = (struct fworker){.alive = true, .id = id, .job = m->job_id, .node = n};
        w->crash_at_start = S->faults && chance(6);
        w->permanent = w->crash_at_start && chance(3);
        w->ready_at = S->now + between(5, 200);
        Titan__Internal__WorkerStarted started = TITAN__INTERNAL__WORKER_STARTED__INIT;
        started.job_id = m->job_id;
        started.worker_id = id;
        started.pid = 1000 + (int64_t)id;
        MESSAGE(up, WORKER_STARTED, worker_started, started);
        send_up(n, &up, true);
        at(w->ready_at, EV_READY, 0, id);
    }
}

static void on_ready(uint64_t id)
{
    struct fworker *w = &S->fworkers[id];
    if (!w->alive)
        return;
    if (w->crash_at_start) {
        worker_ends(w, w->permanent ? 2 : 1, w->permanent ? "bad data" : "cannot start");
        return;
    }
    Titan__Internal__WorkerReady ready = TITAN__INTERNAL__WORKER_READY__INIT;
    ready.job_id = w->job;
    ready.worker_id = id;
    ready.address = (char *)"host:1";
    MESSAGE(m, WORKER_READY, worker_ready, ready);
    send_up(w->node, &m, true);
}

static void on_stop(int n, const Titan__Internal__StopWorkers *m)
{
    for (size_t i = 0; i < m->n_worker_ids; i++) {
        struct fworker *w = m->worker_ids[i] < WORKERS ? &S->fworkers[m->worker_ids[i]] : NULL;
        if (!w || !w->alive || w->node != n)
            continue;
        TRACE("worker %llu is told to stop: %s", LL(w->id), m->reason);
        if (m->grace_ms == 0)
            at(S->now + between(0, 20), EV_DIE, -9, w->id);
        else if (w->hung)
            at(S->now + m->grace_ms, EV_DIE, -9, w->id);
        else
            at(S->now + between(0, m->grace_ms), EV_DIE, 0, w->id);
    }
}

static void on_down(const struct ev *e)
{
    struct agent *a = &S->agents[e->n];
    if (!a->alive || !a->connected || a->session != e->id)
        return;
    if (a->partitioned) {
        return; /* lost with the connection that will break */
    }
    coord_message *m = titan__internal__coordinator_message__unpack(NULL, e->len, e->bytes);
    assert_non_null(m);
    switch (m->kind_case) {
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_START:
        on_start(e->n, m->start);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_FORM:
        on_form(e->n, m->form);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_STOP:
        on_stop(e->n, m->stop);
        break;
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE:
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_PAUSE: {
        bool revoke = m->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_REVOKE;
        uint64_t job = revoke ? m->revoke->job_id : m->pause->job_id;
        uint64_t epoch = revoke ? m->revoke->epoch : m->pause->epoch;
        for (uint64_t i = 1; i < WORKERS; i++) {
            struct fworker *w = &S->fworkers[i];
            if (!w->alive || w->node != e->n || w->job != job || w->hung || epoch < w->epoch || !w->epoch)
                continue;
            if (w->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED)
                report_quiet(w, !revoke);
            else if (revoke && w->phase != TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE)
                at(S->now + between(0, 60), EV_QUIET, 0, w->id)->id2 = w->epoch;
            else
                w->pause = true;
        }
        break;
    }
    case TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_CHECKPOINT_COMMITTED:
        for (size_t i = 0; i < m->checkpoint_committed->n_expired_paths; i++)
            for (int d = 0; d < S->n_disk; d++)
                if (strcmp(S->disk[d], m->checkpoint_committed->expired_paths[i]) == 0)
                    S->disk[d][0] = '\0';
        break;
    default:
        break;
    }
    titan__internal__coordinator_message__free_unpacked(m, NULL);
}

static void on_up(const struct ev *e)
{
    struct agent *a = &S->agents[e->n];
    if (!S->core)
        return;
    struct batch b;
    batch_init(&b);
    if (!e->bytes) {
        core_session_closed(S->core, e->id, now_time(), &b);
        coord_out(&b, -1, -1);
        return;
    }
    if (a->session != e->id || !a->connected) {
        batch_free(&b);
        return;
    }
    agent_message *m = titan__internal__agent_message__unpack(NULL, e->len, e->bytes);
    assert_non_null(m);
    struct titan_error err = {0};
    titan_status status = core_agent(S->core, e->id, m, now_time(), &b, &err);
    titan__internal__agent_message__free_unpacked(m, NULL);
    if (status != TITAN_OK && a->connected) {
        TRACE("session %llu refused: %s", LL(e->id), err.msg);
        a->connected = false;
        at(S->now + between(10, 300), EV_CONNECT, e->n, 0);
    }
    coord_out(&b, -1, -1);
}

static void on_beat(int n, uint64_t session)
{
    struct agent *a = &S->agents[n];
    if (!a->alive || !a->connected || a->session != session)
        return;
    Titan__Internal__AgentBeat beat = TITAN__INTERNAL__AGENT_BEAT__INIT;
    MESSAGE(m, BEAT, beat, beat);
    if (!a->partitioned)
        send_up(n, &m, false);
    at(S->now + BEAT_MS * 3 / 4, EV_BEAT, n, session);
}

/* --- faults and clients ---------------------------------------------------------------------------------------------
 */

static struct fworker *any_worker(void)
{
    uint64_t start = rnd() % WORKERS;
    for (uint64_t i = 0; i < WORKERS; i++) {
        struct fworker *w = &S->fworkers[(start + i) % WORKERS];
        if (w->alive)
            return w;
    }
    return NULL;
}

/* A communicator breaks though all its members live: they leave the epoch by themselves, not all at the same step. */
static void break_epoch(uint64_t job, uint64_t epoch)
{
    TRACE("epoch %llu of job %llu breaks", LL(epoch), LL(job));
    for (uint64_t i = 1; i < WORKERS; i++) {
        struct fworker *w = &S->fworkers[i];
        if (!w->alive || w->hung || w->job != job || w->epoch != epoch ||
            (w->phase != TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING &&
             w->phase != TITAN__INTERNAL__WORKER_PHASE__WORKER_FORMING))
            continue;
        if (w->phase == TITAN__INTERNAL__WORKER_PHASE__WORKER_TRAINING && w->step < S->specs[job].spec.steps &&
            w->step == S->forms[job][epoch].step && chance(20))
            w->step++;
        at(S->now + between(0, 60), EV_QUIET, 0, w->id)->id2 = w->epoch;
    }
}

static void on_fault(void)
{
    if (S->now >= FAULTS_UNTIL) {
        S->faults = false;
        for (int n = 0; n < NODES; n++)
            S->agents[n].partitioned = false;
        return;
    }
    struct fworker *w = any_worker();
    int n = (int)(rnd() % NODES);
    switch (rnd() % 11) {
    case 10:
        if (w && w->epoch)
            break_epoch(w->job, w->epoch);
        break;
    case 0:
    case 1:
    case 2:
    case 3:
        if (w)
            worker_ends(w, chance(60) ? -9 : 1, "fault");
        break;
    case 4:
        if (w) {
            TRACE("worker %llu hangs", LL(w->id));
            w->hung = true;
        }
        break;
    case 5:
        agent_crash(n, false);
        break;
    case 6:
        agent_crash(n, true);
        break;
    case 7:
        coord_crash();
        break;
    case 8: /* the stream breaks: what is under way is lost */
        if (S->agents[n].connected) {
            TRACE("stream of node %d breaks", n);
            S->agents[n].connected = false;
            at(S->now, EV_UP, n, S->agents[n].session);
            at(S->now + between(10, 1000), EV_CONNECT, n, 0);
        }
        break;
    default:
        if (!S->agents[n].partitioned) {
            TRACE("node %d is cut off", n);
            S->agents[n].partitioned = true;
            at(S->now + between(100, 5000), EV_HEAL, n, 0);
        }
        break;
    }
    at(S->now + between(50, 2500), EV_FAULT, 0, 0);
}

static void on_heal(int n)
{
    struct agent *a = &S->agents[n];
    a->partitioned = false;
    if (a->connected) { /* gRPC notices that the old connection is dead */
        a->connected = false;
        if (S->core)
            at(S->now, EV_UP, n, a->session);
        at(S->now + 10, EV_CONNECT, n, 0);
    }
}

static void on_client(int job)
{
    if (!S->core) {
        at(S->now + 100, EV_CLIENT, job, 0);
        return;
    }
    struct batch b;
    batch_init(&b);
    if (!S->submitted[job]) {
        S->submitted[job] = true;
        coord_out(&b, job, -1);
        if (chance(15))
            at(S->now + between(1, 8000), EV_CLIENT, job, 0);
        return;
    }
    enum job_state state = JOB_NONE;
    struct titan_error err = {0};
    titan_status status = core_cancel(S->core, (uint64_t)job, "changed my mind", 500, now_time(), &b, &state, &err);
    TRACE("cancel of job %d: %s", job, titan_status_name(status));
    CHECK(status == TITAN_OK || status == TITAN_ECONFLICT || status == TITAN_ENOTFOUND, "cancel: %s", err.msg);
    coord_out(&b, -1, status == TITAN_OK ? job : -1);
}

static void make_specs(void)
{
    for (int id = 1; id <= JOBS; id++) {
        struct job *j = &S->specs[id];
        j->id = (uint64_t)id;
        j->name = j->user = j->reason = "";
        j->status.checkpoint = "";
        strcpy(j->spec.device, "auto");
        j->spec.steps = (uint64_t)between(1, 25);
        j->spec.min_workers = (uint32_t)between(1, 4);
        j->spec.max_workers = j->spec.min_workers + (uint32_t)between(0, 4);
        /* Half of them have a mesh: only whole multiples of it are legal. */
        uint32_t unit = chance(50) ? 1 : (uint32_t)between(2, 4);
        if (unit > 1) {
            j->spec.min_workers = unit;
            j->spec.max_workers = unit * (uint32_t)between(1, 8 / unit);
            snprintf(j->spec.mesh, sizeof(j->spec.mesh), "tp=%u", unit);
        }
        for (uint32_t w = j->spec.min_workers; w <= j->spec.max_workers; w += unit)
            if (w == j->spec.min_workers || w == j->spec.max_workers || chance(80))
                world_set_add(&j->spec.worlds, w);
        j->spec.max_restarts = (uint32_t)between(0, 25);
        j->spec.backoff_ms = (uint32_t)between(10, 300);
        j->spec.backoff_max_ms = j->spec.backoff_ms * 8;
        j->spec.keep_latest = (uint32_t)between(0, 2);
    }
}

static bool all_over(void)
{
    for (int id = 1; id <= JOBS; id++)
        if (!S->jobs[id].there || !sm_final(&job_sm, (int)S->jobs[id].job.state))
            return false;
    for (uint64_t i = 1; i < WORKERS; i++)
        if (S->fworkers[i].alive)
            return false;
    return !S->pending;
}

static void dispatch(const struct ev *e)
{
    struct fworker *w = &S->fworkers[e->id < WORKERS ? e->id : 0];
    switch (e->kind) {
    case EV_UP:
        on_up(e);
        break;
    case EV_DOWN:
        on_down(e);
        break;
    case EV_TICK:
        on_tick(e->id);
        break;
    case EV_COMMIT:
        on_commit(e->id);
        break;
    case EV_BEAT:
        on_beat(e->n, e->id);
        break;
    case EV_CONNECT:
        agent_connect(e->n);
        break;
    case EV_READY:
        on_ready(e->id);
        break;
    case EV_FORMED:
        on_formed(e->n, e->id);
        break;
    case EV_STEP:
        on_step(e->n, e->id);
        break;
    case EV_DIE:
        worker_ends(w, e->n, e->n ? "killed" : "");
        break;
    case EV_QUIET:
        if (w->alive && !w->hung && w->epoch == e->id2 && w->phase != TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE) {
            w->phase = TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED;
            report_quiet(w, false);
        }
        break;
    case EV_CKPT:
        on_ckpt(e->n, e->id, e->id2);
        break;
    case EV_FAULT:
        on_fault();
        break;
    case EV_AGENT_UP:
        on_agent_up(e->n);
        break;
    case EV_COORD_UP:
        if (!S->core)
            coord_start();
        break;
    case EV_CLIENT:
        on_client(e->n);
        break;
    case EV_LEASE:
        if (w->alive && w->lease_until && S->now >= w->lease_until)
            worker_ends(w, 0, "lease is over");
        break;
    case EV_HEAL:
        on_heal(e->n);
        break;
    }
}

static void check_end(void)
{
    for (int id = 1; id <= JOBS; id++) {
        const struct image_job *j = &S->jobs[id];
        const char *state = sm_name(&job_sm, (int)j->job.state);
        CHECK(!S->job_acked[id] || j->there, "I5: job %d was acknowledged and is gone", id);
        if (!S->submitted[id] || !j->there)
            continue;
        CHECK(sm_final(&job_sm, (int)j->job.state), "I9: job %d is still %s (%s), step %llu", id, state, j->reason,
              LL(j->job.status.step));
        CHECK(!S->cancel_acked[id] || j->job.state == JOB_CANCELLED, "I5: cancelled job %d is %s", id, state);
        CHECK(j->job.status.restarts == j->counted + j->failed_epochs,
              "I10: job %d: %u restarts, %u counted, %u failed", id, j->job.status.restarts, j->counted,
              j->failed_epochs);
        if (j->job.state == JOB_FAILED)
            CHECK(j->job.status.restarts > j->job.spec.max_restarts || j->permanent, "I10: job %d failed with %u of %u",
                  id, j->job.status.restarts, j->job.spec.max_restarts);
        else if (j->job.state == JOB_COMPLETED)
            CHECK(j->job.status.restarts <= j->job.spec.max_restarts, "I10: job %d went on with %u of %u", id,
                  j->job.status.restarts, j->job.spec.max_restarts);
    }
    for (uint64_t i = 1; i < WORKERS; i++)
        CHECK(!S->fworkers[i].alive, "I7: worker %llu of job %llu is left", LL(i), LL(S->fworkers[i].job));
}

static void clean_up(void)
{
    coord_crash();
    for (size_t i = 0; i < S->n_heap; i++)
        free(S->heap[i].bytes);
    for (int n = 0; n < NODES; n++)
        for (int i = 0; i < S->agents[n].n_kept; i++)
            free(S->agents[n].kept[i].bytes);
    db_close(S->db);
    free(S->heap);
    free(S);
}

static void run_schedule(uint64_t seed)
{
    S = calloc(1, sizeof(*S));
    assert_non_null(S);
    S->seed = S->rng = seed;
    S->trace = getenv("TRACE") != NULL;
    S->faults = true;
    S->next_session = S->next_worker = 1;
    S->pending_tail = &S->pending;
    struct titan_error err = {0};
    if (seed % 40 == 0) {
        assert_int_equal(db_open(":memory:", DB_WRITER, false, &S->db, &err), TITAN_OK);
        assert_int_equal(schema_migrate(&schema_store, S->db, &err), TITAN_OK);
    }
    make_specs();
    coord_start();
    for (int n = 0; n < NODES; n++) {
        S->node_names[n][0] = 'n';
        S->node_names[n][1] = (char)('0' + n);
        S->agents[n].alive = true;
        at(between(0, 300), EV_CONNECT, n, 0);
    }
    for (int id = 1; id <= JOBS; id++)
        at(between(0, 6000), EV_CLIENT, id, 0);
    at(between(100, 2000), EV_FAULT, 0, 0);
    while (S->n_heap && S->now < END_AT && !(S->now > FAULTS_UNTIL && !S->faults && all_over())) {
        struct ev e = pop();
        S->now = e.at;
        dispatch(&e);
        free(e.bytes);
    }
    check_end();
    totals.inputs += S->core_steps;
    for (int id = 1; id <= JOBS; id++) {
        totals.completed += S->jobs[id].job.state == JOB_COMPLETED;
        totals.failed += S->jobs[id].job.state == JOB_FAILED;
        totals.cancelled += S->jobs[id].job.state == JOB_CANCELLED;
    }
    clean_up();
}

static void test_schedules(void **state)
{
    (void)state;
    const char *seed = getenv("SEED"), *count = getenv("SCHEDULES");
    if (seed) {
        run_schedule(strtoull(seed, NULL, 10));
        return;
    }
    uint64_t n = count ? strtoull(count, NULL, 10) : 2000;
    for (uint64_t i = 1; i <= n; i++)
        run_schedule(i);
    printf("# %llu schedules, %llu inputs; jobs: %llu completed, %llu failed, %llu cancelled; epochs: %llu from init, "
           "%llu from checkpoint, %llu from memory, %llu from buddies, with %llu leavers; %llu recoveries, %llu "
           "resizes, %llu waits, %llu coordinator "
           "crashes\n",
           LL(n), LL(totals.inputs), LL(totals.completed), LL(totals.failed), LL(totals.cancelled),
           LL(totals.from_init), LL(totals.from_checkpoint), LL(totals.from_memory), LL(totals.from_buddy),
           LL(totals.leavers), LL(totals.recoveries), LL(totals.resizes), LL(totals.waits), LL(totals.crashes));
    assert_true(totals.completed > n && totals.failed > 0 && totals.cancelled > 0 && totals.from_memory > n / 4 &&
                totals.from_checkpoint > n / 4 && totals.recoveries > n / 4 && totals.waits > n / 4 &&
                totals.crashes > 2 * n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schedules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
