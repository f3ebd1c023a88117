/* SPDX-License-Identifier: Apache-2.0 */
/* enrol.c - see enrol.h. */
#include "daemon/auth/enrol.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/vec.h"
#include "daemon/api/api.h"
#include "daemon/auth/certs.h"
#include "state/enrolment.h"
#include "state/token.h"
#include "titan/internal/enrol.pb-c.h"

#define TTL_DEFAULT_MS INT64_C(3600000)
#define TTL_MAX_MS INT64_C(2592000000)
#define LOOK_MAX_MS INT64_C(3600000) /* the clock may be set: the certificate is looked at this often */

struct denied {
    char uri[PKI_URI_MAX];
    int64_t at_ms;
};

struct enrol {
    struct coordinator *c;
    struct log log;
    struct enrol_counters counters;
    char pki_dir[PATH_MAX];
    char port[8];         /* of the first TLS listener; "" = none */
    uint32_t agents_port; /* of one for agents only; 0 = none */
    struct rpc_tls own;
    uv_timer_t timer;
    struct denied *denied;
    size_t n_denied, cap_denied;
};

/* --- what is revoked ---------------------------------------------------------------------------------------------- */

static struct denied *find_denied(const struct enrol *e, const char *uri)
{
    for (size_t i = 0; i < e->n_denied; i++)
        if (strcmp(e->denied[i].uri, uri) == 0)
            return &e->denied[i];
    return NULL;
}

static bool deny(struct enrol *e, const char *uri, int64_t at_ms)
{
    struct denied *d = find_denied(e, uri);
    if (!d) {
        if (!VEC_PUSH(e->denied, e->n_denied, e->cap_denied, (struct denied){.at_ms = 0}))
            return false;
        d = &e->denied[e->n_denied - 1];
        (void)snprintf(d->uri, sizeof(d->uri), "%s", uri);
    }
    d->at_ms = MAX(d->at_ms, at_ms);
    return true;
}

static bool each_revocation(const struct revocation *r, void *data)
{
    return deny(data, r->uri, r->at_ms);
}

titan_status enrol_admits(struct enrol *e, const struct rpc_call *call, struct titan_error *err)
{
    const struct rpc_identity *who = rpc_call_identity(call);
    const struct denied *d = who->kind == RPC_ID_CERT ? find_denied(e, who->name) : NULL;
    if (!d)
        return TITAN_OK;
    struct pki_certificate certificate;
    const char *pem;
    size_t len;
    if (rpc_call_certificate(call, &pem, &len) && pki_read(pem, len, &certificate, NULL) == TITAN_OK &&
        certificate.from_ms > d->at_ms)
        return TITAN_OK;
    e->counters.cert_revoked++;
    titan_fail(err, TITAN_EPERM, "the certificate of %s is revoked", who->name);
    titan_error_hint(err, "titanctl node join lets a node in again, with a new certificate");
    return TITAN_EPERM;
}

titan_status enrol_speaks_for(struct enrol *e, const struct rpc_call *call, const char *node, struct titan_error *err)
{
    const struct rpc_identity *who = rpc_call_identity(call);
    const char *name = "";
    if (who->kind != RPC_ID_CERT || (pki_uri_parse(who->name, &name) == PKI_NODE && strcmp(name, node) == 0))
        return TITAN_OK;
    e->counters.cert_name++;
    tlog_warn(&e->log, "registration refused: not its certificate's name",
              "peer=\"%s\" certificate=\"%s\" node=\"%.253s\"", rpc_call_peer(call), who->name, node);
    return titan_fail(err, TITAN_EPERM, "registration of node %.200s: the certificate is that of %s", node, who->name);
}

/* --- a call that waits for the store ------------------------------------------------------------------------------ */

struct pending {
    struct enrol *e;
    struct rpc_call *call; /* NULL when the client has gone */
    unsigned method;       /* of policy.h */
    struct auth_user user;
    char by[192], node[PKI_NAME_MAX + 1], uri[PKI_URI_MAX], reason[API_REASON_MAX + 1];
    int64_t now_ms;
    struct token token; /* of join: id and hash; of enroll: those that came */
    char token_text[TOKEN_TEXT];
    uint8_t key_hash[PKI_KEY_HASH];
    struct buf request;
    struct titan_error refusal;
    uint32_t sessions; /* of a revoked name */
};

