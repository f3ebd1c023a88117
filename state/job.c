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

titan_status state_check_move(const struct sm *sm, uint64_t job_id, int from, int to, struct titan_error *err)
{
    if (sm_allowed(sm, from, to))
        return TITAN_OK;
    return titan_fail(err, TITAN_EBUG, "job %llu: %s may not move from %s to %s", (unsigned long long)job_id, sm->name,
                      sm_name(sm, from), sm_name(sm, to));
}

static titan_status add_change(struct db *db, const struct event *event, uint64_t id, int from, int to,
                               int64_t restarts, struct titan_error *err)
{
    titan_assert(event && event->job_id == id);
    char key[24];
    (void)snprintf(key, sizeof(key), "%llu", (unsigned long long)id);
    return event_add_change(db, event, &job_sm, key, from, to, restarts, err);
}

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

/* Does another unfinished job keep its checkpoints there? */
static titan_status check_folder(struct db *db, const struct job *job, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    const char *folder = job->folder;
    TRY(db_query(db, &stmt, err,
                 "SELECT id, name, user, uid FROM jobs WHERE state < 7 AND folder <> '' AND folder = ? LIMIT 1", "t",
                 folder));
    bool row = false;
    titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && row && !job_owned_by(job, &(struct job_owner){col_int(stmt, 3), col_text(stmt, 2)})) {
        status = titan_fail(err, TITAN_ECONFLICT, "checkpoint folder '%s' is in use by a job of another user", folder);
    } else if (status == TITAN_OK && row) {
        status = titan_fail(err, TITAN_ECONFLICT, "checkpoint folder '%s' is in use by job %llu (%s)", folder,
                            (unsigned long long)col_uint(stmt, 0), col_text(stmt, 1));
        titan_error_hint(err, "use another checkpoint.folder or job.dump_folder, or wait until that job has ended");
    }
    db_done(stmt);
    return status;
}

static titan_status add_submitted(struct db *db, const struct job *job, const char *recipe, struct titan_error *err)
{
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
    return add_change(db, &e, job->id, JOB_NONE, JOB_PENDING, 0, err);
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
    if (job->folder)
        TRY(check_folder(db, job, err));
    const struct job_spec *s = &job->spec;
    TRY(state_check_move(&job_sm, job->id, JOB_NONE, JOB_PENDING, err));
    TRY(db_run(db, err,
               "INSERT INTO jobs (id, name, user, state, device, steps, min_workers, max_workers, worlds, max_restarts,"
               " backoff_ms, backoff_max_ms, keep_latest, submitted_at_ms, request_hash, mesh,"
               " priority, max_node_losses, max_hangs, max_ooms, restart_window_s, uid, gid, folder, labels)"
               " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
               "uttituiibiiiiiutiiiiiiitt", job->id, job->name, job->user, (int64_t)JOB_PENDING, s->device, s->steps,
               (int64_t)s->min_workers, (int64_t)s->max_workers, (const void *)s->worlds.bits,
               (size_t)(s->max_workers / 8 + 1), (int64_t)s->max_restarts, (int64_t)s->backoff_ms,
               (int64_t)s->backoff_max_ms, (int64_t)s->keep_latest, job->submitted_at_ms, job->request_hash, s->mesh,
               (int64_t)s->priority, (int64_t)s->max_node_losses, (int64_t)s->max_hangs, (int64_t)s->max_ooms,
               (int64_t)s->restart_window_s, job->uid, job->gid, job->folder && job->holds_folder ? job->folder : "",
               job->labels ? job->labels : ""));
    TRY(db_run(db, err, "INSERT INTO recipes VALUES (?, ?)", "ut", job->id, recipe));
    if (job->key)
        TRY(db_run(db, err, "INSERT INTO job_keys VALUES (?, ?, ?)", "ttu", job->key_owner, job->key, job->id));
    return add_submitted(db, job, recipe, err);
}

