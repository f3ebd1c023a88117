/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_mesh.h - TCP connections between every two members of an epoch, or of a group of them.
 *
 * A mesh is one member's side: the others' listeners, and the connections accepted so far. All members meet once per
 * epoch, and again for each split; each rendezvous has a tag that is unique in the epoch. Rank i connects to lower
 * ranks and accepts from higher ranks. Both sides identify themselves (magic, communicator id, epoch, tag, rank,
 * members). If the epoch has a key, each side proves on the other's challenge that it has the key; the key itself is
 * never sent. A connection that sends other data, or no data within two seconds, is dropped without harm to the
 * rendezvous. A connection from an early member, for a rendezvous that this rank has not reached, is kept until this
 * rank reaches it.
 *
 * Sockets are non-blocking, without delay, and give up a silent peer after 15 s. One thread at a time. */
#ifndef TITAN_WORKER_COMM_TCP_TCP_MESH_H
#define TITAN_WORKER_COMM_TCP_TCP_MESH_H

#include <stdatomic.h>

#include "worker/comm/comm.h"
#include "worker/comm/core.h"

struct mesh;

struct rendezvous_options {
    uint64_t tag;         /* 0 = all members of the epoch */
    const int *members;   /* ranks of the epoch, ascending, this rank included */
    int n;                /* number of members */
    const int *links;     /* existing connections (-1: this rank), NULL = none; if one ends, so does the rendezvous */
    struct comm_core *in; /* communicator whose failure or revocation ends the rendezvous; NULL = none */
    const atomic_int *abort_flag;
};

titan_status tcp_mesh_open(const struct comm_config *config, struct mesh **ret, struct titan_error *err) TITAN_MUST_USE;
/* NULL is fine. */
void tcp_mesh_close(struct mesh *m);
/* fds[n]: a connected socket per member, -1 for this rank; the caller closes them. As comm_ops.open. */
titan_status tcp_mesh_meet(struct mesh *m, const struct rendezvous_options *options, int *fds,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
