/* SPDX-License-Identifier: Apache-2.0 */
#include "state/enrolment.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "state/event.h"
#include "state/facts.h"

#define KEPT_MS INT64_C(86400000) /* an expired token is kept, so that its use is reported as such */

titan_status enrolment_join_add(struct db *db, const struct join *j, struct titan_error *err)
{
    titan_assert(j->id && j->node && *j->node && j->expires_at_ms >= j->created_at_ms);
    char message[320], until[32];
    struct event e = {.at_ms = j->created_at_ms,
                      .type = "node.invited",
                      .node = j->node,
                      .rank = -1,
                      .message = message,
                      .actor = j->created_by};
    _cleanup_(facts_free) struct facts facts = {.text = BUF_INIT};
    (void)snprintf(message, sizeof(message), "node %.200s may join until %s", j->node,
                   clock_format(j->expires_at_ms, until));
    facts_begin(&facts, "join", j->id);
    facts_text(&facts, "node", j->node);
    facts_bytes(&facts, "hash", j->hash, ENROLMENT_HASH);
    facts_number(&facts, "created_at_ms", j->created_at_ms);
    facts_number(&facts, "expires_at_ms", j->expires_at_ms);
    facts_text(&facts, "created_by", j->created_by);
    TRY(facts_end(&facts, &e.facts, err));
    TRY(db_run(db, err, "DELETE FROM joins WHERE expires_at_ms < ?", "i", j->created_at_ms - KEPT_MS));
    TRY(db_run(db, err,
               "INSERT INTO joins (id, node, hash, created_at_ms, expires_at_ms, created_by) VALUES (?, ?, ?, ?, ?, ?)",
               "ttbiit", j->id, j->node, j->hash, (size_t)ENROLMENT_HASH, j->created_at_ms, j->expires_at_ms,
               j->created_by));
    return event_add(db, &e, err);
}

struct found {
    bool known, used;
    int64_t created_at_ms, expires_at_ms;
    unsigned char hash[ENROLMENT_HASH], key_hash[ENROLMENT_HASH];
    char node[ENROLMENT_NODE];
};

static titan_status find(struct db *db, const char *id, struct found *f, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err,
                 "SELECT hash, expires_at_ms, used_at_ms, key_hash, node, created_at_ms FROM joins WHERE id = ?", "t",
                 id));
    titan_status status = db_step(db, stmt, &f->known, err);
    if (status == TITAN_OK && f->known) {
        col_blob(stmt, 0, f->hash, sizeof(f->hash));
        f->expires_at_ms = col_int(stmt, 1);
        f->used = col_int(stmt, 2) != 0;
        col_blob(stmt, 3, f->key_hash, sizeof(f->key_hash));
        (void)snprintf(f->node, sizeof(f->node), "%s", col_text(stmt, 4));
        f->created_at_ms = col_int(stmt, 5);
    }
    db_done(stmt);
    return status;
}

static titan_status refuse_unknown(struct titan_error *err)
{
    titan_fail(err, TITAN_EPERM, "there is no such join token");
    titan_error_hint(err, "titanctl node join makes one; each is good once");
    return TITAN_EPERM;
}

titan_status enrolment_join_find(struct db *db, const char *id, const unsigned char hash[ENROLMENT_HASH],
                                 struct titan_error *err)
{
    struct found f = {0};
    TRY(find(db, id, &f, err));
    return f.known && CRYPTO_memcmp(f.hash, hash, ENROLMENT_HASH) == 0 ? TITAN_OK : refuse_unknown(err);
}

titan_status enrolment_join_list(struct db *db, bool (*each)(const struct join *join, void *data), void *data,
                                 struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err,
                 "SELECT id, node, created_at_ms, expires_at_ms, used_at_ms, created_by FROM joins"
                 " ORDER BY created_at_ms, id",
                 ""));
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row) {
        struct join j = {.id = col_text(stmt, 0),
                         .node = col_text(stmt, 1),
                         .created_at_ms = col_int(stmt, 2),
                         .expires_at_ms = col_int(stmt, 3),
                         .used_at_ms = col_int(stmt, 4),
                         .created_by = col_text(stmt, 5)};
        if (!each(&j, data))
            break;
    }
    db_done(stmt);
    return status;
}

titan_status enrolment_join_revoke(struct db *db, const char *id, const char *by, int64_t now_ms,
                                   char ret_node[ENROLMENT_NODE], struct titan_error *err)
{
    struct found f = {0};
    char message[320];
    struct event e = {.at_ms = now_ms, .type = "node.uninvited", .rank = -1, .message = message, .actor = by};
    TRY(find(db, id, &f, err));
    if (!f.known)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no join token %.32s", id);
    (void)snprintf(ret_node, ENROLMENT_NODE, "%s", f.node);
    (void)snprintf(message, sizeof(message), "the join token of node %.200s is taken back", f.node);
    e.node = f.node;
    _cleanup_(facts_free) struct facts facts = {.text = BUF_INIT};
    facts_begin(&facts, "join", id);
    facts_number(&facts, "taken_back", 1);
    TRY(facts_end(&facts, &e.facts, err));
    TRY(db_run(db, err, "DELETE FROM joins WHERE id = ?", "t", id));
    return event_add(db, &e, err);
}