static titan_status put_status(struct db *db, uint64_t id, const struct job_status *s, struct titan_error *err)
{
    titan_assert(s->world_size <= JOB_WORKERS_MAX);
    return db_run(db, err,
                  "UPDATE jobs SET step = ?, loss = ?, tokens_per_second = ?, mfu = ?, world_size = ?, epoch = ?,"
                  " restarts = ?, preemptions = ?, started_at_ms = ?, finished_at_ms = ?, checkpoint = ?,"
                  " checkpoint_failures = ?, evaluation_step = ?, evaluation_loss = ?, evaluation_tokens = ?,"
                  " evaluation_bytes = ?, passed = ? WHERE id = ?",
                  "urrriuiiiitiuruuuu", s->step, s->loss, s->tokens_per_second, s->mfu, (int64_t)s->world_size,
                  s->epoch, (int64_t)s->restarts, (int64_t)s->preemptions, s->started_at_ms, s->finished_at_ms,
                  s->checkpoint ? s->checkpoint : "", (int64_t)s->checkpoint_failures, s->evaluation.step,
                  s->evaluation.loss, s->evaluation.tokens, s->evaluation.bytes, s->passed, id);
}

/* Reads the parts of a job that follow from the event log. */
static titan_status get_replayed(struct db *db, uint64_t id, int *ret_state, int64_t *ret_restarts,
                                 struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    TRY(db_query(db, &stmt, err, "SELECT state, restarts FROM jobs WHERE id = ?", "u", id));
    titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && !row)
        status = titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)id);
    if (status == TITAN_OK) {
        *ret_state = (int)col_int(stmt, 0);
        *ret_restarts = col_int(stmt, 1);
    }
    db_done(stmt);
    return status;
}

/* Records a count that changed without an event of its own. */
static titan_status add_restarts(struct db *db, uint64_t id, int state, int64_t restarts, struct titan_error *err)
{
    char text[64];
    struct event e = {.job_id = id, .type = "job.restarts", .message = text, .rank = -1};
    (void)snprintf(text, sizeof(text), "losses that count against the restart budget: %lld", (long long)restarts);
    TRY(db_int(db, 0, &e.at_ms, err, "SELECT at_ms FROM events ORDER BY id DESC LIMIT 1", ""));
    return add_change(db, &e, id, state, state, restarts, err);
}

titan_status job_update(struct db *db, uint64_t id, const struct job_status *s, const struct event *event,
                        struct titan_error *err)
{
    int state = JOB_NONE;
    int64_t restarts = 0;
    TRY(get_replayed(db, id, &state, &restarts, err));
    TRY(put_status(db, id, s, err));
    if (restarts == (int64_t)s->restarts)
        return event ? event_add(db, event, err) : TITAN_OK;
    return event ? add_change(db, event, id, state, state, (int64_t)s->restarts, err)
                 : add_restarts(db, id, state, (int64_t)s->restarts, err);
}

