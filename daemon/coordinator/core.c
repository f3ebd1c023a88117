#include "daemon/coordinator/core_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mutant.h"

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

void core_set_string(char **field, const char *text)
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
    DEFAULT(beat_ms, 50);
    DEFAULT(suspect_ms, 5 * c->options.beat_ms);
    DEFAULT(confirm_ms, 3 * c->options.beat_ms);
    DEFAULT(node_timeout_ms, 20 * c->options.beat_ms);
    DEFAULT(reachable_ms, 100 * c->options.beat_ms);
    DEFAULT(away_ms, 2 * c->options.node_timeout_ms);
    DEFAULT(adopt_ms, MAX(3 * c->options.node_timeout_ms, 6000u));
    DEFAULT(start_ms, 120000);
    DEFAULT(quiesce_ms, 1200);
    DEFAULT(pause_ms, 60000);
    DEFAULT(form_ms, 180000);
    DEFAULT(stall_ms, 300000);
    DEFAULT(stop_ms, 5000);
    DEFAULT(starve_ms, 30000);
    DEFAULT(quarantine_crashes, 3);
    DEFAULT(next_worker_id, 1);
    DEFAULT(at_once, 64);
#undef DEFAULT
    c->asked = c->options;
    c->options.jobs_dir = c->options.jobs_token = NULL;
    c->options.secret = c->options.term_secret = NULL;
    if (options->term_secret)
        memcpy(c->term_secret, options->term_secret, sizeof(c->term_secret));
    c->secret_set = options->secret != NULL;
    if (c->secret_set)
        memcpy(c->secret, options->secret, sizeof(c->secret));
    c->jobs_dir = core_strdup(options->jobs_dir);
    c->jobs_token = core_strdup(options->jobs_token ? options->jobs_token : "");
    c->next_worker_id = c->options.next_worker_id;
    c->behind = c->options.restored_term && !c->options.settled;
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
    free(j->folder);
    job_checkpoint_well(j);
    quorum_free(j);
    free(j->stop_why);
    free(j->short_why);
    free(j->fault.words);
    free(j->lack_words);
    free(j->said);
    free(j->past);
    free(j);
}

void core_free(struct core *c)
{
    if (!c)
        return;
    mac_wipe(c->secret, sizeof(c->secret));
    mac_wipe(c->term_secret, sizeof(c->term_secret));
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
        free(n->unfit);
        free(n->identity);
        free((char *)(uintptr_t)n->policy.reason);
        free((char *)(uintptr_t)n->policy.quarantine_reason);
        free(n);
    }
    while (c->greetings)
        free(fence_take_identity(c, c->greetings->session));
    queue_free(c);
    free(c->jobs_dir);
    free(c->jobs_token);
    free(c->fenced_by);
    free(c->taken);
    free(c);
}

/* --- records --------------------------------------------------------------------------------------------------- */

static size_t name_bucket(const char *name)
{ /* FNV-1a */
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return (hash ^ hash >> 32) % CORE_BUCKETS;
}

struct noderec *core_find_node(const struct core *c, const char *name)
{
    struct noderec *n = c->names[name_bucket(name)];
    while (n && strcmp(n->name, name) != 0)
        n = n->hash_next;
    return n;
}

struct noderec *core_find_session(const struct core *c, uint64_t session)
{
    struct noderec *n = c->sessions[session % CORE_BUCKETS];
    while (n && n->session != session)
        n = n->session_next;
    return n;
}

void core_set_session(struct core *c, struct noderec *n, uint64_t session)
{
    if (n->session) {
        struct noderec **at = &c->sessions[n->session % CORE_BUCKETS];
        while (*at != n)
            at = &(*at)->session_next;
        *at = n->session_next;
    }
    c->connected += (session != 0) - (n->session != 0);
    n->session = session;
    if (session) {
        n->session_next = c->sessions[session % CORE_BUCKETS];
        c->sessions[session % CORE_BUCKETS] = n;
    }
}

struct noderec *core_add_node(struct core *c, const char *name)
{
    struct noderec *n = core_alloc(sizeof(*n)), **bucket = &c->names[name_bucket(name)];
    n->name = core_strdup(name);
    n->device = core_strdup("");
    n->address = core_strdup("");
    n->version = core_strdup("");
    n->identity = core_strdup("");
    n->policy.reason = core_strdup("");
    n->policy.quarantine_reason = core_strdup("");
    n->drain_at = INT64_MAX;
    *(c->last_node ? &c->last_node->next : &c->nodes) = n; /* in the order they came */
    c->last_node = n;
    n->hash_next = *bucket;
    *bucket = n;
    return n;
}

