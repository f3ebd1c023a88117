/* SPDX-License-Identifier: Apache-2.0 */
/* enrol.c - see enrol.h. */
#include "daemon/coordinator/shell/enrol.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/vec.h"
#include "daemon/auth/certs.h"
#include "daemon/coordinator/shell/shell.h"
#include "state/enrolment.h"

#define ADDRESSES 256                /* entries for addresses with wrong join tokens */
#define TRIES_MAX 60                 /* tries that are examined ... */
#define TRIES_MS 60000               /* ... within this */
#define LOOK_MAX_MS INT64_C(3600000) /* longest time between checks of the certificate, since the clock may be set */

struct denied {
    char uri[PKI_URI_MAX];
    int64_t at_ms;
};

/* Wrong join tokens from one address. */
struct tries {
    uint64_t address;
    int64_t since_ms;
    unsigned n;
};

struct enrol {
    struct coordinator *c;
    struct log log;
    struct enrol_counters counters;
    char pki_dir[PATH_MAX];
    struct authority given; /* CA handed over by the unit; an empty key = none */
    char port[8];           /* port of the first TLS listener; "" = none */
    uint32_t agents_port;   /* port of the listener for agents only; 0 = none */
    struct rpc_tls own;
    uv_timer_t timer;
    struct denied *denied;
    size_t n_denied, cap_denied;
    struct tries tries[ADDRESSES];
    void (*closed)(void *c);
};

/* --- what is revoked ---------------------------------------------------------------------------------------------- */

static struct denied *find_denied(const struct enrol *e, const char *uri)
{
    for (size_t i = 0; i < e->n_denied; i++)
        if (strcmp(e->denied[i].uri, uri) == 0)
            return &e->denied[i];
    return NULL;
}

int64_t enrol_deny(struct enrol *e, const char *uri, int64_t at_ms)
{
    struct denied *d = find_denied(e, uri);
    if (!d) {
        if (!VEC_PUSH(e->denied, e->n_denied, e->cap_denied, (struct denied){.at_ms = 0}))
            return -1;
        d = &e->denied[e->n_denied - 1];
        (void)snprintf(d->uri, sizeof(d->uri), "%s", uri);
    }
    const int64_t before = d->at_ms;
    d->at_ms = MAX(d->at_ms, at_ms);
    return before;
}

void enrol_deny_undo(struct enrol *e, const char *uri, int64_t before_ms)
{
    struct denied *d = find_denied(e, uri);
    titan_assert(d && before_ms >= 0);
    d->at_ms = before_ms;
}

static bool each_revocation(const struct revocation *r, void *data)
{
    return enrol_deny(data, r->uri, r->at_ms) >= 0;
}

titan_status enrol_admits(struct enrol *e, const struct rpc_identity *identity, int64_t now_ms, struct titan_error *err)
{
    const struct denied *d = identity->kind == RPC_ID_CERT ? find_denied(e, identity->name) : NULL;
    char then[32];
    if (identity->kind == RPC_ID_CERT && now_ms >= identity->until_ms) {
        titan_fail(err, TITAN_EPERM, "the certificate of %s expired at %s", identity->name,
                   clock_format(identity->until_ms, then));
        titan_error_hint(err, "a certificate that was renewed counts from the next connection on");
        return TITAN_EPERM;
    }
    if (!d || identity->from_ms > d->at_ms)
        return TITAN_OK;
    e->counters.cert_revoked++;
    titan_fail(err, TITAN_EPERM, "the certificate of %s was revoked at %s", identity->name,
               clock_format(d->at_ms, then));
    titan_error_hint(err, "titanctl node join lets a node in again, with a new certificate");
    return TITAN_EPERM;
}

titan_status enrol_speaks_for(struct enrol *e, const struct rpc_call *call, const char *node, struct titan_error *err)
{
    const struct rpc_identity *caller = rpc_call_identity(call);
    const char *name = "";
    if (caller->kind != RPC_ID_CERT || (pki_uri_parse(caller->name, &name) == PKI_NODE && strcmp(name, node) == 0))
        return TITAN_OK;
    e->counters.cert_name++;
    tlog_warn(&e->log, "registration refused: not its certificate's name",
              "peer=\"%s\" certificate=\"%s\" node=\"%.253s\"", rpc_call_peer(call), caller->name, node);
    return titan_fail(err, TITAN_EPERM, "registration of node %.200s: the certificate is that of %s", node,
                      caller->name);
}

