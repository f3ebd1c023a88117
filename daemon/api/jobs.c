/* SPDX-License-Identifier: Apache-2.0 */
/* Questions about jobs, checkpoints and nodes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/cleanup.h"
#include "base/labels.h"
#include "base/vec.h"
#include "base/version.h"
#include "daemon/api/api.h"
#include "daemon/coordinator/shell/disk_usage.h"
#include "daemon/coordinator/shell/enrol.h"
#include "state/schema.h"

void api_reply_add(struct reply *r, void *item)
{
    titan_assert(item);
    VEC_MUST_PUSH(r->items, r->n, r->cap, item);
}

Titan__V1__Evaluation api_evaluation(const struct evaluation_report *e)
{
    Titan__V1__Evaluation m = TITAN__V1__EVALUATION__INIT;
    m.step = e->step;
    m.loss = e->loss;
    m.perplexity = evaluation_perplexity(e);
    m.bits_per_byte = evaluation_bits_per_byte(e);
    m.tokens = e->tokens;
    m.bytes = e->bytes;
    return m;
}

void api_reply_free(struct reply *r)
{
    arena_free(&r->memory);
    free(r->items);
}

static Titan__V1__Placement *placement_message(struct reply *r, const struct core_placement *p)
{
    Titan__V1__Placement *m = arena_alloc(&r->memory, sizeof(*m));
    titan__v1__placement__init(m);
    m->job_id = p->job_id;
    m->node = arena_strdup(&r->memory, p->node);
    m->workers = p->workers;
    return m;
}

struct placements {
    struct reply *reply;
    size_t n;
    Titan__V1__Placement **messages; /* NULL = only counted */
};

static void each_placement(const struct core_placement *p, void *data)
{
    struct placements *all = data;
    if (all->messages)
        all->messages[all->n] = placement_message(all->reply, p);
    all->n++;
}

/* Adds the stored row, plus the progress since it was stored. */
static void with_job(const struct job *job, void *data)
{
    struct reply *r = data;
    struct job_status s = job->status, live;
    if (core_job_status(r->c->core, job->id, &live) && live.epoch == s.epoch && !sm_final(&job_sm, (int)job->state)) {
        s.step = live.step;
        s.loss = live.loss;
        s.tokens_per_second = live.tokens_per_second;
        s.mfu = live.mfu;
    }
    Titan__V1__Job *m = arena_alloc(&r->memory, sizeof(*m));
    titan__v1__job__init(m);
    m->id = job->id;
    m->name = arena_strdup(&r->memory, job->name);
    m->state = (Titan__V1__JobState)job->state;
    char waits[512], disk[128];
    if (r->c->stalled && !sm_final(&job_sm, (int)job->state))
        m->reason = arena_printf(&r->memory, "the job store refuses writes: %s; trying again", r->c->stall.msg);
    else
        m->reason =
            arena_strdup(&r->memory, core_job_reason(r->c->core, job->id, waits, sizeof(waits)) ? waits : job->reason);
    if (!sm_final(&job_sm, (int)job->state) && disk_usage_over(r->c, job->user, disk, sizeof(disk)))
        m->reason = arena_printf(&r->memory,
                                 "%s%s%s has %s that one user may have below jobs_dir (limits.user_disk_mb): no "
                                 "more jobs are taken",
                                 m->reason, *m->reason ? "; " : "", job->user, disk);
    struct core_losses losses[CORE_LOSSES_MAX];
    m->n_losses = core_job_losses(r->c->core, job->id, losses);
    m->losses = arena_alloc(&r->memory, (m->n_losses + 1) * sizeof(*m->losses));
    for (size_t i = 0; i < m->n_losses; i++) {
        m->losses[i] = arena_alloc(&r->memory, sizeof(**m->losses));
        titan__v1__loss_count__init(m->losses[i]);
        m->losses[i]->cause = arena_strdup(&r->memory, losses[i].cause);
        m->losses[i]->count = losses[i].count;
        m->losses[i]->budget = losses[i].budget;
        m->losses[i]->window_s = losses[i].window_s;
    }
    char *labels = arena_strdup(&r->memory, job->labels);
    m->labels = arena_alloc(&r->memory, LABELS_MAX * sizeof(*m->labels));
    for (char *one; m->n_labels < LABELS_MAX && (one = strsep(&labels, "\n")) && *one;)
        m->labels[m->n_labels++] = one;
    struct placements all = {.reply = r};
    core_placements(r->c->core, job->id, each_placement, &all);
    all.messages = arena_alloc(&r->memory, (all.n + 1) * sizeof(*all.messages));
    all.n = 0;
    core_placements(r->c->core, job->id, each_placement, &all);
    m->nodes = all.messages;
    m->n_nodes = all.n;
    m->step = s.step;
    m->steps = job->spec.steps;
    m->loss = s.loss;
    m->tokens_per_second = s.tokens_per_second;
    m->mfu = s.mfu;
    m->world_size = s.world_size;
    m->epoch = s.epoch;
    m->restarts = s.restarts;
    m->checkpoint_failures = s.checkpoint_failures;
    if (s.evaluation.step) {
        m->validation = arena_alloc(&r->memory, sizeof(*m->validation));
        *m->validation = api_evaluation(&s.evaluation);
    }
    m->submitted_at_ms = job->submitted_at_ms;
    m->started_at_ms = s.started_at_ms;
    m->finished_at_ms = s.finished_at_ms;
    m->checkpoint = arena_strdup(&r->memory, s.checkpoint);
    m->user = arena_strdup(&r->memory, job->user);
    m->uid = job->uid;
    m->min_workers = job->spec.min_workers;
    m->max_workers = job->spec.max_workers;
    m->wanted_min = job->desired.min;
    m->wanted_max = job->desired.max;
    m->priority = job->spec.priority;
    m->preemptions = s.preemptions;
    m->directory = arena_printf(&r->memory, "%s/%llu", r->c->jobs_dir, (unsigned long long)job->id);
    api_reply_add(r, m);
}

