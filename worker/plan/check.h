/* check.h - proof, before anything runs, that a step's programs are sound.
 *
 * Over one rank's program: operands are of the right kinds and of the action's own unit and microbatch; everything read
 * has been written; each of the rank's microbatches goes through every forward, input gradient and weight gradient
 * exactly once and its gradient reaches the reduction exactly once; nothing touches gathered parameters after their
 * release; reduction, norm, agreement, decision and update come in this order, once for every unit; buffers that live
 * at the same time do not overlap; whatever two streams both touch is ordered by waits. Over all ranks: microbatches
 * are shared out completely, and every rank issues the same collectives of the same size in the same order (no
 * deadlock). */
#ifndef TITAN_WORKER_PLAN_CHECK_H
#define TITAN_WORKER_PLAN_CHECK_H

#include "worker/plan/program.h"

/* memory_bytes: what the device has, 0 = unknown. TITAN_EBUG names rank and action; TITAN_EUNPLACEABLE: too little
 * memory, with both numbers. */
titan_status program_check(const struct program *p, uint64_t memory_bytes, struct titan_error *err) TITAN_MUST_USE;
/* Same collectives as the first one, and shares that tile the batch. Both programs have passed program_check. */
titan_status program_check_pair(const struct program *a, const struct program *b,
                                struct titan_error *err) TITAN_MUST_USE;

#endif
