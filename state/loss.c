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

titan_status loss_add(struct db *db, const struct loss *l, struct titan_error *err)
{
    titan_assert(l->job_id && l->cause > LOSS_NONE && (unsigned)l->cause < LOSS_CAUSES);
    return db_run(db, err, "INSERT INTO losses (job_id, cause, node, at_ms) VALUES (?, ?, ?, ?)", "uiti", l->job_id,
                  (int64_t)l->cause, l->node, l->at_ms);
}

titan_status loss_list(struct db *db, uint64_t job_id, int64_t since_ms, void (*each)(const struct loss *l, void *data),
                       void *data, struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(job_id ? db_query(
                     db, &stmt, err,
                     "SELECT job_id, cause, node, at_ms FROM losses WHERE job_id = ? AND at_ms >= ? ORDER BY at_ms, id",
                     "ui", job_id, since_ms)
               : db_query(db, &stmt, err,
                          "SELECT job_id, cause, node, at_ms FROM losses WHERE at_ms >= ? ORDER BY at_ms, id", "i",
                          since_ms));
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row)
        each(&(struct loss){.job_id = col_uint(stmt, 0),
                            .cause = (enum loss_cause)col_int(stmt, 1),
                            .node = col_text(stmt, 2),
                            .at_ms = col_int(stmt, 3)},
             data);
    db_done(stmt);
    return status;
}
