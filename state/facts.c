/* SPDX-License-Identifier: Apache-2.0 */
#include "state/facts.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hex.h"
#include "state/event.h"

#define HASH_BYTES 32
#define HASH_TEXT (2 * HASH_BYTES + 1)

/* --- in an event -------------------------------------------------------------------------------------------------- */

void facts_begin(struct facts *f, const char *noun, const char *name)
{
    *f = (struct facts){.text = BUF_INIT};
    f->out.out = &f->text;
    json_begin_object(&f->out, NULL);
    json_put_string(&f->out, noun, name);
}

void facts_text(struct facts *f, const char *field, const char *value)
{
    json_put_string(&f->out, field, value);
}

void facts_number(struct facts *f, const char *field, int64_t value)
{
    json_put_int(&f->out, field, value);
}

void facts_bytes(struct facts *f, const char *field, const unsigned char *bytes, size_t n)
{
    titan_assert(n <= HASH_BYTES);
    char text[HASH_TEXT];
    hex_write(bytes, n, text);
    json_put_string(&f->out, field, text);
}

static titan_status digest(const char *text, char ret[HASH_TEXT], struct titan_error *err)
{
    unsigned char hash[HASH_BYTES];
    unsigned n = 0;
    if (EVP_Digest(text, strlen(text), hash, &n, EVP_sha256(), NULL) != 1 || n != HASH_BYTES)
        return titan_fail(err, TITAN_EBUG, "job store: SHA-256 is not available");
    hex_write(hash, n, ret);
    return TITAN_OK;
}

titan_status facts_digest(struct facts *f, const char *field, const char *text, struct titan_error *err)
{
    char hash[HASH_TEXT];
    TRY(digest(text, hash, err));
    json_put_string(&f->out, field, hash);
    return TITAN_OK;
}

titan_status facts_end(struct facts *f, const char **ret, struct titan_error *err)
{
    json_end_object(&f->out);
    *ret = f->text.data;
    return buf_failed(&f->text) ? titan_fail(err, TITAN_ENOMEM, "out of memory") : TITAN_OK;
}

void facts_free(struct facts *f)
{
    buf_free(&f->text);
}

/* --- what the log states ------------------------------------------------------------------------------------------ */

/* The rows of each noun: the key, then fields under their names in the facts. A row older than facts has no fact
 * `made`. Then the log must have an event `made_by`, with ?1 as key; otherwise the row was inserted from outside. */
static const struct table {
    const char *noun, *made, *rows, *made_by;
    const char *ended_by; /* like made_by: the event that has set `ended` in a row without facts */
    const char *ended;
    bool stays; /* rows of the log are never deleted */
} tables[] = {
    {.noun = "job",
     .made = "owner",
     .rows = "SELECT id, user AS owner, uid, gid, removed_at_ms, text AS recipe FROM jobs LEFT JOIN recipes ON"
             " job_id = jobs.id",
     .made_by = "SELECT id FROM events WHERE job_id = ?1 AND type = 'job.submitted'"},
    {.noun = "token",
     .made = "created_at_ms",
     .rows = "SELECT id, name, role, lower(hex(hash)) AS hash, created_at_ms, expires_at_ms, created_by, revoked_at_ms"
             " FROM tokens",
     .made_by =
         "SELECT id FROM events WHERE actor <> '' AND type = '" EVENT_AUDIT "ok' AND instr(message, 'CreateToken: '"
         " || ?1 || ' for ') = 1",
     .ended_by =
         "SELECT id FROM events WHERE actor <> '' AND type = '" EVENT_AUDIT "ok' AND message = 'RevokeToken: ' || ?1",
     .ended = "revoked_at_ms",
     .stays = true},
    {.noun = "join",
     .made = "created_at_ms",
     .rows = "SELECT id, node, lower(hex(hash)) AS hash, created_at_ms, expires_at_ms, created_by, used_at_ms,"
             " lower(hex(key_hash)) AS key_hash, 0 AS taken_back FROM joins",
     .made_by = "SELECT events.id FROM events, joins WHERE joins.id = ?1 AND type = 'node.invited' AND"
                " at_ms = created_at_ms AND events.node = joins.node"},
    {.noun = "certificate",
     .made = "at_ms",
     .rows = "SELECT uri, at_ms, reason, created_by FROM revocations",
     .made_by = "SELECT id FROM events WHERE type = 'certificate.revoked' AND instr(message, ?1 || ' is revoked') = 1",
     .stays = true},
};

