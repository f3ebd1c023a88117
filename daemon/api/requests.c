/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of existing jobs and nodes. They are answered when they are durable. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/api/api.h"

#define GRACE_DEFAULT_MS 10000
#define GRACE_MAX_MS 3600000
#define DEADLINE_MAX_MS UINT64_C(31622400000) /* 366 days */

/* A reply that waits for its commit; `memory` owns it. */
struct answer {
    struct rpc_call *call; /* must be first (api_request_closed); NULL when the client has gone */
    struct arena memory;
    const char *by; /* the caller's display name */
    const ProtobufCMessage *reply;
};

static void answer_free(struct answer *a)
{
    arena_free(&a->memory);
    free(a);
}

static void answer_stored(void *arg, const struct titan_error *err)
{
    titan_assert(((struct answer *)arg)->reply);
    struct answer *a = arg;
    if (a->call) {
        rpc_call_set_data(a->call, NULL);
        if (err->status == TITAN_OK)
            rpc_call_reply(a->call, a->reply);
        else
            rpc_call_fail(a->call, err);
    }
    answer_free(a);
}

void api_request_closed(struct rpc_call *call, bool cancelled, void *data)
{
    struct rpc_call **waiting = rpc_call_data(call);
    (void)cancelled;
    (void)data;
    if (waiting)
        *waiting = NULL;
}

/* Asks the core. Fills the batch `out`, and the reply in the answer's memory. */
typedef titan_status (*ask_core)(struct coordinator *c, const ProtobufCMessage *request, struct answer *a,
                                 struct batch *out, struct titan_error *err);

/* A method on a node or a job. A call on a job needs a right to this job (api_may). */
struct asking {
    ask_core ask;
    unsigned method;
    bool of_job;
    uint64_t job_id;
};

static void handle(struct coordinator *c, struct rpc_call *call, const ProtobufCMessage *request,
                   const struct asking *to)
{
    titan_assert(to->of_job || to->job_id == 0);
    struct titan_error err = {0};
    struct auth_user u;
    struct batch batch;
    struct answer *a = calloc(1, sizeof(*a));
    titan_status status = a ? shell_accepts(c, &err) : titan_fail(&err, TITAN_ENOMEM, "out of memory");
    batch_init(&batch);
    api_user(c, call, &u);
    const bool may =
        status == TITAN_OK && (!to->of_job || (status = api_may(c, &u, to->method, to->job_id, &err)) == TITAN_OK);
    if (status == TITAN_OK) {
        a->by = arena_strdup(&a->memory, *u.name ? u.name : u.actor);
        status = to->ask(c, request, a, &batch, &err);
    }
    if (status != TITAN_OK) {
        if (a)
            answer_free(a);
        batch_free(&batch);
        if (may) /* otherwise api_may has put the refusal on record */
            api_failed(c, &u, to->method, to->job_id, &err);
        rpc_call_fail(call, &err);
        return;
    }
    titan_assert(a && a->reply);
    api_audit(&batch, &u, to->method, to->job_id);
    a->call = call;
    rpc_call_set_data(call, a);
    shell_commit(c, &batch, answer_stored, a);
}

/* The core does not have the job: it has ended, or never existed. */
static titan_status job_is_over(struct coordinator *c, uint64_t job_id, struct titan_error *err)
{
    enum job_state state = JOB_NONE;
    TRY(api_job_state(c, job_id, &state, err));
    if (!sm_final(&job_sm, (int)state)) /* the job's end is on its way into the store */
        return titan_fail(err, TITAN_ECONFLICT, "job %llu has just ended", (unsigned long long)job_id);
    return titan_fail(err, TITAN_ECONFLICT, "job %llu has already ended: %s", (unsigned long long)job_id,
                      sm_name(&job_sm, (int)state));
}

/* --- jobs --------------------------------------------------------------------------------------------------------- */

static titan_status ask_cancel(struct coordinator *c, const ProtobufCMessage *base, struct answer *a, struct batch *out,
                               struct titan_error *err)
{
    const Titan__V1__CancelJobRequest *request = (const Titan__V1__CancelJobRequest *)base;
    Titan__V1__CancelJobResponse *reply = arena_alloc(&a->memory, sizeof(*reply));
    const uint32_t grace = request->grace_ms     ? MIN(request->grace_ms, GRACE_MAX_MS)
                           : request->checkpoint ? LAST_CHECKPOINT_MS
                                                 : GRACE_DEFAULT_MS;
    titan__v1__cancel_job_response__init(reply);
    a->reply = &reply->base;
    if (request->checkpoint)
        core_want_checkpoint(c->core, request->job_id);
    const char *reason = *request->reason ? request->reason : arena_printf(&a->memory, "asked for by %s", a->by);
    struct core_cancel cancel = {.reason = reason, .grace_ms = grace};
    titan_status status = core_cancel(c->core, request->job_id, &cancel, shell_now(c), out, err);
    if (status == TITAN_ENOTFOUND)
        status = job_is_over(c, request->job_id, err);
    reply->state = (Titan__V1__JobState)cancel.state;
    return status;
}

void api_cancel_job(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    handle(
        data, call, request,
        &(struct asking){ask_cancel, POLICY_CANCEL_JOB, true, ((const Titan__V1__CancelJobRequest *)request)->job_id});
}

