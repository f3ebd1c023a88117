#include "daemon/coordinator/core_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* What an agent has left to say about a worker that is no more comes right behind its hello. */
#define MISSING_MS 300

void *core_alloc(size_t bytes)
{
    void *p = calloc(1, bytes);
    titan_assert(p);
    return p;
}

char *core_strdup(const char *text)
{
    char *copy = strdup(text ? text : "");
    titan_assert(copy);
    return copy;
}

static void set_string(char **field, const char *text)
{
    free(*field);
    *field = core_strdup(text);
}

titan_status core_new(const struct core_options *options, struct core **ret, struct titan_error *err)
{
    struct core *c = calloc(1, sizeof(*c));
    if (!c)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    c->options = *options;
#define DEFAULT(field, value) c->options.field = c->options.field ? c->options.field : (value)
    DEFAULT(beat_ms, 200);
    DEFAULT(node_timeout_ms, 2000);
    DEFAULT(adopt_ms, 3 * c->options.node_timeout_ms);
    DEFAULT(start_ms, 120000);
    DEFAULT(quiesce_ms, 10000);
    DEFAULT(pause_ms, 60000);
    DEFAULT(form_ms, 180000);
    DEFAULT(stall_ms, 300000);
    DEFAULT(stop_ms, 5000);
    DEFAULT(starve_ms, 30000);
    DEFAULT(next_worker_id, 1);
#undef DEFAULT
    c->options.jobs_dir = NULL;
    c->jobs_dir = core_strdup(options->jobs_dir);
    c->next_worker_id = c->options.next_worker_id;
    *ret = c;
    return TITAN_OK;
}

static void free_job(struct jobrec *j)
{
    for (size_t i = 0; i < j->n_workers; i++) {
        free(j->workers[i]->address);
        free(j->workers[i]);
    }
    for (size_t i = 0; i < j->n_ckpts; i++)
        free(j->ckpts[i].path);
    free(j->workers);
    free(j->ckpts);
    free(j->seats);
    free(j->holders);
    free(j->epoch_checkpoint);
    free(j);
}

void core_free(struct core *c)
{
    if (!c)
        return;
    for (size_t b = 0; b < CORE_BUCKETS; b++) {
        for (struct jobrec *j = c->buckets[b], *next; j; j = next) {
            next = j->hash_next;
            free_job(j);
        }
    }
    for (struct noderec *n = c->nodes, *next; n; n = next) {
        next = n->next;
        free(n->name);
        free(n->device);
        free(n->address);
        free(n->version);
        free(n);
    }
    free(c->jobs_dir);
    free(c);
}

/* --- records --------------------------------------------------------------------------------------------------- */

struct noderec *core_find_node(const struct core *c, const char *name)
{
    struct noderec *n = c->nodes;
    while (n && strcmp(n->name, name) != 0)
        n = n->next;
    return n;
}

static struct noderec *find_session(const struct core *c, uint64_t session)
{
    struct noderec *n = c->nodes;
    while (n && n->session != session)
        n = n->next;
    return n;
}

static struct noderec *add_node(struct core *c, const char *name)
{
    struct noderec *n = core_alloc(sizeof(*n)), **at = &c->nodes;
    n->name = core_strdup(name);
    n->device = core_strdup("");
    n->address = core_strdup("");
    n->version = core_strdup("");
    while (*at)
        at = &(*at)->next;
    *at = n;
    return n;
}

struct jobrec *core_find_job(const struct core *c, uint64_t id)
{
    struct jobrec *j = c->buckets[id % CORE_BUCKETS];
    while (j && j->id != id)
        j = j->hash_next;
    return j;
}

void core_list_remove(struct jobrec **first, struct jobrec **last, struct jobrec *j)
{
    *(j->prev ? &j->prev->next : first) = j->next;
    *(j->next ? &j->next->prev : last) = j->prev;
    j->prev = j->next = NULL;
}

void core_list_append(struct jobrec **first, struct jobrec **last, struct jobrec *j)
{
    j->prev = *last;
    j->next = NULL;
    *(*last ? &(*last)->next : first) = j;
    *last = j;
}