void api_get_job(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    const Titan__V1__GetJobRequest *request = (const Titan__V1__GetJobRequest *)base;
    _cleanup_(api_reply_free) struct reply r = {.c = data};
    struct titan_error err = {0};
    struct auth_user u;
    api_user(r.c, call, &u);
    if (api_may(r.c, &u, POLICY_GET_JOB, request->job_id, &err) != TITAN_OK ||
        job_cache_get(r.c->jobs, store_reader(r.c->store), request->job_id, with_job, &r, &err) != TITAN_OK) {
        rpc_call_fail(call, &err);
        return;
    }
    Titan__V1__GetJobResponse reply = TITAN__V1__GET_JOB_RESPONSE__INIT;
    titan_assert(r.n == 1);
    reply.job = r.items[0];
    rpc_call_reply(call, &reply.base);
}

void api_get_recipe(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    const Titan__V1__GetRecipeRequest *request = (const Titan__V1__GetRecipeRequest *)base;
    struct coordinator *c = data;
    struct titan_error err = {0};
    struct auth_user u;
    _cleanup_free_ char *recipe = NULL;
    api_user(c, call, &u);
    if (api_may(c, &u, POLICY_GET_RECIPE, request->job_id, &err) != TITAN_OK ||
        job_recipe(store_reader(c->store), request->job_id, &recipe, &err) != TITAN_OK) {
        rpc_call_fail(call, &err);
        return;
    }
    Titan__V1__GetRecipeResponse reply = TITAN__V1__GET_RECIPE_RESPONSE__INIT;
    reply.recipe = recipe;
    rpc_call_reply(call, &reply.base);
}

static bool each_job(const struct job *job, void *data)
{
    with_job(job, data);
    return true;
}

