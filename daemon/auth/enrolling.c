/* SPDX-License-Identifier: Apache-2.0 */
/* enrolling.c - see enrolling.h. */
#include "daemon/auth/enrolling.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/notify.h"
#include "daemon/auth/certs.h"
#include "state/token.h"
#include "titan/internal/enrol.pb-c.h"

#define CALL_MS 10000
#define RETRY_MS 1000
#define RENEW_RETRY_MIN_MS INT64_C(1000)
#define RENEW_RETRY_MAX_MS INT64_C(300000)
#define LOOK_MAX_MS INT64_C(3600000) /* between checks of the certificate, because the clock may be set */
#define JUST_BEGINS_MS 2000          /* a certificate signed right after a revocation begins within a second */

/* --- what came ---------------------------------------------------------------------------------------------------- */

/* Checks that the certificate is for our key and name, and that the CA sent with it signed it. This CA also signed the
 * server's certificate. */
static titan_status check_answer(const Titan__Internal__EnrollResponse *reply, const struct buf *key, const char *node,
                                 struct buf *certificate, struct buf *ca, struct titan_error *err)
{
    struct pki_certificate c;
    if (reply->certificate.len > PKI_PEM_MAX || reply->ca.len > PKI_PEM_MAX ||
        buf_append(certificate, reply->certificate.data, reply->certificate.len) != TITAN_OK ||
        buf_append(ca, reply->ca.data, reply->ca.len) != TITAN_OK || !certificate->len || !ca->len)
        return titan_fail(err, TITAN_EINVAL, "the coordinator's answer has no certificate");
    TRY(pki_read(certificate->data, certificate->len, &c, err));
    if (c.kind != PKI_NODE || strcmp(c.name, node) != 0)
        return titan_fail(err, TITAN_EINVAL, "the coordinator signed for '%s', not for node %s", c.uri, node);
    int64_t now = clock_wall_ms();
    return pki_check(ca, certificate, key, c.from_ms - now <= JUST_BEGINS_MS ? MAX(now, c.from_ms) : now, err);
}

/* Writes the CA first, because the new certificate needs it. */
static titan_status write_answer(const struct rpc_tls *files, const struct buf *certificate, const struct buf *ca,
                                 struct titan_error *err)
{
    titan_assert(certificate->len > 0 && ca->len > 0);
    _cleanup_(buf_free) struct buf old = BUF_INIT;
    bool same = file_read(files->ca, PKI_PEM_MAX, &old, NULL) == TITAN_OK && old.len == ca->len &&
                memcmp(old.data, ca->data, ca->len) == 0;
    if (!same)
        TRY(certs_write(files->ca, ca, false, err));
    return certs_write(files->certificate, certificate, false, err);
}

static titan_status make_request(const struct buf *key, const char *node, struct buf *out, struct titan_error *err)
{
    char uri[PKI_URI_MAX];
    (void)snprintf(uri, sizeof(uri), "spiffe://titan/node/%.*s", PKI_NAME_MAX, node);
    return pki_request_make(key, uri, out, err);
}

/* --- the first ---------------------------------------------------------------------------------------------------- */

titan_status enrolling_name(const struct rpc_tls *files, char out[PKI_NAME_MAX + 1], struct titan_error *err)
{
    struct pki_certificate c;
    TRY(certs_check(files, clock_wall_ms(), &c, err));
    if (c.kind != PKI_NODE)
        return titan_fail(err, TITAN_EPERM, "'%s' is not a node's certificate: %s", files->certificate,
                          c.uri[0] ? c.uri : "it has no name of Titan's");
    (void)snprintf(out, PKI_NAME_MAX + 1, "%.*s", PKI_NAME_MAX, c.name);
    return TITAN_OK;
}

/* Files beside the certificate: the id of its token, the coordinator's addresses, and the key during the join. */
struct paths {
    char dir[PATH_MAX], joined[PATH_MAX + 16], place[PATH_MAX + 16], key[PATH_MAX + 64];
    char id[TOKEN_ID_TEXT];
};

static titan_status ask(const struct join_file *join, const struct rpc_tls *anonymous, const struct buf *request,
                        uint32_t wait_ms, Titan__Internal__EnrollResponse **ret, struct titan_error *err)
{
    struct log log;
    int64_t until = clock_mono_ms() + wait_ms;
    Titan__Internal__EnrollRequest r = TITAN__INTERNAL__ENROLL_REQUEST__INIT;
    r.node = (char *)join->node;
    r.token = (char *)join->token;
    r.request = (ProtobufCBinaryData){.data = (uint8_t *)request->data, .len = request->len};
    log_init(&log, "agent", "coordinator=%s", join->coordinator);
    for (bool reported = false;; reported = true) {
        struct rpc_channel *channel = NULL;
        ProtobufCMessage *answer = NULL;
        titan_status status = rpc_channel_open(join->coordinator, anonymous, &channel, err);
        if (status == TITAN_OK) {
            status = rpc_channel_call(channel,
                                      &(struct rpc_request){"/titan.internal.Enrolment/Enroll", &r.base,
                                                            &titan__internal__enroll_response__descriptor, CALL_MS},
                                      &answer, err);
            rpc_channel_close(channel);
            *ret = (Titan__Internal__EnrollResponse *)answer;
        }
        bool absent = status == TITAN_EUNREACHABLE || status == TITAN_ETIMEDOUT;
        if (!absent || clock_mono_ms() >= until)
            return status;
        if (!reported)
            tlog_warn(&log, "coordinator not reached, to get a certificate from it", "reason=\"%s\"", err->msg);
        (void)usleep(RETRY_MS * 1000);
    }
}

