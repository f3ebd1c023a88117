/* SPDX-License-Identifier: Apache-2.0 */
#include "state/job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/labels.h"
#include "state/facts.h"

#define TO(s) SM_BIT(JOB_##s)
static const struct sm_state job_states[] = {
    [JOB_NONE] = {"none", SM_INITIAL, TO(PENDING)},
    [JOB_PENDING] = {"pending", 0, TO(FORMING) | TO(CANCELLED)},
    [JOB_FORMING] = {"forming", 0,
                     TO(RUNNING) | TO(RECOVERING) | TO(PENDING) | TO(CANCELLING) | TO(COMPLETED) | TO(FAILED)},
    [JOB_RUNNING] = {"running", 0,
                     TO(RECOVERING) | TO(RESIZING) | TO(PENDING) | TO(CANCELLING) | TO(COMPLETED) | TO(FAILED)},
    [JOB_RECOVERING] = {"recovering", 0, TO(RUNNING) | TO(PENDING) | TO(CANCELLING) | TO(COMPLETED) | TO(FAILED)},
    [JOB_RESIZING] = {"resizing", 0,
                      TO(RUNNING) | TO(RECOVERING) | TO(PENDING) | TO(CANCELLING) | TO(COMPLETED) | TO(FAILED)},
    [JOB_CANCELLING] = {"cancelling", 0, TO(CANCELLED)},
    [JOB_COMPLETED] = {"completed", SM_FINAL, 0},
    [JOB_FAILED] = {"failed", SM_FINAL | SM_FAILURE, 0},
    [JOB_CANCELLED] = {"cancelled", SM_FINAL, 0},
};
#undef TO
const struct sm job_sm = {"job", job_states, sizeof(job_states) / sizeof(job_states[0])};

/* clang-format off */
/* Columns of the request, of values set later, and of the progress, which has the fields of struct job_status. A new
 * column needs a line here, and a migration (schema.c). */
#define REQUEST(X) \
    X(name, name) X(user, user) X(state, state) X(device, spec.device) X(steps, spec.steps) \
    X(min_workers, spec.min_workers) X(max_workers, spec.max_workers) X(worlds, spec.worlds) \
    X(max_restarts, spec.max_restarts) X(backoff_ms, spec.backoff_ms) X(backoff_max_ms, spec.backoff_max_ms) \
    X(keep_latest, spec.keep_latest) X(submitted_at_ms, submitted_at_ms) X(request_hash, request_hash) \
    X(mesh, spec.mesh) X(priority, spec.priority) X(max_node_losses, spec.max_node_losses) \
    X(max_hangs, spec.max_hangs) X(max_ooms, spec.max_ooms) X(restart_window_s, spec.restart_window_s) \
    X(uid, uid) X(gid, gid) X(labels, labels)
#define LATER(X) \
    X(reason, reason) X(wish_min, desired.min) X(wish_max, desired.max) X(wish_number, desired.number)
#define STATUS(X) \
    X(loss, loss) X(tokens_per_second, tokens_per_second) X(mfu, mfu) X(world_size, world_size) X(epoch, epoch) \
    X(restarts, restarts) X(preemptions, preemptions) X(started_at_ms, started_at_ms) \
    X(finished_at_ms, finished_at_ms) X(checkpoint, checkpoint) X(checkpoint_failures, checkpoint_failures) \
    X(evaluation_step, evaluation.step) X(evaluation_loss, evaluation.loss) \
    X(evaluation_tokens, evaluation.tokens) X(evaluation_bytes, evaluation.bytes) X(passed, passed)
/* clang-format on */

#define FIELD(column, field) DB_FIELD(struct job, field),
#define STATUS_FIELD(column, field) DB_FIELD(struct job_status, field),
#define FIELD_OF_STATUS(column, field) DB_FIELD(struct job, status.field),
DB_ROW(request_row, struct job, FIELD(id, id) REQUEST(FIELD) FIELD(folder, folder));
DB_ROW(status_row, struct job_status, STATUS_FIELD(step, step) STATUS(STATUS_FIELD));
DB_ROW(job_row, struct job, FIELD(id, id) FIELD(step, status.step) REQUEST(FIELD) LATER(FIELD) STATUS(FIELD_OF_STATUS));
#define COLUMNS "id, step" REQUEST(DB_NAME) LATER(DB_NAME) STATUS(DB_NAME)

