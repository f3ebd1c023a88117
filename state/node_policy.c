/* SPDX-License-Identifier: Apache-2.0 */
#include "state/node_policy.h"

titan_status node_policy_put(struct db *db, const struct node_policy *p, const struct event *event,
                             struct titan_error *err)
{
    titan_assert(p->name && *p->name && p->reason);
    TRY(db_run(db, err, "INSERT OR REPLACE INTO node_policies VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", "titiiiiiit",
               p->name, (int64_t)p->draining, p->reason, p->deadline_ms, p->window_from_ms, p->window_until_ms,
               p->window_lead_ms, p->quarantined_until_ms, (int64_t)p->quarantines, p->quarantine_reason));
    return event ? event_add(db, event, err) : TITAN_OK;
}

titan_status node_policy_list(struct db *db, void (*each)(const struct node_policy *p, void *data), void *data,
                              struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(db, &stmt, err,
                 "SELECT name, draining, reason, deadline_ms, window_from_ms, window_until_ms, window_lead_ms,"
                 " quarantined_until_ms, quarantines, quarantine_reason FROM node_policies ORDER BY name",
                 ""));
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row)
        each(&(struct node_policy){.name = col_text(stmt, 0),
                                   .draining = col_int(stmt, 1) != 0,
                                   .reason = col_text(stmt, 2),
                                   .deadline_ms = col_int(stmt, 3),
                                   .window_from_ms = col_int(stmt, 4),
                                   .window_until_ms = col_int(stmt, 5),
                                   .window_lead_ms = col_int(stmt, 6),
                                   .quarantined_until_ms = col_int(stmt, 7),
                                   .quarantines = (uint32_t)col_int(stmt, 8),
                                   .quarantine_reason = col_text(stmt, 9)},
             data);
    db_done(stmt);
    return status;
}
