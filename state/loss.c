/* SPDX-License-Identifier: Apache-2.0 */
#include "state/loss.h"

const char *loss_name(enum loss_cause cause)
{
    titan_assert((unsigned)cause < LOSS_CAUSES);
    static const char *const names[LOSS_CAUSES] = {
        [LOSS_NONE] = "none", [LOSS_CRASH] = "crash",   [LOSS_HANG] = "hang",   [LOSS_NODE] = "node_loss",
        [LOSS_OOM] = "oom",   [LOSS_FAULTY] = "faulty", [LOSS_EPOCH] = "crash",
    };
    return names[cause];
}

/* clang-format off */
#define LOSS(X) X(cause, cause) X(node, node) X(at_ms, at_ms)
/* clang-format on */
#define FIELD(column, field) DB_FIELD(struct loss, field),
DB_ROW(loss_row, struct loss, FIELD(job_id, job_id) LOSS(FIELD));

titan_status loss_add(struct db *db, const struct loss *l, struct titan_error *err)
{
    titan_assert(l->job_id && l->cause > LOSS_NONE && (unsigned)l->cause < LOSS_CAUSES);
    return db_put(db, err, "INSERT INTO losses (job_id" LOSS(DB_NAME) ") VALUES (?" LOSS(DB_MARK) ")", &loss_row, l,
                  "");
}

titan_status loss_list(struct db *db, uint64_t job_id, int64_t since_ms, void (*each)(const struct loss *l, void *data),
                       void *data, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct loss l;
    titan_status status;
    if (job_id)
        TRY(db_query(db, &stmt, err,
                     "SELECT job_id" LOSS(DB_NAME) " FROM losses WHERE job_id = ? AND at_ms >= ? ORDER BY at_ms, id",
                     "ui", job_id, since_ms));
    else
        TRY(db_query(db, &stmt, err, "SELECT job_id" LOSS(DB_NAME) " FROM losses WHERE at_ms >= ? ORDER BY at_ms, id",
                     "i", since_ms));
    while (db_next(db, stmt, &loss_row, &l, &status, err))
        each(&l, data);
    db_done(stmt);
    return status;
}