titan_status job_find_key(struct db *db, const struct job *job, uint64_t *ret_existing, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    *ret_existing = 0;
    if (!job->key)
        return TITAN_OK;
    TRY(db_query(db, &stmt, err,
                 "SELECT job_id, request_hash FROM job_keys JOIN jobs ON jobs.id = job_id WHERE owner = ? AND key = ?",
                 "tt", job->key_owner, job->key));
    bool row = false;
    titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && row) {
        *ret_existing = col_uint(stmt, 0);
        if (col_uint(stmt, 1) != job->request_hash)
            status = titan_fail(err, TITAN_EEXIST,
                                "idempotency key '%s' was used for another request, which became job %llu", job->key,
                                (unsigned long long)*ret_existing);
    }
    db_done(stmt);
    return status;
}

titan_status job_submit(struct db *db, const struct job *job, const char *recipe, uint64_t *ret_existing,
                        struct titan_error *err)
{
    titan_assert(job->id && recipe && job->spec.max_workers <= JOB_WORKERS_MAX &&
                 job->spec.min_workers <= job->spec.max_workers);
    titan_assert(!job->key || job->key_owner);
    TRY(job_find_key(db, job, ret_existing, err));
    if (*ret_existing)
        return TITAN_OK;
    if (job->folder) { /* no other unfinished job may keep its checkpoints there */
        sqlite3_stmt *stmt = NULL;
        bool row = false;
        TRY(db_query(db, &stmt, err,
                     "SELECT id, name, user, uid FROM jobs WHERE " JOB_IS_OPEN
                     " AND folder <> '' AND folder = ? LIMIT 1",
                     "t", job->folder));
        titan_status status = db_step(db, stmt, &row, err);
        if (status == TITAN_OK && row && !job_owned_by(job, &(struct job_owner){col_int(stmt, 3), col_text(stmt, 2)})) {
            status = titan_fail(err, TITAN_ECONFLICT, "checkpoint folder '%s' is in use by a job of another user",
                                job->folder);
        } else if (status == TITAN_OK && row) {
            status = titan_fail(err, TITAN_ECONFLICT, "checkpoint folder '%s' is in use by job %llu (%s)", job->folder,
                                (unsigned long long)col_uint(stmt, 0), col_text(stmt, 1));
            titan_error_hint(err, "use another checkpoint.folder or job.dump_folder, or wait until that job has ended");
        }
        db_done(stmt);
        TRY(status);
    }
    const struct event_move move = {.what = &job_sm, .job_id = job->id, .id = job->id, .to = JOB_PENDING};
    struct job row = *job;
    row.state = JOB_PENDING;
    row.folder = job->holds_folder ? job->folder : NULL;
    TRY(db_put(db, err, "INSERT INTO jobs (id" REQUEST(DB_NAME) ", folder) VALUES (?" REQUEST(DB_MARK) ", ?)",
               &request_row, &row, ""));
    TRY(db_run(db, err, "INSERT INTO recipes VALUES (?, ?)", "ut", job->id, recipe));
    if (job->key)
        TRY(db_run(db, err, "INSERT INTO job_keys VALUES (?, ?, ?)", "ttu", job->key_owner, job->key, job->id));

    _cleanup_(facts_free) struct facts facts = {.text = BUF_INIT};
    char key[24];
    struct event e = {
        .job_id = job->id, .at_ms = job->submitted_at_ms, .type = "job.submitted", .message = "submitted", .rank = -1};
    (void)snprintf(key, sizeof(key), "%llu", (unsigned long long)job->id);
    facts_begin(&facts, "job", key);
    facts_text(&facts, "owner", job->user);
    facts_number(&facts, "uid", job->uid);
    facts_number(&facts, "gid", job->gid);
    TRY(facts_digest(&facts, "recipe", recipe, err));
    TRY(facts_end(&facts, &e.facts, err));
    return event_add_move(db, &e, &move, err);
}

static titan_status put_status(struct db *db, uint64_t id, const struct job_status *s, struct titan_error *err)
{
    titan_assert(s->world_size <= JOB_WORKERS_MAX);
    return db_put(db, err, "UPDATE jobs SET step = ?" STATUS(DB_SET) " WHERE id = ?", &status_row, s, "u", id);
}

/* Fills a move that changes nothing: the job's state and restarts, as the event log has them. */
static titan_status find_move(struct db *db, uint64_t id, struct event_move *ret, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    TRY(db_query(db, &stmt, err, "SELECT state, restarts FROM jobs WHERE id = ?", "u", id));
    titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && !row)
        status = titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)id);
    *ret = (struct event_move){.what = &job_sm, .job_id = id, .id = id};
    if (status == TITAN_OK) {
        ret->from = ret->to = (int)col_int(stmt, 0);
        ret->count = col_int(stmt, 1);
    }
    db_done(stmt);
    return status;
}

