/* SPDX-License-Identifier: Apache-2.0 */
/* node.h - machines that have offered slots. */
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
    uint8_t installation[NODE_INSTALLATION]; /* of the agent's state directory; zeros = not known */
    bool ephemeral;                          /* it goes by itself when it is lost and has no workers */
};

/* Add, or replace what is known; the state moves to n->state (the same state is no move). event NULL = nothing to tell.
 */
titan_status node_put(struct db *db, const struct node *n, const struct event *event,
                      struct titan_error *err) TITAN_MUST_USE;
/* With what was decided about it. Of a lost node only; its name may come again. */
titan_status node_remove(struct db *db, const char *name, const struct event *event,
                         struct titan_error *err) TITAN_MUST_USE;
/* In name order. */
titan_status node_list(struct db *db, bool (*each)(const struct node *n, void *data), void *data,
                       struct titan_error *err) TITAN_MUST_USE;

#endif
