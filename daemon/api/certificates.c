/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes' certificates: join tokens, first and later certificates, revocation. */
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/utf8.h"
#include "daemon/api/api.h"
#include "daemon/auth/certs.h"
#include "daemon/coordinator/shell/enrol.h"
#include "state/enrolment.h"
#include "state/token.h"
#include "titan/internal/enrol.pb-c.h"

#define TTL_DEFAULT_MS INT64_C(3600000)

/* --- a call that waits for the store ------------------------------------------------------------------------------ */

struct pending {
    struct rpc_call *call; /* must be first (api_request_closed); NULL when the client has gone */
    struct coordinator *c;
    unsigned method; /* number in policy.h */
    struct auth_user user;
    char by[192], node[ENROLMENT_NODE], uri[PKI_URI_MAX], reason[API_REASON_MAX + 1];
    int64_t now_ms, invited_ms, denied_before_ms;
    struct token token; /* join: id and hash of the new token; enroll: id and hash of the received token */
    char token_text[TOKEN_TEXT];
    uint8_t key_hash[PKI_KEY_HASH];
    struct buf request;
    struct titan_error refusal;
    uint32_t sessions; /* sessions of the revoked name */
};

/* NULL: out of memory; the call has then ended with this error. */
static struct pending *pending_new(struct coordinator *c, struct rpc_call *call, unsigned method)
{
    struct pending *p = calloc(1, sizeof(*p));
    if (!p) {
        struct titan_error err = {0};
        (void)titan_fail(&err, TITAN_ENOMEM, "out of memory");
        rpc_call_fail(call, &err);
        return NULL;
    }
    p->c = c;
    p->call = call;
    p->now_ms = clock_wall_ms();
    p->method = method;
    api_user(c, call, &p->user);
    (void)snprintf(p->by, sizeof(p->by), "%.*s", (int)sizeof(p->by) - 1, p->user.actor);
    text_fit(p->by, '?'); /* the cut may split a character */
    return p;
}

static void pending_free(struct pending *p)
{
    buf_free(&p->request);
    free(p);
}

/* Stores p by `write`; `done` answers the call. The caller has filled p and checked it; status is the result of the
 * check. */
static void submit(struct pending *p, titan_status status, struct titan_error *err, store_fn write, store_done done)
{
    if (status == TITAN_OK)
        status = shell_accepts(p->c, err);
    if (status != TITAN_OK) {
        api_failed(p->c, &p->user, p->method, 0, err);
        rpc_call_fail(p->call, err);
        pending_free(p);
        return;
    }
    rpc_call_set_data(p->call, p);
    store_write(p->c->store, write, p, done);
}

/* Puts the outcome on record. Returns the call if it is still open; answers an error itself. */
static struct rpc_call *answering(struct pending *p, const struct titan_error *err)
{
    struct rpc_call *call = p->call;
    if (err->status == TITAN_OK)
        api_on_record(p->c, p->user.actor, p->method);
    else
        api_failed(p->c, &p->user, p->method, 0, err);
    if (!call)
        return NULL;
    rpc_call_set_data(call, NULL);
    if (err->status == TITAN_OK)
        return call;
    rpc_call_fail(call, err);
    return NULL;
}

/* --- invitations -------------------------------------------------------------------------------------------------- */

static titan_status write_join(struct db *db, void *arg, struct titan_error *err)
{
    titan_assert(((struct pending *)arg)->node[0] && ((struct pending *)arg)->token.expires_at_ms > 0);
    struct pending *p = arg;
    struct join join = {.id = p->token.id,
                        .node = p->node,
                        .created_by = p->by,
                        .hash = p->token.hash,
                        .created_at_ms = p->now_ms,
                        .expires_at_ms = p->token.expires_at_ms};
    return enrolment_join_add(db, &join, err);
}

static void join_written(void *arg, const struct titan_error *stored)
{
    struct pending *p = arg;
    struct rpc_call *call = answering(p, stored);
    char address[ENROL_ADDRESS];
    _cleanup_(buf_free) struct buf ca = BUF_INIT;
    struct titan_error err = {0};
    if (call && file_read(enrol_ca_file(p->c->enrol), PKI_PEM_MAX, &ca, &err) != TITAN_OK) {
        rpc_call_fail(call, &err);
    } else if (call) {
        Titan__V1__JoinNodeResponse reply = TITAN__V1__JOIN_NODE_RESPONSE__INIT;
        enrol_address(p->c->enrol, address);
        reply.token = p->token_text;
        reply.expires_at_ms = p->token.expires_at_ms;
        reply.ca = ca.data ? ca.data : "";
        reply.address = address;
        reply.agents_port = enrol_agents_port(p->c->enrol);
        rpc_call_reply(call, &reply.base);
    }
    OPENSSL_cleanse(p->token_text, sizeof(p->token_text));
    pending_free(p);
}

