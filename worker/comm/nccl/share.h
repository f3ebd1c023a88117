/* SPDX-License-Identifier: Apache-2.0 */
/* share.h - rank 0 of an epoch gives the others NCCL's unique id, over a connection to its listener. */
#ifndef TITAN_WORKER_COMM_NCCL_SHARE_H
#define TITAN_WORKER_COMM_NCCL_SHARE_H

#include <stdatomic.h>

#include "worker/comm/comm.h"
#include "worker/comm/nccl/peers.h"

#define NCCL_SHARE_MAX 256

/* An agreement. After nccl_share(), `data` on every rank is a copy of rank 0's data. */
struct nccl_agreement {
    const struct comm_config *config;
    const atomic_int *abort_flag; /* NULL = none */
    int64_t deadline_ns;          /* clock_mono_ns */
    void *data;
    size_t bytes;             /* at most NCCL_SHARE_MAX */
    struct nccl_peers *peers; /* gets the connections */
};

/* Collective over config's members. Each guest identifies itself with communicator id, epoch and rank; a guest with
 * other values is dropped. Without addresses in config, all ranks are on this host and meet at an abstract Unix socket
 * named after the communicator. Ends with TITAN_ETIMEDOUT at the deadline and with TITAN_EREVOKED when *abort_flag is
 * set. */
titan_status nccl_share(const struct nccl_agreement *a, struct titan_error *err) TITAN_MUST_USE;

#endif