static __attribute__((format(printf, 2, 3))) void differs(struct facts_check *c, const char *fmt, ...)
{
    char line[640];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    c->differs(c->data, line);
}

titan_status facts_check_begin(struct facts_check *c, struct titan_error *err)
{
    return db_exec(c->memory,
                   "CREATE TABLE facts (noun TEXT, key TEXT, field TEXT, value TEXT, event INTEGER,"
                   " PRIMARY KEY (noun, key, field)) WITHOUT ROWID",
                   err);
}

titan_status facts_check_take(struct facts_check *c, uint64_t event, const char *text, struct titan_error *err)
{
    struct json *root = NULL;
    titan_status status = json_parse(text, strlen(text), &root, NULL);
    const struct json *key = status == TITAN_OK && root->type == JSON_OBJECT ? root->first : NULL;
    if (!key || key->type != JSON_STRING) {
        differs(c, "event %" PRIu64 " has facts that cannot be read: %.200s", event, text);
        json_free(root);
        return TITAN_OK;
    }
    c->first = c->first ? c->first : event;
    for (const struct json *j = key->next; j && status == TITAN_OK; j = j->next) {
        char number[24];
        (void)snprintf(number, sizeof(number), "%" PRId64, j->type == JSON_INT ? j->integer : 0);
        const char *value = j->type == JSON_STRING ? j->string : number;
        if (strcmp(key->key, "certificate") == 0 && strcmp(j->key, "node") == 0)
            status = db_run(c->memory, err, /* this fact ends all join tokens of the node */
                            "INSERT OR REPLACE INTO facts SELECT noun, key, 'taken_back', '1', ?1 FROM facts"
                            " WHERE noun = 'join' AND field = 'node' AND value = ?2",
                            "ut", event, value);
        else
            status = db_run(c->memory, err, "INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?)", "ttttu", key->key,
                            key->string, j->key, value, event);
    }
    json_free(root);
    return status;
}

/* --- the tables --------------------------------------------------------------------------------------------------- */

/* A row of a noun that is compared. */
struct compared {
    const struct table *of;
    const char *key;
    bool known; /* the log states that it was made */
};

/* Looks up the fact about a field of the row; *ret_event 0: the log has no such fact. */
static titan_status stated(struct facts_check *c, const struct compared *r, const char *field, struct buf *ret_value,
                           uint64_t *ret_event, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    buf_clear(ret_value);
    TRY(db_query(c->memory, &stmt, err, "SELECT value, event FROM facts WHERE noun = ? AND key = ? AND field = ?",
                 "ttt", r->of->noun, r->key, field));
    const titan_status status = db_step(c->memory, stmt, &row, err);
    *ret_event = row ? col_uint(stmt, 1) : 0;
    buf_puts(ret_value, row ? col_text(stmt, 0) : "");
    db_done(stmt);
    return status;
}

static titan_status event_of(struct facts_check *c, const char *sql, const char *key, int64_t *ret,
                             struct titan_error *err)
{
    return db_int(c->db, ret, err, sql, "t", key);
}

static titan_status compare_row(struct facts_check *c, const struct table *t, sqlite3_stmt *stmt,
                                struct titan_error *err)
{
    bool removed = false;
    uint64_t event = 0;
    int64_t made_by = 0;
    struct compared r = {.of = t, .key = col_text(stmt, 0)};
    _cleanup_(buf_free) struct buf value = BUF_INIT;

    /* Does the log show all of this row, or only its creation by an older event? */
    TRY(stated(c, &r, t->made, &value, &event, err));
    r.known = event > 0;
    c->rows++;
    c->known += r.known;
    if (!r.known) {
        TRY(event_of(c, t->made_by, r.key, &made_by, err));
        c->unknown += made_by > 0;
        if (made_by == 0 && strcmp(t->noun, "job") != 0) /* the replay of the states reports such jobs */
            differs(c, "%s %s: no event of the log has made it", t->noun, r.key);
    }
    titan_assert(c->known + c->unknown <= c->rows);

