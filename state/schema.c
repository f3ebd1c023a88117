/* SPDX-License-Identifier: Apache-2.0 */
#include "state/schema.h"

#include <stdio.h>
#include <string.h>

#include "state/event.h"

#define CHECK_PAGES (64 << 20 >> 12) /* checked in well under a second */

/* State columns hold the numbers of the enums in job.h, run.h, epoch.h, worker.h, checkpoint.h and node.h. */
static const char store_v1[] =
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE jobs ("
    "  id INTEGER PRIMARY KEY, name TEXT NOT NULL, user TEXT NOT NULL,"
    "  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 9), reason TEXT NOT NULL DEFAULT '',"
    "  device TEXT NOT NULL, steps INTEGER NOT NULL, min_workers INTEGER NOT NULL, max_workers INTEGER NOT NULL,"
    "  worlds BLOB NOT NULL," /* bit w: may run on w workers */
    "  max_restarts INTEGER NOT NULL, backoff_ms INTEGER NOT NULL, backoff_max_ms INTEGER NOT NULL,"
    "  keep_latest INTEGER NOT NULL,"
    "  step INTEGER NOT NULL DEFAULT 0, loss REAL, tokens_per_second REAL NOT NULL DEFAULT 0,"
    "  mfu REAL NOT NULL DEFAULT 0, world_size INTEGER NOT NULL DEFAULT 0, epoch INTEGER NOT NULL DEFAULT 0,"
    "  restarts INTEGER NOT NULL DEFAULT 0,"
    "  submitted_at_ms INTEGER NOT NULL, started_at_ms INTEGER NOT NULL DEFAULT 0,"
    "  finished_at_ms INTEGER NOT NULL DEFAULT 0, checkpoint TEXT NOT NULL DEFAULT '',"
    "  idempotency_key TEXT UNIQUE, request_hash INTEGER NOT NULL DEFAULT 0) STRICT;"
    "CREATE INDEX jobs_open ON jobs(id) WHERE state < 7;"
    /* A separate table, so that updates of a job do not rewrite its text. */
    "CREATE TABLE recipes (job_id INTEGER PRIMARY KEY REFERENCES jobs(id), text TEXT NOT NULL) STRICT;"
    "CREATE TABLE runs ("
    "  job_id INTEGER NOT NULL REFERENCES jobs(id), number INTEGER NOT NULL,"
    "  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 5), reason TEXT NOT NULL DEFAULT '',"
    "  started_at_ms INTEGER NOT NULL, ended_at_ms INTEGER NOT NULL DEFAULT 0,"
    "  PRIMARY KEY (job_id, number)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE epochs ("
    "  job_id INTEGER NOT NULL REFERENCES jobs(id), number INTEGER NOT NULL, run INTEGER NOT NULL,"
    "  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 5), world_size INTEGER NOT NULL,"
    "  source INTEGER NOT NULL, source_epoch INTEGER NOT NULL, resume_step INTEGER NOT NULL,"
    "  checkpoint TEXT NOT NULL, comm_id BLOB NOT NULL, created_at_ms INTEGER NOT NULL,"
    "  formed_at_ms INTEGER NOT NULL DEFAULT 0, ended_at_ms INTEGER NOT NULL DEFAULT 0,"
    "  PRIMARY KEY (job_id, number), FOREIGN KEY (job_id, run) REFERENCES runs(job_id, number))"
    "  STRICT, WITHOUT ROWID;"
    "CREATE TABLE workers ("
    "  id INTEGER PRIMARY KEY, job_id INTEGER NOT NULL REFERENCES jobs(id), run INTEGER NOT NULL,"
    "  node TEXT NOT NULL, state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 5),"
    "  address TEXT NOT NULL DEFAULT '', pid INTEGER NOT NULL DEFAULT 0, rank INTEGER NOT NULL DEFAULT -1,"
    "  exit_code INTEGER NOT NULL DEFAULT 0, signal INTEGER NOT NULL DEFAULT 0, counted INTEGER NOT NULL DEFAULT 0,"
    "  reason TEXT NOT NULL DEFAULT '', started_at_ms INTEGER NOT NULL, ended_at_ms INTEGER NOT NULL DEFAULT 0,"
    "  FOREIGN KEY (job_id, run) REFERENCES runs(job_id, number)) STRICT;"
    "CREATE INDEX workers_job ON workers(job_id, id);"
    "CREATE TABLE members ("
    "  job_id INTEGER NOT NULL, epoch INTEGER NOT NULL, rank INTEGER NOT NULL,"
    "  worker_id INTEGER NOT NULL REFERENCES workers(id),"
    "  PRIMARY KEY (job_id, epoch, rank), FOREIGN KEY (job_id, epoch) REFERENCES epochs(job_id, number))"
    "  STRICT, WITHOUT ROWID;"
    "CREATE TABLE checkpoints ("
    "  job_id INTEGER NOT NULL REFERENCES jobs(id), step INTEGER NOT NULL, epoch INTEGER NOT NULL,"
    "  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 2), path TEXT NOT NULL, bytes INTEGER NOT NULL,"
    "  world_size INTEGER NOT NULL, committed_at_ms INTEGER NOT NULL,"
    "  PRIMARY KEY (job_id, step)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE nodes ("
    "  name TEXT PRIMARY KEY, state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 2), slots INTEGER NOT NULL,"
    "  device TEXT NOT NULL, address TEXT NOT NULL, version TEXT NOT NULL, memory_bytes INTEGER NOT NULL,"
    "  incarnation INTEGER NOT NULL, last_seen_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE events ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT, job_id INTEGER NOT NULL, at_ms INTEGER NOT NULL, type TEXT NOT NULL,"
    "  message TEXT NOT NULL, epoch INTEGER NOT NULL, step INTEGER NOT NULL, rank INTEGER NOT NULL,"
    "  node TEXT NOT NULL, detail TEXT NOT NULL) STRICT;"
    "CREATE INDEX events_job ON events(job_id, id);";

static const char metrics_v1[] =
    "CREATE TABLE metrics ("
    "  job_id INTEGER NOT NULL, step INTEGER NOT NULL, at_ms INTEGER NOT NULL, loss REAL, grad_norm REAL,"
    "  learning_rate REAL, tokens_per_second REAL, mfu REAL, step_ms REAL, tokens INTEGER NOT NULL,"
    "  epoch INTEGER NOT NULL, world_size INTEGER NOT NULL, memory_bytes INTEGER NOT NULL,"
    "  skipped_steps INTEGER NOT NULL, PRIMARY KEY (job_id, step)) STRICT, WITHOUT ROWID;";

static const char metrics_v2[] =
    "CREATE TABLE evaluations ("
    "  job_id INTEGER NOT NULL, step INTEGER NOT NULL, at_ms INTEGER NOT NULL, epoch INTEGER NOT NULL, loss REAL,"
    "  tokens INTEGER NOT NULL, bytes INTEGER NOT NULL, ms REAL, PRIMARY KEY (job_id, step)) STRICT, WITHOUT ROWID;";

/* The largest loss of a rank, and where the step's time went (base/step_split.h). */
static const char metrics_v3[] = "ALTER TABLE metrics ADD COLUMN loss_max REAL;"
                                 "ALTER TABLE metrics ADD COLUMN data_ms REAL;"
                                 "ALTER TABLE metrics ADD COLUMN compute_ms REAL;"
                                 "ALTER TABLE metrics ADD COLUMN communication_ms REAL;"
                                 "ALTER TABLE metrics ADD COLUMN checkpoint_ms REAL;"
                                 "ALTER TABLE metrics ADD COLUMN straggler_ms REAL;"
                                 "ALTER TABLE metrics ADD COLUMN slowest_busy_ms REAL;"
                                 "ALTER TABLE metrics ADD COLUMN slowest_rank INTEGER NOT NULL DEFAULT -1;";

/* Tokens per expert: 0 without experts. */
static const char metrics_v4[] = "ALTER TABLE metrics ADD COLUMN tflops REAL;"
                                 "ALTER TABLE metrics ADD COLUMN mfu_causal REAL;"
                                 "ALTER TABLE metrics ADD COLUMN expert_tokens_min REAL;"
                                 "ALTER TABLE metrics ADD COLUMN expert_tokens_max REAL;"
                                 "ALTER TABLE metrics ADD COLUMN expert_tokens_mean REAL;";

static const char metrics_v5[] = "ALTER TABLE metrics ADD COLUMN expert_tokens_dropped REAL;";

static const char metrics_v6[] = "ALTER TABLE metrics ADD COLUMN expert_further_rounds REAL;"
                                 "ALTER TABLE metrics ADD COLUMN expert_room_needed REAL;";

/* Degrees of the mesh that are fixed, for messages: "pp=2 tp=4". */
static const char store_v2[] = "ALTER TABLE jobs ADD COLUMN mesh TEXT NOT NULL DEFAULT '';";

static const char store_v3[] =
    /* The log as a chain, and the state change of each event (event.h). */
    "ALTER TABLE events ADD COLUMN change TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE events ADD COLUMN chain BLOB NOT NULL DEFAULT x'';"
    /* Priorities, budgets per cause (a window of 0: one budget for all, as before), requested sizes. */
    "ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN max_node_losses INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN max_hangs INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN max_ooms INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN restart_window_s INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN wish_min INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN wish_max INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN wish_number INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN preemptions INTEGER NOT NULL DEFAULT 0;"
    /* Counted losses: for the jobs' budgets and the nodes' quarantine. cause as in loss.h. */
    "CREATE TABLE losses ("
    "  id INTEGER PRIMARY KEY, job_id INTEGER NOT NULL REFERENCES jobs(id),"
    "  cause INTEGER NOT NULL CHECK (cause BETWEEN 1 AND 6), node TEXT NOT NULL, at_ms INTEGER NOT NULL) STRICT;"
    "CREATE INDEX losses_job ON losses(job_id, at_ms);"
    "CREATE INDEX losses_at ON losses(at_ms);"
    /* Decisions about a node by an operator, a maintenance window or a crash loop. */
    "CREATE TABLE node_policies ("
    "  name TEXT PRIMARY KEY, draining INTEGER NOT NULL, reason TEXT NOT NULL, deadline_ms INTEGER NOT NULL,"
    "  window_from_ms INTEGER NOT NULL, window_until_ms INTEGER NOT NULL, window_lead_ms INTEGER NOT NULL,"
    "  quarantined_until_ms INTEGER NOT NULL, quarantines INTEGER NOT NULL, quarantine_reason TEXT NOT NULL) STRICT, "
    "WITHOUT ROWID;"
    /* Epochs: members that transfer their state shards and leave (members' rows after the ranks), the final source of
     * the state (titan.internal.RecoverySource, -1 = unknown), the agent that committed it in the coordinator's
     * place. */
    "ALTER TABLE epochs ADD COLUMN leavers INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE epochs ADD COLUMN rung INTEGER NOT NULL DEFAULT -1;"
    "ALTER TABLE epochs ADD COLUMN state_step INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE epochs ADD COLUMN params_hash INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE epochs ADD COLUMN delegate TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE nodes ADD COLUMN peer_port INTEGER NOT NULL DEFAULT 0;";

static const char store_v4[] =
    /* Key with which agents and workers of an epoch prove themselves; empty: none. */
    "ALTER TABLE epochs ADD COLUMN key BLOB NOT NULL DEFAULT x'';"
    /* The identity that submitted a job (-1: no uid here; user has the name), and the identity that caused an event. */
    "ALTER TABLE jobs ADD COLUMN uid INTEGER NOT NULL DEFAULT -1;"
    "ALTER TABLE jobs ADD COLUMN gid INTEGER NOT NULL DEFAULT -1;"
    "ALTER TABLE events ADD COLUMN actor TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE jobs ADD COLUMN checkpoint_failures INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE jobs ADD COLUMN folder TEXT NOT NULL DEFAULT '';" /* folder of checkpoints, if not the job's own */
    /* Few events have no job. This index finds the audit trail and the nodes' events. */
    "CREATE INDEX events_actor ON events(id) WHERE actor <> '';"
    /* Bearer tokens (token.h); secrets are never stored. */
    "CREATE TABLE tokens ("
    "  id TEXT PRIMARY KEY, name TEXT NOT NULL, role INTEGER NOT NULL CHECK (role BETWEEN 1 AND 3),"
    "  hash BLOB NOT NULL, created_at_ms INTEGER NOT NULL, expires_at_ms INTEGER NOT NULL,"
    "  revoked_at_ms INTEGER NOT NULL DEFAULT 0, created_by TEXT NOT NULL) STRICT, WITHOUT ROWID;"
    /* Machines that may become nodes, and revoked certificates (enrolment.h). */
    "CREATE TABLE joins ("
    "  id TEXT PRIMARY KEY, node TEXT NOT NULL, hash BLOB NOT NULL, created_at_ms INTEGER NOT NULL,"
    "  expires_at_ms INTEGER NOT NULL, used_at_ms INTEGER NOT NULL DEFAULT 0, key_hash BLOB NOT NULL DEFAULT x'',"
    "  created_by TEXT NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE revocations ("
    "  uri TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, reason TEXT NOT NULL, created_by TEXT NOT NULL) STRICT, WITHOUT "
    "ROWID;"
    /* Idempotency keys, separate for each submitter ("uid:1000", "user:NAME"). Older jobs have only a name. */
    "CREATE TABLE job_keys ("
    "  owner TEXT NOT NULL, key TEXT NOT NULL, job_id INTEGER NOT NULL REFERENCES jobs(id), PRIMARY KEY (owner, key))"
    " STRICT, WITHOUT ROWID;"
    "INSERT INTO job_keys SELECT 'user:' || user, idempotency_key, id FROM jobs WHERE idempotency_key IS NOT NULL;"
    "UPDATE jobs SET idempotency_key = NULL WHERE idempotency_key IS NOT NULL;"
    /* The state directory of this store (home.h). */
    "CREATE TABLE home (id INTEGER PRIMARY KEY CHECK (id = 1), path TEXT NOT NULL, inode INTEGER NOT NULL) STRICT;"
    /* Random bytes from the store's creation (store.h); backups have the same bytes. */
    "CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;";

/* The newest evaluation; evaluation_step 0: none. */
static const char store_v5[] = "ALTER TABLE jobs ADD COLUMN evaluation_step INTEGER NOT NULL DEFAULT 0;"
                               "ALTER TABLE jobs ADD COLUMN evaluation_loss REAL;"
                               "ALTER TABLE jobs ADD COLUMN evaluation_tokens INTEGER NOT NULL DEFAULT 0;"
                               "ALTER TABLE jobs ADD COLUMN evaluation_bytes INTEGER NOT NULL DEFAULT 0;";

/* Each submit looks for an unfinished job with the same folder. */
static const char store_v6[] = "CREATE INDEX jobs_folder ON jobs(folder) WHERE state < 7 AND folder <> '';";

/* Labels, in the form of labels_join(); time of removal (job_removal.h), 0: not removed. */
static const char store_v7[] = "ALTER TABLE jobs ADD COLUMN labels TEXT NOT NULL DEFAULT '';"
                               "ALTER TABLE jobs ADD COLUMN removed_at_ms INTEGER NOT NULL DEFAULT 0;";

/* Identity of the agent's state directory (node.h); the job that this later job has passed (job_status.passed). */
static const char store_v8[] = "ALTER TABLE nodes ADD COLUMN installation BLOB NOT NULL DEFAULT x'';"
                               "ALTER TABLE jobs ADD COLUMN passed INTEGER NOT NULL DEFAULT 0;";

/* Whether the node may be removed automatically once it is gone (node.h). */
static const char store_v9[] = "ALTER TABLE nodes ADD COLUMN ephemeral INTEGER NOT NULL DEFAULT 0;";

/* One row: what belongs to this machine's file and not to its content, so that copies on other machines differ in it:
 * whether the file was closed, and its state directory (home.h). */
static const char store_v10[] =
    "CREATE TABLE machine ("
    "  id INTEGER PRIMARY KEY CHECK (id = 1), clean INTEGER NOT NULL, path TEXT NOT NULL, inode INTEGER NOT NULL)"
    " STRICT;"
    "INSERT INTO machine SELECT 1, coalesce((SELECT value FROM meta WHERE key = 'clean'), 1),"
    " coalesce((SELECT path FROM home), ''), coalesce((SELECT inode FROM home), 0);"
    "DELETE FROM meta WHERE key = 'clean';"
    "DROP TABLE home;";

static const char *const store_migrations[SCHEMA_VERSION] = {store_v1, store_v2, store_v3, store_v4, store_v5,
                                                             store_v6, store_v7, store_v8, store_v9, store_v10};
static const char *const metrics_migrations[SCHEMA_METRICS_VERSION] = {metrics_v1, metrics_v2, metrics_v3,
                                                                       metrics_v4, metrics_v5, metrics_v6};

static titan_status store_after(struct db *db, int v, struct titan_error *err)
{
    return v == 2 ? event_chain_all(db, err) : TITAN_OK;
}

/* "Titn", "Timt" */
const struct schema schema_store = {"job store", 0x5469746e, SCHEMA_VERSION, store_migrations, store_after};
const struct schema schema_metrics = {"metrics store", 0x54696d74, SCHEMA_METRICS_VERSION, metrics_migrations, NULL};

titan_status schema_probe(const struct schema *schema, const char *path, bool *ret_unclean, struct titan_error *err)
{
    if (ret_unclean)
        *ret_unclean = false;
    sqlite3_vfs *vfs = sqlite3_vfs_find(NULL);
    int there = 0;
    if (vfs->xAccess(vfs, path, SQLITE_ACCESS_EXISTS, &there) != SQLITE_OK)
        return titan_fail(err, TITAN_EIO, "%s '%s' cannot be looked up", schema->what, path);
    if (!there)
        return TITAN_OK;
    struct db *db = NULL;
    TRY(db_open(path, DB_PROBE, true, &db, err));
    int64_t id = 0, version = 0, clean = 1;
    titan_status status = db_int(db, &id, err, "PRAGMA application_id", "");
    if (status == TITAN_OK)
        status = db_int(db, &version, err, "PRAGMA user_version", "");
    int64_t tables = 0;
    if (status == TITAN_OK)
        status = db_int(db, &tables, err, "SELECT count(*) FROM sqlite_master", "");
    if (status == TITAN_OK && id != schema->application_id && (id != 0 || version != 0 || tables != 0))
        status = titan_fail(err, TITAN_ECORRUPT, "'%s' is not a Titan %s (application id %08llx)", path, schema->what,
                            (unsigned long long)id);
    if (status == TITAN_OK && version > schema->version) {
        status = titan_fail(err, TITAN_EVERSION, "%s '%s' has schema %lld; this Titan knows up to %d", schema->what,
                            path, (long long)version, schema->version);
        if (err)
            titan_error_hint(err, "start the newer Titan that wrote it, or another state directory");
    }
    if (status == TITAN_OK && version > 0 && ret_unclean) {
        status = version < SCHEMA_MACHINE
                     ? db_int(db, &clean, err, "SELECT coalesce((SELECT value FROM meta WHERE key = 'clean'), 1)", "")
                     : db_int(db, &clean, err, "SELECT clean FROM machine", "");
        *ret_unclean = !clean;
    }
    if (status == TITAN_ECORRUPT && err && !strstr(err->msg, path))
        titan_error_wrap(err, "'%s'", path);
    db_close(db);
    return status;
}

titan_status schema_migrate(const struct schema *schema, struct db *db, struct titan_error *err)
{
    titan_assert(sqlite3_get_autocommit(db_handle(db)));
    int64_t version = 0;
    TRY(db_int(db, &version, err, "PRAGMA user_version", ""));
    for (; version < schema->version; version++) {
        char pragmas[96];
        snprintf(pragmas, sizeof(pragmas), "PRAGMA application_id=%d; PRAGMA user_version=%lld; COMMIT",
                 schema->application_id, (long long)version + 1);
        TRY(db_exec(db, "BEGIN IMMEDIATE", err));
        titan_status status = db_exec(db, schema->migrations[version], err);
        if (status == TITAN_OK && schema->after)
            status = schema->after(db, (int)version, err);
        if (status == TITAN_OK)
            status = db_exec(db, pragmas, err);
        if (status != TITAN_OK) {
            if (!sqlite3_get_autocommit(db_handle(db)))
                (void)!db_exec(db, "ROLLBACK", NULL);
            return err ? titan_error_wrap(err, "migrating the %s to schema %lld", schema->what, (long long)version + 1)
                       : status;
        }
    }
    return TITAN_OK;
}

static const char schema_rows[] = "SELECT type, name, coalesce(sql, '') FROM sqlite_schema"
                                  " WHERE name NOT GLOB 'sqlite_*' ORDER BY type, name";

static const char *row_text(sqlite3_stmt *stmt, int column)
{
    const char *text = (const char *)sqlite3_column_text(stmt, column);
    return text ? text : "";
}

/* Compares row by row, in the same order. */
static titan_status compare_rows(const struct schema *schema, sqlite3_stmt *is, sqlite3_stmt *should,
                                 struct titan_error *err)
{
    for (;;) {
        const bool more = sqlite3_step(is) == SQLITE_ROW, expected = sqlite3_step(should) == SQLITE_ROW;
        if (!more && !expected)
            return TITAN_OK;
        const int type = more && expected ? strcmp(row_text(is, 0), row_text(should, 0)) : more ? -1 : 1;
        const int order = type ? type : strcmp(row_text(is, 1), row_text(should, 1));
        if (order < 0)
            return titan_fail(err, TITAN_ECORRUPT, "the %s has a %s '%.64s', which Titan does not make", schema->what,
                              row_text(is, 0), row_text(is, 1));
        if (order > 0)
            return titan_fail(err, TITAN_ECORRUPT, "the %s lacks the %s '%.64s'", schema->what, row_text(should, 0),
                              row_text(should, 1));
        if (strcmp(row_text(is, 2), row_text(should, 2)) != 0)
            return titan_fail(err, TITAN_ECORRUPT, "the %s '%.64s' of the %s is another than Titan makes",
                              row_text(is, 0), row_text(is, 1), schema->what);
    }
}

titan_status schema_compare(const struct schema *schema, struct db *db, struct titan_error *err)
{
    sqlite3 *fresh = NULL;
    sqlite3_stmt *is = NULL, *should = NULL;
    int64_t version = 0;
    TRY(db_int(db, &version, err, "PRAGMA user_version", ""));
    if (version > schema->version)
        return titan_fail(err, TITAN_EVERSION, "the %s is of a newer Titan", schema->what);
    int rc = sqlite3_open_v2(":memory:", &fresh, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    for (int64_t v = 0; v < version && rc == SQLITE_OK; v++)
        rc = sqlite3_exec(fresh, schema->migrations[v], NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(fresh, schema_rows, -1, &should, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(db_handle(db), schema_rows, -1, &is, NULL);
    const titan_status status = rc == SQLITE_OK
                                    ? compare_rows(schema, is, should, err)
                                    : titan_fail(err, TITAN_ENOMEM, "%s: %s", schema->what, sqlite3_errstr(rc));
    sqlite3_finalize(is);
    sqlite3_finalize(should);
    sqlite3_close(fresh);
    return status;
}

static titan_status quick_check(struct db *db, const char *table, struct titan_error *err)
{
    char sql[96];
    (void)snprintf(sql, sizeof(sql), "PRAGMA quick_check(%s)", table);
    sqlite3_stmt *stmt = NULL; /* not through db.h, which identifies statements by their literal */
    if (sqlite3_prepare_v2(db_handle(db), sql, -1, &stmt, NULL) != SQLITE_OK)
        return db_fail(db, sql, err);
    bool row = false;
    titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && row && strcmp(col_text(stmt, 0), "ok") != 0)
        status = titan_fail(err, TITAN_ECORRUPT, "job store is damaged: %s", col_text(stmt, 0));
    sqlite3_finalize(stmt);
    return status;
}

titan_status schema_check(struct db *db, bool bounded, struct titan_error *err)
{
    int64_t pages = 0;
    sqlite3_stmt *stmt = NULL;
    TRY(db_int(db, &pages, err, "PRAGMA page_count", ""));
    if (!bounded || pages <= CHECK_PAGES)
        return quick_check(db, "1", err);
    TRY(db_query(db, &stmt, err,
                 "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT IN ('recipes',"
                 " 'events', 'metrics', 'evaluations') ORDER BY name",
                 ""));
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row)
        if ((status = quick_check(db, col_text(stmt, 0), err)) != TITAN_OK)
            break;
    db_done(stmt);
    return status;
}