static struct jobrec *add_job(struct core *c, const struct job *job)
{
    struct jobrec *j = core_alloc(sizeof(*j));
    j->id = job->id;
    j->state = job->state;
    j->spec = job->spec;
    j->status = job->status;
    j->status.checkpoint = NULL;
    j->epoch_deadline = j->starve_at = INT64_MAX;
    j->hash_next = c->buckets[j->id % CORE_BUCKETS];
    c->buckets[j->id % CORE_BUCKETS] = j;
    if (j->state == JOB_PENDING) {
        core_list_append(&c->queue, &c->queue_last, j);
        c->pending++;
    } else {
        core_list_append(&c->active, &c->active_last, j);
    }
    return j;
}

void core_forget(struct core *c, struct jobrec *j)
{
    core_list_remove(&c->active, &c->active_last, j);
    struct jobrec **at = &c->buckets[j->id % CORE_BUCKETS];
    while (*at != j)
        at = &(*at)->hash_next;
    *at = j->hash_next;
    free_job(j);
}

/* --- restore --------------------------------------------------------------------------------------------------- */

void core_restore_node(struct core *c, const struct node *saved, struct core_time now)
{
    struct noderec *n = add_node(c, saved->name);
    n->state = saved->state;
    n->slots = saved->slots;
    set_string(&n->device, saved->device);
    set_string(&n->address, saved->address);
    set_string(&n->version, saved->version);
    n->memory_bytes = saved->memory_bytes;
    n->incarnation = saved->incarnation;
    n->seen_wall = saved->last_seen_ms;
    /* It has this long to come back before its workers count as lost. */
    n->seen_mono = now.mono_ms + c->options.adopt_ms - c->options.node_timeout_ms;
}

static void restore_worker(struct core *c, struct jobrec *j, const struct worker *saved)
{
    struct workrec *w = core_alloc(sizeof(*w));
    w->id = saved->id;
    w->job = j;
    w->node = core_find_node(c, saved->node);
    if (!w->node) {
        w->node = add_node(c, saved->node);
        w->node->state = NODE_READY;
        w->node->seen_mono = c->now.mono_ms + c->options.adopt_ms - c->options.node_timeout_ms;
    }
    w->node->used++;
    w->state = saved->state;
    w->address = core_strdup(saved->address);
    w->pid = saved->pid;
    w->started = saved->pid != 0 || saved->state == WORKER_READY;
    w->deadline = c->now.mono_ms + c->options.adopt_ms +
                  (saved->state == WORKER_STARTING ? c->options.start_ms : c->options.stop_ms);
    job_add_worker(j, w);
}

static void restore_epoch(struct core *c, struct jobrec *j, const struct core_saved_job *saved)
{
    const struct epoch *e = saved->epoch;
    j->epoch_state = e->state;
    j->status.epoch = e->number;
    j->source = e->source;
    j->source_epoch = e->source_epoch;
    j->resume_step = e->resume_step;
    j->epoch_checkpoint = core_strdup(e->checkpoint);
    memcpy(j->comm_id, e->comm_id, sizeof(j->comm_id));
    j->n_seats = e->world_size;
    j->seats = core_alloc((j->n_seats + 1) * sizeof(*j->seats));
    for (uint32_t i = 0; i < j->n_seats; i++)
        j->seats[i] = (struct seat){.worker_id = e->workers[i], .worker = job_worker(j, e->workers[i])};
    j->holders = core_alloc((saved->n_holders + 1) * sizeof(*j->holders));
    j->n_holders = saved->n_holders;
    if (saved->n_holders)
        memcpy(j->holders, saved->holders, saved->n_holders * sizeof(*j->holders));
    j->proven = e->state == EPOCH_RUNNING;
    j->finishing = e->state == EPOCH_ENDED && j->state != JOB_CANCELLING;
    if (e->state == EPOCH_FORMING)
        j->epoch_deadline = c->now.mono_ms + c->options.adopt_ms + c->options.form_ms;
    else if (e->state == EPOCH_REVOKED)
        j->epoch_deadline = c->now.mono_ms + c->options.adopt_ms + c->options.quiesce_ms;
    else if (j->state == JOB_RESIZING)
        j->epoch_deadline = c->now.mono_ms + c->options.adopt_ms + c->options.pause_ms;
    else if (e->state == EPOCH_RUNNING)
        job_moves_on(c, j);
}

