/* SPDX-License-Identifier: Apache-2.0 */
/* tensorboard.h - scalars for TensorBoard, if metrics.enable_tensorboard is set: of steps and evaluations (publish.h)
 * and of layers (layers.h). */
#ifndef TITAN_WORKER_EPOCH_TENSORBOARD_H
#define TITAN_WORKER_EPOCH_TENSORBOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/metrics/event_file.h"

struct epoch;

struct tensorboard {
    struct event_file file; /* event file of rank 0, opened at the first written step */
    bool failed;            /* the last event was not written, and this is logged */
};

/* Are TensorBoard's events, and their costly values, due at this step? They are at step 1 and every metrics.log_freq
 * steps. */
bool tensorboard_logs_step(const struct epoch *e, uint64_t step);
/* Rank 0. A failed write is a line in the log; the next event goes to a new file. */
void tensorboard_write(const struct epoch *e, uint64_t step, int64_t at_ms, const struct event_scalar *scalars, int n);

#endif