static titan_status keep_place(const struct paths *p, const struct join_file *join, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT, there = BUF_INIT;
    join_print_place(join, &text);
    if (file_read(p->place, JOIN_FILE_MAX, &there, NULL) == TITAN_OK && there.len == text.len &&
        memcmp(there.data, text.data, text.len) == 0)
        return TITAN_OK;
    return certs_write(p->place, &text, false, err);
}

static titan_status get_first(const struct join_file *join, const struct rpc_tls *files, const struct paths *p,
                              uint32_t wait_ms, struct titan_error *err)
{
    titan_assert(p->dir[0] && join->node[0] && join->token[0]);
    _cleanup_(buf_free) struct buf key = BUF_INIT, request = BUF_INIT, certificate = BUF_INIT, ca = BUF_INIT;
    _cleanup_(buf_free) struct buf id = BUF_INIT;
    Titan__Internal__EnrollResponse *reply = NULL;
    struct rpc_tls anonymous = {.certificate = "", .key = ""};
    TRY(certs_dir(p->dir, err));
    TRY(certs_write(files->ca, &join->ca, false, err));
    /* uses the key of an attempt whose answer was lost, because a token is good for one key */
    if (access(p->key, F_OK) == 0) {
        TRY(file_read(p->key, PKI_PEM_MAX, &key, err));
    } else {
        TRY(pki_key_make(&key, err));
        TRY(certs_write(p->key, &key, true, err));
    }
    TRY(make_request(&key, join->node, &request, err));
    memcpy(anonymous.ca, files->ca, sizeof(anonymous.ca));
    TRY(ask(join, &anonymous, &request, wait_ms, &reply, err));
    titan_status status = check_answer(reply, &key, join->node, &certificate, &ca, err);
    titan__internal__enroll_response__free_unpacked(reply, NULL);
    TRY(status);
    /* An interrupted join starts again from here, because the token is still good for this key. */
    TRY(certs_write(files->key, &key, true, err));
    TRY(write_answer(files, &certificate, &ca, err));
    TRY(keep_place(p, join, err));
    buf_puts(&id, p->id);
    TRY(certs_write(p->joined, &id, false, err));
    (void)unlink(p->key);

    /* Waits until the certificate begins. Right after a revocation it begins with the next second. */
    struct pki_certificate c;
    if (pki_read(certificate.data, certificate.len, &c, NULL) == TITAN_OK) {
        const int64_t left_ms = c.from_ms - clock_wall_ms();
        if (left_ms > 0 && left_ms <= JUST_BEGINS_MS)
            (void)usleep((useconds_t)left_ms * 1000);
    }
    return TITAN_OK;
}

titan_status enrolling_join(const char *path, const struct rpc_tls *files, uint32_t wait_ms, struct join_file *ret,
                            struct titan_error *err)
{
    char name[PKI_NAME_MAX + 1];
    unsigned char hash[TOKEN_HASH_BYTES];
    struct paths p;
    _cleanup_(buf_free) struct buf id = BUF_INIT;
    TRY(join_load(path, ret, err));
    titan_status status = token_parse(ret->token, p.id, hash, err);
    (void)snprintf(p.dir, sizeof(p.dir), "%.*s", (int)(strrchr(files->key, '/') - files->key), files->key);
    (void)snprintf(p.joined, sizeof(p.joined), "%s/joined", p.dir);
    (void)snprintf(p.place, sizeof(p.place), "%s/" JOIN_PLACE_FILE, p.dir);
    (void)snprintf(p.key, sizeof(p.key), "%s/key-%s.pem", p.dir, status == TITAN_OK ? p.id : "");
    const bool joined = status == TITAN_OK && certs_there(files) && file_read(p.joined, 256, &id, NULL) == TITAN_OK &&
                        id.len == strlen(p.id) && memcmp(id.data, p.id, id.len) == 0;
    if (joined) {
        status = enrolling_name(files, name, err);
        if (status == TITAN_OK)
            status = keep_place(&p, ret, err);
    } else if (status == TITAN_OK)
        status = get_first(ret, files, &p, wait_ms, err);
    if (status != TITAN_OK) {
        titan_error_wrap(err, "joining as node %s", ret->node);
        join_free(ret);
    }
    return status;
}

titan_status enrolling_joined(const struct rpc_tls *files, struct join_file *ret, struct titan_error *err)
{
    char path[PATH_MAX + 16];
    (void)snprintf(path, sizeof(path), "%.*s" JOIN_PLACE_FILE, (int)(strrchr(files->key, '/') + 1 - files->key),
                   files->key);
    return join_load_place(path, ret, err);
}