void enrol_call_closed(struct rpc_call *call, bool cancelled, void *data)
{
    struct pending *p = rpc_call_data(call);
    (void)cancelled;
    (void)data;
    if (p)
        p->call = NULL;
}

static struct pending *pending_new(struct enrol *e, struct rpc_call *call, unsigned method)
{
    struct pending *p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->e = e;
    p->call = call;
    p->now_ms = clock_wall_ms();
    p->method = method;
    api_user(e->c, call, &p->user);
    (void)snprintf(p->by, sizeof(p->by), "%.*s", (int)sizeof(p->by) - 1, p->user.actor);
    return p;
}

static void pending_free(struct pending *p)
{
    buf_free(&p->request);
    free(p);
}

/* Fill p by check, then write; done answers. */
static void submit(struct enrol *e, struct rpc_call *call, struct pending *p, titan_status status,
                   struct titan_error *err, store_fn write, store_done done)
{
    if (status == TITAN_OK)
        status = shell_accepts(e->c, err);
    if (status != TITAN_OK) {
        if (p)
            api_failed(e->c, &p->user, p->method, 0, err);
        rpc_call_fail(call, err);
        if (p)
            pending_free(p);
        return;
    }
    rpc_call_set_data(call, p);
    store_write(e->c->store, write, p, done);
}

/* What came of it goes on record. The call, if it is still open; an error is answered here. */
static struct rpc_call *answering(struct pending *p, const struct titan_error *err)
{
    struct rpc_call *call = p->call;
    if (err->status == TITAN_OK)
        api_on_record(p->e->c, p->user.actor, p->method);
    else
        api_failed(p->e->c, &p->user, p->method, 0, err);
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
    struct pending *p = arg;
    struct join join = {.id = p->token.id,
                        .node = p->node,
                        .created_by = p->by,
                        .hash = p->token.hash,
                        .created_at_ms = p->now_ms,
                        .expires_at_ms = p->token.expires_at_ms};
    return join_add(db, &join, err);
}

/* The first of the certificate's names that is not this machine to itself. */
static void own_address(const struct enrol *e, char out[300])
{
    static const char *const here[] = {"localhost", "127.0.0.1", "::1"};
    _cleanup_(buf_free) struct buf pem = BUF_INIT;
    struct pki_certificate c = {0};
    const char *host = c.hosts[0];
    out[0] = '\0';
    if (!e->port[0] || file_read(e->own.certificate, PKI_PEM_MAX, &pem, NULL) != TITAN_OK ||
        pki_read(pem.data ? pem.data : "", pem.len, &c, NULL) != TITAN_OK || c.n_hosts == 0)
        return;
    for (int i = c.n_hosts - 1; i >= 0; i--) {
        bool itself = false;
        for (size_t k = 0; k < ARRAY_SIZE(here); k++)
            itself |= strcmp(c.hosts[i], here[k]) == 0;
        if (!itself)
            host = c.hosts[i];
    }
    (void)snprintf(out, 300, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, e->port);
}

static void join_written(void *arg, const struct titan_error *stored)
{
    struct pending *p = arg;
    struct rpc_call *call = answering(p, stored);
    char address[300];
    _cleanup_(buf_free) struct buf ca = BUF_INIT;
    struct titan_error err = {0};
    if (call && file_read(p->e->own.ca, PKI_PEM_MAX, &ca, &err) != TITAN_OK) {
        rpc_call_fail(call, &err);
    } else if (call) {
        Titan__V1__JoinNodeResponse reply = TITAN__V1__JOIN_NODE_RESPONSE__INIT;
        own_address(p->e, address);
        reply.token = p->token_text;
        reply.expires_at_ms = p->token.expires_at_ms;
        reply.ca = ca.data ? ca.data : "";
        reply.address = address;
        reply.agents_port = p->e->agents_port;
        rpc_call_reply(call, &reply.base);
    }
    OPENSSL_cleanse(p->token_text, sizeof(p->token_text));
    pending_free(p);
}

