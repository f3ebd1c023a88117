/* SPDX-License-Identifier: Apache-2.0 */
/* echo.h - communicators without peers: a rank's program runs alone, as if all other members sent the same data.
 *
 * Shapes and counts are the same as in a run, so every operation after a transfer does the same work as in a run. Only
 * the values differ. Where a run gets data from one other rank (messages, rows of experts), the memory keeps its old
 * content. */
#ifndef TITAN_WORKER_MEASURE_ECHO_H
#define TITAN_WORKER_MEASURE_ECHO_H

#include "worker/comm/comm.h"
#include "worker/tensor/mesh.h"

/* It has only the operations that executors call. */
extern const struct comm_ops comm_echo;

/* This rank's communicator of a channel; ops: operations of the device, borrowed. Owned (free); NULL: out of memory. */
struct comm *echo_open(const struct device_ops *ops, const struct mesh *mesh, enum channel channel, int rank);

#endif
