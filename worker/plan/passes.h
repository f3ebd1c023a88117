/* SPDX-License-Identifier: Apache-2.0 */
/* passes.h - passes rewrite a program. They change when data is sent and in which pieces, and never what is computed.
 *
 * After SimpleFSDP (arXiv:2411.00284): buckets of parameter gathers and gradient reductions, and gathers issued ahead
 * of the compute that they can hide under. Also pipelined pieces of tensor-parallel transfers. Every rank of a group
 * takes the same decisions: they depend on the program and the cost model only. Each pass takes a built program;
 * program_finish() must come after the passes. */
#ifndef TITAN_WORKER_PLAN_PASSES_H
#define TITAN_WORKER_PLAN_PASSES_H

#include "worker/plan/cost.h"

struct pass_options {
    const struct cost *cost;
    uint64_t memory_bytes;  /* a pass that would need more device memory is weakened or left out; 0 = no limit */
    struct program *leader; /* as built, of the class that decides for all of its group (program_class_leader); the pass
                               uses the program up. NULL: the program itself decides */
};

/* Does the program's peak, with external buffers on the device, stay within memory? */
bool pass_fits(struct program *p, const struct pass_options *options);

/* Greedy buckets: neighbouring gathers (reductions) of one channel become one launch. The bucket must still hide under
 * the compute before its first use, and the peak must stay within memory. A bucket has at most a fifth of all gathered
 * bytes: for larger messages a cost model cannot be trusted (as in autobucketing). */
titan_status pass_bucket(struct program *p, const struct pass_options *options, struct titan_error *err) TITAN_MUST_USE;

/* Issues every parameter gather so early that the compute before its first use covers its time. Gathers keep their
 * order. A gather is less early where the peak would exceed memory. */
titan_status pass_reorder(struct program *p, const struct pass_options *options,
                          struct titan_error *err) TITAN_MUST_USE;

/* Keeps the memory that a gradient reduction sends until the next reduction of its channel is issued, and all memory of
 * a sum over replicas as codes until the next such sum. Without the pass,
 * the following compute would get this memory at once and would have to wait for the transfer. The pass does nothing
 * where the peak would exceed memory. */
titan_status pass_hold(struct program *p, const struct pass_options *options, struct titan_error *err) TITAN_MUST_USE;

/* Asynchronous tensor parallelism: gather-then-multiply and multiply-then-scatter over tp in `pieces` row blocks. Each
 * piece's transfer runs beside another piece's product. A rank's tokens are then block-cyclic (block r of each piece)
 * instead of one block. All token transfers are cut in the same way, so the pieces arrive in natural order and nothing
 * else changes. If a program's rows cannot be divided into equal pieces, the program stays as it is. */
titan_status pass_async_tensor(struct program *p, int pieces, struct titan_error *err) TITAN_MUST_USE;

#endif
