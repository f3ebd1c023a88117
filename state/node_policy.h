/* SPDX-License-Identifier: Apache-2.0 */
/* node_policy.h - decisions about a node, by an operator, a maintenance window or a crash loop. The agent's own report
 * is in node.h. The decisions are kept apart from it, so that a returning node does not erase a decision. */
#ifndef TITAN_STATE_NODE_POLICY_H
#define TITAN_STATE_NODE_POLICY_H

#include "state/event.h"

struct node_policy {
    const char *name;
    bool draining; /* drained by request, until the request is revoked */
    const char *reason;
    int64_t deadline_ms;                     /* deadline of the drain, Unix time; 0 = none */
    int64_t window_from_ms, window_until_ms; /* maintenance; 0 = none */
    int64_t window_lead_ms;                  /* time before the window at which the drain starts */
    int64_t quarantined_until_ms;            /* 0 = not in quarantine */
    uint32_t quarantines;                    /* consecutive quarantines: each lasts twice as long as the previous one */
    const char *quarantine_reason;
};

/* Replaces the previous policy. */
titan_status node_policy_put(struct db *db, const struct node_policy *p, const struct event *event,
                             struct titan_error *err) TITAN_MUST_USE;
titan_status node_policy_list(struct db *db, void (*each)(const struct node_policy *p, void *data), void *data,
                              struct titan_error *err) TITAN_MUST_USE;

#endif
