/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/core.h"

#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

titan_status comm_core_init(struct comm_core *core, const struct comm_transport *transport, int rank, int world,
                            const struct device_handle *device, struct titan_error *err)
{
    titan_assert(transport && transport->all_gather && transport->barrier && transport->wake);
    if (world < 1 || world > COMM_WORLD_MAX || rank < 0 || rank >= world)
        return titan_fail(err, TITAN_EINVAL, "rank %d of %d members", rank, world);
    if (device && !device->info.host_memory)
        return titan_fail(err, TITAN_EUNSUPPORTED, "communicator %s needs a device with host memory, not %s",
                          transport->name, device->info.name);
    core->rank = rank;
    core->world = world;
    core->device = device;
    core->transport = transport;
    int rc = pthread_mutex_init(&core->lock, NULL);
    return rc == 0 ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "cannot make a lock");
}

titan_status comm_core_init_child(struct comm_core *child, const struct comm_core *parent, const int *members, int n,
                                  struct titan_error *err)
{
    titan_assert(n >= 0 && parent->world >= 1);
    int rank = -1;
    for (int i = 0; i < n; i++) {
        if (members[i] < 0 || members[i] >= parent->world || (i > 0 && members[i] <= members[i - 1]))
            return titan_fail(err, TITAN_EINVAL, "rank %d as member %d of %d out of %d: members are ranks, ascending",
                              members[i], i, n, parent->world);
        if (members[i] == parent->rank)
            rank = i;
    }
    if (rank < 0)
        return titan_fail(err, TITAN_EINVAL, "rank %d is not in its own group of %d", parent->rank, n);
    TRY(comm_core_error((struct comm_core *)parent, err));
    return comm_core_init(child, parent->transport, rank, n, parent->device, err);
}

/* The caller holds the lock. */
static void drop_request(struct comm_core *core, struct comm_request *r)
{
    titan_assert(r->core == core);
    if (r->prev)
        r->prev->next = r->next;
    else
        core->requests = r->next;
    if (r->next)
        r->next->prev = r->prev;
    free(r->parts);
    free(r);
}

titan_status comm_core_error(struct comm_core *core, struct titan_error *err)
{
    (void)pthread_mutex_lock(&core->lock);
    titan_status status = core->failure.status;
    if (status != TITAN_OK && err)
        *err = core->failure;
    (void)pthread_mutex_unlock(&core->lock);
    if (status == TITAN_OK && atomic_load(&core->revoked))
        return titan_fail(err, TITAN_EREVOKED, "communicator %s of rank %d: the epoch was revoked",
                          core->transport->name, core->rank);
    return status;
}

/* Fails this communicator and all its splits: keeps the first failure and ends all waits. */
static void fail_tree(struct comm_core *core, const struct titan_error *failure)
{
    titan_assert(failure->status != TITAN_OK);
    (void)pthread_mutex_lock(&core->lock);
    if (core->failure.status == TITAN_OK)
        core->failure = *failure;
    atomic_store(&core->failed, 1);
    core->transport->wake(core);
    for (struct comm_core *child = core->children; child; child = child->sibling)
        fail_tree(child, failure);
    (void)pthread_mutex_unlock(&core->lock);
}

static struct comm_core *root_of(struct comm_core *core)
{
    while (core->parent)
        core = core->parent;
    return core;
}

void comm_core_fail(struct comm_core *core, const struct titan_error *failure)
{
    struct comm_core *root = root_of(core);
    fail_tree(core, failure);
    if (root != core)
        fail_tree(root, failure);
}

