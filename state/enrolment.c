/* SPDX-License-Identifier: Apache-2.0 */
#include "state/enrolment.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "state/event.h"
#include "state/facts.h"

/* an expired token is kept, so that its use is reported as the use of an expired token */
#define KEPT_MS INT64_C(86400000)

/* clang-format off */
#define JOIN(X) \
    X(node, node) X(created_at_ms, created_at_ms) X(expires_at_ms, expires_at_ms) X(used_at_ms, used_at_ms) \
    X(created_by, created_by)
/* clang-format on */
#define FIELD(column, field) DB_FIELD(struct join, field),
DB_ROW(join_row, struct join, FIELD(id, id) JOIN(FIELD));

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
    TRY(db_put(db, err, "INSERT INTO joins (id" JOIN(DB_NAME) ", hash) VALUES (?" JOIN(DB_MARK) ", ?)", &join_row, j,
               "b", j->hash, (size_t)ENROLMENT_HASH));
    return event_add(db, &e, err);
}

struct found {
    int64_t created_at_ms, expires_at_ms, used_at_ms;
    unsigned char hash[ENROLMENT_HASH], key_hash[ENROLMENT_HASH];
    char node[ENROLMENT_NODE]; /* "": there is no such token */
};
#define FOUND(field) DB_FIELD(struct found, field)
DB_ROW(found_row, struct found, FOUND(node), FOUND(created_at_ms), FOUND(expires_at_ms), FOUND(used_at_ms), FOUND(hash),
       FOUND(key_hash));

static titan_status find(struct db *db, const char *id, struct found *f, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    titan_status status;
    TRY(db_query(db, &stmt, err,
                 "SELECT node, created_at_ms, expires_at_ms, used_at_ms, hash, key_hash FROM joins WHERE id = ?", "t",
                 id));
    (void)db_next(db, stmt, &found_row, f, &status, err);
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
    return *f.node && CRYPTO_memcmp(f.hash, hash, ENROLMENT_HASH) == 0 ? TITAN_OK : refuse_unknown(err);
}

titan_status enrolment_join_list(struct db *db, bool (*each)(const struct join *join, void *data), void *data,
                                 struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct join j;
    titan_status status;
    TRY(db_query(db, &stmt, err, "SELECT id" JOIN(DB_NAME) " FROM joins ORDER BY created_at_ms, id", ""));
    while (db_next(db, stmt, &join_row, &j, &status, err) && each(&j, data))
        ;
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
    if (!*f.node)
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

titan_status enrolment_join_use(struct db *db, const struct join_use *u, int64_t *ret_made_ms,
                                struct titan_error *refusal, struct titan_error *err)
{
    struct found f = {0};
    struct event e = {.at_ms = u->now_ms, .type = "node.enrolled", .node = u->node, .rank = -1};
    char message[sizeof(refusal->msg)];
    *refusal = (struct titan_error){0};
    TRY(find(db, u->id, &f, err));
    *ret_made_ms = f.created_at_ms;
    if (!*f.node || CRYPTO_memcmp(f.hash, u->hash, ENROLMENT_HASH) != 0) {
        (void)refuse_unknown(refusal);
        return TITAN_OK;
    }
    e.message = message;
    char then[32];
    if (strcmp(f.node, u->node) != 0)
        titan_fail(refusal, TITAN_EPERM, "the join token is for node %s, not for %.200s", f.node, u->node);
    else if (u->now_ms >= f.expires_at_ms)
        titan_fail(refusal, TITAN_EPERM, "the join token of node %s expired at %s", u->node,
                   clock_format(f.expires_at_ms, then));
    else if (f.used_at_ms && CRYPTO_memcmp(f.key_hash, u->key_hash, ENROLMENT_HASH) != 0)
        titan_fail(refusal, TITAN_EPERM, "the join token of node %s was used already, with another key", u->node);
    if (refusal->status != TITAN_OK) {
        titan_error_hint(refusal,
                         "titanctl node join makes another; if the node did not do this, its token was stolen");
        e.type = "node.enrol_refused";
        e.node = f.node;
        (void)snprintf(message, sizeof(message), "%s", refusal->msg);
        return event_add(db, &e, err);
    }
    (void)snprintf(message, sizeof(message), "node %.200s has its certificate", u->node);
    _cleanup_(facts_free) struct facts facts = {.text = BUF_INIT};
    facts_begin(&facts, "join", u->id);
    facts_number(&facts, "used_at_ms", u->now_ms);
    facts_bytes(&facts, "key_hash", u->key_hash, ENROLMENT_HASH);
    TRY(facts_end(&facts, &e.facts, err));
    TRY(db_run(db, err, "UPDATE joins SET used_at_ms = ?, key_hash = ? WHERE id = ?", "ibt", u->now_ms, u->key_hash,
               (size_t)ENROLMENT_HASH, u->id));
    return event_add(db, &e, err);
}

/* clang-format off */
#define REVOCATION(X) X(reason, reason) X(created_by, by)
/* clang-format on */
#undef FIELD
#define FIELD(column, field) DB_FIELD(struct revocation, field),
DB_ROW(revocation_row, struct revocation, FIELD(uri, uri) FIELD(at_ms, at_ms) REVOCATION(FIELD));
#define REVOKED "uri, at_ms" REVOCATION(DB_NAME)
#define REVOKED_MARKS "?, ?" REVOCATION(DB_MARK)

titan_status revocation_put(struct db *db, const struct revocation *r, struct titan_error *err)
{
    titan_assert(r->uri && *r->uri && r->reason && r->at_ms > 0);
    char message[512];
    struct event e = {.at_ms = r->at_ms, .type = "certificate.revoked", .rank = -1, .message = message, .actor = r->by};
    (void)snprintf(message, sizeof(message), "%.191s is revoked%s%.256s", r->uri, *r->reason ? ": " : "", r->reason);
    TRY(db_put(db, err,
               "INSERT INTO revocations (" REVOKED ") VALUES (" REVOKED_MARKS ") ON CONFLICT (uri) DO UPDATE"
               " SET at_ms = max(at_ms, excluded.at_ms)" REVOCATION(DB_EXCLUDED),
               &revocation_row, r, ""));
    int64_t at_ms = 0; /* the later of the old and the new revocation */
    TRY(db_int(db, &at_ms, err, "SELECT at_ms FROM revocations WHERE uri = ?", "t", r->uri));
    _cleanup_(facts_free) struct facts facts = {.text = BUF_INIT};
    facts_begin(&facts, "certificate", r->uri);
    facts_number(&facts, "at_ms", at_ms);
    facts_text(&facts, "reason", r->reason);
    facts_text(&facts, "created_by", r->by);
    if (r->node)
        facts_text(&facts, "node", r->node);
    TRY(facts_end(&facts, &e.facts, err));
    if (r->node) /* a used token would give the same key another certificate, an unused token a first one */
        TRY(db_run(db, err, "DELETE FROM joins WHERE node = ?", "t", r->node));
    return event_add(db, &e, err);
}

titan_status revocation_list(struct db *db, bool (*each)(const struct revocation *r, void *data), void *data,
                             struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct revocation r;
    titan_status status;
    TRY(db_query(db, &stmt, err, "SELECT " REVOKED " FROM revocations ORDER BY uri", ""));
    while (db_next(db, stmt, &revocation_row, &r, &status, err) && each(&r, data))
        ;
    db_done(stmt);
    return status;
}