static titan_status check_node(const char *node, struct titan_error *err)
{
    if (pki_name_ok(node))
        return TITAN_OK;
    return titan_fail(err, TITAN_EINVAL, "'%.64s' is not a valid node name: letters, digits, '.', '_', '-', at most %d",
                      node, PKI_NAME_MAX);
}

static titan_status prepare_join(struct pending *p, const Titan__V1__JoinNodeRequest *r, struct titan_error *err)
{
    _cleanup_(authority_free) struct authority a = {BUF_INIT, BUF_INIT};
    int64_t ttl = r->ttl_ms ? (int64_t)MIN(r->ttl_ms, (uint64_t)INT64_MAX) : TTL_DEFAULT_MS;
    TRY(check_node(r->node, err));
    if (!*enrol_ca_file(p->c->enrol))
        return titan_fail(err, TITAN_ECONFLICT, "this coordinator serves no TLS: there is nothing to join over");
    TRY(enrol_can_sign(p->c->enrol, &a, err));
    TRY(token_make(&p->token, p->token_text, err));
    (void)snprintf(p->node, sizeof(p->node), "%s", r->node);
    p->token.expires_at_ms = p->now_ms + ttl;
    return TITAN_OK;
}

void api_join_node(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct titan_error err = {0};
    struct pending *p = pending_new(data, call, POLICY_JOIN_NODE);
    if (p) {
        const titan_status status = prepare_join(p, (const Titan__V1__JoinNodeRequest *)base, &err);
        submit(p, status, &err, write_join, join_written);
    }
}

static bool each_join(const struct join *j, void *data)
{
    struct reply *l = data;
    Titan__V1__Join *m = arena_alloc(&l->memory, sizeof(*m));
    titan__v1__join__init(m);
    m->id = arena_strdup(&l->memory, j->id);
    m->node = arena_strdup(&l->memory, j->node);
    m->created_at_ms = j->created_at_ms;
    m->expires_at_ms = j->expires_at_ms;
    m->used_at_ms = j->used_at_ms;
    m->created_by = arena_strdup(&l->memory, j->created_by);
    api_reply_add(l, m);
    return true;
}

void api_list_joins(struct rpc_call *call, const ProtobufCMessage *request, void *data)
{
    struct titan_error err = {0};
    _cleanup_(api_reply_free) struct reply r = {.c = data};
    (void)request;
    if (enrolment_join_list(store_reader(r.c->store), each_join, &r, &err) != TITAN_OK) {
        rpc_call_fail(call, &err);
        return;
    }
    Titan__V1__ListJoinsResponse reply = TITAN__V1__LIST_JOINS_RESPONSE__INIT;
    reply.n_joins = r.n;
    reply.joins = (Titan__V1__Join **)r.items;
    rpc_call_reply(call, &reply.base);
}

static titan_status write_join_revoked(struct db *db, void *arg, struct titan_error *err)
{
    struct pending *p = arg;
    return enrolment_join_revoke(db, p->token.id, p->by, p->now_ms, p->node, err);
}

static void join_revoked(void *arg, const struct titan_error *stored)
{
    struct pending *p = arg;
    struct rpc_call *call = answering(p, stored);
    Titan__V1__RevokeJoinResponse reply = TITAN__V1__REVOKE_JOIN_RESPONSE__INIT;
    reply.node = p->node;
    if (call)
        rpc_call_reply(call, &reply.base);
    pending_free(p);
}

void api_revoke_join(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    const char *id = ((const Titan__V1__RevokeJoinRequest *)base)->id;
    struct titan_error err = {0};
    struct pending *p = pending_new(data, call, POLICY_REVOKE_JOIN);
    if (!p)
        return;
    if (snprintf(p->token.id, sizeof(p->token.id), "%s", id) >= (int)sizeof(p->token.id))
        (void)titan_fail(&err, TITAN_ENOTFOUND, "there is no join token %.32s", id);
    submit(p, err.status, &err, write_join_revoked, join_revoked);
}

/* --- signing for nodes -------------------------------------------------------------------------------------------- */

