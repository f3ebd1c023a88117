/* session.c - the agent's stream to the coordinator; see session.h. */
#include "daemon/agent/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/rpc/client.h"

#define RETRY_MIN_MS 20
#define RETRY_MAX_MS 1000
#define KEEP_MS 5000  /* how long a sent report may have to be sent again */
#define KEEP_MAX 4096 /* reports */
#define CLOSE_MS 200

static const char session_path[] = "/titan.internal.Coordinator/Session";

/* A report that must arrive, packed. */
struct kept {
    struct kept *next;
    uint64_t sent_at; /* loop time; 0 = not sent on this session */
    size_t len;
    uint8_t bytes[];
};

struct session {
    uv_loop_t *loop;
    struct session_events events;
    void *data;
    struct log log;
    struct rpc_client *client;
    struct rpc_stream *stream; /* NULL while there is none */
    uv_timer_t retry_timer, beat_timer;
    uint32_t retry_ms, beat_ms;
    int open_handles;
    bool welcomed, closing, client_closing, failed_before;
    struct kept *first, *last;
    size_t n_kept;
    void (*done)(void *);
    void *done_data;
};

static void session_try(struct session *s);

static void kept_drop_first(struct session *s)
{
    struct kept *k = s->first;
    s->first = k->next;
    s->last = s->first ? s->last : NULL;
    s->n_kept--;
    free(k);
}

/* Reports that went out long enough ago have arrived. */
static void kept_expire(struct session *s)
{
    while (s->first && s->first->sent_at && uv_now(s->loop) - s->first->sent_at > KEEP_MS)
        kept_drop_first(s);
}

static void kept_add(struct session *s, const Titan__Internal__AgentMessage *message)
{
    size_t len = titan__internal__agent_message__get_packed_size(message);
    struct kept *k = malloc(sizeof(*k) + len);
    if (!k)
        return;
    *k = (struct kept){.len = len};
    (void)titan__internal__agent_message__pack(message, k->bytes);
    if (s->n_kept == KEEP_MAX) {
        tlog_warn(&s->log, "too many reports waiting for the coordinator, oldest dropped", "%s", "");
        kept_drop_first(s);
    }
    *(s->last ? &s->last->next : &s->first) = k;
    s->last = k;
    s->n_kept++;
}

/* Send what waits, in order; what the stream does not take stays. */
static void kept_flush(struct session *s)
{
    for (struct kept *k = s->first; k && s->stream && s->welcomed; k = k->next) {
        if (k->sent_at)
            continue;
        Titan__Internal__AgentMessage *message = titan__internal__agent_message__unpack(NULL, k->len, k->bytes);
        titan_status status = message ? rpc_stream_send(s->stream, &message->base) : TITAN_OK;
        if (message)
            titan__internal__agent_message__free_unpacked(message, NULL);
        if (status != TITAN_OK)
            return;
        k->sent_at = uv_now(s->loop) ? uv_now(s->loop) : 1;
    }
}

bool session_send(struct session *s, const Titan__Internal__AgentMessage *message, enum session_keep keep)
{
    bool hello = message->kind_case == TITAN__INTERNAL__AGENT_MESSAGE__KIND_HELLO;
    if (keep == SESSION_KEEP) {
        kept_add(s, message);
        kept_flush(s);
        return true;
    }
    if (!s->stream || (!s->welcomed && !hello))
        return false;
    return rpc_stream_send(s->stream, &message->base) == TITAN_OK;
}

bool session_connected(const struct session *s)
{
    return s->welcomed;
}

static void on_beat(uv_timer_t *timer)
{
    struct session *s = timer->data;
    kept_expire(s);
    kept_flush(s);
    Titan__Internal__AgentBeat beat = TITAN__INTERNAL__AGENT_BEAT__INIT;
    Titan__Internal__AgentMessage message = TITAN__INTERNAL__AGENT_MESSAGE__INIT;
    beat.slots_used = s->events.slots_used(s->data);
    message.kind_case = TITAN__INTERNAL__AGENT_MESSAGE__KIND_BEAT;
    message.beat = &beat;
    /* A full queue means nobody has been reading for a thousand messages. */
    if (s->stream && rpc_stream_send(s->stream, &message.base) == TITAN_EAGAIN)
        rpc_stream_cancel(s->stream);
}

