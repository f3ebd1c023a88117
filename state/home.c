/* SPDX-License-Identifier: Apache-2.0 */
#include "state/home.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct home {
    char path[PATH_MAX]; /* "" = none */
    uint64_t inode;
};

static titan_status read_home(struct db *db, struct home *ret, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    memset(ret, 0, sizeof(*ret));
    TRY(db_query(db, &stmt, err, "SELECT path, inode FROM home WHERE id = 1", ""));
    titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && row) {
        (void)snprintf(ret->path, sizeof(ret->path), "%s", col_text(stmt, 0));
        ret->inode = col_uint(stmt, 1);
    }
    db_done(stmt);
    return status;
}

/* Device numbers change across restarts. So a renamed directory is told from a copy by its inode, and by its missing
 * old path. */
static bool was_renamed(const struct home *home, const struct stat *now)
{
    char store[PATH_MAX + 16];
    struct stat st;
    (void)snprintf(store, sizeof(store), "%s/titan.db", home->path);
    return home->inode == now->st_ino && stat(store, &st) != 0;
}

titan_status home_claim(struct db *db, const char *dir, bool adopt, struct titan_error *err)
{
    titan_assert(dir[0] == '/');
    struct home home;
    struct stat st;
    if (stat(dir, &st) != 0)
        return titan_fail_errno(err, "'%s'", dir);
    TRY(read_home(db, &home, err));
    bool same = !home.path[0] || strcmp(home.path, dir) == 0 || was_renamed(&home, &st);
    if (!same && !adopt) {
        titan_fail(err, TITAN_ECONFLICT, "the state directory %s is a copy of %s, and its jobs are that one's", dir,
                   home.path);
        titan_error_hint(err, "if nothing will ever run on the other again, start once with --adopt-state");
        return TITAN_ECONFLICT;
    }
    return db_run(db, err,
                  "INSERT INTO home VALUES (1, ?, ?) ON CONFLICT DO UPDATE SET path = excluded.path,"
                  " inode = excluded.inode",
                  "tu", dir, (uint64_t)st.st_ino);
}

titan_status home_forget(struct db *db, struct titan_error *err)
{
    return db_run(db, err, "DELETE FROM home", "");
}
