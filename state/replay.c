/* SPDX-License-Identifier: Apache-2.0 */
#include "state/replay.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "state/checkpoint.h"
#include "state/epoch.h"
#include "state/facts.h"
#include "state/job.h"
#include "state/node.h"
#include "state/run.h"
#include "state/schema.h"
#include "state/worker.h"

#define PRINT_MAX 100

/* The present states in the tables; keys as the nouns' files write them into events. */
static const struct table {
    const struct sm *sm;
    const char *rows;
} tables[] = {
    {&job_sm, "SELECT id, state, restarts FROM jobs"},
    {&run_sm, "SELECT job_id || '/' || number, state, 0 FROM runs"},
    {&epoch_sm, "SELECT job_id || '/' || number, state, 0 FROM epochs"},
    {&worker_sm, "SELECT id, state, counted FROM workers"},
    {&checkpoint_sm, "SELECT job_id || '/' || step, state, 0 FROM checkpoints"},
    {&node_sm, "SELECT name, state, 0 FROM nodes"},
};

struct replay {
    struct db *db, *states; /* the store; the state replayed from the log, in memory */
    bool older;             /* the store has rows from before the log recorded changes */
    struct replay_report report;
    struct facts_check facts; /* differs NULL: the store is older than facts */
    void (*print)(const char *line, void *data);
    void *data;
};

static void print_difference(void *data, const char *line)
{
    struct replay *r = data;
    char text[640];
    if (r->report.wrong++ >= PRINT_MAX || !r->print)
        return;
    (void)snprintf(text, sizeof(text), "%s", line);
    text_fit(text, '?'); /* it quotes the store */
    r->print(text, r->data);
}

static __attribute__((format(printf, 2, 3))) void differs(struct replay *r, const char *fmt, ...)
{
    char line[640];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    print_difference(r, line);
}

/* --- the log ------------------------------------------------------------------------------------------------------ */

/* "job running recovering 2 17" */
struct step {
    const struct sm *sm;
    int from, to;
    int64_t count;
    const char *key;
};

static bool parse_step(const char *change, struct step *ret)
{
    char noun[16], from[24], to[24];
    long long count = 0;
    int n = 0;
    if (sscanf(change, "%15s %23s %23s %lld %n", noun, from, to, &count, &n) != 4 || n == 0)
        return false;
    ret->sm = NULL;
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        if (strcmp(tables[i].sm->name, noun) == 0)
            ret->sm = tables[i].sm;
    ret->from = ret->sm ? sm_parse(ret->sm, from) : -1;
    ret->to = ret->sm ? sm_parse(ret->sm, to) : -1;
    ret->count = count;
    ret->key = change + n;
    return ret->sm && ret->from >= 0 && ret->to >= 0;
}

/* What the log has of a row so far. */
struct standing {
    bool there; /* the log has mentioned the row */
    int state;
    int64_t count;
};

static titan_status find_standing(struct replay *r, const char *noun, const char *key, struct standing *ret,
                                  struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    *ret = (struct standing){.there = false};
    TRY(db_query(r->states, &stmt, err, "SELECT state, count FROM states WHERE noun = ? AND key = ?", "tt", noun, key));
    titan_status status = db_step(r->states, stmt, &ret->there, err);
    if (ret->there) {
        ret->state = (int)col_int(stmt, 0);
        ret->count = col_int(stmt, 1);
    }
    db_done(stmt);
    return status;
}

static titan_status take_step(struct replay *r, uint64_t id, const struct step *s, struct titan_error *err)
{
    titan_assert(s->sm && s->key && s->from >= 0 && s->to >= 0);
    struct standing was;
    TRY(find_standing(r, s->sm->name, s->key, &was, err));
    if (s->from != was.state && (was.there || !r->older))
        differs(r, "event %llu takes %s %s from %s, where it was %s", (unsigned long long)id, s->sm->name, s->key,
                sm_name(s->sm, s->from), sm_name(s->sm, was.state));
    if (s->from != s->to && !sm_allowed(s->sm, s->from, s->to))
        differs(r, "event %llu takes %s %s from %s to %s, which may not be", (unsigned long long)id, s->sm->name,
                s->key, sm_name(s->sm, s->from), sm_name(s->sm, s->to));
    r->report.changes++;
    if (s->to != s->from && (s->sm->states[s->to].flags & SM_INITIAL)) /* its row is deleted */
        return db_run(r->states, err, "DELETE FROM states WHERE noun = ? AND key = ?", "tt", s->sm->name, s->key);
    return db_run(r->states, err, "INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?)", "ttii", s->sm->name, s->key,
                  (int64_t)s->to, s->count);
}

/* --- the tables --------------------------------------------------------------------------------------------------- */