/* ret_total: 0 unless requested. */
static titan_status list_jobs(struct reply *r, const struct auth_user *u, const Titan__V1__ListJobsRequest *request,
                              uint32_t *ret_limit, uint32_t *ret_total, struct titan_error *err)
{
    const char *token = request->page_token;
    char *end = NULL;
    errno = 0;
    const uint64_t before = *token ? strtoull(token, &end, 10) : 0;
    if (*token && (errno || *end || token[0] < '0' || token[0] > '9' || before == 0))
        return titan_fail(err, TITAN_EINVAL, "page_token '%.32s' is not one we gave", token);
    uint32_t states = 0;
    for (size_t i = 0; i < request->n_states; i++) {
        const int state = (int)request->states[i];
        if (state < JOB_PENDING || state > JOB_CANCELLED)
            return titan_fail(err, TITAN_EINVAL, "there is no job state %d", state);
        states |= SM_BIT(state);
    }
    *ret_limit = request->page_size ? request->page_size : API_PAGE_DEFAULT;
    const struct job_owner owner = {u->uid, *u->name ? u->name : "anonymous"};
    const struct job_filter filter = {.before = before,
                                      .states = states,
                                      .user = request->user,
                                      .name = request->name,
                                      .labels = request->labels,
                                      .n_labels = request->n_labels,
                                      .owner = api_sees_all(r->c, u, POLICY_LIST_JOBS) ? NULL : &owner};
    *ret_total = 0;
    if (request->count)
        TRY(job_count(store_reader(r->c->store), &filter, API_COUNT_MAX + 1, ret_total, err));
    return job_list(store_reader(r->c->store), &filter, (int)*ret_limit, each_job, r, err);
}

void api_list_jobs(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    _cleanup_(api_reply_free) struct reply r = {.c = data};
    struct titan_error err = {0};
    uint32_t limit = 0, total = 0;
    char token[24] = "";
    struct auth_user u;
    api_user(r.c, call, &u);
    if (list_jobs(&r, &u, (const Titan__V1__ListJobsRequest *)base, &limit, &total, &err) != TITAN_OK) {
        rpc_call_fail(call, &err);
        return;
    }
    Titan__V1__ListJobsResponse reply = TITAN__V1__LIST_JOBS_RESPONSE__INIT;
    reply.n_jobs = r.n;
    reply.jobs = (Titan__V1__Job **)r.items;
    if (r.n == limit)
        (void)snprintf(token, sizeof(token), "%llu", (unsigned long long)reply.jobs[r.n - 1]->id);
    reply.next_page_token = token;
    reply.total = total;
    rpc_call_reply(call, &reply.base);
}

static void with_state(const struct job *job, void *data)
{
    *(enum job_state *)data = job->state;
}

titan_status api_job_state(struct coordinator *c, uint64_t job_id, enum job_state *ret, struct titan_error *err)
{
    return job_get(store_reader(c->store), job_id, with_state, ret, err);
}

titan_status api_job_ended(struct coordinator *c, uint64_t job_id, bool *ret, struct titan_error *err)
{
    enum job_state state = JOB_NONE;
    TRY(api_job_state(c, job_id, &state, err));
    *ret = sm_final(&job_sm, (int)state);
    return TITAN_OK;
}

/* --- checkpoints, nodes, version ---------------------------------------------------------------------------------- */

static bool each_checkpoint(const struct checkpoint *k, void *data)
{
    struct reply *r = data;
    Titan__V1__Checkpoint *m = arena_alloc(&r->memory, sizeof(*m));
    titan__v1__checkpoint__init(m);
    m->step = k->step;
    m->epoch = k->epoch;
    m->path = arena_strdup(&r->memory, k->path);
    m->bytes = k->bytes;
    m->committed_at_ms = k->committed_at_ms;
    m->world_size = k->world_size;
    api_reply_add(r, m);
    return true;
}