static titan_status check_node(const char *node, struct titan_error *err)
{
    if (pki_name_ok(node))
        return TITAN_OK;
    return titan_fail(err, TITAN_EINVAL, "'%.64s' is no name of a node: letters, digits, '.', '_', '-', at most %d",
                      node, PKI_NAME_MAX);
}

static titan_status can_sign(const struct enrol *e, struct authority *ret, struct titan_error *err)
{
    if (authority_load(e->pki_dir, ret, err) == TITAN_OK)
        return TITAN_OK;
    titan_error_wrap(err, "this coordinator signs no certificates");
    titan_error_hint(err, "titanctl pki init makes it a CA; with a CA elsewhere, that signs (titanctl pki node)");
    return err->status;
}

static titan_status prepare_join(struct enrol *e, const Titan__V1__JoinNodeRequest *r, struct pending *p,
                                 struct titan_error *err)
{
    _cleanup_(authority_free) struct authority a = {BUF_INIT, BUF_INIT};
    int64_t ttl = r->ttl_ms ? (int64_t)MIN(r->ttl_ms, (uint64_t)INT64_MAX) : TTL_DEFAULT_MS;
    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    TRY(check_node(r->node, err));
    if (ttl > TTL_MAX_MS)
        return titan_fail(err, TITAN_EINVAL, "a join token is good for 30 days at most");
    if (!e->own.ca[0])
        return titan_fail(err, TITAN_ECONFLICT, "this coordinator serves no TLS: there is nothing to join over");
    TRY(can_sign(e, &a, err));
    TRY(token_make(&p->token, p->token_text, err));
    (void)snprintf(p->node, sizeof(p->node), "%s", r->node);
    p->token.expires_at_ms = p->now_ms + ttl;
    return TITAN_OK;
}

void api_join_node(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct enrol *e = ((struct coordinator *)data)->enrol;
    struct titan_error err = {0};
    struct pending *p = pending_new(e, call, POLICY_JOIN_NODE);
    titan_status status = prepare_join(e, (const Titan__V1__JoinNodeRequest *)base, p, &err);
    submit(e, call, p, status, &err, write_join, join_written);
}

/* --- signing for nodes -------------------------------------------------------------------------------------------- */

/* After what was revoked: its certificate begins later than all that are. */
static titan_status sign(struct enrol *e, const char *node, const void *request, size_t len, struct buf *out,
                         struct buf *ca, struct titan_error *err)
{
    _cleanup_(authority_free) struct authority a = {BUF_INIT, BUF_INIT};
    char uri[PKI_URI_MAX];
    int64_t now = clock_wall_ms();
    int64_t given_ms = (int64_t)e->c->options.node_life_s * 1000, life_ms = given_ms ? given_ms : CERTS_NODE_LIFE_MS;
    (void)snprintf(uri, sizeof(uri), "spiffe://titan/node/%s", node);
    const struct denied *d = find_denied(e, uri);
    struct pki_spec spec = {
        .kind = PKI_NODE, .name = node, .from_ms = pki_begin_ms(now, life_ms), .until_ms = now + life_ms};
    if (d)
        spec.from_ms = MAX(spec.from_ms, (d->at_ms / 1000 + 1) * 1000);
    TRY(can_sign(e, &a, err));
    TRY(pki_issue(&a.certificate, &a.key, request, len, &spec, out, err));
    e->counters.certificates_signed++;
    return file_read(e->own.ca, PKI_PEM_MAX, ca, err);
}

