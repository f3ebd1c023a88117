/* SPDX-License-Identifier: Apache-2.0 */
/* node.h - machines that have registered slots. */
#ifndef TITAN_STATE_NODE_H
#define TITAN_STATE_NODE_H

#include "base/sm.h"
#include "state/event.h"

#define NODE_INSTALLATION 16

enum node_state { NODE_NONE, NODE_READY, NODE_LOST };
extern const struct sm node_sm;

struct node {
    const char *name;
    enum node_state state;
    uint32_t slots;
    const char *device, *address, *version;
    uint64_t memory_bytes, incarnation;
    uint32_t peer_port; /* UDP, for other agents; 0 = none */
    int64_t last_seen_ms;
    uint8_t installation[NODE_INSTALLATION]; /* identity of the agent's state directory; zeros = unknown */
    bool ephemeral;                          /* removed automatically once lost and without workers */
};

/* Adds or replaces the node; the state moves to n->state (an equal state is no move). event NULL = none. */
titan_status node_put(struct db *db, const struct node *n, const struct event *event,
                      struct titan_error *err) TITAN_MUST_USE;
/* Removes a lost node together with its policy; the name may register again. */
titan_status node_remove(struct db *db, const char *name, const struct event *event,
                         struct titan_error *err) TITAN_MUST_USE;
/* Lists nodes by name. */
titan_status node_list(struct db *db, bool (*each)(const struct node *n, void *data), void *data,
                       struct titan_error *err) TITAN_MUST_USE;

#endif
