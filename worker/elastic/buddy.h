/* SPDX-License-Identifier: Apache-2.0 */
/* buddy.h - buddies and owners: every part of the state twice, on two nodes where there are two, and always at the same
 * step.
 *
 * Rank r's buddy is rank r + shift, modulo world. It holds a copy of its owner's masters, moments and expert biases,
 * filled when an epoch begins, and keeps it up to date without ever being sent the state again: each unit's gradient
 * shard goes to the buddy as soon as it is final, and after the decision the buddy does the very same update. That is
 * 4 bytes per parameter and step instead of 12, and there is no moment at which a committed step has one copy only:
 * AGREE waits for the gradients, so a step is prepared on a rank and at its buddy together, and finished together.
 *
 * Messages and updates have streams of their own and run in the shadow of the step: a gradient is sent while backward
 * goes on, the copy is updated while the next forward runs. Where the device's memory is not the host's, and with
 * training.enable_cpu_offload, copy and gradients wait in host memory and pass through one unit's room on the device.
 *
 * One thread, the trainer's. */
#ifndef TITAN_WORKER_ELASTIC_BUDDY_H
#define TITAN_WORKER_ELASTIC_BUDDY_H

#include "worker/comm/comm.h"
#include "worker/optim/update.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

/* From a rank to its buddy: the least distance that brings the most ranks to another node (nodes: NULL = all on one);
 * 0 in a world of one. */
int buddy_shift(const int *nodes, int world);

struct buddy_options {
    const struct device_handle *device;
    int rank, world, shift;
    const struct comm_ops *ops;
    struct comm *comm;            /* of the world: edges are split from it */
    const atomic_int *abort_flag; /* of split */
    const struct program *owners; /* the program of the owner's kind; only looked at by open */
    struct train_state *copy;     /* of the owner's shard (state_open_copy); borrowed */
};

struct buddy;
/* Collective. */
titan_status buddy_open(const struct buddy_options *options, struct buddy **ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* The communicators go, what is under way has ended; with what has come from the owner the last step can still be
 * finished. Before the world's communicator is closed. NULL is fine. */
void buddy_leave(struct buddy *b);
void buddy_close(struct buddy *b); /* after buddy_leave; NULL is fine */

/* own's values and biases to the buddy, the owner's into the copy, with step, tokens and skipped. Waits. */
titan_status buddy_seed(struct buddy *b, const struct train_state *own, struct titan_error *err) TITAN_MUST_USE;

/* A step: send for every unit (exec_options.reduced), then settle before exec_agree, then, unless the step is skipped,
 * update. With each gradient sent one of the owner's is waited for, no earlier: on a GPU what waits takes up room that
 * the step needs, and holds up whatever has to wait for all kernels. */
titan_status buddy_send(struct buddy *b, const float *grad, int64_t n, struct stream *s,
                        struct titan_error *err) TITAN_MUST_USE;
titan_status buddy_settle(struct buddy *b, struct titan_error *err) TITAN_MUST_USE;
/* The copy, as OPTIMISE and BALANCE do it for the shard itself; statistics: of the step. Enqueued. */
titan_status buddy_update(struct buddy *b, const struct update *update, const double *statistics,
                          struct titan_error *err) TITAN_MUST_USE;
/* Until the copy has its update. */
titan_status buddy_sync(struct buddy *b, struct titan_error *err) TITAN_MUST_USE;

#endif
