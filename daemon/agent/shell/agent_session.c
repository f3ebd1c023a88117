/* SPDX-License-Identifier: Apache-2.0 */
/* agent_session.c - the agent's stream to the coordinator; see agent_session.h. */
#include "daemon/agent/shell/agent_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/rpc/client.h"
#include "proto/rpc/targets.h"

#define RETRY_MIN_MS 20
#define RETRY_MAX_MS 1000
#define CLOSE_MS 200

static const char session_path[] = "/titan.internal.Coordinator/Session";

/* Checks that the name of each of several addresses resolves, because an address may be needed much later. */
struct lookup {
    struct session *session;
    uv_getaddrinfo_t request;
    char host[RPC_TARGET_MAX];
};

struct session {
    uv_loop_t *loop;
    struct session_events events;
    void *data;
    struct log log;
    struct rpc_client *client;
    struct rpc_stream *stream; /* NULL = none */
    uv_timer_t retry_timer;
    uint32_t retry_ms;
    bool settled, closing, client_closing, failed_before;
    char why[256]; /* reason of the session_end in progress */
    struct lookup lookups[RPC_TARGETS_MAX];
    int looking; /* lookups in progress */
    bool handle_closed;
    size_t n_targets, tried;          /* possible addresses; tried since the last address that accepted this node */
    char tried_why[RPC_TARGETS_TEXT]; /* errors of the tried addresses */
    void (*done)(void *);
    void *done_data;
};

static void session_try(struct session *s);

titan_status session_send(struct session *s, const Titan__Internal__AgentMessage *message)
{
    return s->stream ? rpc_stream_send(s->stream, &message->base) : TITAN_ECANCELLED;
}

size_t session_queued(const struct session *s)
{
    return s->stream ? rpc_stream_queued(s->stream) : 0;
}

void session_settled(struct session *s)
{
    if (s->tried && s->n_targets > 1)
        tlog_warn(&s->log, "the coordinator is at another of its addresses", "reached=%s passed=\"%s\"",
                  rpc_client_target(s->client), s->tried_why);
    s->settled = true;
    s->failed_before = false;
    s->tried = 0;
    s->retry_ms = RETRY_MIN_MS;
}

void session_end(struct session *s, const char *why)
{
    if (!s->stream)
        return;
    (void)snprintf(s->why, sizeof(s->why), "%s", why);
    rpc_stream_cancel(s->stream);
}

static void on_stream_message(struct rpc_stream *stream, const ProtobufCMessage *base, void *data)
{
    struct session *s = data;
    const Titan__Internal__CoordinatorMessage *message = (const Titan__Internal__CoordinatorMessage *)base;
    (void)stream;
    if (!s->closing && s->stream)
        s->events.on_message(message, s->data);
}

static void close_client(struct session *s);

static void on_retry(uv_timer_t *timer)
{
    struct session *s = timer->data;
    if (s->closing)
        close_client(s);
    else
        session_try(s);
}

/* Tries all addresses in sequence, and then again, with growing pauses. */
static void retry_later(struct session *s)
{
    titan_assert(s->n_targets > 0); /* rpc_targets_parse() found one */
    const bool round = s->tried % s->n_targets == 0;
    (void)uv_timer_start(&s->retry_timer, on_retry, round ? s->retry_ms : 0, 0);
    titan_assert(s->retry_ms >= RETRY_MIN_MS);
    if (round)
        s->retry_ms = MIN(2 * s->retry_ms, RETRY_MAX_MS);
}

static void on_stream_close(struct rpc_stream *stream, const struct titan_error *err, void *data)
{
    struct session *s = data;
    (void)stream;
    s->stream = NULL;
    if (s->closing) {
        close_client(s);
        return;
    }
    if (s->settled) { /* the coordinator is most likely back at the same address */
        tlog_warn(&s->log, "session with the coordinator lost", "reason=\"%s\"", s->why[0] ? s->why : err->msg);
        rpc_client_reconnect(s->client, false);
        s->failed_before = s->n_targets == 1;
    } else {
        /* The address did not accept this node, so the session tries the next. It logs once per outage, when it has
         * tried all addresses. */
        struct titan_error ended;
        (void)titan_fail(&ended, TITAN_EUNREACHABLE, "%s", s->why);
        const struct titan_error *why = s->why[0] ? &ended : err;
        if (s->tried == 0)
            s->tried_why[0] = '\0';
        if (s->tried < s->n_targets)
            rpc_targets_report(s->tried_why, rpc_client_target(s->client), why);
        s->tried++;
        rpc_client_reconnect(s->client, true);
        if (!s->failed_before && s->tried >= s->n_targets) {
            tlog_warn(&s->log, "coordinator not reached", "reason=\"%s\"", s->n_targets == 1 ? why->msg : s->tried_why);
            s->failed_before = true;
        }
    }

    s->settled = false;
    s->why[0] = '\0';
    s->events.on_lost(s->data);
    retry_later(s);
}