static void answer_signed(struct enrol *e, struct rpc_call *call, const char *node, const void *request, size_t len)
{
    _cleanup_(buf_free) struct buf certificate = BUF_INIT, ca = BUF_INIT;
    struct titan_error err = {0};
    if (sign(e, node, request, len, &certificate, &ca, &err) != TITAN_OK) {
        tlog_error(&e->log, "a certificate could not be signed", "node=%s reason=\"%s\"", node, err.msg);
        rpc_call_fail(call, &err);
        return;
    }
    Titan__Internal__EnrollResponse reply = TITAN__INTERNAL__ENROLL_RESPONSE__INIT;
    reply.certificate = (ProtobufCBinaryData){.data = (uint8_t *)certificate.data, .len = certificate.len};
    reply.ca = (ProtobufCBinaryData){.data = (uint8_t *)ca.data, .len = ca.len};
    reply.now_ms = clock_wall_ms();
    rpc_call_reply(call, &reply.base);
}

static titan_status write_enroll(struct db *db, void *arg, struct titan_error *err)
{
    struct pending *p = arg;
    return join_use(db, p->token.id, p->token.hash, p->node, p->key_hash, p->now_ms, &p->refusal, err);
}

static void enroll_written(void *arg, const struct titan_error *stored)
{
    struct pending *p = arg;
    struct enrol *e = p->e;
    struct rpc_call *call = p->call;
    if (stored->status == TITAN_OK && p->refusal.status != TITAN_OK) {
        e->counters.join_refused++;
        tlog_warn(&e->log, "a node's request for a certificate is refused", "peer=\"%s\" reason=\"%s\"",
                  call ? rpc_call_peer(call) : "gone", p->refusal.msg);
        (void)answering(p, &p->refusal);
    } else if ((call = answering(p, stored))) {
        tlog_info(&e->log, "node enrolled", "node=%s peer=\"%s\"", p->node, rpc_call_peer(call));
        answer_signed(e, call, p->node, p->request.data, p->request.len);
    }
    pending_free(p);
}

static titan_status prepare_enroll(struct enrol *e, const Titan__Internal__EnrollRequest *r, struct pending *p,
                                   struct titan_error *err)
{
    _cleanup_(authority_free) struct authority a = {BUF_INIT, BUF_INIT};
    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    TRY(check_node(r->node, err));
    TRY(token_parse(r->token, p->token.id, p->token.hash, err));
    TRY(pki_request_check(r->request.data, r->request.len, p->key_hash, err));
    TRY(can_sign(e, &a, err)); /* before the token is spent */
    (void)snprintf(p->node, sizeof(p->node), "%s", r->node);
    return buf_append(&p->request, r->request.data, r->request.len) == TITAN_OK
               ? TITAN_OK
               : titan_fail(err, TITAN_ENOMEM, "out of memory");
}

void api_enroll(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct enrol *e = ((struct coordinator *)data)->enrol;
    struct titan_error err = {0};
    struct pending *p = pending_new(e, call, POLICY_ENROLL);
    titan_status status = prepare_enroll(e, (const Titan__Internal__EnrollRequest *)base, p, &err);
    e->counters.join_refused += status != TITAN_OK;
    submit(e, call, p, status, &err, write_enroll, enroll_written);
}

void api_renew(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct enrol *e = ((struct coordinator *)data)->enrol;
    const Titan__Internal__RenewRequest *r = (const Titan__Internal__RenewRequest *)base;
    const struct rpc_identity *who = rpc_call_identity(call);
    const char *name = "";
    uint8_t hash[PKI_KEY_HASH];
    struct titan_error err = {0};
    struct auth_user u;
    api_user(e->c, call, &u);
    if (who->kind != RPC_ID_CERT || pki_uri_parse(who->name, &name) != PKI_NODE)
        titan_fail(&err, TITAN_EPERM, "only a node's certificate is renewed, not that of %s", who->name);
    else
        (void)!pki_request_check(r->request.data, r->request.len, hash, &err);
    if (err.status != TITAN_OK) {
        api_failed(e->c, &u, POLICY_RENEW, 0, &err);
        rpc_call_fail(call, &err);
    } else {
        api_on_record(e->c, u.actor, POLICY_RENEW);
        answer_signed(e, call, name, r->request.data, r->request.len);
    }
}

/* --- revoking ----------------------------------------------------------------------------------------------------- */

static titan_status write_revocation(struct db *db, void *arg, struct titan_error *err)
{
    struct pending *p = arg;
    struct revocation r = {.uri = p->uri, .reason = p->reason, .by = p->by, .at_ms = p->now_ms};
    return revocation_put(db, &r, err);
}

