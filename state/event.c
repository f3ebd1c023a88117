/* SPDX-License-Identifier: Apache-2.0 */
#include "state/event.h"

#include <ctype.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/hex.h"

/* --- the chain ---------------------------------------------------------------------------------------------------- */

#define LINK_BYTES 700 /* size of most events; larger events grow the buffer */

static void put_number(struct buf *b, uint64_t n)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(n >> (8 * i));
    (void)!buf_append(b, bytes, sizeof(bytes));
}

static void put_text(struct buf *b, const char *text)
{
    titan_assert(text);
    size_t n = strlen(text);
    put_number(b, n);
    (void)!buf_append(b, text, n);
}

/* Hashes every column in order: numbers as 64 bits, little-endian; texts as length and bytes. The actor comes last, and
 * only if there is one, so that older links stay valid. */
static titan_status chain_on(const unsigned char before[EVENT_CHAIN_BYTES], const struct event *e, const char *change,
                             unsigned char ret[EVENT_CHAIN_BYTES], struct titan_error *err)
{
    _cleanup_(buf_free) struct buf b = BUF_INIT;
    unsigned n = 0;
    (void)!buf_reserve(&b, EVENT_CHAIN_BYTES + LINK_BYTES);
    (void)!buf_append(&b, before, EVENT_CHAIN_BYTES);
    put_number(&b, e->id);
    put_number(&b, e->job_id);
    put_number(&b, (uint64_t)e->at_ms);
    put_number(&b, e->epoch);
    put_number(&b, e->step);
    put_number(&b, (uint64_t)(int64_t)e->rank);
    put_text(&b, e->type);
    put_text(&b, e->message);
    put_text(&b, e->node);
    put_text(&b, e->detail);
    put_text(&b, change);
    if (e->actor && *e->actor)
        put_text(&b, e->actor);
    if (buf_failed(&b))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    if (EVP_Digest(b.data, b.len, ret, &n, EVP_sha256(), NULL) != 1 || n != EVENT_CHAIN_BYTES)
        return titan_fail(err, TITAN_EBUG, "job store: SHA-256 is not available");
    return TITAN_OK;
}

titan_status event_head(struct db *db, struct event_head *ret, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    *ret = (struct event_head){0};
    TRY(db_query(db, &stmt, err, "SELECT id, chain FROM events ORDER BY id DESC LIMIT 1", ""));
    titan_status status = db_step(db, stmt, &row, err);
    if (row) {
        ret->id = col_uint(stmt, 0);
        col_blob(stmt, 1, ret->chain, EVENT_CHAIN_BYTES);
    }
    db_done(stmt);
    return status;
}

void event_head_write(const struct event_head *head, char out[EVENT_HEAD_TEXT])
{
    const int n = snprintf(out, EVENT_HEAD_TEXT, "%llu:", (unsigned long long)head->id);
    hex_write(head->chain, EVENT_CHAIN_BYTES, out + n);
}

bool event_head_read(const char *text, struct event_head *ret, const char **ret_end)
{
    const size_t digits = strspn(text, "0123456789"), hex = 2 * EVENT_CHAIN_BYTES;
    if (digits == 0 || digits > 19 || text[digits] != ':' ||
        !hex_read(text + digits + 1, EVENT_CHAIN_BYTES, ret->chain))
        return false;
    const char *end = text + digits + 1 + hex;
    ret->id = strtoull(text, NULL, 10);
    if (ret_end)
        *ret_end = end;
    return ret->id <= INT64_MAX && !isxdigit((unsigned char)*end);
}

titan_status event_head_find(struct db *db, const struct event_head *head, uint64_t *ret_lost, struct titan_error *err)
{
    struct event_head end;
    sqlite3_stmt *stmt = NULL;
    unsigned char is[EVENT_CHAIN_BYTES];
    bool row = false;
    *ret_lost = 0;
    TRY(event_head(db, &end, err));
    if (head->id > end.id)
        return titan_fail(
            err, TITAN_ECORRUPT,
            "event log: it ends at event %llu, and was at event %llu before: it was cut, or is an older copy",
            (unsigned long long)end.id, (unsigned long long)head->id);
    TRY(db_query(db, &stmt, err, "SELECT id, chain, type FROM events WHERE id >= ? ORDER BY id LIMIT 1", "u",
                 head->id));
    titan_status status = db_step(db, stmt, &row, err);
    const uint64_t id = row ? col_uint(stmt, 0) : 0;
    const bool restored = row && strcmp(col_text(stmt, 2), EVENT_RESTORED) == 0;
    col_blob(stmt, 1, is, sizeof(is));
    db_done(stmt);
    TRY(status);
    if (id != head->id && restored)
        *ret_lost = id;
    else if (id != head->id || memcmp(is, head->chain, sizeof(is)) != 0)
        return titan_fail(err, TITAN_ECORRUPT,
                          "event log: event %llu is another than was written down before; it ends at event %llu",
                          (unsigned long long)head->id, (unsigned long long)end.id);
    return TITAN_OK;
}