static void session_try(struct session *s)
{
    static const struct rpc_stream_events events = {on_stream_message, on_stream_close};
    titan_assert(!s->stream && !s->closing);
    struct titan_error err = {0};
    if (rpc_client_stream(
            s->client, &(struct rpc_request){session_path, NULL, &titan__internal__coordinator_message__descriptor, 0},
            &events, s, &s->stream, &err) != TITAN_OK) {
        tlog_warn(&s->log, "coordinator not reached", "reason=\"%s\"", err.msg);
        s->stream = NULL;
        retry_later(s);
        return;
    }
    s->events.on_open(s->data);
}

const char *session_target(const struct session *s)
{
    return rpc_client_target(s->client);
}

struct rpc_client *session_client(const struct session *s)
{
    return s->client;
}

static void finish(struct session *s)
{
    if (!s->handle_closed || s->looking)
        return;
    void (*done)(void *) = s->done;
    void *data = s->done_data;
    free(s);
    if (done)
        done(data);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct session *s = handle->data;
    s->handle_closed = true;
    finish(s);
}

static void on_lookup(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
    struct lookup *l = request->data;
    titan_assert(l->session->looking > 0);
    l->session->looking--;
    uv_freeaddrinfo(found);
    if (status != 0 && status != UV_ECANCELED)
        tlog_warn(&l->session->log, "an address of the coordinator is not known by its name, the others are used",
                  "name=\"%s\" reason=\"%s\"", l->host, uv_strerror(status));
    finish(l->session);
}

titan_status session_open(uv_loop_t *loop, const struct session_options *o, struct session **ret,
                          struct titan_error *err)
{
    struct rpc_targets targets;
    TRY(rpc_targets_parse(o->target, &targets, err));
    struct session *s = calloc(1, sizeof(*s));
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the session");
    s->n_targets = targets.n;
    titan_status status = rpc_client_open(loop, o->target, o->tls, &s->client, err);
    if (status != TITAN_OK) {
        free(s);
        return status;
    }
    s->loop = loop;
    s->events = *o->events;
    s->data = o->data;
    s->retry_ms = RETRY_MIN_MS;
    log_init(&s->log, "agent", "coordinator=%s", o->target);
    (void)uv_timer_init(loop, &s->retry_timer);
    s->retry_timer.data = s;

    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    for (size_t i = 0; i < targets.n && targets.n > 1; i++) {
        struct lookup *l = &s->lookups[i];
        const char *at = targets.at[i];
        const bool brackets = at[0] == '[';
        l->session = s;
        l->request.data = l;
        (void)snprintf(l->host, sizeof(l->host), "%.*s", (int)(strrchr(at, ':') - at) - 2 * brackets, at + brackets);
        s->looking += uv_getaddrinfo(s->loop, &l->request, on_lookup, l->host, NULL, &hints) == 0;
    }

    *ret = s;
    return TITAN_OK;
}

void session_start(struct session *s)
{
    if (!s->stream && !s->closing && !uv_is_active((uv_handle_t *)&s->retry_timer))
        session_try(s);
}

static void on_client_closed(void *data)
{
    struct session *s = data;
    uv_close((uv_handle_t *)&s->retry_timer, on_handle_closed);
}

/* Cancels the stream if it still exists; it had time to end by itself. */
static void close_client(struct session *s)
{
    if (s->client_closing)
        return;
    titan_assert(s->closing);
    s->client_closing = true;
    for (size_t i = 0; i < RPC_TARGETS_MAX; i++)
        if (s->lookups[i].session)
            (void)uv_cancel((uv_req_t *)&s->lookups[i].request);
    (void)uv_timer_stop(&s->retry_timer);
    rpc_client_close(s->client, on_client_closed, s);
}

void session_close(struct session *s, void (*done)(void *), void *data)
{
    titan_assert(!s->closing);
    s->closing = true;
    s->done = done;
    s->done_data = data;
    if (!s->stream) {
        close_client(s);
        return;
    }
    rpc_stream_close_send(s->stream);
    (void)uv_timer_start(&s->retry_timer, on_retry, CLOSE_MS, 0);
}