struct noderec *core_expect_node(struct core *c, const char *name)
{
    struct noderec *n = core_find_node(c, name);
    if (n)
        return n;
    n = core_add_node(c, name);
    n->state = NODE_READY;
    n->seen_mono = c->now.mono_ms + c->options.adopt_ms - 2 * (int64_t)c->options.node_timeout_ms;
    n->stream_mono = n->seen_mono;
    n->answered_mono = c->now.mono_ms; /* by the one before us */
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

struct jobrec *core_add_job(struct core *c, const struct job *job)
{
    struct jobrec *j = core_alloc(sizeof(*j));
    j->id = job->id;
    j->state = job->state;
    j->spec = job->spec;
    j->wish = job->wish;
    j->user = queue_user(c, job->user ? job->user : "");
    j->status = job->status;
    j->status.checkpoint = NULL;
    j->epoch_deadline = j->starve_at = j->quorum_at = INT64_MAX;
    j->hash_next = c->buckets[j->id % CORE_BUCKETS];
    c->buckets[j->id % CORE_BUCKETS] = j;
    if (j->state == JOB_PENDING) {
        move_phase(j, PHASE_QUEUED);
        queue_add(c, j);
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

/* --- inputs ---------------------------------------------------------------------------------------------------- */

void core_moves(struct core *c, struct core_time now)
{
    /* When the process itself stood still (stopped, starved), silence says nothing about the nodes. */
    int64_t stall = c->last_input ? now.mono_ms - c->last_input - 2 * (int64_t)c->options.beat_ms : 0;
    for (struct noderec *n = c->nodes; n && stall > 0; n = n->next) {
        n->seen_mono += stall;
        n->stream_mono += stall;
        n->probe.at += n->probe.at ? stall : 0;
    }
    /* What is moved makes up for a short one; after a long one beats lie in queues, and probes' answers with them. */
    if (stall >= (int64_t)c->options.suspect_ms)
        c->late_mono = now.mono_ms;
    if (!c->last_input)
        c->behind_since = now.mono_ms;
    c->last_input = now.mono_ms;
    c->now = now;
}

void core_begin(struct core *c, struct core_time now, struct batch *out)
{
    core_moves(c, now);
    c->out = out;
    c->form_told = NULL;
    c->due = (struct due){0};
    out->term = c->options.term;
}

void core_finish(struct core *c)
{
    if (c->connected <= c->options.at_once)
        place_settle(c);
    else
        c->unsettled |= c->slots_changed && !c->behind;
    c->out = NULL;
}

void core_submitted(struct core *c, const struct job *job, struct core_time now, struct batch *out)
{
    if (core_fenced(c))
        return; /* it is stored; whoever comes after us finds it there */
    core_begin(c, now, out);
    /* A job at the end of a queue that waits changes nothing. */
    c->slots_changed |= !queue_behind(c, core_add_job(c, job));
    core_finish(c);
}

titan_status core_cancel(struct core *c, uint64_t job_id, const char *reason, uint32_t grace_ms, struct core_time now,
                         struct batch *out, enum job_state *ret_state, struct titan_error *err)
{
    TRY(core_accepts(c, err));
    struct jobrec *j = core_find_job(c, job_id);
    if (!j)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)job_id);
    *ret_state = j->state;
    if (job_final(j) && !MUTANT(FINAL_LEFT))
        return titan_fail(err, TITAN_ECONFLICT, "job %llu has already ended: %s", (unsigned long long)job_id,
                          sm_name(&job_sm, (int)j->state));
    core_begin(c, now, out);
    job_cancel(c, j, reason, grace_ms);
    *ret_state = j->state;
    if (j->state == JOB_CANCELLING && j->n_workers == 0)
        *ret_state = JOB_CANCELLED;
    job_advance(c, j);
    core_finish(c);
    return TITAN_OK;
}

void core_tick(struct core *c, struct core_time now, struct batch *out)
{
    if (core_fenced(c))
        return;
    core_begin(c, now, out);
    detect_tick(c);
    policy_tick(c);
    behind_tick(c);
    for (struct jobrec *j = c->active, *next; j; j = next) {
        next = j->next;
        job_tick(c, j);
    }
    place_settle(c);
    c->unsettled = false;
    c->out = NULL;
}

int64_t core_deadline(struct core *c)
{
    if (core_fenced(c))
        return INT64_MAX;
    if (c->unsettled)
        return c->now.mono_ms;
    if (c->due.node <= c->now.mono_ms)
        c->due.node = detect_deadline(c);
    if (c->due.job <= c->now.mono_ms) {
        c->due.job = INT64_MAX;
        for (const struct jobrec *j = c->active; j; j = j->next)
            c->due.job = MIN(c->due.job, job_deadline(j, c->now.mono_ms));
    }
    return MIN(c->due.node, c->due.job);
}

static void answer_beat(struct core *c, struct noderec *n, const Titan__Internal__AgentBeat *beat)
{
    Titan__Internal__BeatAnswer *m = batch_alloc(c->out, sizeof(*m));
    titan__internal__beat_answer__init(m);
    m->number = beat->number;
    batch_answer(c->out, n->session, TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_BEAT_ANSWER, m);
    n->answered_mono = c->now.mono_ms;
}

/* In the midst of an epoch a step calls for nothing: every member tells of every step. */
static bool just_trains(const struct jobrec *j)
{
    return j->state == JOB_RUNNING && j->epoch_state == EPOCH_RUNNING && j->status.step + 1 < j->spec.steps;
}

/* What an agent says of a worker. Returns whether it makes no job's deadline an earlier one. */
static bool hear_report(struct core *c, struct noderec *n, const struct subject *about,
                        const Titan__Internal__AgentMessage *m)
{
    struct jobrec *j = core_find_job(c, about->job_id);
    struct workrec *w = j ? job_worker(j, about->worker_id) : NULL;
    bool exited = m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_WORKER_EXITED;
    if (w && w->node == n) {
        const bool trained = m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROGRESS && just_trains(j);
        const bool unsaved = j->unsaved;
        worker_report(c, j, w, m);
        if (trained && just_trains(j))
            return unsaved == j->unsaved;
        job_heard(c, j);
    } else if (exited) {
        c->counters.duplicate++; /* kept by its agent, and said on another session before */
        if (j && !w) {           /* or out of our books before it had ended */
            quorum_told(j, n, about->worker_id);
            job_heard(c, j);
        }
    } else {
        fence_stranger(c, n, about);
        if (!w) /* somebody else's worker is none of its business, nor to be stopped */
            tell_stop_stranger(c, n->session, about->job_id, about->worker_id);
    }
    return false;
}

/* The same. */
static bool hear(struct core *c, struct noderec *n, const Titan__Internal__AgentMessage *m)
{
    struct subject about;
    detect_heard(c, n);
    n->stream_mono = c->now.mono_ms;
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_BEAT) {
        answer_beat(c, n, m->beat);
        fence_told(c, n, m->beat);
        if (!n->unconfirmed)
            return true;
        n->unconfirmed = false;
        detect_has_key(n); /* its welcome has come */
        node_look_again(c, n);
        return false;
    }
    if (worker_subject(m, &about))
        return hear_report(c, n, &about, m);
    if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROBE_RESULT)
        detect_probe_result(c, m->probe_result);
    else if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_DELEGATED)
        delegate_report(c, n, m->delegated);
    else if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_REFUSED)
        delegate_refused(c, n, m->refused);
    else if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_CHECKED)
        node_checked(c, n, m->checked);
    else if (m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_LEAVES)
        policy_leaves(c, n, m->leaves);
    return false;
}