/* --- adding ------------------------------------------------------------------------------------------------------- */

/* clang-format off */
/* Columns since the first schema; `actor` is of schema 4. */
#define EVENT(X) \
    X(job_id, job_id) X(at_ms, at_ms) X(type, type) X(message, message) X(epoch, epoch) X(step, step) \
    X(rank, rank) X(node, node) X(detail, detail)
/* clang-format on */
#define FIELD(column, field) DB_FIELD(struct event, field),
DB_ROW(old_event_row, struct event, FIELD(id, id) EVENT(FIELD));
DB_ROW(event_row, struct event, FIELD(id, id) EVENT(FIELD) FIELD(actor, actor));
#define OLD_COLUMNS "id" EVENT(DB_NAME)
#define COLUMNS OLD_COLUMNS ", actor"

static titan_status add(struct db *db, struct event e, const char *change, struct titan_error *err)
{
    titan_assert(e.type && *e.type && change && e.rank >= -1);
    unsigned char before[EVENT_CHAIN_BYTES], chain[EVENT_CHAIN_BYTES];
    _cleanup_(buf_free) struct buf with_facts = BUF_INIT;
    if (e.facts) {
        buf_printf(&with_facts, "%s\n%s", change, e.facts);
        if (buf_failed(&with_facts))
            return titan_fail(err, TITAN_ENOMEM, "out of memory");
        change = with_facts.data;
    }
    e.message = e.message ? e.message : "";
    e.node = e.node ? e.node : "";
    e.detail = e.detail ? e.detail : "{}";

    /* The next event's number, and the chain that it continues. */
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    TRY(db_query(db, &stmt, err,
                 "SELECT (SELECT seq FROM sqlite_sequence WHERE name = 'events'),"
                 " (SELECT chain FROM events ORDER BY id DESC LIMIT 1)",
                 ""));
    const titan_status status = db_step(db, stmt, &row, err);
    e.id = row ? col_uint(stmt, 0) + 1 : 1;
    col_blob(stmt, 1, before, sizeof(before));
    db_done(stmt);
    TRY(status);
    TRY(chain_on(before, &e, change, chain, err));
    return db_put(db, err, "INSERT INTO events (" COLUMNS ", change, chain) VALUES (?" EVENT(DB_MARK) ", ?, ?, ?)",
                  &event_row, &e, "tb", change, (const void *)chain, sizeof(chain));
}

titan_status event_add(struct db *db, const struct event *e, struct titan_error *err)
{
    return add(db, *e, "", err);
}

titan_status event_check_move(const struct event_move *m, struct titan_error *err)
{
    if (sm_allowed(m->what, m->from, m->to))
        return TITAN_OK;
    return titan_fail(err, TITAN_EBUG, "job %llu: %s may not move from %s to %s", (unsigned long long)m->job_id,
                      m->what->name, sm_name(m->what, m->from), sm_name(m->what, m->to));
}

