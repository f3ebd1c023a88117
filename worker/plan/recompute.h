/* SPDX-License-Identifier: Apache-2.0 */
/* recompute.h - activation recomputation (Chen et al. 2016, arXiv:1604.06174): actions written a second time. */
#ifndef TITAN_WORKER_PLAN_RECOMPUTE_H
#define TITAN_WORKER_PLAN_RECOMPUTE_H

#include "worker/program/emit.h"

struct action_range {
    int from, to; /* [from, to) */
};

/* Writes actions once more, with new buffers in place of the buffers that they define. It writes only the
 * actions that the needed tensors take. keep() is asked with a buffer and the action that defined it; true: the buffer
 * is used as it is. The needed tensors (n) then refer to the new buffers. */
void recompute_actions(struct emitter *e, struct action_range range,
                       bool (*keep)(void *arg, const struct action *a, int buffer), void *arg,
                       struct tensor *const *needed, int n);

#endif