void core_restore_job(struct core *c, const struct core_saved_job *saved, struct core_time now)
{
    c->now = now;
    struct jobrec *j = add_job(c, &saved->job);
    j->run = saved->run;
    j->run_active = saved->run_active;
    j->target = j->spec.min_workers;
    for (size_t i = 0; i < saved->n_workers; i++)
        restore_worker(c, j, &saved->workers[i]);
    if (saved->n_workers)
        strncpy(j->device, j->workers[0]->node->device, sizeof(j->device) - 1);
    if (saved->epoch)
        restore_epoch(c, j, saved);
    j->target = MAX(j->target, MAX(j->n_seats, (uint32_t)saved->n_workers));
    j->ckpts = core_alloc((saved->n_checkpoints + 1) * sizeof(*j->ckpts));
    j->n_ckpts = j->cap_ckpts = saved->n_checkpoints;
    for (size_t i = 0; i < saved->n_checkpoints; i++)
        j->ckpts[i] = (struct ckptrec){.step = saved->checkpoints[i].step,
                                       .epoch = saved->checkpoints[i].epoch,
                                       .path = core_strdup(saved->checkpoints[i].path)};
    if (j->state == JOB_RECOVERING)
        j->lost_mono = now.mono_ms;
    j->lost_step = j->status.step;
    c->slots_changed = true;
}

/* --- inputs ---------------------------------------------------------------------------------------------------- */

static void begin(struct core *c, struct core_time now, struct batch *out)
{
    /* When the process itself stood still (stopped, starved), silence says nothing about the nodes. */
    int64_t stall = c->last_input ? now.mono_ms - c->last_input - 2 * (int64_t)c->options.beat_ms : 0;
    for (struct noderec *n = c->nodes; n && stall > 0; n = n->next)
        n->seen_mono += stall;
    c->last_input = now.mono_ms;
    c->now = now;
    c->out = out;
}

static void finish(struct core *c)
{
    place_settle(c);
    c->out = NULL;
}

void core_submitted(struct core *c, const struct job *job, struct core_time now, struct batch *out)
{
    begin(c, now, out);
    add_job(c, job);
    c->slots_changed = true;
    finish(c);
}

titan_status core_cancel(struct core *c, uint64_t job_id, const char *reason, uint32_t grace_ms, struct core_time now,
                         struct batch *out, enum job_state *ret_state, struct titan_error *err)
{
    struct jobrec *j = core_find_job(c, job_id);
    if (!j)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)job_id);
    *ret_state = j->state;
    if (job_final(j))
        return titan_fail(err, TITAN_ECONFLICT, "job %llu has already ended: %s", (unsigned long long)job_id,
                          sm_name(&job_sm, (int)j->state));
    begin(c, now, out);
    job_cancel(c, j, reason, grace_ms);
    *ret_state = j->state;
    if (j->state == JOB_CANCELLING && j->n_workers == 0)
        *ret_state = JOB_CANCELLED;
    job_advance(c, j);
    finish(c);
    return TITAN_OK;
}

void core_session_closed(struct core *c, uint64_t session, struct core_time now, struct batch *out)
{
    begin(c, now, out);
    struct noderec *n = find_session(c, session);
    if (n)
        n->session = 0; /* silence from now on; the node timeout decides */
    finish(c);
}

static void lose_node(struct core *c, struct noderec *n)
{
    if (n->session)
        batch_drop(c->out, n->session);
    n->session = 0;
    say_node(c, n, NODE_LOST, "is lost: no sign of life");
    const char *why = batch_printf(c->out, "node %s is lost", n->name);
    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        bool hit = false;
        for (size_t i = j->n_workers; i-- > 0;) {
            if (j->workers[i]->node != n)
                continue;
            job_worker_ended(c, j->workers[i], NULL, why);
            hit = true;
        }
        if (hit)
            job_advance(c, j);
    }
    c->slots_changed = true;
}

