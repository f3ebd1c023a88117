#include "worker/comm/core.h"

#include <stdlib.h>
#include <string.h>

titan_status comm_core_init(struct comm_core *core, const struct comm_config *config, const char *name,
                            struct titan_error *err)
{
    if (config->world < 1 || config->world > COMM_WORLD_MAX || config->rank < 0 || config->rank >= config->world)
        return titan_fail(err, TITAN_EINVAL, "rank %d of %d members", config->rank, config->world);
    if (config->device && !config->device->info.host_memory)
        return titan_fail(err, TITAN_EUNSUPPORTED, "communicator %s needs a device with host memory, not %s", name,
                          config->device->info.name);
    core->rank = config->rank;
    core->world = config->world;
    core->device = config->device;
    core->name = name;
    int rc = pthread_mutex_init(&core->lock, NULL);
    return rc == 0 ? TITAN_OK : titan_fail(err, TITAN_ENOMEM, "cannot make a lock");
}

static void unlink_request(struct comm_request *r)
{
    struct comm_core *core = r->core;
    (void)pthread_mutex_lock(&core->lock);
    if (r->prev)
        r->prev->next = r->next;
    else
        core->requests = r->next;
    if (r->next)
        r->next->prev = r->prev;
    (void)pthread_mutex_unlock(&core->lock);
    free(r);
}

static void link_request(struct comm_request *r)
{
    struct comm_core *core = r->core;
    (void)pthread_mutex_lock(&core->lock);
    r->next = core->requests;
    if (r->next)
        r->next->prev = r;
    core->requests = r;
    (void)pthread_mutex_unlock(&core->lock);
}

titan_status comm_core_error(struct comm_core *core, struct titan_error *err)
{
    (void)pthread_mutex_lock(&core->lock);
    titan_status status = core->failure.status;
    if (status != TITAN_OK && err)
        *err = core->failure;
    (void)pthread_mutex_unlock(&core->lock);
    if (status == TITAN_OK && atomic_load(&core->revoked))
        return titan_fail(err, TITAN_EREVOKED, "communicator %s of rank %d: the epoch was revoked", core->name,
                          core->rank);
    return status;
}

static void keep_failure(struct comm_core *core, const struct titan_error *failure)
{
    (void)pthread_mutex_lock(&core->lock);
    if (core->failure.status == TITAN_OK)
        core->failure = *failure;
    (void)pthread_mutex_unlock(&core->lock);
}

/* On the stream's host thread. */
static titan_status run_request(void *arg, struct titan_error *err)
{
    struct comm_request *r = arg;
    struct comm_core *core = r->core;
    struct titan_error local = {0};
    titan_status status = comm_core_error(core, &local);
    if (status == TITAN_OK) {
        status = core->execute(core, r, &local);
        if (status != TITAN_OK)
            keep_failure(core, &local);
    }
    if (status != TITAN_OK && err)
        *err = local;
    unlink_request(r);
    return status;
}

static titan_status enqueue(struct comm_core *core, enum comm_op op, void *recv, const void *send, size_t count,
                            enum dtype dt, int peer, struct stream *s)
{
    if (peer < 0 || peer >= core->world)
        return TITAN_EINVAL;
    if ((op == COMM_REDUCE_SCATTER || op == COMM_ALL_REDUCE) && dt != DTYPE_F32 && dt != DTYPE_F64 && dt != DTYPE_BF16)
        return TITAN_EINVAL;
    if ((op == COMM_SEND || op == COMM_RECV) && peer == core->rank)
        return TITAN_EINVAL;
    struct comm_request *r = calloc(1, sizeof(*r));
    if (!r)
        return TITAN_ENOMEM;
    r->core = core;
    r->stream = s;
    r->op = op;
    r->recv = recv;
    r->send = send;
    r->count = count;
    r->dt = dt;
    r->peer = peer;
    link_request(r);
    if (!core->device || !s)
        return run_request(r, NULL);
    /* A stream that runs at once has freed the request when the call returns, whatever the call returns: a failed
     * request must not be freed twice. Streams that cannot take the call at all leave it in the list for the end. */
    return core->device->ops->stream_call(s, run_request, r, NULL);
}