titan_status job_update(struct db *db, uint64_t id, const struct job_status *s, const struct event *event,
                        struct titan_error *err)
{
    struct event_move same;
    char text[64];
    struct event counted = {.job_id = id, .type = "job.restarts", .message = text, .rank = -1};
    TRY(find_move(db, id, &same, err));
    TRY(put_status(db, id, s, err));
    if (same.count == (int64_t)s->restarts)
        return event ? event_add(db, event, err) : TITAN_OK;
    same.count = s->restarts;
    if (event)
        return event_add_move(db, event, &same, err);
    /* The count has changed without an event of its own. */
    (void)snprintf(text, sizeof(text), "losses that count against the restart budget: %u", s->restarts);
    TRY(db_int(db, &counted.at_ms, err, "SELECT at_ms FROM events ORDER BY id DESC LIMIT 1", ""));
    return event_add_move(db, &counted, &same, err);
}

titan_status job_move(struct db *db, const struct job *job, const struct event *event, struct titan_error *err)
{
    struct event_move move;
    TRY(find_move(db, job->id, &move, err));
    move.to = (int)job->state;
    move.count = job->status.restarts;
    TRY(event_check_move(&move, err));
    TRY(db_run(db, err, "UPDATE jobs SET state = ?, reason = ? WHERE id = ?", "itu", (int64_t)move.to,
               job->reason ? job->reason : "", job->id));
    TRY(put_status(db, job->id, &job->status, err));
    return event_add_move(db, event, &move, err);
}

titan_status job_set_reason(struct db *db, uint64_t id, const char *reason, const struct event *event,
                            struct titan_error *err)
{
    TRY(db_run(db, err, "UPDATE jobs SET reason = ? WHERE id = ?", "tu", reason ? reason : "", id));
    if (db_changes(db) == 0)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)id);
    return event ? event_add(db, event, err) : TITAN_OK;
}

titan_status job_set_desired(struct db *db, uint64_t id, const struct desired_size *desired, const struct event *event,
                             struct titan_error *err)
{
    titan_assert(desired->max == 0 || desired->min <= desired->max);
    TRY(db_run(db, err, "UPDATE jobs SET wish_min = ?, wish_max = ?, wish_number = ? WHERE id = ?", "iiiu",
               (int64_t)desired->min, (int64_t)desired->max, (int64_t)desired->number, id));
    if (db_changes(db) == 0)
        return titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)id);
    return event ? event_add(db, event, err) : TITAN_OK;
}

titan_status job_get(struct db *db, uint64_t id, void (*with)(const struct job *job, void *data), void *data,
                     struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct job job;
    titan_status status;
    TRY(db_query(db, &stmt, err, "SELECT " COLUMNS " FROM jobs WHERE id = ? AND removed_at_ms = 0", "u", id));
    if (db_next(db, stmt, &job_row, &job, &status, err))
        with(&job, data);
    else if (status == TITAN_OK)
        status = titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)id);
    db_done(stmt);
    return status;
}

static titan_status each_job(struct db *db, sqlite3_stmt *stmt, bool (*each)(const struct job *job, void *data),
                             void *data, struct titan_error *err)
{
    struct job job;
    titan_status status;
    while (db_next(db, stmt, &job_row, &job, &status, err) && each(&job, data))
        ;
    db_done(stmt);
    return status;
}

bool job_owned_by(const struct job *job, const struct job_owner *owner)
{
    if (job->uid >= 0 && owner->uid >= 0)
        return job->uid == owner->uid;
    return *owner->name && strcmp(job->user, owner->name) == 0;
}

struct matching {
    const struct job_filter *filter;
    int left; /* remaining limit */
    bool (*each)(const struct job *job, void *data);
    void *data;
};

/* Matches name and labels row by row, because an SQL pattern may take forever. */
static bool each_matching(const struct job *job, void *data)
{
    struct matching *m = data;
    const struct job_filter *f = m->filter;
    titan_assert(m->left > 0);
    const size_t n = f->name ? strlen(f->name) : 0;
    if (n > 0 && (f->name[n - 1] == '*' ? strncmp(job->name, f->name, n - 1) : strcmp(job->name, f->name)) != 0)
        return true;
    for (size_t i = 0; i < f->n_labels; i++)
        if (!labels_have(job->labels, f->labels[i]))
            return true;
    return m->each(job, m->data) && --m->left > 0;
}

#define OPEN_STATES (SM_BIT(JOB_COMPLETED) - 1)
/* The cost of a query of open jobs does not depend on the number of ended jobs. */
#define OPEN_JOBS " FROM jobs INDEXED BY jobs_open WHERE " JOB_IS_OPEN " AND "
#define ALL_JOBS " FROM jobs WHERE "
#define MATCHING                                                                                                       \
    "id < ?1 AND removed_at_ms = 0 AND (?2 = 0 OR ?2 >> state & 1) AND (?3 = '' OR user = ?3)"                         \
    " AND (?4 = '' OR CASE WHEN uid >= 0 AND ?5 >= 0 THEN uid = ?5 ELSE user = ?4 END)"