static void on_welcome(struct session *s, const Titan__Internal__Welcome *welcome)
{
    s->welcomed = true;
    s->failed_before = false;
    s->retry_ms = RETRY_MIN_MS;
    s->beat_ms = welcome->beat_ms ? welcome->beat_ms : 200;
    uint64_t every = (uint64_t)s->beat_ms * 3 / 4;
    (void)uv_timer_start(&s->beat_timer, on_beat, every, every ? every : 1);
    tlog_info(&s->log, "session with the coordinator", "term=%" PRIu64 " beat_ms=%u", welcome->term, s->beat_ms);
    kept_flush(s);
}

static void on_stream_message(struct rpc_stream *stream, const ProtobufCMessage *base, void *data)
{
    struct session *s = data;
    const Titan__Internal__CoordinatorMessage *message = (const Titan__Internal__CoordinatorMessage *)base;
    (void)stream;
    if (s->closing)
        return;
    if (message->kind_case == TITAN__INTERNAL__COORDINATOR_MESSAGE__KIND_WELCOME)
        on_welcome(s, message->welcome);
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

static void retry_later(struct session *s)
{
    (void)uv_timer_start(&s->retry_timer, on_retry, s->retry_ms, 0);
    s->retry_ms = MIN(2 * s->retry_ms, RETRY_MAX_MS);
}

static void on_stream_close(struct rpc_stream *stream, const struct titan_error *err, void *data)
{
    struct session *s = data;
    bool was_welcomed = s->welcomed;
    (void)stream;
    s->stream = NULL;
    s->welcomed = false;
    (void)uv_timer_stop(&s->beat_timer);
    for (struct kept *k = s->first; k; k = k->next)
        k->sent_at = 0;
    if (s->closing) {
        close_client(s);
        return;
    }
    if (!s->failed_before) /* one line for each outage */
        tlog_warn(&s->log, was_welcomed ? "session with the coordinator lost" : "coordinator not reached",
                  "reason=\"%s\"", err->msg);
    s->failed_before = true;
    if (was_welcomed)
        s->events.on_lost(s->data);
    retry_later(s);
}

static void session_try(struct session *s)
{
    static const struct rpc_stream_events events = {on_stream_message, on_stream_close};
    struct titan_error err = {0};
    kept_expire(s);
    if (rpc_client_stream(s->client, session_path, NULL, false, &titan__internal__coordinator_message__descriptor,
                          &events, s, &s->stream, &err) != TITAN_OK) {
        tlog_warn(&s->log, "coordinator not reached", "reason=\"%s\"", err.msg);
        s->stream = NULL;
        retry_later(s);
        return;
    }
    s->events.greet(s, s->data);
}

titan_status session_open(uv_loop_t *loop, const char *target, const struct session_events *events, void *data,
                          struct session **ret, struct titan_error *err)
{
    struct session *s = calloc(1, sizeof(*s));
    if (!s)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the session");
    titan_status status = rpc_client_open(loop, target, &s->client, err);
    if (status != TITAN_OK) {
        free(s);
        return status;
    }
    s->loop = loop;
    s->events = *events;
    s->data = data;
    s->retry_ms = RETRY_MIN_MS;
    log_init(&s->log, "agent", "coordinator=%s", target);
    (void)uv_timer_init(loop, &s->retry_timer);
    (void)uv_timer_init(loop, &s->beat_timer);
    s->retry_timer.data = s->beat_timer.data = s;
    s->open_handles = 2;
    *ret = s;
    return TITAN_OK;
}

void session_start(struct session *s)
{
    if (!s->stream && !s->closing && !uv_is_active((uv_handle_t *)&s->retry_timer))
        session_try(s);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct session *s = handle->data;
    if (--s->open_handles > 0)
        return;
    while (s->first)
        kept_drop_first(s);
    void (*done)(void *) = s->done;
    void *data = s->done_data;
    free(s);
    if (done)
        done(data);
}

static void on_client_closed(void *data)
{
    struct session *s = data;
    uv_close((uv_handle_t *)&s->retry_timer, on_handle_closed);
    uv_close((uv_handle_t *)&s->beat_timer, on_handle_closed);
}

static void close_client(struct session *s)
{
    if (s->client_closing)
        return;
    s->client_closing = true;
    (void)uv_timer_stop(&s->retry_timer);
    rpc_client_close(s->client, on_client_closed, s);
}

void session_close(struct session *s, void (*done)(void *), void *data)
{
    s->closing = true;
    s->done = done;
    s->done_data = data;
    (void)uv_timer_stop(&s->beat_timer);
    if (!s->stream) {
        close_client(s);
        return;
    }
    kept_flush(s);
    rpc_stream_close_send(s->stream);
    (void)uv_timer_start(&s->retry_timer, on_retry, CLOSE_MS, 0);
}