titan_status job_move(struct db *db, uint64_t id, enum job_state to, const char *reason,
                      const struct job_status *status, const struct event *event, struct titan_error *err)
{
    titan_assert(status);
    int from = JOB_NONE;
    int64_t restarts = 0;
    TRY(get_replayed(db, id, &from, &restarts, err));
    TRY(state_check_move(&job_sm, id, from, to, err));
    TRY(db_run(db, err, "UPDATE jobs SET state = ?, reason = ? WHERE id = ?", "itu", (int64_t)to, reason ? reason : "",
               id));
    TRY(put_status(db, id, status, err));
    return add_change(db, event, id, from, to, (int64_t)status->restarts, err);
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

#define COLUMNS                                                                                                        \
    "id, name, user, state, reason, device, steps, min_workers, max_workers, worlds, max_restarts, backoff_ms,"        \
    " backoff_max_ms, keep_latest, step, loss, tokens_per_second, mfu, world_size, epoch, restarts,"                   \
    " submitted_at_ms, started_at_ms, finished_at_ms, checkpoint, request_hash, mesh,"                                 \
    " priority, max_node_losses, max_hangs, max_ooms, restart_window_s, wish_min, wish_max, wish_number, preemptions," \
    " uid, gid, checkpoint_failures, evaluation_step, evaluation_loss, evaluation_tokens, evaluation_bytes,"           \
    " labels, passed"

static void read_job(sqlite3_stmt *stmt, struct job *job)
{
    memset(job, 0, sizeof(*job));
    job->id = col_uint(stmt, 0);
    job->name = col_text(stmt, 1);
    job->user = col_text(stmt, 2);
    job->state = (enum job_state)col_int(stmt, 3);
    job->reason = col_text(stmt, 4);
    strncpy(job->spec.device, col_text(stmt, 5), sizeof(job->spec.device) - 1);
    job->spec.steps = col_uint(stmt, 6);
    job->spec.min_workers = (uint32_t)col_int(stmt, 7);
    job->spec.max_workers = (uint32_t)col_int(stmt, 8);
    col_blob(stmt, 9, job->spec.worlds.bits, sizeof(job->spec.worlds.bits));
    job->spec.max_restarts = (uint32_t)col_int(stmt, 10);
    job->spec.backoff_ms = (uint32_t)col_int(stmt, 11);
    job->spec.backoff_max_ms = (uint32_t)col_int(stmt, 12);
    job->spec.keep_latest = (uint32_t)col_int(stmt, 13);
    job->status.step = col_uint(stmt, 14);
    job->status.loss = col_real(stmt, 15);
    job->status.tokens_per_second = col_real(stmt, 16);
    job->status.mfu = col_real(stmt, 17);
    job->status.world_size = (uint32_t)col_int(stmt, 18);
    job->status.epoch = col_uint(stmt, 19);
    job->status.restarts = (uint32_t)col_int(stmt, 20);
    job->submitted_at_ms = col_int(stmt, 21);
    job->status.started_at_ms = col_int(stmt, 22);
    job->status.finished_at_ms = col_int(stmt, 23);
    job->status.checkpoint = col_text(stmt, 24);
    job->request_hash = col_uint(stmt, 25);
    strncpy(job->spec.mesh, col_text(stmt, 26), sizeof(job->spec.mesh) - 1);
    job->spec.priority = (int32_t)col_int(stmt, 27);
    job->spec.max_node_losses = (uint32_t)col_int(stmt, 28);
    job->spec.max_hangs = (uint32_t)col_int(stmt, 29);
    job->spec.max_ooms = (uint32_t)col_int(stmt, 30);
    job->spec.restart_window_s = (uint32_t)col_int(stmt, 31);
    job->desired = (struct desired_size){
        .min = (uint32_t)col_int(stmt, 32), .max = (uint32_t)col_int(stmt, 33), .number = (uint32_t)col_int(stmt, 34)};
    job->status.preemptions = (uint32_t)col_int(stmt, 35);
    job->uid = col_int(stmt, 36);
    job->gid = col_int(stmt, 37);
    job->status.checkpoint_failures = (uint32_t)col_int(stmt, 38);
    job->status.evaluation = (struct evaluation_report){.step = col_uint(stmt, 39),
                                                        .loss = col_real(stmt, 40),
                                                        .tokens = col_uint(stmt, 41),
                                                        .bytes = col_uint(stmt, 42)};
    job->labels = col_text(stmt, 43);
    job->status.passed = col_uint(stmt, 44);
}

titan_status job_get(struct db *db, uint64_t id, void (*with)(const struct job *job, void *data), void *data,
                     struct titan_error *err)
{
    titan_assert(with);
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err, "SELECT " COLUMNS " FROM jobs WHERE id = ? AND removed_at_ms = 0", "u", id));
    bool row = false;
    titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && !row)
        status = titan_fail(err, TITAN_ENOTFOUND, "there is no job %llu", (unsigned long long)id);
    if (status == TITAN_OK) {
        struct job job;
        read_job(stmt, &job);
        with(&job, data);
    }
    db_done(stmt);
    return status;
}

