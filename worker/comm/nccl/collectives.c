/* SPDX-License-Identifier: Apache-2.0 */
/* collectives.c - NCCL's operations on a stream, and groups of them. Before each operation, the communicator and the
 * stream are checked for failure. After it, finish() waits for connections and then enqueues the latch (cuda.h). */
#include "base/progress.h"
#include "worker/comm/nccl/nccl.h"

static bool nccl_type(enum dtype dt, ncclDataType_t *ret)
{
    switch (dt) {
    case DTYPE_F32:
        *ret = ncclFloat32;
        return true;
    case DTYPE_BF16:
        *ret = ncclBfloat16;
        return true;
    case DTYPE_F64:
        *ret = ncclFloat64;
        return true;
    case DTYPE_I32:
        *ret = ncclInt32;
        return true;
    case DTYPE_U8:
        *ret = ncclUint8;
        return true;
    }
    return false;
}

/* Runs before an operation. *ret_go true: the operation may go ahead, and c->lock is held. Otherwise the returned
 * status is the operation's result. */
static titan_status begin(struct comm *c, struct stream *s, bool *ret_go)
{
    *ret_go = false;
    (void)pthread_mutex_lock(&c->streams_lock);
    int i = 0;
    while (i < c->n_streams && c->streams[i] != s)
        i++;
    if (i == c->n_streams && i < NCCL_STREAMS_MAX)
        c->streams[c->n_streams++] = s;
    (void)pthread_mutex_unlock(&c->streams_lock);
    if (i == NCCL_STREAMS_MAX)
        return TITAN_ELIMIT;
    titan_status st = comm_failed(c);
    if (st != TITAN_OK) {
        stream_raise(s, st, c->reason);
        (void)stream_latch(s, NULL);
        return st;
    }
    if (stream_skips(s))
        return TITAN_OK;
    (void)pthread_mutex_lock(&c->lock);
    *ret_go = true;
    return TITAN_OK;
}

/* Runs after an operation. The first collective of a kind connects to peers in the background; nothing may be launched
 * before these connections exist. So this waits for them; a revoke ends the wait. Then the latch is enqueued. */
static titan_status finish(struct comm *c, struct stream *s, const char *what, ncclResult_t r)
{
    unsigned looks = 0;
    int lost = -1;
    struct titan_error err;
    titan_status st = TITAN_OK;
    const bool waits = r == ncclInProgress;
    if (waits)
        progress_wait_begin();
    while (r == ncclInProgress && lost < 0 && comm_failed(c) == TITAN_OK) {
        ncclResult_t state = ncclInProgress;
        r = ncclCommGetAsyncError(c->nccl, &state);
        if (r == ncclSuccess)
            r = state;
        if (r == ncclInProgress)
            nccl_pause(&looks);
        if (looks % NCCL_LOOKS_PER_CHECK == NCCL_LOOKS_PER_CHECK - 1)
            lost = nccl_peers_lost(c->root->peers);
    }
    if (waits)
        progress_wait_end();
    if (lost >= 0)
        st = titan_fail(&err, TITAN_EPEER, "rank %d has ended or failed", lost);
    if (!nccl_fine(r) && comm_failed(c) == TITAN_OK)
        st = nccl_fail(&err, c->nccl, r, what);
    (void)pthread_mutex_unlock(&c->lock);
    if (st != TITAN_OK)
        nccl_comm_fail(c, st, err.msg);
    titan_status latched = stream_latch(s, NULL);
    st = comm_failed(c);
    return st != TITAN_OK ? st : latched;
}

/* Runs before a call within a group; the first call begins the group. */
static titan_status group_call(struct comm *c, struct stream *s, bool *ret_go)
{
    if (!c->group_stream) {
        bool go;
        c->group_stream = s;
        c->group_status = begin(c, s, &go);
        c->group_open = go;
        c->group_result = go ? ncclGroupStart() : ncclSuccess;
    }
    *ret_go = c->group_open && c->group_stream == s && nccl_fine(c->group_result);
    return c->group_stream == s ? c->group_status : TITAN_EINVAL;
}

titan_status nccl_group_begin(struct comm *c)
{
    if (c->grouping)
        return TITAN_EINVAL;
    c->grouping = true;
    return TITAN_OK;
}

