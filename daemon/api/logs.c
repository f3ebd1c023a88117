/* SPDX-License-Identifier: Apache-2.0 */
/* Logs, and dumps of flight recorders: asks the nodes that run, or ran, the job's workers, and passes their chunks on.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "daemon/api/api.h"
#include "proto/ranges.h"

#define NODES_MAX 256
/* Bytes held for clients that read slower than nodes send: of all clients, and of one identity. */
#define WAITING_BYTES_MAX ((size_t)64 << 20)
#define WAITING_BYTES_OF_ONE_MAX ((size_t)16 << 20)
#define LINGER_MS 1000 /* wait for the last lines of an ended job */

struct piece {
    struct piece *next;
    int32_t rank;
    uint64_t worker_id, position;
    size_t len;
    uint8_t data[];
};

/* How far a worker's output has been sent: a node that is asked again continues there. */
struct position {
    uint64_t worker_id, position;
};

struct log_request {
    struct log_request *prev, *next;
    struct coordinator *owner;
    struct rpc_call *call; /* NULL = over */
    uint64_t id, job_id;
    int32_t rank;
    uint32_t tail_lines;
    bool flight; /* flight recorder dumps, not logs */
    struct {
        uint64_t session;
        bool open; /* the node may send more */
        char *name;
    } nodes[NODES_MAX]; /* nodes asked */
    size_t n_nodes;
    struct position *positions;
    size_t n_positions, cap_positions;
    struct piece *waiting, **waiting_tail;
    size_t waiting_bytes;
    uv_timer_t linger;
    struct titan_error cut; /* why a node's logs are incomplete; TITAN_OK = all are complete */
    bool follow, ended, lingering;
};

static void note_position(struct log_request *r, uint64_t worker_id, uint64_t position)
{
    const struct position now = {worker_id, position};
    for (size_t i = 0; i < r->n_positions; i++)
        if (r->positions[i].worker_id == worker_id) {
            r->positions[i] = now;
            return;
        }
    if (worker_id && position && r->n_positions < RANGE_LOG_POSITIONS_COUNT)
        (void)!VEC_PUSH(r->positions, r->n_positions, r->cap_positions, now);
}

static void request_log(struct log_request *r, uint64_t session, bool cancel)
{
    titan_assert(session);
    _cleanup_free_ Titan__Internal__LogPosition *after = calloc(r->n_positions + 1, sizeof(*after));
    _cleanup_free_ Titan__Internal__LogPosition **list = calloc(r->n_positions + 1, sizeof(*list));
    Titan__Internal__LogRequest body = TITAN__INTERNAL__LOG_REQUEST__INIT;
    Titan__Internal__CoordinatorMessage m = TITAN__INTERNAL__COORDINATOR_MESSAGE__INIT;
    body.request_id = r->id;
    body.job_id = r->job_id;
    body.rank = r->rank;
    body.follow = r->follow;
    body.tail_lines = r->n_positions ? 0 : r->tail_lines; /* output of new workers is sent whole */
    body.cancel = cancel;
    body.flight = r->flight;
    for (size_t i = 0; after && list && !cancel && i < r->n_positions; i++) {
        titan__internal__log_position__init(&after[i]);
        after[i].worker_id = r->positions[i].worker_id;
        after[i].position = r->positions[i].position;
        list[body.n_after++] = &after[i];
    }
    body.after = list;
    m.kind_case = TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_LOG;
    m.log = &body;
    session_post(r->owner, session, &m);
}

static void cancel_all(struct log_request *r)
{
    for (size_t i = 0; i < r->n_nodes; i++)
        if (r->nodes[i].open)
            request_log(r, r->nodes[i].session, true);
}

static void drop_waiting(struct log_request *r)
{
    while (r->waiting) {
        struct piece *p = r->waiting;
        r->waiting = p->next;
        free(p);
    }
    r->waiting_tail = &r->waiting;
    r->waiting_bytes = 0;
}

