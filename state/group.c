/* SPDX-License-Identifier: Apache-2.0 */
#include "state/group.h"

#include <string.h>

#include "base/failpoint.h"

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

/* Runs the first n writes of group in one transaction. TITAN_OK: every write without an error of its own is durable.
 * Otherwise no write is durable. A savepoint per write copies every page that the write changes. So savepoints are used
 * only after a write had to be undone; then all writes run again. */
static titan_status commit_once(struct db *db, struct group_write *group, size_t n, bool savepoints,
                                struct titan_error *err)
{
    titan_assert(n > 0 && group && sqlite3_get_autocommit(db_handle(db)));
    TRY(db_run(db, err, "BEGIN IMMEDIATE", ""));
    struct group_write *w = group;
    bool undo = false;
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
        return n == 1 ? TITAN_OK : commit_once(db, group, n, true, err);
    }
    titan_status status = failpoint("store.commit", err);
    if (status == TITAN_OK)
        status = db_run(db, err, "COMMIT", "");
    titan_assert(status != TITAN_OK || sqlite3_get_autocommit(db_handle(db)));
    if (status != TITAN_OK && !sqlite3_get_autocommit(db_handle(db)))
        (void)!db_run(db, NULL, "ROLLBACK", "");
    return status;
}

void group_commit(struct db *db, struct group_write *list, struct group_stats *stats)
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
        if (db_sync_failed(db, &err) != TITAN_OK)
            fail_all(list, n, &err);
        else if (commit_once(db, list, n, false, &err) != TITAN_OK && n == 1)
            fail_all(list, 1, &err);
        else if (err.status != TITAN_OK) /* the common transaction has failed, so each write runs alone */
            for (struct group_write *w = list; w != end; w = w->next) {
                struct titan_error own = {0};
                if (db_sync_failed(db, &own) != TITAN_OK || commit_once(db, w, 1, false, &own) != TITAN_OK)
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
