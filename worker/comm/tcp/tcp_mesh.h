/* SPDX-License-Identifier: Apache-2.0 */
/* tcp_mesh.h - TCP connections between every two members of an epoch, or of a group of them.
 *
 * A mesh is one member's end of all that: where the others listen, and which have knocked. Members meet once as an
 * epoch and then as often as groups are split off; each rendezvous has a tag that tells it from all others of the
 * epoch. Rank i connects to the ranks below it and accepts from those above. Both sides identify themselves (magic,
 * communicator id, epoch, tag, rank, members) and, when the epoch has a key, prove to each other that they have it, on
 * a challenge of the other; it does not go over the wire. One that says something else, or nothing within two seconds,
 * is dropped without harm to the rendezvous. A member of the epoch that comes early, for a rendezvous this rank has not
 * reached, is kept until it does.
 *
 * Sockets are non-blocking, without delay, and give up a silent peer after 15 s. One thread at a time. */
#ifndef TITAN_WORKER_COMM_TCP_TCP_MESH_H
#define TITAN_WORKER_COMM_TCP_TCP_MESH_H

#include <stdatomic.h>

#include "worker/comm/comm.h"
#include "worker/comm/core.h"

struct mesh;

struct rendezvous_options {
    uint64_t tag;         /* 0: all members of the epoch */
    const int *members;   /* ranks of the epoch, ascending, the own one among them */
    int n;                /* members */
    const int *links;     /* their connections so far: their end ends the rendezvous; NULL = none. -1 for the own one */
    struct comm_core *in; /* its failure or revocation ends the rendezvous; NULL = nothing does */
    const atomic_int *abort_flag;
};

titan_status tcp_mesh_open(const struct comm_config *config, struct mesh **ret, struct titan_error *err) TITAN_MUST_USE;
/* NULL is fine. */
void tcp_mesh_close(struct mesh *m);
/* fds[n]: a connected socket per member, -1 for the own one; the caller closes them. As comm_ops.open. */
titan_status tcp_mesh_meet(struct mesh *m, const struct rendezvous_options *options, int *fds,
                           struct titan_error *err) TITAN_MUST_USE;

#endif
