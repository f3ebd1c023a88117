/* SPDX-License-Identifier: Apache-2.0 */
/* buddy.h - buddies and owners: every part of the state exists twice, on two nodes if there are two, and always at the
 * same step.
 *
 * Rank r's buddy is rank r + shift, modulo world. The buddy holds a copy of its owner's masters, moments and expert
 * biases. The copy is filled when an epoch begins, and the state is never sent again: each unit's gradient shard goes
 * to the buddy once final, and behind the commit point the buddy makes the same update. That is 4 bytes per parameter
 * and step instead of 12. Where gradients travel as codes, and the codes that a shard is the sum of are fewer bytes
 * than the shard, the buddy gets these codes and sums them as the owner does. A committed step always has both copies:
 * AGREE waits for the gradients, so a rank and its buddy prepare a step together and finish it together.
 *
 * Messages and updates have their own streams and overlap with the step: a gradient is sent during backward, the copy
 * is updated during the next forward. On a device with its own memory, and with training.enable_cpu_offload, copy and
 * gradients lie in host memory and pass through a device buffer of one unit.
 *
 * On the trainer's thread only. */
#ifndef TITAN_WORKER_ELASTIC_BUDDY_H
#define TITAN_WORKER_ELASTIC_BUDDY_H

#include "worker/comm/comm.h"
#include "worker/exec/exec.h"
#include "worker/optim/update.h"
#include "worker/program/program.h"
#include "worker/state/state.h"

/* Distance from a rank to its buddy: the least one that puts the most buddies on another node (nodes NULL = all on one
 * node); 0 in a world of one. */
int buddy_shift(const int *nodes, int world);

struct buddy_options {
    const struct device_handle *device;
    int rank, world, shift;
    const struct comm_ops *ops;
    struct comm *comm;            /* of the world; split for the edges */
    const atomic_int *abort_flag; /* for the split */
    const struct program *owners; /* program of the owner's class; only read by buddy_open */
    struct train_state *copy;     /* of the owner's shard (state_open_copy); borrowed */
};

struct buddy;
/* Collective. */
titan_status buddy_open(const struct buddy_options *options, struct buddy **ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* Closes the communicators after all pending operations. The owner's received gradients still suffice to finish the
 * last step. Call before the world's communicator closes. NULL is fine. */
void buddy_leave(struct buddy *b);
void buddy_close(struct buddy *b); /* after buddy_leave; NULL is fine */

/* Sends own's values and biases to the buddy and receives the owner's into the copy, with step, tokens and skipped.
 * Waits. */
titan_status buddy_seed(struct buddy *b, const struct train_state *own, struct titan_error *err) TITAN_MUST_USE;

/* In a step: buddy_send for every unit (exec_options.reduced), buddy_settle before exec_agree, then buddy_update behind
 * the commit point, unless the step is skipped. Where matrices have owners, the units with matrices come before COMMIT:
 * buddy_send for each of them, buddy_send_owned for the state of whole matrices after the step, and buddy_settle with
 * `directed`. Each send also enqueues the wait for one of the owner's gradients. Earlier waits would cost time: on a
 * GPU a waiting kernel takes resources of the step and delays operations that wait for every kernel. */
titan_status buddy_send(struct buddy *b, const struct exec_reduced *reduced, struct stream *s,
                        struct titan_error *err) TITAN_MUST_USE;
titan_status buddy_send_owned(struct buddy *b, const float *next, int64_t n, struct titan_error *err) TITAN_MUST_USE;
titan_status buddy_settle(struct buddy *b, bool directed, struct titan_error *err) TITAN_MUST_USE;
/* Updates the copy, as OPTIMISE and BALANCE do for the own shard; statistics: the step's. Enqueued. */
titan_status buddy_update(struct buddy *b, const struct update *update, const double *statistics,
                          struct titan_error *err) TITAN_MUST_USE;
/* Waits until the copy is updated. */
titan_status buddy_sync(struct buddy *b, struct titan_error *err) TITAN_MUST_USE;

#endif