static void finish(struct log_request *r, const struct titan_error *err)
{
    struct rpc_call *call = TAKE(r->call);
    if (!call)
        return;
    cancel_all(r);
    drop_waiting(r); /* the client may take long to notice the end */
    if (err)
        rpc_call_fail(call, err);
    else
        rpc_call_finish(call, TITAN_OK, NULL);
}

/* Records the first node whose logs are incomplete. The other logs are still sent, and the end of the stream names this
 * node. */
static void note_cut(struct log_request *r, const char *node, const char *why)
{
    if (r->cut.status == TITAN_OK)
        (void)titan_fail(&r->cut, TITAN_EUNREACHABLE, "%s of job %llu are not complete: node %s %s; ask again",
                         r->flight ? "the dumps" : "the logs", (unsigned long long)r->job_id, node, why);
}

static void drain(struct log_request *r)
{
    while (r->waiting && r->call) {
        struct piece *p = r->waiting;
        Titan__V1__LogChunk m = TITAN__V1__LOG_CHUNK__INIT;
        m.rank = p->rank;
        m.worker_id = p->worker_id;
        m.position = p->position;
        m.data.len = p->len;
        m.data.data = p->data;
        titan_status status = rpc_call_send(r->call, &m.base);
        if (status != TITAN_OK)
            return; /* full: on_drain follows; over: on_close follows */
        r->waiting = p->next;
        if (!r->waiting)
            r->waiting_tail = &r->waiting;
        titan_assert(r->waiting_bytes >= p->len);
        r->waiting_bytes -= p->len;
        free(p);
    }
    titan_assert(r->n_nodes <= NODES_MAX);
    bool open = false;
    for (size_t i = 0; i < r->n_nodes; i++)
        open |= r->nodes[i].open;
    if (!r->waiting && (r->ended || (!open && (!r->follow || r->lingering))))
        finish(r, r->cut.status == TITAN_OK ? NULL : &r->cut);
}

/* Makes room for len more bytes within the limit of r's identity and the limit of all clients. Ends one stream after
 * the other, first the stream that holds most. */
static void make_room(struct log_request *r, size_t len)
{
    while (r->call) {
        const char *name = rpc_call_identity(r->call)->name;
        size_t all = len, of_one = len;
        struct log_request *most = r, *most_of_one = r;
        for (struct log_request *other = r->owner->log_requests; other; other = other->next) {
            all += other->waiting_bytes;
            if (other->waiting_bytes > most->waiting_bytes)
                most = other;
            if (!other->call || strcmp(rpc_call_identity(other->call)->name, name) != 0)
                continue;
            of_one += other->waiting_bytes;
            if (other->waiting_bytes > most_of_one->waiting_bytes)
                most_of_one = other;
        }
        struct titan_error err = {0};
        const bool one = of_one > WAITING_BYTES_OF_ONE_MAX;
        if (!one && all <= WAITING_BYTES_MAX)
            return;
        titan_fail(&err, TITAN_ELIMIT, "the logs come faster than they are read: %zu MiB wait for %s",
                   (one ? of_one : all) >> 20, one ? name : "all log streams");
        titan_error_hint(&err, "read faster, or ask for one rank or the last lines");
        finish(one ? most_of_one : most, &err);
    }
}

static void take_piece(struct log_request *r, const Titan__Internal__AgentLogChunk *chunk)
{
    titan_assert(chunk->data.len > 0);
    struct titan_error err = {0};
    make_room(r, chunk->data.len);
    if (!r->call)
        return;
    struct piece *p = malloc(sizeof(*p) + chunk->data.len);
    if (!p) {
        titan_fail(&err, TITAN_ENOMEM, "out of memory");
        finish(r, &err);
        return;
    }
    p->next = NULL;
    p->rank = chunk->rank;
    p->worker_id = chunk->worker_id;
    p->position = chunk->position;
    p->len = chunk->data.len;
    note_position(r, p->worker_id, p->position);
    memcpy(p->data, chunk->data.data, p->len);
    *r->waiting_tail = p;
    r->waiting_tail = &p->next;
    r->waiting_bytes += p->len;
    titan_assert(r->waiting_bytes <= WAITING_BYTES_OF_ONE_MAX);
}

