/* SPDX-License-Identifier: Apache-2.0 */
/* load_state.h - a rank's part of the training state from a checkpoint, whatever mesh wrote it. */
#ifndef TITAN_WORKER_CHECKPOINT_LOAD_STATE_H
#define TITAN_WORKER_CHECKPOINT_LOAD_STATE_H

#include <stdatomic.h>

#include "worker/state/state.h"

/* Masters, moments, biases and numbers from a checkpoint directory, whatever mesh wrote it. TITAN_EREVOKED: *stop is
 * not zero any more (NULL: never); TITAN_ETIMEDOUT: nothing more of it was read for still_ms (0: it is waited for). */
titan_status checkpoint_load_state(struct train_state *state, const char *path, uint64_t recipe_hash, int still_ms,
                                   const atomic_int *stop, struct stream *s, struct titan_error *err) TITAN_MUST_USE;

#endif