/* --- signing for nodes -------------------------------------------------------------------------------------------- */

static titan_status load_authority(const struct enrol *e, struct authority *ret, struct titan_error *err)
{
    if (!e->given.key.len)
        return authority_load(e->pki_dir, ret, err);
    *ret = (struct authority){BUF_INIT, BUF_INIT};
    buf_put(&ret->certificate, e->given.certificate.data, e->given.certificate.len);
    buf_put(&ret->key, e->given.key.data, e->given.key.len);
    if (!buf_failed(&ret->certificate) && !buf_failed(&ret->key))
        return TITAN_OK;
    authority_free(ret);
    return titan_fail(err, TITAN_ENOMEM, "out of memory");
}

titan_status enrol_can_sign(const struct enrol *e, struct authority *ret, struct titan_error *err)
{
    if (load_authority(e, ret, err) == TITAN_OK)
        return TITAN_OK;
    titan_error_wrap(err, "this coordinator signs no certificates");
    titan_error_hint(err,
                     "titanctl pki init makes it a CA, a unit's at its next start; with a CA elsewhere, that signs "
                     "(titanctl pki node)");
    return err->status;
}

titan_status enrol_sign(struct enrol *e, const struct enrol_request *r, struct buf *out, struct buf *ca,
                        int64_t *ret_until_ms, struct titan_error *err)
{
    _cleanup_(authority_free) struct authority a = {BUF_INIT, BUF_INIT};
    char uri[PKI_URI_MAX], then[32];
    int64_t now = clock_wall_ms();
    int64_t given_life_ms = (int64_t)e->c->options.node_life_s * 1000;
    int64_t life_ms = given_life_ms ? given_life_ms : CERTS_NODE_LIFE_MS;
    (void)snprintf(uri, sizeof(uri), "spiffe://titan/node/%s", r->node);
    const struct denied *d = find_denied(e, uri);
    struct pki_spec spec = {
        .kind = PKI_NODE, .name = r->node, .from_ms = pki_begin_ms(now, life_ms), .until_ms = now + life_ms};
    if (d && r->given_ms <= d->at_ms) {
        titan_fail(err, TITAN_EPERM, "node %s was revoked at %s, after this was asked for", r->node,
                   clock_format(d->at_ms, then));
        titan_error_hint(err, "titanctl node join lets it in again");
        return TITAN_EPERM;
    }
    if (d) /* certificates have whole seconds */
        spec.from_ms = MAX(spec.from_ms, (d->at_ms / 1000 + 1) * 1000);
    TRY(enrol_can_sign(e, &a, err));
    TRY(pki_issue(&(struct pki_issuer){&a.certificate, &a.key}, r->data, r->len, &spec, out, err));
    e->counters.certificates_signed++;
    *ret_until_ms = spec.until_ms;
    return file_read(e->own.ca, PKI_PEM_MAX, ca, err);
}

/* --- its own ------------------------------------------------------------------------------------------------------ */

/* Renews with the same key, names and lifetime. */
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
    TRY(load_authority(e, &a, err));
    TRY(certs_load(&e->own, &c, err));
    TRY(pki_request_make(&c.key, old->uri, &request, err));
    TRY(pki_issue(&(struct pki_issuer){&a.certificate, &a.key}, request.data, request.len, &spec, &fresh, err));
    TRY(pki_check(&c.ca, &fresh, &c.key, now, err)); /* fails for a CA of another cluster */
    TRY(certs_write(e->own.certificate, &fresh, false, err));
    tlog_info(&e->log, "certificate renewed", "name=\"%s\"", old->uri);
    return TITAN_OK;
}

