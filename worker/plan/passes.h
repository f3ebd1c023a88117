/* SPDX-License-Identifier: Apache-2.0 */
/* passes.h - rewriting a program: what is computed stays, when and in which pieces it is sent changes.
 *
 * After SimpleFSDP (arXiv:2411.00284): buckets of parameter gathers and gradient reductions, and gathers issued ahead
 * of the compute they can hide under; and pipelined pieces of tensor-parallel transfers. The same decisions are taken
 * on every rank of a group: they depend on the program and the cost model only. Each takes a built program and leaves
 * one that program_finish has yet to see. */
#ifndef TITAN_WORKER_PLAN_PASSES_H
#define TITAN_WORKER_PLAN_PASSES_H

#include "worker/plan/cost.h"

struct pass_options {
    const struct cost *cost;
    uint64_t memory_bytes;  /* a pass that would need more of the device is weakened or left out; 0 = no limit */
    struct program *leader; /* as built, of the class that decides for all of its group (program_class_leader); it is
                               used up. NULL: the program itself decides */
};

/* Does the program's peak stay within memory, with what is not of the arena? */
bool pass_fits(struct program *p, const struct pass_options *options);

/* Greedy buckets: neighbouring gathers (reductions) of one channel become one launch, as long as the bucket still hides
 * under the compute before its first use, the peak stays within memory and the bucket within a fifth of all gathered
 * bytes (techniques of autobucketing: the largest message a cost model can be trusted with). */
titan_status pass_bucket(struct program *p, const struct pass_options *options, struct titan_error *err) TITAN_MUST_USE;

/* Every parameter gather is issued so early that the compute between covers its time, order kept; less early where
 * the peak would leave memory. */
titan_status pass_reorder(struct program *p, const struct pass_options *options,
                          struct titan_error *err) TITAN_MUST_USE;

/* What a gradient reduction sends keeps its memory until the next one of its channel is issued: otherwise the compute
 * that follows is given that memory at once and waits for the transfer. Left out where the peak would leave memory. */
titan_status pass_hold(struct program *p, const struct pass_options *options, struct titan_error *err) TITAN_MUST_USE;

/* Asynchronous tensor parallelism: gather-then-multiply and multiply-then-scatter over tp in `pieces` row blocks, each
 * piece's transfer beside another's product. A rank's tokens are then block-cyclic (block r of each piece) instead of
 * one block, for all of them alike, so pieces arrive in natural order and nothing else changes. A program with rows
 * that do not divide is left as it is. */
titan_status pass_async_tensor(struct program *p, int pieces, struct titan_error *err) TITAN_MUST_USE;

#endif
