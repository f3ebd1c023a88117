/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - proves, before anything runs, that a step's programs are sound.
 *
 * The checks are written against program.h's contract, not against the builder. Over one program:
 * - every operand lies within its buffer and is as large as the operation's numbers say; units and microbatches of
 *   operands are the action's;
 * - what is read has been written before, or is external; nothing touches a buffer after its release; a gradient that
 *   has been begun is added to, not overwritten;
 * - buffers that live at the same time do not overlap in the arena, and waits order every two actions of different
 *   streams that touch the same memory;
 * - every microbatch goes once through forward, input gradient and weight gradient of every unit; all microbatches and
 *   all layers of a kind go through the same operations on the same values;
 * - every microbatch's gradient reaches norm and update once, reduced over every group that shares it; norm, agreement,
 *   decision and update come in this order, once for every unit.
 * A fused action is checked as the two actions that it stands for (fuse.h).
 * A forward-only program must instead have no gradients, and must not write to the training state.
 * Over all ranks: collectives come in the same order, with the same bytes, on all members of a group. Sends match
 * receives. An abstract run of the pipeline, in which a SEND ends only when its RECV has begun, gets to its end. */
#ifndef TITAN_WORKER_PLAN_CHECK_H
#define TITAN_WORKER_PLAN_CHECK_H

#include "worker/program/program.h"

/* memory_bytes: memory of the device, 0 = unknown. TITAN_EBUG: unsound; the error names pp rank and action.
 * TITAN_EUNPLACEABLE: too little memory; the error has the need by kind. The time is near-linear in the number of
 * actions. */
titan_status program_check(const struct program *p, uint64_t memory_bytes, struct titan_error *err) TITAN_MUST_USE;
/* by_class: programs of all classes in the order of their numbers (build.h). Every pp rank has the same number of
 * classes, with consecutive numbers. Each program has passed program_check(). TITAN_EBUG: unsound; the error names
 * kind, pp rank and action. */
titan_status programs_check(const struct program *const *by_class, int n, struct titan_error *err) TITAN_MUST_USE;

#endif