static bool wants_open(const struct job_filter *f)
{
    return f->states && !(f->states & ~OPEN_STATES);
}

/* Parameter ?6 of the query is the limit. */
static titan_status query_matching(struct db *db, const struct job_filter *f, const char *sql, int64_t most,
                                   sqlite3_stmt **ret, struct titan_error *err)
{
    static const struct job_owner any = {.uid = JOB_NO_ID, .name = ""};
    const struct job_owner *const owner = f->owner ? f->owner : &any;
    titan_assert(!f->owner || f->owner->name);
    return db_query(db, ret, err, sql, "iittii", f->before ? (int64_t)f->before : INT64_MAX, (int64_t)f->states,
                    f->user ? f->user : "", owner->name, owner->uid, most);
}

titan_status job_list(struct db *db, const struct job_filter *f, int limit,
                      bool (*each)(const struct job *job, void *data), void *data, struct titan_error *err)
{
    titan_assert(limit > 0);
    sqlite3_stmt *stmt = NULL;
    TRY(query_matching(db, f,
                       wants_open(f) ? "SELECT " COLUMNS OPEN_JOBS MATCHING " ORDER BY id DESC LIMIT ?6"
                                     : "SELECT " COLUMNS ALL_JOBS MATCHING " ORDER BY id DESC LIMIT ?6",
                       -1, &stmt, err));
    return each_job(db, stmt, each_matching, &(struct matching){f, limit, each, data}, err);
}

static bool count_one(const struct job *job, void *data)
{
    (void)job;
    ++*(uint32_t *)data;
    return true;
}

titan_status job_count(struct db *db, const struct job_filter *filter, uint32_t most, uint32_t *ret,
                       struct titan_error *err)
{
    titan_assert(most > 0 && most <= INT32_MAX);
    struct job_filter f = *filter;
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    *ret = 0;
    f.before = 0;
    if ((f.name && *f.name) || f.n_labels > 0)
        return job_list(db, &f, (int)most, count_one, ret, err);
    TRY(query_matching(db, &f,
                       wants_open(&f) ? "SELECT count(*) FROM (SELECT 1" OPEN_JOBS MATCHING " LIMIT ?6)"
                                      : "SELECT count(*) FROM (SELECT 1" ALL_JOBS MATCHING " LIMIT ?6)",
                       (int64_t)most, &stmt, err));
    const titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && row)
        *ret = (uint32_t)col_uint(stmt, 0);
    db_done(stmt);
    return status;
}

titan_status job_list_open(struct db *db, bool (*each)(const struct job *job, void *data), void *data,
                           struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err, "SELECT " COLUMNS " FROM jobs WHERE " JOB_IS_OPEN " ORDER BY id", ""));
    return each_job(db, stmt, each, data, err);
}

titan_status job_fill(struct db *db, const struct metric *last, struct titan_error *err)
{
    titan_assert(last->job_id && last->step);
    return db_run(
        db, err,
        "UPDATE jobs SET step = ?2, loss = ?3, tokens_per_second = ?4, mfu = ?5 WHERE id = ?1 AND NOT " JOB_IS_OPEN

        " AND ?2 <= steps AND ((step = ?2 AND loss IS NULL AND epoch >= ?6) OR (step < ?2 AND epoch = ?6))",
        "uurrru", last->job_id, last->step, last->loss, isfinite(last->tokens_per_second) ? last->tokens_per_second : 0,
        isfinite(last->mfu) ? last->mfu : 0, last->epoch);
}

titan_status job_list_without_loss(struct db *db, int most, bool (*each)(const struct job *job, void *data), void *data,
                                   struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err,
                 "SELECT " COLUMNS " FROM jobs WHERE NOT " JOB_IS_OPEN
                 " AND step > 0 AND loss IS NULL AND removed_at_ms = 0"
                 " ORDER BY id DESC LIMIT ?",
                 "i", (int64_t)most));
    return each_job(db, stmt, each, data, err);
}

titan_status job_recipe(struct db *db, uint64_t id, char **ret, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err, "SELECT text FROM recipes WHERE job_id = ?", "u", id));
    bool row = false;
    titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && !row)
        status = titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)id);
    if (status == TITAN_OK && !(*ret = strdup(col_text(stmt, 0))))
        status = titan_fail(err, TITAN_ENOMEM, "out of memory");
    db_done(stmt);
    return status;
}

titan_status job_last_id(struct db *db, uint64_t *ret, struct titan_error *err)
{
    int64_t id = 0;
    TRY(db_int(db, &id, err, "SELECT max(id) FROM jobs", ""));
    *ret = (uint64_t)id;
    return TITAN_OK;
}