void api_list_checkpoints(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    const Titan__V1__ListCheckpointsRequest *request = (const Titan__V1__ListCheckpointsRequest *)base;
    _cleanup_(api_reply_free) struct reply r = {.c = data};
    struct titan_error err = {0};
    bool ended = false;
    struct auth_user u;
    api_user(r.c, call, &u);
    titan_status status = api_may(r.c, &u, POLICY_LIST_CHECKPOINTS, request->job_id, &err);
    if (status == TITAN_OK)
        status = api_job_ended(r.c, request->job_id, &ended, &err);
    if (status == TITAN_OK)
        status = checkpoint_list(store_reader(r.c->store), request->job_id, each_checkpoint, &r, &err);
    if (status != TITAN_OK) {
        rpc_call_fail(call, &err);
        return;
    }
    Titan__V1__ListCheckpointsResponse reply = TITAN__V1__LIST_CHECKPOINTS_RESPONSE__INIT;
    reply.n_checkpoints = r.n;
    reply.checkpoints = (Titan__V1__Checkpoint **)r.items;
    rpc_call_reply(call, &reply.base);
}

Titan__V1__Node *api_node_message(struct arena *memory, const struct core_node *n)
{
    Titan__V1__Node *m = arena_alloc(memory, sizeof(*m));
    titan__v1__node__init(m);
    m->name = arena_strdup(memory, n->name);
    m->state = arena_strdup(memory, n->state_text);
    m->reason = arena_strdup(memory, n->reason);
    m->slots = n->slots;
    m->slots_used = n->slots_used;
    m->device = arena_strdup(memory, n->device);
    m->address = arena_strdup(memory, n->address);
    m->version = arena_strdup(memory, n->version);
    m->last_seen_ms = n->last_seen_ms;
    m->drain_deadline_ms = n->policy->deadline_ms;
    m->window_from_ms = n->policy->window_from_ms;
    m->window_until_ms = n->policy->window_until_ms;
    m->quarantined_until_ms = n->quarantined ? n->policy->quarantined_until_ms : 0;
    m->gpus = n->gpus ? arena_alloc(memory, n->gpus->n_gpus * sizeof(*m->gpus)) : NULL;
    for (size_t i = 0; n->gpus && i < n->gpus->n_gpus; i++) {
        const Titan__Internal__GpuState *g = n->gpus->gpus[i];
        Titan__V1__Gpu *gpu = m->gpus[m->n_gpus++] = arena_alloc(memory, sizeof(*gpu));
        titan__v1__gpu__init(gpu);
        gpu->slot = g->slot;
        gpu->name = arena_strdup(memory, g->name);
        gpu->uuid = arena_strdup(memory, g->uuid);
        gpu->memory_used_bytes = g->memory_used;
        gpu->memory_total_bytes = g->memory_total;
        gpu->celsius = g->celsius;
        gpu->ecc = g->ecc;
        gpu->ecc_errors = g->ecc_errors;
        gpu->xid = g->xid;
        gpu->state = arena_strdup(memory, g->health == TITAN__INTERNAL__GPU_HEALTH__GPU_HEALTHY  ? "ready"
                                          : g->health == TITAN__INTERNAL__GPU_HEALTH__GPU_FAULTY ? "quarantined"
                                                                                                 : "unknown");
        gpu->reason = arena_strdup(memory, g->reason);
        gpu->job_id = g->job_id;
        gpu->worker_id = g->worker_id;
    }
    return m;
}

static void each_node(const struct core_node *n, void *data)
{
    struct reply *r = data;
    api_reply_add(r, api_node_message(&r->memory, n));
}

struct node_jobs {
    struct reply *reply;
    const struct auth_user *user;
    bool all; /* the caller sees others' jobs */
};

static void with_user(const struct job *job, void *data)
{
    struct node_jobs *of = data;
    of->all = job_owned_by(job, &(struct job_owner){of->user->uid, of->user->name});
}

static bool sees_job(const struct node_jobs *of, uint64_t job_id)
{
    const struct reply *r = of->reply;
    titan_assert(job_id && of->user);
    struct node_jobs own = *of;
    if (!of->all)
        (void)!job_cache_get(r->c->jobs, store_reader(r->c->store), job_id, with_user, &own, NULL);
    return own.all;
}

