/* SPDX-License-Identifier: Apache-2.0 */
#include "state/group.h"

#include <string.h>

#include "base/failpoint.h"

#define GROUP_MAX 1024       /* writes of one transaction */
#define CHECKPOINT_PAGES 250 /* of the WAL: 1 MB, for which the next group waits */

static titan_status run_one(struct db *db, struct group_write *w)
{
    titan_assert(w->fn && !sqlite3_get_autocommit(db_handle(db))); /* within a transaction */
    memset(&w->err, 0, sizeof(w->err));
    titan_status status = db_run(db, &w->err, "SAVEPOINT w", "");
    if (status != TITAN_OK)
        return status;
    status = w->fn(db, w->arg, &w->err);
    if (status == TITAN_OK)
        return db_run(db, &w->err, "RELEASE w", "");
    if (w->err.status == TITAN_OK)
        titan_fail(&w->err, status, "job store: write failed");
    /* A full disk or an I/O error may have undone the whole transaction already; then there is no savepoint left. */
    if (!sqlite3_get_autocommit(db_handle(db))) {
        (void)!db_run(db, NULL, "ROLLBACK TO w", "");
        (void)!db_run(db, NULL, "RELEASE w", "");
    }
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

/* One transaction over the first n of group. TITAN_OK: what has no error of its own is durable. Otherwise nothing is.
 */
static titan_status commit_once(struct db *db, struct group_write *group, size_t n, struct titan_error *err)
{
    titan_assert(n > 0 && group && sqlite3_get_autocommit(db_handle(db)));
    TRY(db_run(db, err, "BEGIN IMMEDIATE", ""));
    struct group_write *w = group;
    for (size_t i = 0; i < n; i++, w = w->next) {
        (void)run_one(db, w);
        if (sqlite3_get_autocommit(db_handle(db))) {
            *err = w->err;
            return err->status;
        }
    }
    titan_status status = failpoint("store.commit", err);
    if (status == TITAN_OK)
        status = db_run(db, err, "COMMIT", "");
    titan_assert(status != TITAN_OK || sqlite3_get_autocommit(db_handle(db)));
    if (status != TITAN_OK && !sqlite3_get_autocommit(db_handle(db)))
        (void)!db_run(db, NULL, "ROLLBACK", "");
    return status;
}

/* The transaction over all of them is gone as a whole: find out which writes can still be made. */
static void commit_each(struct db *db, struct group_write *group, size_t n, struct group_stats *stats)
{
    titan_assert(n > 1); /* one alone has been tried alone */
    for (size_t i = 0; i < n; i++, group = group->next) {
        struct titan_error err = {0};
        if (db_sync_failed(db, &err) != TITAN_OK || commit_once(db, group, 1, &err) != TITAN_OK)
            fail_all(group, 1, &err);
        stats->commits++;
    }
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
        else if (commit_once(db, list, n, &err) != TITAN_OK && n == 1)
            fail_all(list, 1, &err);
        else if (err.status != TITAN_OK)
            commit_each(db, list, n, stats);
        for (; list != end; list = list->next)
            stats->failures += list->err.status != TITAN_OK;
    }
}

void group_checkpoint(struct db *db)
{
    if (db_wal_pages(db) >= CHECKPOINT_PAGES && db_sync_failed(db, NULL) == TITAN_OK)
        db_checkpoint(db);
}
