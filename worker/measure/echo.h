/* SPDX-License-Identifier: Apache-2.0 */
/* echo.h - communicators without peers: a rank's program runs alone, as if all other members had sent what it sends.
 *
 * Shapes and counts are those of a run, so every operation behind a transfer does the work that it does there; the
 * values are not. What comes from one other rank (messages, rows of experts) stays what was in the memory. */
#ifndef TITAN_WORKER_MEASURE_ECHO_H
#define TITAN_WORKER_MEASURE_ECHO_H

#include "worker/comm/comm.h"
#include "worker/tensor/mesh.h"

/* What executors call is there, nothing else. */
extern const struct comm_ops comm_echo;

/* This rank's communicator of a channel; ops: of the device, borrowed. Owned (free); NULL: out of memory. */
struct comm *echo_open(const struct device_ops *ops, const struct mesh *mesh, enum channel channel, int rank);

#endif