titan_status nccl_group_end(struct comm *c)
{
    if (!c->grouping)
        return TITAN_EINVAL;
    struct stream *s = c->group_stream;
    bool open = c->group_open;
    c->grouping = c->group_open = false;
    c->group_stream = NULL;
    if (!open)
        return s ? c->group_status : TITAN_OK;
    ncclResult_t end = ncclGroupEnd();
    return finish(c, s, "group", nccl_fine(c->group_result) ? end : c->group_result);
}

#define COLLECTIVE(c, s, what, call)                                                                                   \
    do {                                                                                                               \
        bool go_;                                                                                                      \
        titan_status begun_ = (c)->grouping ? group_call(c, s, &go_) : begin(c, s, &go_);                              \
        if (!go_)                                                                                                      \
            return begun_;                                                                                             \
        ncclResult_t r_ = (call);                                                                                      \
        if (!(c)->grouping)                                                                                            \
            return finish(c, s, what, r_);                                                                             \
        (c)->group_result = r_;                                                                                        \
        return TITAN_OK;                                                                                               \
    } while (0)

/* Copies the data of an operation with one member: the member receives its own data. */
static titan_status copy_own(struct comm *c, void *to, const void *from, size_t bytes, struct stream *s)
{
    bool go;
    titan_status st = begin(c, s, &go);
    if (!go)
        return st;
    cudaError_t e = cudaSuccess;
    if (to != from && bytes > 0)
        e = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, s->native);
    (void)pthread_mutex_unlock(&c->lock);
    return stream_enqueued(s, "a copy to oneself", (int)e);
}

titan_status nccl_all_gather(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt,
                             struct stream *s)
{
    ncclDataType_t type;
    if (!nccl_type(dt, &type))
        return TITAN_EINVAL;
    if (!c->nccl)
        return copy_own(c, recv, send, count * dtype_bytes(dt), s);
    COLLECTIVE(c, s, "all-gather", ncclAllGather(send, recv, count, type, c->nccl, s->native));
}

titan_status nccl_reduce_scatter(struct comm *c, void *recv, const void *send, size_t count, enum dtype dt,
                                 struct stream *s)
{
    ncclDataType_t type;
    if (!nccl_type(dt, &type))
        return TITAN_EINVAL;
    if (!c->nccl)
        return copy_own(c, recv, send, count * dtype_bytes(dt), s);
    COLLECTIVE(c, s, "reduce-scatter", ncclReduceScatter(send, recv, count, type, ncclSum, c->nccl, s->native));
}

titan_status nccl_all_reduce(struct comm *c, void *data, size_t count, enum dtype dt, struct stream *s)
{
    ncclDataType_t type;
    if (!nccl_type(dt, &type))
        return TITAN_EINVAL;
    if (!c->nccl)
        return copy_own(c, data, data, 0, s);
    COLLECTIVE(c, s, "all-reduce", ncclAllReduce(data, data, count, type, ncclSum, c->nccl, s->native));
}

titan_status nccl_broadcast(struct comm *c, void *data, size_t bytes, int root, struct stream *s)
{
    if (root < 0 || root >= c->world)
        return TITAN_EINVAL;
    if (!c->nccl)
        return copy_own(c, data, data, 0, s);
    COLLECTIVE(c, s, "broadcast", ncclBroadcast(data, data, bytes, ncclUint8, root, c->nccl, s->native));
}

/* A member's part of an exchange. */
struct part {
    void *data; /* a part to send is only read */
    size_t bytes;
    int peer;
};

/* Sends and receives of one group run together, so their order does not matter. Empty parts are neither sent nor
 * received. */
static ncclResult_t pass(struct comm *c, struct part out, struct part in, struct stream *s)
{
    ncclResult_t r = ncclSuccess;
    if (out.bytes > 0)
        r = ncclSend(out.data, out.bytes, ncclUint8, out.peer, c->nccl, s->native);
    if (nccl_fine(r) && in.bytes > 0)
        r = ncclRecv(in.data, in.bytes, ncclUint8, in.peer, c->nccl, s->native);
    return r;
}

