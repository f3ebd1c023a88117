/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h - detects lost peers: the connections over which a communicator was formed stay open while the communicator
 * lives.
 *
 * NCCL sees a dead peer late or, over shared memory and NVLink, never. A process's connections end with the process,
 * within a millisecond on one host. So rank 0 notices the loss of any rank and notifies the other ranks. A rank that
 * leaves in order sends a farewell first. The loss of a whole node ends no connection: agents detect such a loss. Any
 * thread may call these functions. */
#ifndef TITAN_WORKER_COMM_NCCL_PEERS_H
#define TITAN_WORKER_COMM_NCCL_PEERS_H

#include <stdbool.h>

#include "base/error.h"

struct nccl_peers;

/* Makes a struct for up to n connections. */
titan_status nccl_peers_open(int n, struct nccl_peers **ret, struct titan_error *err) TITAN_MUST_USE;
/* Takes ownership of the connection to a rank, and closes an older connection to that rank. */
void nccl_peers_add(struct nccl_peers *p, int fd, int rank);
/* Returns a rank that was lost or has failed since the last call; -1 = none. p NULL: returns -1. */
int nccl_peers_lost(struct nccl_peers *p);
/* Notifies the other ranks that this rank failed. NULL is fine. */
void nccl_peers_notify(struct nccl_peers *p);
/* Ends the connections. With `well` it sends a farewell first. NULL is fine. */
void nccl_peers_close(struct nccl_peers *p, bool well);

#endif
