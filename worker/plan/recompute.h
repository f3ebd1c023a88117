/* SPDX-License-Identifier: Apache-2.0 */
/* recompute.h - activation recomputation (Chen et al. 2016, arXiv:1604.06174): actions written a second time. */
#ifndef TITAN_WORKER_PLAN_RECOMPUTE_H
#define TITAN_WORKER_PLAN_RECOMPUTE_H

#include "worker/program/emit.h"

/* Write actions [from, to) once more, with new buffers in place of those they define, but only what the needed tensors
 * take: a buffer for which keep says yes (with the action that defined it) is used as it is. needed (n) are then the
 * tensors of the new buffers. */
void recompute_actions(struct emitter *e, int from, int to, bool (*keep)(void *arg, const struct action *a, int buffer),
                       void *arg, struct tensor *const *needed, int n);

#endif