/* counts: `world` numbers of received rows, then `world` numbers of sent rows; NULL: one row for every peer. */
static ncclResult_t exchange(struct comm *c, char *recv, const char *send, const int32_t *counts, size_t row_bytes,
                             struct stream *s)
{
    ncclResult_t r = ncclGroupStart();
    for (int peer = 0; peer < c->world && nccl_fine(r); peer++) {
        const size_t gets = counts ? (size_t)counts[peer] * row_bytes : row_bytes;
        const size_t gives = counts ? (size_t)counts[c->world + peer] * row_bytes : row_bytes;
        r = pass(c, (struct part){(void *)send, gives, peer}, (struct part){recv, gets, peer}, s);
        recv += gets;
        send += gives;
    }
    ncclResult_t end = ncclGroupEnd();
    return nccl_fine(r) ? end : r;
}

titan_status nccl_all_to_all(struct comm *c, void *recv, const void *send, size_t bytes, struct stream *s)
{
    if (!c->nccl)
        return copy_own(c, recv, send, bytes, s);
    COLLECTIVE(c, s, "all-to-all", exchange(c, recv, send, NULL, bytes, s));
}

titan_status nccl_all_to_all_v(struct comm *c, const struct comm_rows *rows, struct stream *s)
{
    const size_t bytes = (size_t)c->world * sizeof(*rows->recv_counts);
    int32_t own[2], *counts = c->nccl ? c->counts : own;
    if (stream_skips(s))
        return comm_failed(c);
    /* Fetches the counts. The host waits until the stream has made these copies, and watches the peers meanwhile. */
    cudaError_t e = cudaMemcpyAsync(counts, rows->recv_counts, bytes, cudaMemcpyDeviceToHost, s->native);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(counts + c->world, rows->send_counts, bytes, cudaMemcpyDeviceToHost, s->native);
    TRY(stream_enqueued(s, "row counts", (int)e));
    TRY(cuda_stream_sync(s, NULL));
    for (int i = 0; i < 2 * c->world; i++)
        if (counts[i] < 0)
            return TITAN_EINVAL;
    if (counts[c->rank] != counts[c->world + c->rank])
        return TITAN_EINVAL;
    if (!c->nccl)
        return copy_own(c, rows->recv, rows->send, (size_t)own[0] * rows->bytes, s);
    COLLECTIVE(c, s, "all-to-all", exchange(c, rows->recv, rows->send, counts, rows->bytes, s));
}

static ncclResult_t pass_on(struct comm *c, void *recv, const void *send, size_t bytes, int distance, struct stream *s)
{
    const int to = (c->rank + distance) % c->world, from = (c->rank - distance + c->world) % c->world;
    ncclResult_t r = ncclGroupStart();
    if (nccl_fine(r))
        r = pass(c, (struct part){(void *)send, bytes, to}, (struct part){recv, bytes, from}, s);
    ncclResult_t end = ncclGroupEnd();
    return nccl_fine(r) ? end : r;
}

titan_status nccl_shift(struct comm *c, void *recv, const void *send, size_t bytes, int distance, struct stream *s)
{
    distance = (distance % c->world + c->world) % c->world;
    if (!c->nccl)
        return copy_own(c, recv, send, bytes, s);
    COLLECTIVE(c, s, "shift", pass_on(c, recv, send, bytes, distance, s)); /* in NCCL a rank can also send to itself */
}

titan_status nccl_send(struct comm *c, const void *data, size_t bytes, int to, struct stream *s)
{
    if (to < 0 || to >= c->world || to == c->rank)
        return TITAN_EINVAL;
    COLLECTIVE(c, s, "send", pass(c, (struct part){(void *)data, bytes, to}, (struct part){0}, s));
}

titan_status nccl_recv(struct comm *c, void *data, size_t bytes, int from, struct stream *s)
{
    if (from < 0 || from >= c->world || from == c->rank)
        return TITAN_EINVAL;
    COLLECTIVE(c, s, "receive", pass(c, (struct part){0}, (struct part){data, bytes, from}, s));
}

titan_status nccl_barrier(struct comm *c, struct stream *s)
{
    if (!c->nccl)
        return copy_own(c, NULL, NULL, 0, s);
    COLLECTIVE(c, s, "barrier", ncclAllReduce(c->token, c->token, 1, ncclFloat32, ncclSum, c->nccl, s->native));
}