titan_status event_add_move(struct db *db, const struct event *e, const struct event_move *m, struct titan_error *err)
{
    char change[512], job[24] = "", id[24] = "";
    if (m->in_job)
        (void)snprintf(job, sizeof(job), "%llu/", (unsigned long long)m->job_id);
    if (!m->name)
        (void)snprintf(id, sizeof(id), "%llu", (unsigned long long)m->id);
    int n = snprintf(change, sizeof(change), "%s %s %s %lld %s%s", m->what->name, sm_name(m->what, m->from),
                     sm_name(m->what, m->to), (long long)m->count, job, m->name ? m->name : id);
    if (n >= (int)sizeof(change))
        return titan_fail(err, TITAN_EBUG, "job store: the key of a %s is too long", m->what->name);
    return add(db, *e, change, err);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

titan_status event_list(struct db *db, const struct event_filter *f, bool (*each)(const struct event *e, void *data),
                        void *data, struct titan_error *err)
{
    titan_assert(f->limit > 0);
    const char *actor = f->actor ? f->actor : "";
    /* No event has a larger id. SQLite would read a larger id as negative. */
    const uint64_t after = MIN(f->after, (uint64_t)INT64_MAX);
    sqlite3_stmt *stmt = NULL;
    if (f->audit)
        TRY(db_query(db, &stmt, err,
                     "SELECT " COLUMNS " FROM events WHERE actor <> '' AND id > ? AND type GLOB 'audit.*'"
                     " AND at_ms >= ? AND (? = '' OR actor = ?) ORDER BY id LIMIT ?",
                     "uitti", after, f->since_ms, actor, actor, (int64_t)f->limit));
    else if (f->job_id)
        TRY(db_query(db, &stmt, err,
                     "SELECT " COLUMNS " FROM events WHERE job_id = ? AND id > ? AND type NOT GLOB 'audit.*'"
                     " ORDER BY id LIMIT ?",
                     "uui", f->job_id, after, (int64_t)f->limit));
    else
        TRY(db_query(db, &stmt, err,
                     "SELECT " COLUMNS " FROM events WHERE id > ? AND type NOT GLOB 'audit.*' ORDER BY id LIMIT ?",
                     "ui", after, (int64_t)f->limit));
    struct event e;
    titan_status status;
    while (db_next(db, stmt, &event_row, &e, &status, err) && each(&e, data))
        ;
    db_done(stmt);
    return status;
}

/* --- verifying ---------------------------------------------------------------------------------------------------- */

titan_status event_verify(struct db *db, uint64_t after, uint64_t *ret_checked, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    int64_t base = 0, end = 0, actors = 0; /* base: events up to it precede the chain, their ids may have gaps */
    uint64_t last = 0, checked = 0;
    unsigned char chain[EVENT_CHAIN_BYTES] = {0}, is[EVENT_CHAIN_BYTES];
    TRY(db_int(db, &actors, err, "SELECT count(*) FROM pragma_table_info('events') WHERE name = 'actor'", ""));
    TRY(db_int(db, &base, err, "SELECT value FROM meta WHERE key = 'chain_base'", ""));
    TRY(db_int(db, &end, err, "SELECT seq FROM sqlite_sequence WHERE name = 'events'", ""));
    if (after > 0) { /* the chain up to event `after` is trusted */
        bool row = false;
        TRY(db_query(db, &stmt, err, "SELECT id, chain FROM events WHERE id <= ? ORDER BY id DESC LIMIT 1", "u",
                     after));
        const titan_status found = db_step(db, stmt, &row, err);
        if (row) {
            last = col_uint(stmt, 0);
            col_blob(stmt, 1, chain, sizeof(chain));
        }
        db_done(stmt);
        TRY(found);
    }
    if (actors)
        TRY(db_query(db, &stmt, err, "SELECT " COLUMNS ", change, chain FROM events WHERE id > ? ORDER BY id", "u",
                     last));
    else
        TRY(db_query(db, &stmt, err, "SELECT " OLD_COLUMNS ", change, chain FROM events WHERE id > ? ORDER BY id", "u",
                     last));
    const struct db_row *columns = actors ? &event_row : &old_event_row;
    struct event e;
    titan_status status;
    while (db_next(db, stmt, columns, &e, &status, err)) {
        if (e.id != last + 1 && e.id > (uint64_t)base + 1 && strcmp(e.type, EVENT_RESTORED) != 0) {
            status = titan_fail(err, TITAN_ECORRUPT, "event log: events %llu to %llu are missing",
                                (unsigned long long)last + 1, (unsigned long long)e.id - 1);
            break;
        }
        status = chain_on(chain, &e, col_text(stmt, (int)columns->n), chain, err);
        col_blob(stmt, (int)columns->n + 1, is, sizeof(is));
        if (status == TITAN_OK && memcmp(chain, is, sizeof(is)) != 0)
            status = titan_fail(err, TITAN_ECORRUPT, "event log: event %llu (%s, job %llu) is not what was written",
                                (unsigned long long)e.id, e.type, (unsigned long long)e.job_id);
        if (status != TITAN_OK)
            break;
        last = e.id;
        checked++;
    }
    db_done(stmt);
    if (status == TITAN_OK && last < (uint64_t)end && end > base)
        status = titan_fail(err, TITAN_ECORRUPT, "event log: events %llu to %lld are missing",
                            (unsigned long long)last + 1, (long long)end);
    if (ret_checked)
        *ret_checked = checked;
    return status;
}

titan_status event_chain_all(struct db *db, struct titan_error *err)
{
    unsigned char chain[EVENT_CHAIN_BYTES] = {0};
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err, "SELECT " OLD_COLUMNS " FROM events ORDER BY id", ""));
    struct event e;
    titan_status status;
    while (db_next(db, stmt, &old_event_row, &e, &status, err)) {
        status = chain_on(chain, &e, "", chain, err);
        if (status == TITAN_OK)
            status = db_run(db, err, "UPDATE events SET chain = ? WHERE id = ?", "bu", (const void *)chain,
                            sizeof(chain), e.id);
        if (status != TITAN_OK)
            break;
    }
    db_done(stmt);
    if (status == TITAN_OK) /* earlier states need not follow from events */
        status = db_run(db, err,
                        "INSERT INTO meta VALUES ('chain_base', coalesce((SELECT seq FROM sqlite_sequence"
                        " WHERE name = 'events'), 0)) ON CONFLICT DO UPDATE SET value = excluded.value",
                        "");
    return status;
}
