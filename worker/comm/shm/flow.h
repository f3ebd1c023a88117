/* SPDX-License-Identifier: Apache-2.0 */
/* flow.h - several messages of one member at once, over the channels of its segment. */
#ifndef TITAN_WORKER_COMM_SHM_FLOW_H
#define TITAN_WORKER_COMM_SHM_FLOW_H

#include "worker/comm/shm/segment.h"

struct flow {
    enum channel_end end;
    int peer;
    unsigned char *at; /* data to send (only read), or the destination */
    size_t left;
    int after; /* the previous flow through the same end of the same channel; -1 = none */
};

static inline struct flow flow_out(const void *data, size_t bytes, int to)
{
    return (struct flow){.end = CHANNEL_SEND, .peer = to, .at = (unsigned char *)data, .left = bytes, .after = -1};
}
static inline struct flow flow_in(void *data, size_t bytes, int from)
{
    return (struct flow){.end = CHANNEL_RECV, .peer = from, .at = data, .left = bytes, .after = -1};
}

/* Runs all flows to their end. A flow waits only for the flow that its `after` names. So members may begin flows of
 * different channels in any order. */
titan_status flows_run(struct segment *seg, struct flow *flows, int n, struct titan_error *err) TITAN_MUST_USE;

#endif