static titan_status compare_table(struct replay *r, const struct table *t, struct titan_error *err)
{
    const struct sm *sm = t->sm;
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(r->db, &stmt, err, t->rows, ""));
    titan_status status;
    bool row;
    while ((status = db_step(r->db, stmt, &row, err)) == TITAN_OK && row) {
        const char *key = col_text(stmt, 0);
        const int state = (int)col_int(stmt, 1);
        const int64_t count = col_int(stmt, 2);
        struct standing should;
        if ((status = find_standing(r, sm->name, key, &should, err)) != TITAN_OK)
            break;
        r->report.rows++;
        if (!should.there && !r->older)
            differs(r, "%s %s is %s; the log does not know it", sm->name, key, sm_name(sm, state));
        else if (should.there && state != should.state)
            differs(r, "%s %s is %s; by the log it is %s", sm->name, key, sm_name(sm, state),
                    sm_name(sm, should.state));
        else if (should.there && count != should.count)
            differs(r, "%s %s counts %lld; by the log %lld", sm->name, key, (long long)count, (long long)should.count);
        status = db_run(r->states, err, "DELETE FROM states WHERE noun = ? AND key = ?", "tt", sm->name, key);
        if (status != TITAN_OK)
            break;
    }
    db_done(stmt);
    return status;
}

static titan_status run(struct replay *r, struct titan_error *err)
{
    int64_t base = 0, schema = 0;
    TRY(db_int(r->db, &schema, err, "PRAGMA user_version", ""));
    r->facts = (struct facts_check){
        .db = r->db, .memory = r->states, .differs = schema >= SCHEMA_FACTS ? print_difference : NULL, .data = r};
    TRY(facts_check_begin(&r->facts, err));
    TRY(db_int(r->db, &base, err, "SELECT value FROM meta WHERE key = 'chain_base'", ""));
    r->older = base > 0;
    TRY(db_exec(r->states,
                "CREATE TABLE states (noun TEXT, key TEXT, state INTEGER, count INTEGER,"
                " PRIMARY KEY (noun, key)) WITHOUT ROWID; BEGIN",
                err));

    sqlite3_stmt *stmt = NULL;
    titan_status status;
    bool row = false;
    TRY(db_query(r->db, &stmt, err, "SELECT id, change FROM events WHERE change <> '' ORDER BY id", ""));
    while ((status = db_step(r->db, stmt, &row, err)) == TITAN_OK && row) {
        struct step step;
        const uint64_t id = col_uint(stmt, 0);
        _cleanup_free_ char *change = strdup(col_text(stmt, 1));
        if (!change) {
            status = titan_fail(err, TITAN_ENOMEM, "out of memory");
            break;
        }
        /* A step, facts on a separate line after it, or both. */
        char *facts = strchr(change, '\n');
        if (facts)
            *facts++ = '\0';
        if (*change && parse_step(change, &step))
            status = take_step(r, id, &step, err);
        else if (*change)
            differs(r, "event %llu has a change that cannot be read: %s", (unsigned long long)id, change);
        if (status == TITAN_OK && facts && r->facts.differs)
            status = facts_check_take(&r->facts, id, facts, err);
        if (status != TITAN_OK)
            break;
    }
    db_done(stmt);
    TRY(status);

    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        TRY(compare_table(r, &tables[i], err));
    TRY(db_query(r->states, &stmt, err, "SELECT noun, key FROM states", "")); /* rows of the log that no table has */
    while ((status = db_step(r->states, stmt, &row, err)) == TITAN_OK && row)
        differs(r, "%s %s is missing; the log knows it", col_text(stmt, 0), col_text(stmt, 1));
    db_done(stmt);
    TRY(status);
    if (r->facts.differs)
        TRY(facts_check_compare(&r->facts, err));
    r->report.rows += r->facts.rows;
    r->report.unknown = r->facts.unknown;
    r->report.facts_from = r->facts.first;
    return TITAN_OK;
}

titan_status replay_check(struct db *db, struct replay_report *ret, void (*print)(const char *line, void *data),
                          void *data, struct titan_error *err)
{
    struct replay r = {.db = db, .print = print, .data = data};
    TRY(db_exec(db, "SAVEPOINT replay", err)); /* one view of log and tables */
    titan_status status = db_open(":memory:", DB_WRITER, false, &r.states, err);
    if (status == TITAN_OK)
        status = run(&r, err);
    db_close(r.states);
    (void)!db_exec(db, "RELEASE replay", NULL);
    if (status == TITAN_OK && r.report.wrong)
        status = titan_fail(err, TITAN_ECORRUPT, "%llu rows of the store do not follow from its event log",
                            (unsigned long long)r.report.wrong);
    if (ret)
        *ret = r.report;
    return status;
}