/* --- the next ----------------------------------------------------------------------------------------------------- */

struct renewal {
    struct rpc_tls files;
    struct rpc_client *client;
    struct log log;
    uv_timer_t timer;
    bool closing;
    void (*done)(void *);
    void *data;
};

static void on_timer(uv_timer_t *timer);

static void look_in(struct renewal *r, int64_t ms)
{
    if (!r->closing)
        (void)uv_timer_start(&r->timer, on_timer, (uint64_t)MAX(MIN(ms, LOOK_MAX_MS), INT64_C(100)), 0);
}

static titan_status read_own(const struct renewal *r, struct pki_certificate *ret, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf pem = BUF_INIT;
    TRY(file_read(r->files.certificate, PKI_PEM_MAX, &pem, err));
    return pki_read(pem.data ? pem.data : "", pem.len, ret, err);
}

/* Retries more often the nearer the certificate's end. */
static void try_later(struct renewal *r, const struct titan_error *why)
{
    struct pki_certificate c = {.until_ms = 0};
    char until[32];
    (void)!read_own(r, &c, NULL);
    tlog_warn(&r->log, "certificate not renewed", "expires=%s reason=\"%s\"", clock_format(c.until_ms, until),
              why->msg);
    look_in(r, MIN(MAX((c.until_ms - clock_wall_ms()) / 5, RENEW_RETRY_MIN_MS), RENEW_RETRY_MAX_MS));
}

static titan_status take(const struct renewal *r, const Titan__Internal__EnrollResponse *reply, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf key = BUF_INIT, certificate = BUF_INIT, ca = BUF_INIT;
    struct pki_certificate old;
    TRY(read_own(r, &old, err));
    TRY(file_read(r->files.key, PKI_PEM_MAX, &key, err));
    TRY(check_answer(reply, &key, old.name, &certificate, &ca, err));
    return write_answer(&r->files, &certificate, &ca, err);
}

static void on_reply(const ProtobufCMessage *reply, const struct titan_error *asked, void *data)
{
    struct renewal *r = data;
    struct titan_error err = *asked;
    if (r->closing)
        return;
    if (err.status == TITAN_OK)
        (void)!take(r, (const Titan__Internal__EnrollResponse *)reply, &err);
    if (err.status != TITAN_OK) {
        try_later(r, &err);
        return;
    }
    tlog_info(&r->log, "certificate renewed", "%s", "");
    look_in(r, RENEW_RETRY_MIN_MS);
}

static void on_timer(uv_timer_t *timer)
{
    struct renewal *r = timer->data;
    struct pki_certificate c;
    struct titan_error err = {0};
    _cleanup_(buf_free) struct buf key = BUF_INIT, request = BUF_INIT;
    titan_status status = read_own(r, &c, &err);
    int64_t wait = status == TITAN_OK ? pki_renew_at_ms(&c) - clock_wall_ms() : 0;
    if (wait > 0) {
        look_in(r, wait);
        return;
    }
    if (status == TITAN_OK)
        status = file_read(r->files.key, PKI_PEM_MAX, &key, &err);
    if (status == TITAN_OK)
        status = make_request(&key, c.name, &request, &err);
    if (status != TITAN_OK) {
        try_later(r, &err);
        return;
    }
    Titan__Internal__RenewRequest m = TITAN__INTERNAL__RENEW_REQUEST__INIT;
    m.request = (ProtobufCBinaryData){.data = (uint8_t *)request.data, .len = request.len};
    rpc_client_call(r->client,
                    &(struct rpc_request){"/titan.internal.Enrolment/Renew", &m.base,
                                          &titan__internal__enroll_response__descriptor, CALL_MS},
                    on_reply, r);
}

titan_status renewal_open(uv_loop_t *loop, const struct rpc_tls *files, struct rpc_client *client, struct renewal **ret,
                          struct titan_error *err)
{
    struct renewal *r = calloc(1, sizeof(*r));
    if (!r)
        return titan_fail(err, TITAN_ENOMEM, "no memory for the renewal of a certificate");
    r->files = *files;
    r->client = client;
    log_init(&r->log, "agent", "certificate=\"%.120s\"", files->certificate);
    (void)uv_timer_init(loop, &r->timer);
    r->timer.data = r;
    look_in(r, 0);
    *ret = r;
    return TITAN_OK;
}

static void on_closed(uv_handle_t *handle)
{
    struct renewal *r = handle->data;
    void (*done)(void *) = r->done;
    void *data = r->data;
    free(r);
    if (done)
        done(data);
}

void renewal_close(struct renewal *r, void (*done)(void *), void *data)
{
    if (!r) {
        if (done)
            done(data);
        return;
    }
    r->closing = true;
    r->done = done;
    r->data = data;
    (void)uv_timer_stop(&r->timer);
    uv_close((uv_handle_t *)&r->timer, on_closed);
}