static titan_status ask_resize(struct coordinator *c, const ProtobufCMessage *base, struct answer *a, struct batch *out,
                               struct titan_error *err)
{
    const Titan__V1__ResizeJobRequest *request = (const Titan__V1__ResizeJobRequest *)base;
    Titan__V1__ResizeJobResponse *reply = arena_alloc(&a->memory, sizeof(*reply));
    struct core_resize r = {.workers = request->workers, .min = request->min_workers, .max = request->max_workers};
    titan__v1__resize_job_response__init(reply);
    a->reply = &reply->base;
    titan_status status = core_resize(c->core, request->job_id, &r, shell_now(c), out, err);
    if (status == TITAN_ENOTFOUND)
        status = job_is_over(c, request->job_id, err);
    reply->state = (Titan__V1__JobState)r.state;
    reply->min_workers = r.least;
    reply->max_workers = r.most;
    reply->world_size = r.world_size;
    reply->request = r.desired.number;
    return status;
}

void api_resize_job(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    handle(
        data, call, request,
        &(struct asking){ask_resize, POLICY_RESIZE_JOB, true, ((const Titan__V1__ResizeJobRequest *)request)->job_id});
}

static titan_status ask_checkpoint(struct coordinator *c, const ProtobufCMessage *base, struct answer *a,
                                   struct batch *out, struct titan_error *err)
{
    const Titan__V1__CheckpointJobRequest *request = (const Titan__V1__CheckpointJobRequest *)base;
    Titan__V1__CheckpointJobResponse *reply = arena_alloc(&a->memory, sizeof(*reply));
    titan__v1__checkpoint_job_response__init(reply);
    a->reply = &reply->base;
    titan_status status = core_checkpoint(c->core, request->job_id, shell_now(c), out, &reply->step, err);
    return status == TITAN_ENOTFOUND ? job_is_over(c, request->job_id, err) : status;
}

void api_checkpoint_job(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    handle(data, call, request,
           &(struct asking){ask_checkpoint, POLICY_CHECKPOINT_JOB, true,
                            ((const Titan__V1__CheckpointJobRequest *)request)->job_id});
}

/* --- nodes -------------------------------------------------------------------------------------------------------- */

struct node_search {
    struct arena *memory;
    const char *name;
    Titan__V1__Node *found;
};

static void each_node(const struct core_node *n, void *data)
{
    struct node_search *s = data;
    if (strcmp(n->name, s->name) == 0)
        s->found = api_node_message(s->memory, n);
}

static Titan__V1__Node *node_now(const struct coordinator *c, struct answer *a, const char *name)
{
    struct node_search s = {.memory = &a->memory, .name = name};
    core_nodes(c->core, each_node, &s);
    return s.found;
}

static titan_status ask_drain(struct coordinator *c, const ProtobufCMessage *base, struct answer *a, struct batch *out,
                              struct titan_error *err)
{
    const Titan__V1__DrainNodeRequest *request = (const Titan__V1__DrainNodeRequest *)base;
    Titan__V1__DrainNodeResponse *reply = arena_alloc(&a->memory, sizeof(*reply));
    struct core_drain d = {.reason = request->reason,
                           .deadline_ms = (int64_t)MIN(request->deadline_ms, DEADLINE_MAX_MS),
                           .from_ms = request->from_ms,
                           .for_ms = (int64_t)MIN(request->for_ms, (uint64_t)INT64_MAX)};
    titan__v1__drain_node_response__init(reply);
    a->reply = &reply->base;
    TRY(core_drain(c->core, request->node, &d, shell_now(c), out, err));
    reply->node = node_now(c, a, request->node);
    return TITAN_OK;
}

void api_drain_node(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    handle(data, call, request, &(struct asking){.ask = ask_drain, .method = POLICY_DRAIN_NODE});
}

static titan_status ask_undrain(struct coordinator *c, const ProtobufCMessage *base, struct answer *a,
                                struct batch *out, struct titan_error *err)
{
    const Titan__V1__UndrainNodeRequest *request = (const Titan__V1__UndrainNodeRequest *)base;
    Titan__V1__UndrainNodeResponse *reply = arena_alloc(&a->memory, sizeof(*reply));
    titan__v1__undrain_node_response__init(reply);
    a->reply = &reply->base;
    TRY(core_undrain(c->core, request->node, shell_now(c), out, err));
    reply->node = node_now(c, a, request->node);
    return TITAN_OK;
}

void api_undrain_node(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    handle(data, call, request, &(struct asking){.ask = ask_undrain, .method = POLICY_UNDRAIN_NODE});
}

static titan_status ask_forget(struct coordinator *c, const ProtobufCMessage *base, struct answer *a, struct batch *out,
                               struct titan_error *err)
{
    const Titan__V1__ForgetNodeRequest *request = (const Titan__V1__ForgetNodeRequest *)base;
    Titan__V1__ForgetNodeResponse *reply = arena_alloc(&a->memory, sizeof(*reply));
    titan__v1__forget_node_response__init(reply);
    a->reply = &reply->base;
    TRY(core_node_forget(c->core, request->node, shell_now(c), out, err));
    reply->node = node_now(c, a, request->node);
    return TITAN_OK;
}

static titan_status ask_remove_node(struct coordinator *c, const ProtobufCMessage *base, struct answer *a,
                                    struct batch *out, struct titan_error *err)
{
    const Titan__V1__RemoveNodeRequest *request = (const Titan__V1__RemoveNodeRequest *)base;
    Titan__V1__RemoveNodeResponse *reply = arena_alloc(&a->memory, sizeof(*reply));
    titan__v1__remove_node_response__init(reply);
    a->reply = &reply->base;
    return core_node_remove(c->core, request->node, shell_now(c), out, err);
}

void api_remove_node(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    handle(data, call, request, &(struct asking){.ask = ask_remove_node, .method = POLICY_REMOVE_NODE});
}

void api_forget_node(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    handle(data, call, request, &(struct asking){.ask = ask_forget, .method = POLICY_FORGET_NODE});
}