/* Checks the coordinator's own certificate, and renews it when it is time. */
static void on_timer(uv_timer_t *timer)
{
    struct enrol *e = timer->data;
    struct pki_certificate old;
    struct titan_error err = {0};
    _cleanup_(buf_free) struct buf pem = BUF_INIT;
    int64_t now = clock_wall_ms(), wait_ms = LOOK_MAX_MS;
    if (file_read(e->own.certificate, PKI_PEM_MAX, &pem, &err) != TITAN_OK ||
        pki_read(pem.data ? pem.data : "", pem.len, &old, &err) != TITAN_OK) {
        tlog_error(&e->log, "certificate not readable", "reason=\"%s\"", err.msg);
    } else if (now < pki_renew_at_ms(&old)) {
        wait_ms = pki_renew_at_ms(&old) - now;
    } else if (old.kind == PKI_COORDINATOR && renew_own(e, &old, &err) == TITAN_OK) {
        wait_ms = MAX((old.until_ms - old.from_ms) / 2, INT64_C(1000));
    } else {
        char until[32];
        tlog_warn(&e->log, "certificate not renewed", "file=\"%s\" expires=%s reason=\"%s\"", e->own.certificate,
                  clock_format(old.until_ms, until), err.msg);
        wait_ms = MAX((old.until_ms - now) / 3, INT64_C(10000));
    }
    (void)uv_timer_start(&e->timer, on_timer, (uint64_t)MIN(wait_ms, LOOK_MAX_MS), 0);
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

/* --- for the API -------------------------------------------------------------------------------------------------- */

/* The certificate's first name that is no local alias of this machine. */
void enrol_address(const struct enrol *e, char out[ENROL_ADDRESS])
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
    (void)snprintf(out, ENROL_ADDRESS, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, e->port);
}

const char *enrol_ca_file(const struct enrol *e)
{
    return e->own.ca;
}

uint32_t enrol_agents_port(const struct enrol *e)
{
    return e->agents_port;
}

const struct log *enrol_log(const struct enrol *e)
{
    return &e->log;
}

/* Hash of the address without the port. For IPv6 it is the hash of the 64-bit network that one host has. */
static uint64_t address_of(const char *peer)
{
    char text[96];
    struct in6_addr v6;
    (void)snprintf(text, sizeof(text), "%s", peer);
    char *port = strrchr(text, ':'), *open = strchr(text, '['), *close = strchr(text, ']');
    if (port)
        *port = '\0';
    if (open && close) {
        *close = '\0';
        if (inet_pton(AF_INET6, open + 1, &v6) == 1)
            return hash_bytes(HASH_INIT, v6.s6_addr, 8);
    }
    return hash_text(HASH_INIT, text);
}

bool enrol_may_try(const struct enrol *e, const char *peer, int64_t mono_ms)
{
    const uint64_t address = address_of(peer);
    const struct tries *t = &e->tries[hash_index(address, ADDRESSES)];
    return t->address != address || mono_ms - t->since_ms >= TRIES_MS || t->n < TRIES_MAX;
}

/* If two addresses share an entry, the newer address is counted. So more tries may pass, but no address is blocked
 * because of another. */
void enrol_join_refused(struct enrol *e, const char *peer, int64_t mono_ms)
{
    const uint64_t address = address_of(peer);
    struct tries *t = &e->tries[hash_index(address, ADDRESSES)];
    e->counters.join_refused++;
    if (t->address != address || mono_ms - t->since_ms >= TRIES_MS)
        *t = (struct tries){.address = address, .since_ms = mono_ms};
    t->n++;
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
    if (authority_load_credentials(&e->given, NULL) != TITAN_OK && getenv("CREDENTIALS_DIRECTORY")) {
        struct authority own;
        if (authority_load(e->pki_dir, &own, NULL) == TITAN_OK)
            tlog_warn(&e->log, "the daemon's own user can read the CA's key: move the folder to /var/lib/titan-pki",
                      "folder=\"%s\" see=\"docs/security.md, The CA's key\"", e->pki_dir);
        authority_free(&own);
    }
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
    e->closed(e->c);
}

void enrol_close(struct enrol *e, void (*closed)(void *c))
{
    e->closed = closed;
    (void)uv_timer_stop(&e->timer);
    uv_close((uv_handle_t *)&e->timer, on_closed);
}

void enrol_free(struct enrol *e)
{
    if (e) {
        authority_free(&e->given);
        free(e->denied);
    }
    free(e);
}