void core_tick(struct core *c, struct core_time now, struct batch *out)
{
    begin(c, now, out);
    for (struct noderec *n = c->nodes; n; n = n->next)
        if (n->state == NODE_READY && now.mono_ms - n->seen_mono >= c->options.node_timeout_ms)
            lose_node(c, n);
    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        job_tick(c, j);
    }
    finish(c);
}

int64_t core_deadline(const struct core *c)
{
    int64_t at = INT64_MAX;
    for (const struct noderec *n = c->nodes; n; n = n->next)
        if (n->state == NODE_READY)
            at = MIN(at, n->seen_mono + c->options.node_timeout_ms);
    for (const struct jobrec *j = c->active; j; j = j->next)
        at = MIN(at, job_deadline(j, c->now.mono_ms));
    return at;
}

/* --- agents ---------------------------------------------------------------------------------------------------- */

static bool name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= 253 && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static titan_status check_hello(const Titan__Internal__AgentHello *m, struct titan_error *err)
{
    if (!name_ok(m->node))
        return titan_fail(err, TITAN_EINVAL, "hello: a node's name has letters, digits, '.', '_', '-', at most 253");
    if (m->slots < 1 || m->slots > 4096)
        return titan_fail(err, TITAN_EINVAL, "hello of node %s: %u slots; 1 to 4096 are possible", m->node, m->slots);
    if (strcmp(m->device, "cpu") != 0 && strcmp(m->device, "cuda") != 0)
        return titan_fail(err, TITAN_EINVAL, "hello of node %s: unknown device '%.32s'", m->node, m->device);
    return TITAN_OK;
}

static void worker_ready(struct core *c, struct workrec *w, const char *address)
{
    w->started = true;
    if (w->state != WORKER_STARTING)
        return;
    set_string(&w->address, address);
    say_worker_move(c, w, WORKER_READY, NULL, false, NULL);
}

/* A member is out of its epoch, with the state of `step`. */
static void worker_quiesced(struct jobrec *j, struct workrec *w, uint64_t step)
{
    struct seat *seat = job_seat(j, w);
    w->last_step = step;
    if (!seat || w->state != WORKER_READY)
        return;
    w->quiesced = true;
    bool asked = j->epoch_state == EPOCH_REVOKED || (j->state == JOB_RESIZING && j->epoch_state == EPOCH_RUNNING);
    if (!asked && (j->epoch_state == EPOCH_FORMING || j->epoch_state == EPOCH_RUNNING) && !seat->finished)
        j->broken = true;
}

static void worker_finished(struct core *c, struct jobrec *j, struct workrec *w, uint64_t epoch, uint64_t step)
{
    struct seat *seat = job_seat(j, w);
    bool live = j->epoch_state == EPOCH_FORMING || j->epoch_state == EPOCH_RUNNING;
    if (!seat || epoch != j->status.epoch || !live || j->state == JOB_CANCELLING || job_final(j))
        return;
    j->status.step = MAX(j->status.step, step);
    seat->finished = true;
    job_formed(c, j);
}

/* A worker listed in a hello, seen alive. */
static void adopt(struct core *c, struct workrec *w, const Titan__Internal__LiveWorker *live)
{
    struct jobrec *j = w->job;
    w->missing = 0;
    w->started = true;
    w->epoch = live->epoch;
    if (live->address[0] && (w->state == WORKER_STARTING))
        worker_ready(c, w, live->address);
    if (live->epoch == j->status.epoch && job_seat(j, w)) {
        j->status.step = MAX(j->status.step, live->step);
        if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED)
            worker_quiesced(j, w, live->step);
        else if (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_DONE)
            worker_finished(c, j, w, live->epoch, live->step);
        else
            w->quiesced = false;
    } else if (j->epoch_state == EPOCH_REVOKED && (live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_QUIESCED ||
                                                   live->state == TITAN__INTERNAL__WORKER_PHASE__WORKER_IDLE)) {
        w->quiesced = true; /* it never heard of the epoch that is over already */
        w->last_step = live->step;
    }
}

