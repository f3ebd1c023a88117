/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - proof, before anything runs, that a step's programs are sound.
 *
 * Written against program.h's contract, not against the builder. Over one program:
 * - every operand lies within its buffer and is as large as the operation's numbers say; units and microbatches of
 *   operands are the action's;
 * - what is read has been written before, or is external; nothing touches a buffer after its release; a gradient that
 *   has been begun is added to, not overwritten;
 * - buffers that live at the same time do not overlap in the arena, and whatever two streams both touch is ordered by
 *   waits;
 * - every microbatch goes once through forward, input gradient and weight gradient of every unit, and all microbatches
 *   and all layers of a kind go through the same operations on the same values;
 * - every microbatch's gradient reaches norm and update once, reduced over every group that shares it; norm, agreement,
 *   decision and update come in this order, once for every unit.
 * A fused action is looked at as the two actions that it stands for (fuse.h).
 * A forward-only program has no gradients instead, and writes to nothing of the training state.
 * Over all ranks: collectives come in one order, with the same bytes, on all members of a group; sends match receives;
 * and an abstract run of the pipeline, in which a SEND ends only when its RECV has begun, gets to its end. */
#ifndef TITAN_WORKER_PLAN_CHECK_H
#define TITAN_WORKER_PLAN_CHECK_H

#include "worker/program/program.h"

/* memory_bytes: what the device has, 0 = unknown. TITAN_EBUG names pp rank and action; TITAN_EUNPLACEABLE: too little
 * memory, with the need by kind. Near-linear in actions. */
titan_status program_check(const struct program *p, uint64_t memory_bytes, struct titan_error *err) TITAN_MUST_USE;
/* by_class: programs of all classes in the order of their numbers (build.h). Every pp rank has equally many classes,
 * one behind the other. Each program has passed program_check(). TITAN_EBUG names kind, pp rank and action. */
titan_status programs_check(const struct program *const *by_class, int n, struct titan_error *err) TITAN_MUST_USE;

#endif