void comm_core_revoke(struct comm_core *core)
{
    atomic_store(&core->revoked, 1);
    core->wake(core);
}

/* A stream that still holds one of our requests; NULL when there is none. */
static struct stream *busy_stream(struct comm_core *core)
{
    (void)pthread_mutex_lock(&core->lock);
    struct stream *s = core->requests ? core->requests->stream : NULL;
    (void)pthread_mutex_unlock(&core->lock);
    return s;
}

/* Forget the requests a stream skipped. */
static void drop_requests(struct comm_core *core, const struct stream *s)
{
    (void)pthread_mutex_lock(&core->lock);
    for (struct comm_request *r = core->requests, *next; r; r = next) {
        next = r->next;
        if (r->stream != s)
            continue;
        if (r->prev)
            r->prev->next = r->next;
        else
            core->requests = r->next;
        if (r->next)
            r->next->prev = r->prev;
        free(r);
    }
    (void)pthread_mutex_unlock(&core->lock);
}

void comm_core_shut(struct comm_core *core)
{
    struct stream *s = busy_stream(core);
    if (s)
        comm_core_revoke(core);
    for (; s; s = busy_stream(core)) {
        /* Its requests fail now without waiting for anybody; a failed stream has skipped them. */
        (void)core->device->ops->stream_sync(s, NULL);
        drop_requests(core, s);
    }
    (void)pthread_mutex_destroy(&core->lock);
}

void comm_core_alone(const struct comm_request *r)
{
    bool moves = r->op == COMM_ALL_GATHER || r->op == COMM_REDUCE_SCATTER || r->op == COMM_ALL_TO_ALL;
    size_t bytes = r->count * dtype_bytes(r->dt);
    if (moves && r->recv != r->send && bytes > 0)
        memcpy(r->recv, r->send, bytes);
}

/* --- comm_ops ----------------------------------------------------------------------------------------------------- */

static struct comm_core *core_of(struct comm *comm)
{
    return (struct comm_core *)comm;
}

void comm_core_revoke_comm(struct comm *comm)
{
    comm_core_revoke(core_of(comm));
}

titan_status comm_core_all_gather(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                                  struct stream *s)
{
    return enqueue(core_of(comm), COMM_ALL_GATHER, recv, send, count, dt, 0, s);
}

titan_status comm_core_reduce_scatter(struct comm *comm, void *recv, const void *send, size_t count, enum dtype dt,
                                      struct stream *s)
{
    return enqueue(core_of(comm), COMM_REDUCE_SCATTER, recv, send, count, dt, 0, s);
}

titan_status comm_core_all_reduce(struct comm *comm, void *data, size_t count, enum dtype dt, struct stream *s)
{
    return enqueue(core_of(comm), COMM_ALL_REDUCE, data, NULL, count, dt, 0, s);
}

titan_status comm_core_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct stream *s)
{
    return enqueue(core_of(comm), COMM_BROADCAST, data, NULL, bytes, DTYPE_U8, root, s);
}

titan_status comm_core_all_to_all(struct comm *comm, void *recv, const void *send, size_t bytes, struct stream *s)
{
    return enqueue(core_of(comm), COMM_ALL_TO_ALL, recv, send, bytes, DTYPE_U8, 0, s);
}

titan_status comm_core_send(struct comm *comm, const void *data, size_t bytes, int to, struct stream *s)
{
    return enqueue(core_of(comm), COMM_SEND, NULL, data, bytes, DTYPE_U8, to, s);
}

titan_status comm_core_recv(struct comm *comm, void *data, size_t bytes, int from, struct stream *s)
{
    return enqueue(core_of(comm), COMM_RECV, data, NULL, bytes, DTYPE_U8, from, s);
}

titan_status comm_core_barrier(struct comm *comm, struct stream *s)
{
    return enqueue(core_of(comm), COMM_BARRIER, NULL, NULL, 0, DTYPE_U8, 0, s);
}