void comm_core_adopt(struct comm_core *parent, struct comm_core *child)
{
    titan_assert(parent != child && !child->parent);
    (void)pthread_mutex_lock(&parent->lock);
    child->parent = parent;
    child->sibling = parent->children;
    parent->children = child;
    struct titan_error failure = parent->failure;
    (void)pthread_mutex_unlock(&parent->lock);
    /* A thread that failed or revoked the parent either found the child in the parent's list, or its effect is seen
     * here. */
    if (failure.status != TITAN_OK)
        fail_tree(child, &failure);
    if (atomic_load(&parent->revoked))
        comm_core_revoke(child);
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static bool is_message(const struct comm_request *r)
{
    return r->op == COMM_SEND || r->op == COMM_RECV;
}

/* Runs the parts in order. Consecutive messages run at once. */
static titan_status run_parts(struct comm_core *core, const struct comm_request *parts, int n, struct titan_error *err)
{
    const struct comm_transport *const t = core->transport;
    struct comm *const c = (struct comm *)core;

    titan_assert(n >= 1);
    for (int i = 0, end; i < n; i = end) {
        end = i + 1;
        while (is_message(&parts[i]) && end < n && is_message(&parts[end]))
            end++;
        const struct comm_request *const r = &parts[i];
        if (r->op == COMM_ALL_TO_ALL_V) { /* the counts are in device memory: they cannot be checked earlier */
            for (int k = 0; k < core->world; k++)
                if (r->send_counts[k] < 0 || r->recv_counts[k] < 0)
                    return titan_fail(err, TITAN_EINVAL, "all-to-all: %d rows to and %d rows from rank %d",
                                      r->send_counts[k], r->recv_counts[k], k);
            if (r->send_counts[core->rank] != r->recv_counts[core->rank])
                return titan_fail(err, TITAN_EINVAL, "all-to-all: rank %d gives itself %d rows and expects %d",
                                  core->rank, r->send_counts[core->rank], r->recv_counts[core->rank]);
        }
        size_t bytes = r->count * dtype_bytes(r->dt);
        if (core->world == 1) { /* the only member receives its own data */
            const bool moves = r->op == COMM_ALL_GATHER || r->op == COMM_REDUCE_SCATTER || r->op == COMM_ALL_TO_ALL ||
                               r->op == COMM_ALL_TO_ALL_V || r->op == COMM_SHIFT;
            bytes *= r->op == COMM_ALL_TO_ALL_V ? (size_t)r->send_counts[0] : 1;
            if (moves && r->recv != r->send && bytes > 0)
                memcpy(r->recv, r->send, bytes);
            continue;
        }
        titan_status status = TITAN_OK;
        switch (r->op) {
        case COMM_ALL_GATHER:
            status = t->all_gather(c, r->recv, r->send, bytes, err);
            break;
        case COMM_REDUCE_SCATTER:
            status = t->reduce_scatter(c, r->recv, r->send, bytes, r->dt, err);
            break;
        case COMM_ALL_REDUCE:
            status = t->all_reduce(c, r->recv, bytes, r->dt, err);
            break;
        case COMM_BROADCAST:
            status = t->broadcast(c, r->recv, bytes, r->peer, err);
            break;
        case COMM_ALL_TO_ALL:
            status = t->all_to_all(c, r->recv, r->send, bytes, err);
            break;
        case COMM_ALL_TO_ALL_V:
            status = t->all_to_all_v(c, r, err);
            break;
        case COMM_SHIFT:
            status = t->shift(c, r->recv, r->send, bytes, r->peer, err);
            break;
        case COMM_BARRIER:
            status = t->barrier(c, err);
            break;
        case COMM_SEND:
        case COMM_RECV:
            status = t->pass(core, r, end - i, err);
            break;
        case COMM_GROUP:
            return titan_fail(err, TITAN_EBUG, "a group in a group");
        }
        TRY(status);
    }
    return TITAN_OK;
}

/* Runs on the stream's host thread. */
static titan_status run_request(void *arg, struct titan_error *err)
{
    struct comm_request *r = arg;
    struct comm_core *core = r->core;
    struct titan_error local = {0};
    titan_status status = comm_core_error(core, &local);
    if (status == TITAN_OK) {
        status = r->op == COMM_GROUP ? run_parts(core, r->parts, r->n_parts, &local) : run_parts(core, r, 1, &local);
        if (status != TITAN_OK && atomic_load(&core->revoked))
            status = titan_fail(&local, TITAN_EREVOKED, "the epoch was revoked");
        if (status != TITAN_OK) {
            comm_core_fail(core, &local);
            status = comm_core_error(core, &local); /* returns the first failure, if another member failed earlier */
        }
    }
    if (status != TITAN_OK && err)
        *err = local;
    (void)pthread_mutex_lock(&core->lock);
    drop_request(core, r);
    (void)pthread_mutex_unlock(&core->lock);
    return status;
}

static titan_status enqueue(struct comm *comm, const struct comm_request *call)
{
    struct comm_core *const core = (struct comm_core *)comm;
    const bool sums = call->op == COMM_REDUCE_SCATTER || call->op == COMM_ALL_REDUCE;
    if (call->peer < 0 || call->peer >= core->world || (is_message(call) && call->peer == core->rank) ||
        (sums && call->dt != DTYPE_F32 && call->dt != DTYPE_F64 && call->dt != DTYPE_BF16))
        return TITAN_EINVAL;
    struct comm_request *const group = &core->group;
    if (core->grouping) { /* the request runs at the group's end */
        if (group->n_parts > 0 && group->stream != call->stream)
            return TITAN_EINVAL;
        group->stream = call->stream;
        return VEC_PUSH(group->parts, group->n_parts, group->cap_parts, *call) ? TITAN_OK : TITAN_ENOMEM;
    }
    struct comm_request *r = malloc(sizeof(*r));
    if (!r)
        return TITAN_ENOMEM;
    *r = *call;
    r->core = core;
    (void)pthread_mutex_lock(&core->lock);
    r->next = core->requests;
    if (r->next)
        r->next->prev = r;
    core->requests = r;
    (void)pthread_mutex_unlock(&core->lock);
    if (!core->device || !r->stream)
        return run_request(r, NULL);
    /* A stream that runs calls at once has freed the request when stream_call() returns, even after a failure. So the
     * request must not be freed here. If a stream cannot take the call, the request stays in the list until the
     * communicator is shut. */
    return core->device->ops->stream_call(r->stream, run_request, r, NULL);
}

void comm_core_revoke(struct comm_core *core)
{
    atomic_store(&core->revoked, 1);
    (void)pthread_mutex_lock(&core->lock);
    core->transport->wake(core);
    for (struct comm_core *child = core->children; child; child = child->sibling)
        comm_core_revoke(child);
    (void)pthread_mutex_unlock(&core->lock);
}

/* Returns a stream that still holds a request of this communicator; NULL: none. */
static struct stream *busy_stream(struct comm_core *core)
{
    (void)pthread_mutex_lock(&core->lock);
    struct stream *s = core->requests ? core->requests->stream : NULL;
    (void)pthread_mutex_unlock(&core->lock);
    return s;
}

void comm_core_shut(struct comm_core *core)
{
    titan_assert(!core->children);
    struct stream *s = busy_stream(core);
    if (s) /* revoke the whole tree, because another communicator's operation may block the stream */
        comm_core_revoke(root_of(core));
    if (core->parent) {
        (void)pthread_mutex_lock(&core->parent->lock);
        struct comm_core **at = &core->parent->children;
        while (*at != core)
            at = &(*at)->sibling;
        *at = core->sibling;
        (void)pthread_mutex_unlock(&core->parent->lock);
    }
    for (; s; s = busy_stream(core)) {
        /* The stream's requests fail now without waiting for a peer. A failed stream has skipped its requests; they are
         * dropped. */
        (void)core->device->ops->stream_sync(s, NULL);
        (void)pthread_mutex_lock(&core->lock);
        for (struct comm_request *r = core->requests, *next; r; r = next) {
            next = r->next;
            if (r->stream == s)
                drop_request(core, r);
        }
        (void)pthread_mutex_unlock(&core->lock);
    }
    free(core->group.parts);
    (void)pthread_mutex_destroy(&core->lock);
}

/* --- comm_ops ----------------------------------------------------------------------------------------------------- */

void comm_core_revoke_comm(struct comm *comm)
{
    comm_core_revoke((struct comm_core *)comm);
}

titan_status comm_core_group_begin(struct comm *comm)
{
    struct comm_core *core = (struct comm_core *)comm;
    if (core->grouping)
        return TITAN_EINVAL;
    core->grouping = true;
    return TITAN_OK;
}

titan_status comm_core_group_end(struct comm *comm)
{
    struct comm_core *core = (struct comm_core *)comm;
    if (!core->grouping)
        return TITAN_EINVAL;
    struct comm_request group = core->group;
    core->grouping = false;
    core->group = (struct comm_request){0};
    if (group.n_parts == 0)
        return TITAN_OK;
    group.op = COMM_GROUP;
    return enqueue(comm, &group);
}

/* Enqueues an operation on the stream `s`. */
#define ENQUEUE(OP, ...) enqueue(comm, &(struct comm_request){.op = COMM_##OP, .stream = s, __VA_ARGS__})

titan_status comm_core_all_gather(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                                  struct stream *s)
{
    return ENQUEUE(ALL_GATHER, .recv = recv, .send = send, .count = count, .dt = dt);
}

titan_status comm_core_reduce_scatter(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                                      struct stream *s)
{
    return ENQUEUE(REDUCE_SCATTER, .recv = recv, .send = send, .count = count, .dt = dt);
}

titan_status comm_core_all_reduce(struct comm *comm, void *data, size_t count, enum dtype dt, struct stream *s)
{
    return ENQUEUE(ALL_REDUCE, .recv = data, .count = count, .dt = dt);
}

titan_status comm_core_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct stream *s)
{
    return ENQUEUE(BROADCAST, .recv = data, .count = bytes, .dt = DTYPE_U8, .peer = root);
}