static void answer_signed(struct coordinator *c, struct rpc_call *call, const char *node, int64_t given_ms,
                          const void *request, size_t len)
{
    titan_assert(node[0] && len > 0);
    _cleanup_(buf_free) struct buf certificate = BUF_INIT, ca = BUF_INIT;
    struct titan_error err = {0};
    int64_t until_ms = 0;
    const struct enrol_request its = {.node = node, .given_ms = given_ms, .data = request, .len = len};
    if (enrol_sign(c->enrol, &its, &certificate, &ca, &until_ms, &err) != TITAN_OK) {
        tlog_error(enrol_log(c->enrol), "a certificate could not be signed", "node=%s reason=\"%s\"", node, err.msg);
        rpc_call_fail(call, &err);
        return;
    }
    rpc_call_renewed(call, until_ms); /* a node keeps its present connection */
    Titan__Internal__EnrollResponse reply = TITAN__INTERNAL__ENROLL_RESPONSE__INIT;
    reply.certificate = (ProtobufCBinaryData){.data = (uint8_t *)certificate.data, .len = certificate.len};
    reply.ca = (ProtobufCBinaryData){.data = (uint8_t *)ca.data, .len = ca.len};
    reply.now_ms = clock_wall_ms();
    rpc_call_reply(call, &reply.base);
}

static titan_status write_enroll(struct db *db, void *arg, struct titan_error *err)
{
    titan_assert(((struct pending *)arg)->node[0] && ((struct pending *)arg)->request.len > 0);
    struct pending *p = arg;
    const struct join_use use = {p->token.id, p->node, p->token.hash, p->key_hash, p->now_ms};
    return enrolment_join_use(db, &use, &p->invited_ms, &p->refusal, err);
}

static void enroll_written(void *arg, const struct titan_error *stored)
{
    struct pending *p = arg;
    struct coordinator *c = p->c;
    struct rpc_call *call = p->call;
    if (stored->status == TITAN_OK && p->refusal.status != TITAN_OK) {
        enrol_join_refused(c->enrol, call ? rpc_call_peer(call) : "", clock_mono_ms());
        tlog_warn(enrol_log(c->enrol), "a node's request for a certificate is refused", "peer=\"%s\" reason=\"%s\"",
                  call ? rpc_call_peer(call) : "gone", p->refusal.msg);
        (void)answering(p, &p->refusal);
    } else if ((call = answering(p, stored))) {
        tlog_info(enrol_log(c->enrol), "node enrolled", "node=%s peer=\"%s\"", p->node, rpc_call_peer(call));
        answer_signed(c, call, p->node, p->invited_ms, p->request.data, p->request.len);
    }
    pending_free(p);
}

static titan_status prepare_enroll(struct pending *p, const Titan__Internal__EnrollRequest *r, struct titan_error *err)
{
    _cleanup_(authority_free) struct authority a = {BUF_INIT, BUF_INIT};
    TRY(check_node(r->node, err));
    TRY(token_parse(r->token, p->token.id, p->token.hash, err));
    /* Any machine may send a wrong token. So a wrong token must cost no write and no signature. */
    TRY(enrolment_join_find(store_reader(p->c->store), p->token.id, p->token.hash, err));
    TRY(pki_request_check(r->request.data, r->request.len, p->key_hash, err));
    TRY(enrol_can_sign(p->c->enrol, &a, err)); /* before the token is used up */
    (void)snprintf(p->node, sizeof(p->node), "%s", r->node);
    return buf_append(&p->request, r->request.data, r->request.len) == TITAN_OK
               ? TITAN_OK
               : titan_fail(err, TITAN_ENOMEM, "out of memory");
}

void api_enroll(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct coordinator *c = data;
    struct titan_error err = {0};
    const int64_t now_ms = clock_mono_ms();
    if (!enrol_may_try(c->enrol, rpc_call_peer(call), now_ms)) {
        titan_fail(&err, TITAN_ELIMIT, "too many wrong join tokens came from this address within a minute");
        titan_error_hint(&err, "wait a minute");
        rpc_call_fail(call, &err);
        return;
    }
    struct pending *p = pending_new(c, call, POLICY_ENROLL);
    if (!p)
        return;
    const titan_status status = prepare_enroll(p, (const Titan__Internal__EnrollRequest *)base, &err);
    if (status != TITAN_OK)
        enrol_join_refused(c->enrol, rpc_call_peer(call), now_ms);
    submit(p, status, &err, write_enroll, enroll_written);
}

