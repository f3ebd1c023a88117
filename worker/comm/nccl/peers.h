/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h - detects lost peers: the connections that formed a communicator stay open while it lives.
 *
 * NCCL sees a dead peer late or, over shared memory and NVLink, never. A process's connections end with it, within a
 * millisecond on a host. So rank 0 notices the loss of any rank and notifies the others. A rank that leaves in order
 * sends a farewell first. The loss of a whole node ends no connection: agents detect that. Any thread. */
#ifndef TITAN_WORKER_COMM_NCCL_PEERS_H
#define TITAN_WORKER_COMM_NCCL_PEERS_H

#include <stdbool.h>

#include "base/error.h"

struct nccl_peers;

/* For up to n connections. */
titan_status nccl_peers_open(int n, struct nccl_peers **ret, struct titan_error *err) TITAN_MUST_USE;
/* Takes the connection to a rank; closes an older one to it. */
void nccl_peers_add(struct nccl_peers *p, int fd, int rank);
/* A rank lost or failed since the last call; -1 = none. p NULL: -1. */
int nccl_peers_lost(struct nccl_peers *p);
/* Notifies the others that this rank failed. NULL is fine. */
void nccl_peers_notify(struct nccl_peers *p);
/* Ends the connections; well: sends a farewell first. NULL is fine. */
void nccl_peers_close(struct nccl_peers *p, bool well);

#endif