titan_status core_agent(struct core *c, uint64_t session, const Titan__Internal__AgentMessage *m, struct core_time now,
                        struct batch *out, struct titan_error *err)
{
    TRY(core_accepts(c, err));
    const struct due due = c->due;
    core_begin(c, now, out);
    struct noderec *n = core_find_session(c, session);
    bool drop = false;
    titan_status status = fence_range(c, n, m, err);
    if (status == TITAN_OK && n && m->kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND_HELLO)
        status = fence_message(c, n->name, m, &drop, err);
    if (status == TITAN_OK && m->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_HELLO) {
        status = node_hello(c, session, m, err);
    } else if (status == TITAN_OK && !n) {
        c->counters.unknown_node++;
        status = titan_fail(err, TITAN_ECONFLICT, "the session has said no hello, or its node was given up");
    } else if (status == TITAN_OK && c->options.delegate_lease_ms &&
               now.mono_ms - n->answered_mono >= c->options.away_ms) {
        /* What lay in its stream may be older than an epoch it has formed without us: a hello tells of that first. */
        status = titan_fail(err, TITAN_ECONFLICT, "node %s has had no answer for %lld ms: it says hello anew", n->name,
                            (long long)(now.mono_ms - n->answered_mono));
    } else if (status == TITAN_OK && !drop) {
        const bool suspected = n->probe.at != 0; /* it may be asked for later than it is suspected again */
        const bool calm = hear(c, n, m);
        if (m->kind_case != TITAN__INTERNAL__AGENT_MESSAGE__KIND_PROBE_RESULT && !suspected)
            c->due.node = due.node;
        if (calm && !c->slots_changed)
            c->due.job = due.job;
    }
    if (!core_fenced(c))
        core_finish(c);
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
                                 .state_text = node_state_text(n),
                                 .reason = node_reason_text(n),
                                 .policy = &n->policy,
                                 .quarantined = n->quarantine_end != 0,
                                 .slots = n->slots,
                                 .slots_used = n->used,
                                 .memory_bytes = n->memory_bytes,
                                 .last_seen_ms = n->seen_wall},
             data);
}