void api_renew(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct coordinator *c = data;
    const Titan__Internal__RenewRequest *r = (const Titan__Internal__RenewRequest *)base;
    const struct rpc_identity *caller = rpc_call_identity(call);
    const char *name = "";
    uint8_t hash[PKI_KEY_HASH];
    struct titan_error err = {0};
    struct auth_user u;
    api_user(c, call, &u);
    if (caller->kind != RPC_ID_CERT || pki_uri_parse(caller->name, &name) != PKI_NODE)
        titan_fail(&err, TITAN_EPERM, "only a node's certificate is renewed, not that of %s", caller->name);
    else
        (void)!pki_request_check(r->request.data, r->request.len, hash, &err);
    if (err.status != TITAN_OK) {
        api_failed(c, &u, POLICY_RENEW, 0, &err);
        rpc_call_fail(call, &err);
    } else {
        api_on_record(c, u.actor, POLICY_RENEW);
        answer_signed(c, call, name, caller->from_ms, r->request.data, r->request.len);
    }
}

/* --- revoking ----------------------------------------------------------------------------------------------------- */

static titan_status write_revocation(struct db *db, void *arg, struct titan_error *err)
{
    titan_assert(((struct pending *)arg)->uri[0]);
    struct pending *p = arg;
    struct revocation r = {.uri = p->uri, .reason = p->reason, .by = p->by, .at_ms = p->now_ms};
    if (pki_uri_parse(p->uri, &r.node) != PKI_NODE)
        r.node = NULL;
    return revocation_put(db, &r, err);
}

/* The agent still obeys and was told to stop the node's workers. Messages under the node's name are refused from now
 * on. */
static void revocation_done(void *arg, const struct titan_error *stored)
{
    struct pending *p = arg;
    Titan__V1__RevokeCertificateResponse reply = TITAN__V1__REVOKE_CERTIFICATE_RESPONSE__INIT;
    api_review(p->c);
    struct rpc_call *call = answering(p, stored);
    reply.name = p->uri;
    reply.sessions = p->sessions;
    if (call)
        rpc_call_reply(call, &reply.base);
    pending_free(p);
}

static void revocation_written(void *arg, const struct titan_error *stored)
{
    struct pending *p = arg;
    struct coordinator *c = p->c;
    struct titan_error err = *stored;
    const char *name = "";
    struct batch batch;
    if (err.status != TITAN_OK) {
        enrol_deny_undo(c->enrol, p->uri, p->denied_before_ms);
        (void)answering(p, &err);
        pending_free(p);
        return;
    }
    /* Deny the name once more, because another revocation may have failed meanwhile and undone this denial. */
    (void)!enrol_deny(c->enrol, p->uri, p->now_ms);
    tlog_warn(enrol_log(c->enrol), "certificate revoked", "name=\"%s\" by=\"%s\" reason=\"%s\"", p->uri, p->by,
              p->reason);
    bool node = pki_uri_parse(p->uri, &name) == PKI_NODE && !c->closing;
    uint64_t session = node ? core_node_session(c->core, name) : 0;
    batch_init(&batch);
    if (node)
        core_node_revoke(c->core, name, p->uri, shell_now(c), &batch);
    p->sessions = session_revoked(c, p->uri, batch.drops ? session : 0);
    if (c->closing)
        revocation_done(p, &err);
    else
        shell_commit(c, &batch, revocation_done, p);
}

void api_revoke_certificate(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct coordinator *c = data;
    struct titan_error err = {0};
    struct pending *p = pending_new(c, call, POLICY_REVOKE_CERTIFICATE);
    if (!p)
        return;
    static const char prefix[] = "spiffe://titan/";
    const Titan__V1__RevokeCertificateRequest *r = (const Titan__V1__RevokeCertificateRequest *)base;
    const bool whole = strncmp(r->name, prefix, strlen(prefix)) == 0;
    const int n = snprintf(p->uri, sizeof(p->uri), "%s%s", whole ? "" : prefix, r->name);
    (void)snprintf(p->reason, sizeof(p->reason), "%s", r->reason);
    titan_status status = TITAN_OK;
    if (n >= (int)sizeof(p->uri) || pki_uri_parse(p->uri, NULL) == PKI_NONE)
        status =
            titan_fail(&err, TITAN_EINVAL, "'%.64s' is not the name of a certificate: node/NAME, user/NAME", r->name);
    if (status == TITAN_OK)
        status = shell_accepts(c, &err);
    /* Deny the name before the write. So no write of a caller with such a certificate follows the revocation in the
     * store. */
    if (status == TITAN_OK && (p->denied_before_ms = enrol_deny(c->enrol, p->uri, p->now_ms)) < 0)
        status = titan_fail(&err, TITAN_ENOMEM, "out of memory");
    submit(p, status, &err, write_revocation, revocation_written);
}
