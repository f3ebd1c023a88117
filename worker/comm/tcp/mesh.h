/* mesh.h - one TCP connection between every two members of an epoch.
 *
 * Rank i connects to the ranks below it and accepts from those above. Both sides say who they are (magic, communicator
 * id, epoch, rank, world); whoever says something else, or nothing within two seconds, is dropped without harm to the
 * forming mesh. Sockets are non-blocking, without delay, and give up a silent peer after 15 s. */
#ifndef TITAN_WORKER_COMM_TCP_MESH_H
#define TITAN_WORKER_COMM_TCP_MESH_H

#include <stdatomic.h>

#include "worker/comm/comm.h"

/* fds[world]: a connected socket per rank, -1 for the own one; the caller closes them. As comm_ops.open. */
titan_status mesh_connect(const struct comm_config *config, const atomic_int *abort_flag, int *fds,
                          struct titan_error *err) TITAN_MUST_USE;

#endif