void api_log_chunk(struct coordinator *c, uint64_t session, const Titan__Internal__AgentLogChunk *chunk)
{
    struct log_request *r = c->log_requests;
    while (r && r->id != chunk->request_id)
        r = r->next;
    if (!r || !r->call)
        return;
    size_t i = 0;
    while (i < r->n_nodes && r->nodes[i].session != session)
        i++;
    if (i == r->n_nodes || !r->nodes[i].open) /* the node was not asked, or has finished */
        return;
    if (chunk->data.len)
        take_piece(r, chunk);
    if (chunk->end && chunk->cut)
        note_cut(r, r->nodes[i].name, "could not read all of its files");
    r->nodes[i].open = !chunk->end;
    drain(r);
}

void api_session_gone(struct coordinator *c, uint64_t session)
{
    for (struct log_request *r = c->log_requests, *next; r; r = next) {
        next = r->next;
        for (size_t i = 0; i < r->n_nodes; i++) {
            if (r->nodes[i].session != session || !r->nodes[i].open)
                continue;
            r->nodes[i].open = false;
            if (!r->follow || r->lingering) /* a following stream asks the node's next session */
                note_cut(r, r->nodes[i].name, "went away");
        }
        if (r->call)
            drain(r);
    }
}

static void on_linger(uv_timer_t *timer)
{
    struct log_request *r = timer->data;
    titan_assert(r->lingering && r->follow);
    r->ended = true;
    drain(r);
}

/* Asks the worker's node, unless it was asked already. */
static bool each_worker(const struct worker *w, void *data)
{
    struct log_request *r = data;
    uint64_t session = core_node_session(r->owner->core, w->node);
    for (size_t i = 0; session && i < r->n_nodes; i++)
        if (r->nodes[i].session == session)
            return true;
    if (!session) {
        if (!r->follow && w->state < WORKER_EXITED) /* the node is expected back */
            note_cut(r, w->node, "is not connected");
        return true;
    }
    char *name = strdup(w->node);
    if (!name) {
        note_cut(r, w->node, "was not asked: out of memory");
        return false;
    }
    titan_assert(r->n_nodes < NODES_MAX && w->job_id == r->job_id);
    r->nodes[r->n_nodes].session = session;
    r->nodes[r->n_nodes].name = name;
    r->nodes[r->n_nodes++].open = true;
    request_log(r, session, false);
    return r->n_nodes < NODES_MAX;
}

void api_logs_job_moved(struct coordinator *c, uint64_t job_id)
{
    bool ended = false;
    if (!c->log_requests || api_job_ended(c, job_id, &ended, NULL) != TITAN_OK)
        return;
    for (struct log_request *r = c->log_requests; r; r = r->next) {
        if (r->job_id != job_id || r->lingering || !r->follow || !r->call)
            continue;
        if (ended) {
            r->lingering = true;
            uv_timer_start(&r->linger, on_linger, LINGER_MS, 0);
        } else if (r->n_nodes < NODES_MAX) {
            (void)!worker_list(store_reader(c->store), job_id, true, each_worker, r, NULL);
        }
    }
}

