/* SPDX-License-Identifier: Apache-2.0 */
#include "state/node.h"

static const struct sm_state node_states[] = {
    [NODE_NONE] = {"none", SM_INITIAL, SM_BIT(NODE_READY) | SM_BIT(NODE_LOST)}, /* lost: known from other nodes alone */
    [NODE_READY] = {"ready", 0, SM_BIT(NODE_LOST)},
    [NODE_LOST] = {"lost", 0, SM_BIT(NODE_READY) | SM_BIT(NODE_NONE)}, /* none: removed */
};
const struct sm node_sm = {"node", node_states, sizeof(node_states) / sizeof(node_states[0])};

/* clang-format off */
#define NODE(X) \
    X(slots, slots) X(device, device) X(address, address) X(version, version) X(memory_bytes, memory_bytes) \
    X(incarnation, incarnation) X(last_seen_ms, last_seen_ms) X(peer_port, peer_port) \
    X(installation, installation) X(ephemeral, ephemeral)
/* clang-format on */
#define FIELD(column, field) DB_FIELD(struct node, field),
DB_ROW(node_row, struct node, FIELD(name, name) FIELD(state, state) NODE(FIELD));
#define COLUMNS "name, state" NODE(DB_NAME)
#define MARKS "?, ?" NODE(DB_MARK)

static titan_status find_move(struct db *db, struct event_move *move, struct titan_error *err)
{
    int64_t from = 0;
    TRY(db_int(db, &from, err, "SELECT state FROM nodes WHERE name = ?", "t", move->name));
    move->from = (int)from;
    return move->from == move->to ? TITAN_OK : event_check_move(move, err);
}

titan_status node_put(struct db *db, const struct node *n, const struct event *event, struct titan_error *err)
{
    titan_assert(n->name && *n->name && n->state != NODE_NONE);
    struct event_move move = {.what = &node_sm, .name = n->name, .to = (int)n->state};
    struct event default_event = {.at_ms = n->last_seen_ms, .type = "node.state", .node = n->name, .rank = -1};
    TRY(find_move(db, &move, err));
    TRY(db_put(db, err,
               "INSERT INTO nodes (" COLUMNS ") VALUES (" MARKS ") ON CONFLICT (name) DO UPDATE"
               " SET state = excluded.state" NODE(DB_EXCLUDED),
               &node_row, n, ""));
    if (move.from != move.to)
        return event_add_move(db, event ? event : &default_event, &move, err);
    return event ? event_add(db, event, err) : TITAN_OK;
}

titan_status node_remove(struct db *db, const char *name, const struct event *event, struct titan_error *err)
{
    struct event_move move = {.what = &node_sm, .name = name, .to = NODE_NONE};
    TRY(find_move(db, &move, err));
    if (move.from == NODE_NONE)
        return event_check_move(&move, err);
    TRY(db_run(db, err, "DELETE FROM nodes WHERE name = ?", "t", name));
    TRY(db_run(db, err, "DELETE FROM node_policies WHERE name = ?", "t", name));
    return event_add_move(db, event, &move, err);
}

titan_status node_list(struct db *db, bool (*each)(const struct node *n, void *data), void *data,
                       struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    struct node n;
    titan_status status;
    TRY(db_query(db, &stmt, err, "SELECT " COLUMNS " FROM nodes ORDER BY name", ""));
    while (db_next(db, stmt, &node_row, &n, &status, err) && each(&n, data))
        ;
    db_done(stmt);
    return status;
}
