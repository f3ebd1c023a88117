/* SPDX-License-Identifier: Apache-2.0 */
#include "state/node.h"

#include "state/job.h"

static const struct sm_state node_states[] = {
    [NODE_NONE] = {"none", SM_INITIAL, SM_BIT(NODE_READY) | SM_BIT(NODE_LOST)}, /* lost: known from other nodes alone */
    [NODE_READY] = {"ready", 0, SM_BIT(NODE_LOST)},
    [NODE_LOST] = {"lost", 0, SM_BIT(NODE_READY) | SM_BIT(NODE_NONE)}, /* none: removed */
};
const struct sm node_sm = {"node", node_states, sizeof(node_states) / sizeof(node_states[0])};

titan_status node_put(struct db *db, const struct node *n, const struct event *event, struct titan_error *err)
{
    titan_assert(n->name && *n->name && n->state != NODE_NONE);
    int64_t from = 0;
    TRY(db_int(db, NODE_NONE, &from, err, "SELECT state FROM nodes WHERE name = ?", "t", n->name));
    if (from != (int64_t)n->state)
        TRY(state_check_move(&node_sm, 0, (int)from, (int)n->state, err));
    TRY(db_run(
        db, err,
        "INSERT INTO nodes (name, state, slots, device, address, version, memory_bytes, incarnation, last_seen_ms,"
        " peer_port, installation, ephemeral) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE "
        "SET "
        "state = "
        "excluded.state,"
        " slots = excluded.slots, device = excluded.device, address = excluded.address,"
        " version = excluded.version, memory_bytes = excluded.memory_bytes, incarnation = excluded.incarnation,"
        " last_seen_ms = excluded.last_seen_ms, peer_port = excluded.peer_port,"
        " installation = excluded.installation, ephemeral = excluded.ephemeral",
        "tiitttuuiibi", n->name, (int64_t)n->state, (int64_t)n->slots, n->device, n->address, n->version,
        n->memory_bytes, n->incarnation, n->last_seen_ms, (int64_t)n->peer_port, (const void *)n->installation,
        sizeof(n->installation), (int64_t)n->ephemeral));
    struct event default_event = {.at_ms = n->last_seen_ms, .type = "node.state", .node = n->name, .rank = -1};
    if (from != (int64_t)n->state)
        return event_add_change(db, event ? event : &default_event, &node_sm, n->name, (int)from, (int)n->state, 0,
                                err);
    return event ? event_add(db, event, err) : TITAN_OK;
}

titan_status node_remove(struct db *db, const char *name, const struct event *event, struct titan_error *err)
{
    int64_t from = 0;
    titan_assert(name && *name && event);
    TRY(db_int(db, NODE_NONE, &from, err, "SELECT state FROM nodes WHERE name = ?", "t", name));
    TRY(state_check_move(&node_sm, 0, (int)from, NODE_NONE, err));
    TRY(db_run(db, err, "DELETE FROM nodes WHERE name = ?", "t", name));
    TRY(db_run(db, err, "DELETE FROM node_policies WHERE name = ?", "t", name));
    return event_add_change(db, event, &node_sm, name, (int)from, NODE_NONE, 0, err);
}

titan_status node_list(struct db *db, bool (*each)(const struct node *n, void *data), void *data,
                       struct titan_error *err)
{
    sqlite3_stmt *stmt = NULL;
    TRY(db_query(
        db, &stmt, err,
        "SELECT name, state, slots, device, address, version, memory_bytes, incarnation, last_seen_ms, peer_port,"
        " installation, ephemeral FROM nodes ORDER BY name",
        ""));
    titan_status status;
    bool row;
    while ((status = db_step(db, stmt, &row, err)) == TITAN_OK && row) {
        struct node n = {
            .name = col_text(stmt, 0),
            .state = (enum node_state)col_int(stmt, 1),
            .slots = (uint32_t)col_int(stmt, 2),
            .device = col_text(stmt, 3),
            .address = col_text(stmt, 4),
            .version = col_text(stmt, 5),
            .memory_bytes = col_uint(stmt, 6),
            .incarnation = col_uint(stmt, 7),
            .last_seen_ms = col_int(stmt, 8),
            .peer_port = (uint32_t)col_int(stmt, 9),
            .ephemeral = col_int(stmt, 11) != 0,
        };
        col_blob(stmt, 10, n.installation, sizeof(n.installation));
        if (!each(&n, data))
            break;
    }
    db_done(stmt);
    return status;
}