static titan_status agent_hello(struct core *c, uint64_t session, const Titan__Internal__AgentHello *m,
                                struct titan_error *err)
{
    TRY(check_hello(m, err));
    struct noderec *n = core_find_node(c, m->node);
    if (!n)
        n = add_node(c, m->node);
    if (n->session && n->session != session)
        batch_drop(c->out, n->session);
    bool back = n->state == NODE_READY;
    n->session = session;
    n->slots = m->slots;
    set_string(&n->device, m->device);
    set_string(&n->address, m->address);
    set_string(&n->version, m->version);
    n->memory_bytes = m->memory_bytes;
    n->incarnation = m->incarnation;
    n->seen_mono = c->now.mono_ms;
    n->seen_wall = c->now.wall_ms;
    say_node(c, n, NODE_READY, back ? "is back" : "is ready");
    tell_welcome(c, n);
    for (struct jobrec *j = c->active; j; j = j->next)
        for (size_t i = 0; i < j->n_workers; i++)
            if (j->workers[i]->node == n)
                j->workers[i]->missing = c->now.mono_ms + MISSING_MS;
    for (size_t i = 0; i < m->n_workers; i++) {
        const Titan__Internal__LiveWorker *live = m->workers[i];
        struct jobrec *j = core_find_job(c, live->job_id);
        struct workrec *w = j ? job_worker(j, live->worker_id) : NULL;
        if (w && w->node == n)
            adopt(c, w, live);
        else
            tell_stop(c, session, live->job_id, live->worker_id, 0, "the coordinator has no use for it");
    }
    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        bool here = false;
        for (size_t i = 0; i < j->n_workers; i++)
            here |= j->workers[i]->node == n;
        if (here) {
            job_resend(c, j, n);
            job_advance(c, j);
        }
    }
    c->slots_changed = true;
    return TITAN_OK;
}

static void worker_progress(struct core *c, struct jobrec *j, struct workrec *w,
                            const Titan__Internal__WorkerProgress *p)
{
    struct seat *seat = job_seat(j, w);
    bool live = j->epoch_state == EPOCH_FORMING || j->epoch_state == EPOCH_RUNNING;
    if (!seat || p->epoch != j->status.epoch || !live || j->state == JOB_CANCELLING || job_final(j))
        return;
    j->step_ms = p->step_ms > 0 && p->step_ms < 1e7 ? p->step_ms : j->step_ms;
    w->last_step = p->step;
    job_formed(c, j);
    if (p->step > j->status.step) {
        j->status.step = p->step;
        j->unsaved = true;
        job_moves_on(c, j);
    }
    if (seat != j->seats)
        return;
    j->status.loss = p->loss;
    j->status.tokens_per_second = p->tokens_per_second;
    j->status.mfu = p->mfu;
    *batch_metric(c->out) = (struct metric){
        .job_id = j->id,
        .step = p->step,
        .at_ms = p->at_ms ? p->at_ms : c->now.wall_ms,
        .loss = p->loss,
        .grad_norm = p->grad_norm,
        .learning_rate = p->learning_rate,
        .tokens_per_second = p->tokens_per_second,
        .mfu = p->mfu,
        .step_ms = p->step_ms,
        .tokens = p->tokens,
        .epoch = p->epoch,
        .world_size = p->world_size,
        .memory_bytes = p->memory_bytes,
        .skipped_steps = p->skipped_steps,
    };
}

struct subject {
    uint64_t job_id, worker_id;
};