static void add_job_of_node(const struct core_placement *p, void *data)
{
    const struct node_jobs *of = data;
    struct reply *r = of->reply;
    if (!sees_job(of, p->job_id))
        return;
    for (size_t i = 0; i < r->n; i++) {
        Titan__V1__Node *m = r->items[i];
        if (strcmp(m->name, p->node) != 0)
            continue;
        Titan__V1__Placement **more = arena_alloc(&r->memory, (m->n_jobs + 1) * sizeof(Titan__V1__Placement *));
        if (m->n_jobs)
            memcpy(more, m->jobs, m->n_jobs * sizeof(Titan__V1__Placement *));
        more[m->n_jobs++] = placement_message(r, p);
        m->jobs = more;
        return;
    }
}

void api_list_nodes(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    _cleanup_(api_reply_free) struct reply r = {.c = data};
    struct auth_user u;
    (void)base;
    api_user(r.c, call, &u);
    core_nodes(r.c->core, each_node, &r);
    struct node_jobs jobs = {&r, &u, api_sees_all(r.c, &u, POLICY_LIST_JOBS)};
    core_placements(r.c->core, 0, add_job_of_node, &jobs);
    for (size_t i = 0; i < r.n; i++) {
        const Titan__V1__Node *node = r.items[i];
        for (size_t k = 0; k < node->n_gpus; k++)
            if (node->gpus[k]->job_id && !sees_job(&jobs, node->gpus[k]->job_id))
                node->gpus[k]->job_id = node->gpus[k]->worker_id = 0;
    }
    Titan__V1__ListNodesResponse reply = TITAN__V1__LIST_NODES_RESPONSE__INIT;
    reply.n_nodes = r.n;
    reply.nodes = (Titan__V1__Node **)r.items;
    rpc_call_reply(call, &reply.base);
}

static void add_counter(struct reply *r, const char *name, uint64_t value, const char *text)
{
    Titan__V1__Counter *m = arena_alloc(&r->memory, sizeof(*m));
    titan__v1__counter__init(m);
    m->name = (char *)name;
    m->value = value;
    m->text = (char *)text;
    api_reply_add(r, m);
}

void api_counters(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    _cleanup_(api_reply_free) struct reply r = {.c = data};
    const struct core_counters *of_core = core_counters(r.c->core);
    const struct store_stats of_store = store_stats(r.c->store);
    (void)base;
#define CORE_COUNTER(name, text) add_counter(&r, #name, of_core->name, text);
    CORE_COUNTERS(CORE_COUNTER)
#undef CORE_COUNTER
    const struct enrol_counters *of_enrol = enrol_counters(r.c->enrol);
#define ENROL_COUNTER(name, text) add_counter(&r, #name, of_enrol->name, text);
    ENROL_COUNTERS(ENROL_COUNTER)
#undef ENROL_COUNTER
    add_counter(&r, "store_writes", of_store.writes, "changes handed to the job store");
    add_counter(&r, "store_commits", of_store.commits, "transactions they took");
    add_counter(&r, "store_failures", of_store.failures, "changes it did not take");
    const struct rpc_refusals refused = rpc_call_refusals(call);
    add_counter(&r, "connections_refused", refused.connections, "connections closed at once: beyond a limit");
    add_counter(&r, "calls_refused", refused.calls, "calls refused: too many of one user were open");
    Titan__V1__CountersResponse reply = TITAN__V1__COUNTERS_RESPONSE__INIT;
    reply.n_counters = r.n;
    reply.counters = (Titan__V1__Counter **)r.items;
    reply.since_ms = r.c->started_wall_ms;
    rpc_call_reply(call, &reply.base);
}

void api_version(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    const struct coordinator *c = data;
    (void)base;
    Titan__V1__VersionResponse reply = TITAN__V1__VERSION_RESPONSE__INIT;
    reply.version = (char *)(uintptr_t)titan_version;
    reply.api = (char *)"titan.v1";
    reply.schema = SCHEMA_VERSION;
    reply.started_at_ms = c->started_wall_ms;
    rpc_call_reply(call, &reply.base);
}