static titan_status refuse(const struct found *f, const char *node, const unsigned char *key_hash, int64_t now_ms,
                           struct titan_error *refusal)
{
    titan_assert(f->known && *node);
    char then[32];
    if (strcmp(f->node, node) != 0)
        return titan_fail(refusal, TITAN_EPERM, "the join token is for node %s, not for %.200s", f->node, node);
    if (now_ms >= f->expires_at_ms)
        return titan_fail(refusal, TITAN_EPERM, "the join token of node %s expired at %s", node,
                          clock_format(f->expires_at_ms, then));
    if (f->used && CRYPTO_memcmp(f->key_hash, key_hash, ENROLMENT_HASH) != 0)
        return titan_fail(refusal, TITAN_EPERM, "the join token of node %s was used already, with another key", node);
    return TITAN_OK;
}

titan_status enrolment_join_use(struct db *db, const char *id, const unsigned char hash[ENROLMENT_HASH],
                                const char *node, const unsigned char key_hash[ENROLMENT_HASH], int64_t now_ms,
                                int64_t *ret_made_ms, struct titan_error *refusal, struct titan_error *err)
{
    struct found f = {0};
    struct event e = {.at_ms = now_ms, .type = "node.enrolled", .node = node, .rank = -1};
    char message[sizeof(refusal->msg)];
    *refusal = (struct titan_error){0};
    TRY(find(db, id, &f, err));
    *ret_made_ms = f.created_at_ms;
    if (!f.known || CRYPTO_memcmp(f.hash, hash, ENROLMENT_HASH) != 0) {
        (void)refuse_unknown(refusal);
        return TITAN_OK;
    }
    e.message = message;
    if (refuse(&f, node, key_hash, now_ms, refusal) != TITAN_OK) {
        titan_error_hint(refusal,
                         "titanctl node join makes another; if the node did not do this, its token was stolen");
        e.type = "node.enrol_refused";
        e.node = f.node;
        (void)snprintf(message, sizeof(message), "%s", refusal->msg);
        return event_add(db, &e, err);
    }
    (void)snprintf(message, sizeof(message), "node %.200s has its certificate", node);
    _cleanup_(facts_free) struct facts facts = {.text = BUF_INIT};
    facts_begin(&facts, "join", id);
    facts_number(&facts, "used_at_ms", now_ms);
    facts_bytes(&facts, "key_hash", key_hash, ENROLMENT_HASH);
    TRY(facts_end(&facts, &e.facts, err));
    TRY(db_run(db, err, "UPDATE joins SET used_at_ms = ?, key_hash = ? WHERE id = ?", "ibt", now_ms, key_hash,
               (size_t)ENROLMENT_HASH, id));
    return event_add(db, &e, err);
}

titan_status revocation_put(struct db *db, const struct revocation *r, struct titan_error *err)
{
    titan_assert(r->uri && *r->uri && r->reason && r->at_ms > 0);
    char message[512];
    struct event e = {.at_ms = r->at_ms, .type = "certificate.revoked", .rank = -1, .message = message, .actor = r->by};
    (void)snprintf(message, sizeof(message), "%.191s is revoked%s%.256s", r->uri, *r->reason ? ": " : "", r->reason);
    TRY(db_run(db, err,
               "INSERT INTO revocations (uri, at_ms, reason, created_by) VALUES (?, ?, ?, ?) ON CONFLICT (uri) DO"
               " UPDATE SET at_ms = max(at_ms, excluded.at_ms), reason = excluded.reason,"
               " created_by = excluded.created_by",
               "titt", r->uri, r->at_ms, r->reason, r->by));
    int64_t at_ms = 0; /* the later of the two */
    TRY(db_int(db, 0, &at_ms, err, "SELECT at_ms FROM revocations WHERE uri = ?", "t", r->uri));
    _cleanup_(facts_free) struct facts facts = {.text = BUF_INIT};
    facts_begin(&facts, "certificate", r->uri);
    facts_number(&facts, "at_ms", at_ms);
    facts_text(&facts, "reason", r->reason);
    facts_text(&facts, "created_by", r->by);
    if (r->node)
        facts_text(&facts, "node", r->node);
    TRY(facts_end(&facts, &e.facts, err));
    if (r->node) /* a used token would give the same key another certificate, an unused one a first */
        TRY(db_run(db, err, "DELETE FROM joins WHERE node = ?", "t", r->node));
    return event_add(db, &e, err);
}

titan_status revocation_list(struct db *db, bool (*each)(const struct revocation *r, void *data), void *data,
                             struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err, "SELECT uri, reason, created_by, at_ms FROM revocations ORDER BY uri", ""));
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row) {
        struct revocation r = {
            .uri = col_text(stmt, 0), .reason = col_text(stmt, 1), .by = col_text(stmt, 2), .at_ms = col_int(stmt, 3)};
        if (!each(&r, data))
            break;
    }
    db_done(stmt);
    return status;
}