/* The node's workers were told to stop, by an agent that still obeys; messages of that name are refused. */
static void revocation_done(void *arg, const struct titan_error *stored)
{
    struct pending *p = arg;
    Titan__V1__RevokeCertificateResponse reply = TITAN__V1__REVOKE_CERTIFICATE_RESPONSE__INIT;
    watch_check_callers(p->e->c);
    api_logs_check_callers(p->e->c);
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
    struct enrol *e = p->e;
    struct titan_error err = *stored;
    const char *name = "";
    struct batch batch;
    if (err.status == TITAN_OK && !deny(e, p->uri, p->now_ms))
        titan_fail(&err, TITAN_ENOMEM, "out of memory");
    if (err.status != TITAN_OK) {
        (void)answering(p, &err);
        pending_free(p);
        return;
    }
    tlog_warn(&e->log, "certificate revoked", "name=\"%s\" by=\"%s\" reason=\"%s\"", p->uri, p->by, p->reason);
    bool node = pki_uri_parse(p->uri, &name) == PKI_NODE && !e->c->closing;
    uint64_t session = node ? core_node_session(e->c->core, name) : 0;
    batch_init(&batch);
    if (node)
        core_node_revoke(e->c->core, name, shell_now(), &batch);
    p->sessions = session_revoked(e->c, p->uri, batch.drops ? session : 0);
    if (e->c->closing)
        revocation_done(p, &err);
    else
        shell_commit(e->c, &batch, revocation_done, p);
}

static titan_status prepare_revocation(const Titan__V1__RevokeCertificateRequest *r, struct pending *p,
                                       struct titan_error *err)
{
    static const char prefix[] = "spiffe://titan/";
    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    TRY(api_check_text("reason", r->reason, API_REASON_MAX, err));
    bool whole = strncmp(r->name, prefix, strlen(prefix)) == 0;
    if (snprintf(p->uri, sizeof(p->uri), "%s%s", whole ? "" : prefix, r->name) >= (int)sizeof(p->uri) ||
        pki_uri_parse(p->uri, NULL) == PKI_NONE)
        return titan_fail(err, TITAN_EINVAL, "'%.64s' is no name of a certificate: node/NAME, user/NAME", r->name);
    (void)snprintf(p->reason, sizeof(p->reason), "%s", r->reason);
    return TITAN_OK;
}

void api_revoke_certificate(struct rpc_call *call, const ProtobufCMessage *base, void *data)
{
    struct enrol *e = ((struct coordinator *)data)->enrol;
    struct titan_error err = {0};
    struct pending *p = pending_new(e, call, POLICY_REVOKE_CERTIFICATE);
    titan_status status = prepare_revocation((const Titan__V1__RevokeCertificateRequest *)base, p, &err);
    submit(e, call, p, status, &err, write_revocation, revocation_written);
}

/* --- its own ------------------------------------------------------------------------------------------------------ */

/* Same key, same names, same length of life. */
static titan_status renew_own(struct enrol *e, const struct pki_certificate *old, struct titan_error *err)
{
    _cleanup_(authority_free) struct authority a = {BUF_INIT, BUF_INIT};
    _cleanup_(certs_free) struct certs c = {BUF_INIT, BUF_INIT, BUF_INIT};
    _cleanup_(buf_free) struct buf request = BUF_INIT, fresh = BUF_INIT;
    int64_t now = clock_wall_ms(), life_ms = MAX(old->until_ms - old->from_ms, INT64_C(1000));
    struct pki_spec spec = {.kind = PKI_COORDINATOR,
                            .name = old->name,
                            .hosts = old->hosts,
                            .n_hosts = old->n_hosts,
                            .from_ms = pki_begin_ms(now, life_ms),
                            .until_ms = pki_begin_ms(now, life_ms) + life_ms};
    TRY(authority_load(e->pki_dir, &a, err));
    TRY(certs_load(&e->own, &c, err));
    TRY(pki_request_make(&c.key, old->uri, &request, err));
    TRY(pki_issue(&a.certificate, &a.key, request.data, request.len, &spec, &fresh, err));
    TRY(pki_check(&c.ca, &fresh, &c.key, now, err)); /* a CA of another cluster in STATE/pki */
    TRY(certs_write(e->own.certificate, &fresh, false, err));
    tlog_info(&e->log, "certificate renewed", "name=\"%s\"", old->uri);
    return TITAN_OK;
}

