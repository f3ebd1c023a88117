/* SPDX-License-Identifier: Apache-2.0 */
#include "state/node_policy.h"

/* clang-format off */
#define POLICY(X) \
    X(draining, draining) X(reason, reason) X(deadline_ms, deadline_ms) X(window_from_ms, window_from_ms) \
    X(window_until_ms, window_until_ms) X(window_lead_ms, window_lead_ms) \
    X(quarantined_until_ms, quarantined_until_ms) X(quarantines, quarantines) \
    X(quarantine_reason, quarantine_reason)
/* clang-format on */
#define FIELD(column, field) DB_FIELD(struct node_policy, field),
DB_ROW(policy_row, struct node_policy, FIELD(name, name) POLICY(FIELD));

titan_status node_policy_put(struct db *db, const struct node_policy *p, const struct event *event,
                             struct titan_error *err)
{
    titan_assert(p->name && *p->name && p->window_from_ms <= p->window_until_ms);
    TRY(db_put(db, err, "INSERT OR REPLACE INTO node_policies (name" POLICY(DB_NAME) ") VALUES (?" POLICY(DB_MARK) ")",
               &policy_row, p, ""));
    return event ? event_add(db, event, err) : TITAN_OK;
}

titan_status node_policy_list(struct db *db, void (*each)(const struct node_policy *p, void *data), void *data,
                              struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct node_policy p;
    titan_status status;
    TRY(db_query(db, &stmt, err, "SELECT name" POLICY(DB_NAME) " FROM node_policies ORDER BY name", ""));
    while (db_next(db, stmt, &policy_row, &p, &status, err))
        each(&p, data);
    db_done(stmt);
    return status;
}