static titan_status begin(struct coordinator *c, const struct rpc_call *call, const Titan__V1__LogsRequest *request,
                          bool *ret_ended, struct titan_error *err)
{
    size_t n = 0, of_one = 0; /* of_one: streams of this user, which must leave room for other users' streams */
    for (const struct log_request *r = c->log_requests; r; r = r->next, n++)
        of_one += r->call && strcmp(rpc_call_identity(r->call)->name, rpc_call_identity(call)->name) == 0;
    if (c->closing)
        return titan_fail(err, TITAN_EUNREACHABLE, "the coordinator is stopping");
    if (n >= API_LOG_REQUESTS_MAX)
        return titan_fail(err, TITAN_ELIMIT, "%d log streams are open already", API_LOG_REQUESTS_MAX);
    if (of_one >= API_LOG_REQUESTS_OF_ONE_MAX)
        return titan_fail(err, TITAN_ELIMIT, "%d log streams of %s are open already", API_LOG_REQUESTS_OF_ONE_MAX,
                          rpc_call_identity(call)->name);
    TRY(api_job_ended(c, request->job_id, ret_ended, err));
    if (request->follow && !*ret_ended) /* waits for logs to appear */
        return TITAN_OK;
    const unsigned long long id = (unsigned long long)request->job_id;
    int64_t workers = 0, ranks = 0;
    TRY(worker_extent(store_reader(c->store), request->job_id, &workers, &ranks, err));
    if (workers == 0)
        return titan_fail(err, TITAN_ENOTFOUND, "job %llu has no logs: it %s", id,
                          *ret_ended ? "has ended without having run" : "has not run yet");
    if (request->rank < ranks || request->rank < 0)
        return TITAN_OK;
    if (ranks == 0)
        return titan_fail(err, TITAN_ENOTFOUND, "job %llu has no rank %d: its workers have had no epoch yet", id,
                          request->rank);
    return titan_fail(err, TITAN_ENOTFOUND, "job %llu has no rank %d: its ranks are 0 to %lld", id, request->rank,
                      (long long)ranks - 1);
}

void api_logs(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct coordinator *c = data;
    const Titan__V1__LogsRequest *request = (const Titan__V1__LogsRequest *)base;
    struct titan_error err = {0};
    bool ended = false;
    struct auth_user u;
    api_user(c, call, &u);
    titan_status status = api_may(c, &u, POLICY_LOGS, request->job_id, &err);
    if (status == TITAN_OK)
        status = begin(c, call, request, &ended, &err);
    struct log_request *r = status == TITAN_OK ? calloc(1, sizeof(*r)) : NULL;
    if (status == TITAN_OK && !r)
        status = titan_fail(&err, TITAN_ENOMEM, "out of memory");
    if (status != TITAN_OK) {
        rpc_call_fail(call, &err);
        return;
    }
    r->owner = c;
    r->call = call;
    r->id = c->next_log_request++;
    r->job_id = request->job_id;
    r->flight = request->flight;
    r->follow = request->follow && !ended && !r->flight;
    r->rank = request->rank;
    r->tail_lines = request->tail_lines;
    for (size_t i = 0; i < request->n_after && !r->flight; i++)
        note_position(r, request->after[i]->worker_id, request->after[i]->position);
    r->waiting_tail = &r->waiting;
    uv_timer_init(c->loop, &r->linger);
    r->linger.data = r;
    r->next = c->log_requests;
    if (r->next)
        r->next->prev = r;
    c->log_requests = r;
    rpc_call_set_data(call, r);
    if (worker_list(store_reader(c->store), r->job_id, false, each_worker, r, &err) != TITAN_OK) {
        finish(r, &err);
        return;
    }
    drain(r);
}

void api_logs_drain(struct rpc_call *call, void *data)
{
    struct log_request *r = rpc_call_data(call);
    (void)data;
    if (r && r->call)
        drain(r);
}

static void on_linger_closed(uv_handle_t *handle)
{
    struct log_request *r = handle->data;
    titan_assert(!r->call);
    drop_waiting(r);
    for (size_t i = 0; i < r->n_nodes; i++)
        free(r->nodes[i].name);
    free(r->positions);
    free(r);
}

void api_logs_closed(struct rpc_call *call, bool cancelled, void *data)
{
    struct coordinator *c = data;
    struct log_request *r = rpc_call_data(call);
    (void)cancelled;
    if (!r)
        return;
    if (r->call)
        cancel_all(r);
    r->call = NULL;
    if (r->next)
        r->next->prev = r->prev;
    *(r->prev ? &r->prev->next : &c->log_requests) = r->next;
    titan_assert(r->owner == c && !r->call);
    uv_close((uv_handle_t *)&r->linger, on_linger_closed);
}
