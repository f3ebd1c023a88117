/* SPDX-License-Identifier: Apache-2.0 */
/* recompute.h - activation recomputation (Chen et al. 2016, arXiv:1604.06174): actions written a second time. */
#ifndef TITAN_WORKER_PLAN_RECOMPUTE_H
#define TITAN_WORKER_PLAN_RECOMPUTE_H

#include "worker/program/emit.h"

struct action_range {
    int from, to; /* [from, to) */
};

/* Writes the actions of a range once more. Buffers that they define are replaced by new buffers. Only actions that the
 * needed tensors (n) depend on are written. keep() gets a buffer and the action that defined it; if it returns true,
 * the old buffer is used. Afterwards the needed tensors refer to the new buffers. */
void recompute_actions(struct emitter *e, struct action_range range,
                       bool (*keep)(void *arg, const struct action *a, int buffer), void *arg,
                       struct tensor *const *needed, int n);

#endif
