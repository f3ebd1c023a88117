/* SPDX-License-Identifier: Apache-2.0 */
/* node_policy.h - what was decided about a node, by an operator, a maintenance window or a crash loop. Apart from
 * node.h, which is what its agent says of itself: a node that comes back does not wipe out a decision. */
#ifndef TITAN_STATE_NODE_POLICY_H
#define TITAN_STATE_NODE_POLICY_H

#include "state/event.h"

struct node_policy {
    const char *name;
    bool draining; /* by request, until it is taken back */
    const char *reason;
    int64_t deadline_ms;                     /* of the drain, Unix time; 0 = none */
    int64_t window_from_ms, window_until_ms; /* maintenance; 0 = none */
    int64_t window_lead_ms;                  /* how long before it the node drains */
    int64_t quarantined_until_ms;            /* 0 = it is not */
    uint32_t quarantines;                    /* in a row: each is twice as long as the one before */
    const char *quarantine_reason;
};

/* Replaces what was decided before. */
titan_status node_policy_put(struct db *db, const struct node_policy *p, const struct event *event,
                             struct titan_error *err) TITAN_MUST_USE;
titan_status node_policy_list(struct db *db, void (*each)(const struct node_policy *p, void *data), void *data,
                              struct titan_error *err) TITAN_MUST_USE;

#endif