titan_status comm_core_all_to_all(struct comm *comm, void *recv, const void *send, size_t bytes, struct stream *s)
{
    return ENQUEUE(ALL_TO_ALL, .recv = recv, .send = send, .count = bytes, .dt = DTYPE_U8);
}

titan_status comm_core_all_to_all_v(struct comm *comm, const struct comm_rows *rows, struct stream *s)
{
    return ENQUEUE(ALL_TO_ALL_V, .recv = rows->recv, .send = rows->send, .count = rows->bytes, .dt = DTYPE_U8,
                   .recv_counts = rows->recv_counts, .send_counts = rows->send_counts);
}

titan_status comm_core_shift(struct comm *comm, void *recv, const void *send, size_t bytes, int distance,
                             struct stream *s)
{
    const int world = ((const struct comm_core *)comm)->world, up = (distance % world + world) % world;
    return ENQUEUE(SHIFT, .recv = recv, .send = send, .count = bytes, .dt = DTYPE_U8, .peer = up);
}

titan_status comm_core_send(struct comm *comm, const void *data, size_t bytes, int to, struct stream *s)
{
    return ENQUEUE(SEND, .send = data, .count = bytes, .dt = DTYPE_U8, .peer = to);
}

titan_status comm_core_recv(struct comm *comm, void *data, size_t bytes, int from, struct stream *s)
{
    return ENQUEUE(RECV, .recv = data, .count = bytes, .dt = DTYPE_U8, .peer = from);
}

titan_status comm_core_barrier(struct comm *comm, struct stream *s)
{
    return ENQUEUE(BARRIER, .dt = DTYPE_U8);
}
