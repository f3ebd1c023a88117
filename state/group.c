/* SPDX-License-Identifier: Apache-2.0 */
#include "state/group.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "state/changeset.h"

#define GROUP_MAX 1024       /* writes per transaction */
#define CHECKPOINT_PAGES 250 /* pages of the WAL: 1 MB, which delays the next group */

static titan_status run_write(struct db *db, struct group_write *w)
{
    titan_assert(w->fn && !sqlite3_get_autocommit(db_handle(db))); /* within a transaction */
    memset(&w->err, 0, sizeof(w->err));
    const titan_status status = w->fn(db, w->arg, &w->err);
    if (status != TITAN_OK && w->err.status == TITAN_OK)
        titan_fail(&w->err, status, "job store: write failed");
    return status;
}

static void fail_all(struct group_write *group, size_t n, const struct titan_error *err)
{
    titan_assert(err->status != TITAN_OK);
    for (size_t i = 0; i < n; i++, group = group->next) {
        if (group->err.status == TITAN_OK)
            group->err = *err;
    }
}

static void free_changes(struct changeset **changes)
{
    changeset_free(*changes);
}

/* Gives the transaction's changes to the log, then commits. A transaction without changes has no record. */
static titan_status log_and_commit(struct db *db, struct group_log *log, struct changeset *changes, size_t n,
                                   struct titan_error *err)
{
    _cleanup_(buf_free) struct buf record = BUF_INIT;
    uint64_t number = 0;
    TRY(changeset_end(changes, &number, &record, err));
    if (number == 0)
        return db_run(db, err, "COMMIT", "");
    if (record.len > GROUP_RECORD_MAX && n > 1)
        return titan_fail(err, TITAN_ELIMIT, "job store: a record of %zu bytes is too large", record.len);
    titan_status status = log->append(log->data, number, record.data, record.len, err);
    if (status == TITAN_OK)
        status = db_run(db, err, "COMMIT", "");
    if (status != TITAN_OK) {
        titan_fail(&log->lost, TITAN_ECANCELLED, "job store: the outcome of record %llu is unknown: %.200s",
                   (unsigned long long)number, err->msg);
        *err = log->lost;
        status = log->lost.status;
    }
    return status;
}

/* Runs the first n writes of group in one transaction. TITAN_OK: every write without an error of its own is durable.
 * Otherwise no write is durable. A savepoint per write copies every page that the write changes. So savepoints are used
 * only after a write had to be undone; then all writes run again. */
static titan_status commit_once(struct db *db, struct group_log *log, struct group_write *group, size_t n,
                                bool savepoints, struct titan_error *err)
{
    _cleanup_(free_changes) struct changeset *changes = NULL;
    titan_assert(n > 0 && group && sqlite3_get_autocommit(db_handle(db)));
    TRY(db_run(db, err, "BEGIN IMMEDIATE", ""));
    struct group_write *w = group;
    bool undo = false;
    if (log && changeset_begin(db, &changes, err) != TITAN_OK) {
        (void)!db_run(db, NULL, "ROLLBACK", "");
        return err->status;
    }
    for (size_t i = 0; i < n && !undo; i++, w = w->next) {
        const int64_t before = sqlite3_total_changes64(db_handle(db));
        if (!savepoints) { /* a failed write that has changed nothing needs no undo */
            undo = run_write(db, w) != TITAN_OK && sqlite3_total_changes64(db_handle(db)) != before;
        } else if (db_run(db, &w->err, "SAVEPOINT w", "") == TITAN_OK) {
            const bool good = run_write(db, w) == TITAN_OK;
            /* A full disk or an I/O error may have rolled back the whole transaction; then no savepoint is left. */
            if (!good && !sqlite3_get_autocommit(db_handle(db)))
                (void)!db_run(db, NULL, "ROLLBACK TO w", "");
            if (good || !sqlite3_get_autocommit(db_handle(db)))
                (void)!db_run(db, good ? &w->err : NULL, "RELEASE w", "");
        }
        if (sqlite3_get_autocommit(db_handle(db))) {
            *err = w->err;
            return err->status;
        }
    }
    if (undo) {
        (void)!db_run(db, NULL, "ROLLBACK", "");
        changeset_free(TAKE(changes));
        return n == 1 ? TITAN_OK : commit_once(db, log, group, n, true, err);
    }
    titan_status status = failpoint("store.commit", err);
    if (status == TITAN_OK)
        status = log ? log_and_commit(db, log, changes, n, err) : db_run(db, err, "COMMIT", "");
    titan_assert(status != TITAN_OK || sqlite3_get_autocommit(db_handle(db)));
    if (status != TITAN_OK && !sqlite3_get_autocommit(db_handle(db)))
        (void)!db_run(db, NULL, "ROLLBACK", "");
    return status;
}

/* Does nothing reach the file any more? */
static titan_status gone(const struct db *db, const struct group_log *log, struct titan_error *err)
{
    if (log && log->lost.status != TITAN_OK) {
        *err = log->lost;
        return err->status;
    }
    return db_sync_failed(db, err);
}

void group_commit(struct db *db, struct group_log *log, struct group_write *list, struct group_stats *stats)
{
    while (list) {
        struct group_write *end = list;
        struct titan_error err = {0};
        size_t n = 0;
        for (; end && n < GROUP_MAX; n++)
            end = end->next;
        titan_assert(n > 0 && n <= GROUP_MAX);
        stats->writes += n;
        stats->commits++;
        if (gone(db, log, &err) != TITAN_OK)
            fail_all(list, n, &err);
        else if (commit_once(db, log, list, n, false, &err) != TITAN_OK &&
                 (n == 1 || (log && log->lost.status != TITAN_OK)))
            fail_all(list, n, &err);
        else if (err.status != TITAN_OK) /* the common transaction has failed, so each write runs alone */
            for (struct group_write *w = list; w != end; w = w->next) {
                struct titan_error own = {0};
                if (gone(db, log, &own) != TITAN_OK || commit_once(db, log, w, 1, false, &own) != TITAN_OK)
                    fail_all(w, 1, &own);
                stats->commits++;
            }
        for (; list != end; list = list->next)
            stats->failures += list->err.status != TITAN_OK;
    }
}

void group_checkpoint(struct db *db)
{
    if (db_wal_pages(db) >= CHECKPOINT_PAGES && db_sync_failed(db, NULL) == TITAN_OK)
        db_checkpoint(db);
}
