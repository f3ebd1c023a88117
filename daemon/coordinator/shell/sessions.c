/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/coordinator/shell/sessions.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"

#define SAID_ONCE_MS 60000 /* least time between log lines about the same end of a session */

static struct agent_session *find(const struct coordinator *c, uint64_t id)
{
    struct agent_session *s = c->sessions[id % SESSION_BUCKETS];
    while (s && s->id != id)
        s = s->next;
    return s;
}

struct agent_session *sessions_begin(struct coordinator *c, struct rpc_call *call)
{
    struct agent_session *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    s->id = c->next_session++;
    s->call = call;
    s->next = c->sessions[s->id % SESSION_BUCKETS];
    c->sessions[s->id % SESSION_BUCKETS] = s;
    rpc_call_set_data(call, s);
    const struct rpc_identity *caller = rpc_call_identity(call);
    if (caller->kind == RPC_ID_CERT) /* other identities prove nothing about a node */
        core_session_opened(c->core, s->id, caller->name);
    return s;
}

void sessions_end(struct coordinator *c, struct agent_session *s, const struct titan_error *err)
{
    struct rpc_call *call = s->call;
    s->call = NULL;
    if (!call)
        return;
    if (err) {
        /* A refused agent tries again each second. So the same reason is logged only once in a while. */
        const uint64_t hash = hash_text(HASH_INIT, err->msg);
        const int64_t now_ms = clock_mono_ms();
        const bool lately = hash == c->refusal_reported && now_ms - c->refusal_reported_ms < SAID_ONCE_MS;
        if (!lately) {
            c->refusal_reported = hash;
            c->refusal_reported_ms = now_ms;
            tlog_warn(&c->log, "agent session ended", "peer=\"%s\" reason=\"%s\"", rpc_call_peer(call), err->msg);
        }
        rpc_call_fail(call, err);
    } else {
        rpc_call_finish(call, TITAN_OK, NULL);
    }
}

static void sent(struct coordinator *c, struct agent_session *s, titan_status status)
{
    if (status == TITAN_EAGAIN) {
        /* The agent will open another session and be sent again everything in force. */
        struct titan_error err = {0};
        titan_fail(&err, TITAN_ELIMIT, "the agent does not read its messages");
        sessions_end(c, s, &err);
    }
}

void sessions_send(struct coordinator *c, struct agent_session *s, const ProtobufCMessage *m)
{
    sent(c, s, rpc_call_send(s->call, m));
}

bool session_is_local(const struct coordinator *c, uint64_t session)
{
    const struct agent_session *s = find(c, session);
    return s && s->call && !strncmp(rpc_call_peer(s->call), "unix:", 5);
}

void session_post(struct coordinator *c, uint64_t session, const Titan__Internal__CoordinatorMessage *m)
{
    struct agent_session *s = find(c, session);
    if (s && s->call)
        sessions_send(c, s, &m->base);
}

void session_post_packed(struct coordinator *c, uint64_t session, const struct rpc_packed *packed)
{
    struct agent_session *s = find(c, session);
    if (s && s->call)
        sent(c, s, rpc_call_send_packed(s->call, packed));
}

void session_drop(struct coordinator *c, uint64_t session)
{
    struct agent_session *s = find(c, session);
    struct titan_error err = {0};
    if (s && s->revoked)
        titan_fail(&err, TITAN_EPERM, "the node's certificate is revoked");
    else
        titan_fail(&err, TITAN_ECONFLICT, "the node was given up or has opened another session");
    if (s)
        sessions_end(c, s, &err);
}

uint32_t session_revoked(struct coordinator *c, const char *uri, uint64_t except)
{
    uint32_t n = 0;
    for (size_t i = 0; i < SESSION_BUCKETS; i++)
        for (struct agent_session *s = c->sessions[i]; s; s = s->next) {
            const struct rpc_identity *caller = s->call ? rpc_call_identity(s->call) : NULL;
            if (!caller || caller->kind != RPC_ID_CERT || strcmp(caller->name, uri) != 0)
                continue;
            s->revoked = true;
            n++;
            if (s->id != except)
                session_drop(c, s->id);
        }
    return n;
}

bool session_takes_last_words(const struct rpc_call *call)
{
    const struct agent_session *s = rpc_call_data(call);
    return s && s->revoked;
}