/* Whom a report is about. */
static bool subject_of(const Titan__Internal__AgentMessage *m, struct subject *ret)
{
#define ABOUT(CASE, member)                                                                                            \
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_##CASE:                                                                  \
        *ret = (struct subject){m->member->job_id, m->member->worker_id};                                              \
        return true;
    switch (m->kind_case) {
        ABOUT(WORKER_STARTED, worker_started)
        ABOUT(WORKER_READY, worker_ready)
        ABOUT(WORKER_QUIESCED, worker_quiesced)
        ABOUT(PROGRESS, progress)
        ABOUT(WORKER_EXITED, worker_exited)
        ABOUT(CHECKPOINT, checkpoint)
        ABOUT(FINISHED, finished)
    default:
        return false;
    }
#undef ABOUT
}

static void worker_report(struct core *c, struct jobrec *j, struct workrec *w, const Titan__Internal__AgentMessage *m)
{
    switch (m->kind_case) {
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_STARTED:
        if (!w->pid)
            say_worker_pid(c, w, m->worker_started->pid);
        w->started = true;
        w->pid = m->worker_started->pid;
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_READY:
        worker_ready(c, w, m->worker_ready->address);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_QUIESCED:
        if (m->worker_quiesced->epoch == w->epoch || m->worker_quiesced->epoch == j->status.epoch)
            worker_quiesced(j, w, m->worker_quiesced->last_step);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS:
        worker_progress(c, j, w, m->progress);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_EXITED: {
        const Titan__Internal__WorkerExited *x = m->worker_exited;
        job_worker_ended(
            c, w, &(struct exit_report){.exit_code = x->exit_code, .signal = x->signal, .reason = x->reason}, NULL);
        break;
    }
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKPOINT:
        if (job_seat(j, w) && m->checkpoint->epoch == j->status.epoch && !job_final(j) && m->checkpoint->path[0])
            job_checkpoint(c, j, m->checkpoint);
        break;
    case TITAN__INTERNAL__AGENT_MESSAGE__KIND_FINISHED:
        worker_finished(c, j, w, m->finished->epoch, m->finished->step);
        break;
    default:
        break;
    }
}

titan_status core_agent(struct core *c, uint64_t session, const Titan__Internal__AgentMessage *m, struct core_time now,
                        struct batch *out, struct titan_error *err)
{
    begin(c, now, out);
    titan_status status = TITAN_OK;
    struct noderec *n = find_session(c, session);
    struct subject about;
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_HELLO) {
        status = agent_hello(c, session, m->hello, err);
    } else if (!n) {
        status = titan_fail(err, TITAN_ECONFLICT, "the session has said no hello, or its node was given up");
    } else {
        n->seen_mono = now.mono_ms;
        n->seen_wall = now.wall_ms;
        if (subject_of(m, &about)) {
            struct jobrec *j = core_find_job(c, about.job_id);
            struct workrec *w = j ? job_worker(j, about.worker_id) : NULL;
            if (w && w->node == n) {
                worker_report(c, j, w, m);
                job_advance(c, j);
            } else if (m->kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_EXITED) {
                tell_stop(c, session, about.job_id, about.worker_id, 0, "the coordinator has no use for it");
            }
        }
    }
    finish(c);
    return status;
}

/* --- questions ------------------------------------------------------------------------------------------------- */

size_t core_pending(const struct core *c)
{
    return c->pending;
}

bool core_job_status(const struct core *c, uint64_t job_id, struct job_status *ret)
{
    const struct jobrec *j = core_find_job(c, job_id);
    if (!j || j->state == JOB_PENDING || job_final(j))
        return false;
    *ret = j->status;
    return true;
}

uint64_t core_node_session(const struct core *c, const char *node)
{
    const struct noderec *n = core_find_node(c, node);
    return n ? n->session : 0;
}

void core_nodes(const struct core *c, void (*each)(const struct core_node *n, void *data), void *data)
{
    for (const struct noderec *n = c->nodes; n; n = n->next)
        each(&(struct core_node){.name = n->name,
                                 .device = n->device,
                                 .address = n->address,
                                 .version = n->version,
                                 .connected = n->session != 0,
                                 .state = n->state,
                                 .slots = n->slots,
                                 .slots_used = n->used,
                                 .memory_bytes = n->memory_bytes,
                                 .last_seen_ms = n->seen_wall},
             data);
}
