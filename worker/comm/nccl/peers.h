/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h - which peers are still there: the connections over which a communicator was formed stay open while it lives.
 *
 * NCCL sees a dead peer late or, over shared memory and NVLink, never. A process's connections end with it, within a
 * millisecond on a host, so rank 0 learns of every other rank and tells them. A rank that leaves in order says so
 * first. The loss of a whole node ends no connection: that is the agents' to find. Any thread. */
#ifndef TITAN_WORKER_COMM_NCCL_PEERS_H
#define TITAN_WORKER_COMM_NCCL_PEERS_H

#include <stdbool.h>

#include "base/error.h"

struct nccl_peers;

/* For up to n connections. */
titan_status nccl_peers_open(int n, struct nccl_peers **ret, struct titan_error *err) TITAN_MUST_USE;
/* Takes the connection to a rank; an older one to it is closed. */
void nccl_peers_add(struct nccl_peers *p, int fd, int rank);
/* A rank that vanished or has failed since the last call, or -1. NULL: -1. */
int nccl_peers_lost(struct nccl_peers *p);
/* Tell the others that this rank has failed. NULL is fine. */
void nccl_peers_notify(struct nccl_peers *p);
/* Ends the connections; well: after taking leave. NULL is fine. */
void nccl_peers_close(struct nccl_peers *p, bool well);

#endif
