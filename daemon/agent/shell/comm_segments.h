/* SPDX-License-Identifier: Apache-2.0 */
/* comm_segments.h - shared memory of epochs with all members on this node: one segment per job, for its newest epoch. A
 * segment is an empty memfd that the communicator sizes, so a crash leaves nothing behind. */
#ifndef TITAN_DAEMON_AGENT_SHELL_COMM_SEGMENTS_H
#define TITAN_DAEMON_AGENT_SHELL_COMM_SEGMENTS_H

#include "daemon/agent/shell/workers.h"

struct comm_segments {
    struct comm_segment *first;
};

/* Returns the descriptor of the epoch's segment, which s owns. -1: a member is on another node, or memory is short.
 * Then the workers connect over TCP. */
int comm_segments_get(struct comm_segments *s, const char *node, const Titan__Internal__FormEpoch *form);
/* Drops segments of jobs without a worker here. Workers have their own descriptors. */
void comm_segments_sweep(struct comm_segments *s, struct workers *workers);
void comm_segments_close(struct comm_segments *s);

#endif