static titan_status each_job(struct db *db, sqlite3_stmt *stmt, bool (*each)(const struct job *job, void *data),
                             void *data, struct titan_error *err)
{
    titan_assert(stmt && each);
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row) {
        struct job job;
        read_job(stmt, &job);
        if (!each(&job, data))
            break;
    }
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

/* Matches name and labels row by row: an SQL pattern may take forever. */
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
_Static_assert(JOB_COMPLETED == 7, "SQL names the first state of a job that has ended by its number");
#define OPEN_JOBS " FROM jobs INDEXED BY jobs_open WHERE state < 7 AND " /* independent of the number of ended jobs */
#define ALL_JOBS " FROM jobs WHERE "
#define MATCHING                                                                                                       \
    "id < ?1 AND removed_at_ms = 0 AND (?2 = 0 OR ?2 >> state & 1) AND (?3 = '' OR user = ?3)"                         \
    " AND (?4 = '' OR CASE WHEN uid >= 0 AND ?5 >= 0 THEN uid = ?5 ELSE user = ?4 END)"

/* of_open, of_all: the query over unfinished jobs, and over all; ?6 is the limit. */
static titan_status query_matching(struct db *db, const struct job_filter *f, const char *of_open, const char *of_all,
                                   int64_t most, sqlite3_stmt **ret, struct titan_error *err)
{
    static const struct job_owner any = {.uid = JOB_NO_ID, .name = ""};
    const struct job_owner *const owner = f->owner ? f->owner : &any;
    titan_assert(!f->owner || f->owner->name);
    return db_query(db, ret, err, f->states && !(f->states & ~OPEN_STATES) ? of_open : of_all, "iittii",
                    f->before ? (int64_t)f->before : INT64_MAX, (int64_t)f->states, f->user ? f->user : "", owner->name,
                    owner->uid, most);
}

titan_status job_list(struct db *db, const struct job_filter *f, int limit,
                      bool (*each)(const struct job *job, void *data), void *data, struct titan_error *err)
{
    titan_assert(limit > 0);
    sqlite3_stmt *stmt = NULL;
    TRY(query_matching(db, f, "SELECT " COLUMNS OPEN_JOBS MATCHING " ORDER BY id DESC LIMIT ?6",
                       "SELECT " COLUMNS ALL_JOBS MATCHING " ORDER BY id DESC LIMIT ?6", -1, &stmt, err));
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
    TRY(query_matching(db, &f, "SELECT count(*) FROM (SELECT 1" OPEN_JOBS MATCHING " LIMIT ?6)",
                       "SELECT count(*) FROM (SELECT 1" ALL_JOBS MATCHING " LIMIT ?6)", (int64_t)most, &stmt, err));
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
    TRY(db_query(db, &stmt, err, "SELECT " COLUMNS " FROM jobs WHERE state < 7 ORDER BY id", ""));
    return each_job(db, stmt, each, data, err);
}

titan_status job_fill(struct db *db, const struct metric *last, struct titan_error *err)
{
    titan_assert(last->job_id && last->step);
    return db_run(db, err,
                  "UPDATE jobs SET step = ?2, loss = ?3, tokens_per_second = ?4, mfu = ?5 WHERE id = ?1 AND state >= 7"
                  " AND ?2 <= steps AND ((step = ?2 AND loss IS NULL AND epoch >= ?6) OR (step < ?2 AND epoch = ?6))",
                  "uurrru", last->job_id, last->step, last->loss,
                  isfinite(last->tokens_per_second) ? last->tokens_per_second : 0, isfinite(last->mfu) ? last->mfu : 0,
                  last->epoch);
}

titan_status job_list_without_loss(struct db *db, int most, bool (*each)(const struct job *job, void *data), void *data,
                                   struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err,
                 "SELECT " COLUMNS " FROM jobs WHERE state >= 7 AND step > 0 AND loss IS NULL AND removed_at_ms = 0"
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
    TRY(db_int(db, 0, &id, err, "SELECT max(id) FROM jobs", ""));
    *ret = (uint64_t)id;
    return TITAN_OK;
}