    for (int i = 1; i < sqlite3_column_count(stmt); i++) {
        char hash[HASH_TEXT];
        const char *field = sqlite3_column_name(stmt, i), *is = col_text(stmt, i);
        removed |= strcmp(field, "removed_at_ms") == 0 && col_int(stmt, i) != 0;
        if (strcmp(field, "recipe") == 0 && removed)
            continue; /* deleted with the job */
        if (strcmp(field, "recipe") == 0 && sqlite3_column_type(stmt, i) != SQLITE_NULL) {
            TRY(digest(is, hash, err));
            is = hash;
        }
        if (!r.known && strcmp(field, "recipe") == 0)
            continue;
        /* A field that no event has set must be 0 or empty. */
        int64_t ended_by = 0;
        TRY(stated(c, &r, field, &value, &event, err));
        const char *should = value.data ? value.data : "";
        const bool none = !*is || strcmp(is, "0") == 0;
        if (event && strcmp(is, should) != 0) {
            differs(c, "%s %s: its %s is %.200s, event %" PRIu64 " states %.200s", t->noun, r.key, field,
                    *is ? is : "missing", event, should);
        } else if (!event && r.known && !none) {
            differs(c, "%s %s: its %s is %.200s, no event states that", t->noun, r.key, field, is);
        } else if (!event && !r.known && none && t->ended && strcmp(field, t->ended) == 0) {
            TRY(event_of(c, t->ended_by, r.key, &ended_by, err));
            if (ended_by)
                differs(c, "%s %s: its %s is %s, event %" PRId64 " has set it", t->noun, r.key, field, is, ended_by);
        }
        if (buf_failed(&value))
            return titan_fail(err, TITAN_ENOMEM, "out of memory");
    }
    return t->stays ? db_run(c->memory, err, "DELETE FROM facts WHERE noun = ? AND key = ?", "tt", t->noun, r.key)
                    : TITAN_OK;
}

titan_status facts_check_compare(struct facts_check *c, struct titan_error *err)
{
    titan_status status = TITAN_OK;
    for (size_t i = 0; i < ARRAY_SIZE(tables) && status == TITAN_OK; i++) {
        sqlite3_stmt *stmt = NULL;
        bool row = false;
        TRY(db_query(c->db, &stmt, err, tables[i].rows, ""));
        while ((status = db_step(c->db, stmt, &row, err)) == TITAN_OK && row)
            if ((status = compare_row(c, &tables[i], stmt, err)) != TITAN_OK)
                break;
        db_done(stmt);
    }
    TRY(status);

    /* Reports rows that are missing although the log created them. These are rows created by facts, and revocations
     * from before facts. */
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    for (size_t i = 0; i < ARRAY_SIZE(tables) && status == TITAN_OK; i++) {
        if (!tables[i].stays)
            continue;
        TRY(db_query(c->memory, &stmt, err, "SELECT key, event FROM facts WHERE noun = ? AND field = ?", "tt",
                     tables[i].noun, tables[i].made));
        while ((status = db_step(c->memory, stmt, &row, err)) == TITAN_OK && row)
            differs(c, "%s %s is missing, event %" PRIu64 " has made it", tables[i].noun, col_text(stmt, 0),
                    col_uint(stmt, 1));
        db_done(stmt);
    }
    TRY(status);
    TRY(db_query(c->db, &stmt, err,
                 "SELECT substr(message, 1, instr(message, ' is revoked') - 1) AS name, id FROM events"
                 " WHERE type = 'certificate.revoked' AND change = '' AND name NOT IN (SELECT uri FROM revocations)",
                 ""));
    while ((status = db_step(c->db, stmt, &row, err)) == TITAN_OK && row)
        differs(c, "certificate %s: its revocation is missing, event %" PRIu64 " has made it", col_text(stmt, 0),
                col_uint(stmt, 1));
    db_done(stmt);
    return status;
}