/* Returns the time to look again. */
static int64_t look_at_own(struct enrol *e)
{
    struct pki_certificate old;
    struct titan_error err = {0};
    _cleanup_(buf_free) struct buf pem = BUF_INIT;
    int64_t now = clock_wall_ms();
    if (file_read(e->own.certificate, PKI_PEM_MAX, &pem, &err) != TITAN_OK ||
        pki_read(pem.data ? pem.data : "", pem.len, &old, &err) != TITAN_OK) {
        tlog_error(&e->log, "certificate not readable", "reason=\"%s\"", err.msg);
        return LOOK_MAX_MS;
    }
    if (now < pki_renew_at_ms(&old))
        return MIN(pki_renew_at_ms(&old) - now, LOOK_MAX_MS);
    if (old.kind == PKI_COORDINATOR && renew_own(e, &old, &err) == TITAN_OK)
        return MIN(MAX((old.until_ms - old.from_ms) / 2, INT64_C(1000)), LOOK_MAX_MS);
    char until[32];
    tlog_warn(&e->log, "certificate not renewed", "file=\"%s\" expires=%s reason=\"%s\"", e->own.certificate,
              clock_format(old.until_ms, until), err.msg);
    return MIN(MAX((old.until_ms - now) / 3, INT64_C(10000)), LOOK_MAX_MS);
}

static void on_timer(uv_timer_t *timer)
{
    struct enrol *e = timer->data;
    (void)uv_timer_start(&e->timer, on_timer, (uint64_t)look_at_own(e), 0);
}

titan_status enrol_renew_own(struct enrol *e, const struct rpc_tls *files, struct titan_error *err)
{
    struct pki_certificate now_is;
    if (!files || !certs_there(files))
        return TITAN_OK;
    e->own = *files;
    on_timer(&e->timer);
    return certs_check(files, clock_wall_ms(), &now_is, err);
}

void enrol_serves(struct enrol *e, const char *address, bool agents)
{
    const char *colon = strrchr(address, ':');
    if (agents && colon)
        e->agents_port = (uint32_t)strtoul(colon + 1, NULL, 10);
    else if (!e->port[0] && colon)
        (void)snprintf(e->port, sizeof(e->port), "%.7s", colon + 1);
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

const struct enrol_counters *enrol_counters(const struct enrol *e)
{
    return &e->counters;
}

titan_status enrol_open(struct coordinator *c, struct enrol **ret, struct titan_error *err)
{
    struct enrol *e = calloc(1, sizeof(*e));
    if (!e)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    e->c = c;
    log_init(&e->log, "coordinator", "%s", "");
    titan_status status = TITAN_OK;
    if (snprintf(e->pki_dir, sizeof(e->pki_dir), "%s/pki", c->state_dir) >= (int)sizeof(e->pki_dir))
        status = titan_fail(err, TITAN_EINVAL, "state directory name is too long");
    if (status == TITAN_OK)
        status = revocation_list(store_reader(c->store), each_revocation, e, err);
    if (status != TITAN_OK) {
        enrol_free(e);
        return status;
    }
    (void)uv_timer_init(c->loop, &e->timer);
    e->timer.data = e;
    c->open_handles++;
    *ret = e;
    return TITAN_OK;
}

static void on_closed(uv_handle_t *handle)
{
    const struct enrol *e = handle->data;
    shell_part_closed(e->c);
}

void enrol_close(struct enrol *e)
{
    (void)uv_timer_stop(&e->timer);
    uv_close((uv_handle_t *)&e->timer, on_closed);
}

void enrol_free(struct enrol *e)
{
    if (e)
        free(e->denied);
    free(e);
}
