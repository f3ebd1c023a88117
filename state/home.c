/* SPDX-License-Identifier: Apache-2.0 */
#include "state/home.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

titan_status home_claim(struct db *db, const char *dir, bool adopt, struct titan_error *err)
{
    titan_assert(dir[0] == '/');
    char path[PATH_MAX] = "", store[PATH_MAX + 16]; /* path: "" = none */
    uint64_t inode = 0;
    struct stat st, old;
    sqlite3_stmt *stmt = NULL;
    bool row = false;
    if (stat(dir, &st) != 0)
        return titan_fail_errno(err, "'%s'", dir);
    TRY(db_query(db, &stmt, err, "SELECT path, inode FROM machine", ""));
    const titan_status status = db_step(db, stmt, &row, err);
    if (status == TITAN_OK && row) {
        (void)snprintf(path, sizeof(path), "%s", col_text(stmt, 0));
        inode = col_uint(stmt, 1);
    }
    db_done(stmt);
    TRY(status);

    /* Device numbers change across restarts. So a renamed directory is told from a copy by its inode, and by its
     * missing old path. */
    (void)snprintf(store, sizeof(store), "%s/titan.db", path);
    const bool same = !path[0] || strcmp(path, dir) == 0 || (inode == st.st_ino && stat(store, &old) != 0);
    if (!same && !adopt) {
        titan_fail(err, TITAN_ECONFLICT, "the state directory %s is a copy of %s, and its jobs are that one's", dir,
                   path);
        titan_error_hint(err, "if nothing will ever run on the other again, start once with --adopt-state");
        return TITAN_ECONFLICT;
    }
    return db_run(db, err, "UPDATE machine SET path = ?, inode = ?", "tu", dir, (uint64_t)st.st_ino);
}

titan_status home_forget(struct db *db, struct titan_error *err)
{
    return db_run(db, err, "UPDATE machine SET path = '', inode = 0", "");
}
