/* SPDX-License-Identifier: Apache-2.0 */
/* tensorboard.h - scalars for TensorBoard, where metrics.enable_tensorboard asks for them: of steps and evaluations
 * (publish.h) and of layers (layers.h). */
#ifndef TITAN_WORKER_EPOCH_TENSORBOARD_H
#define TITAN_WORKER_EPOCH_TENSORBOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/metrics/event_file.h"

struct epoch;

struct tensorboard {
    struct event_file file; /* of rank 0, from the first step that it writes */
    bool failed;            /* the last event was not written, and the log says so */
};

/* Step 1 and every metrics.log_freq steps: are TensorBoard's events and what is costly for them. */
bool tensorboard_logs_step(const struct epoch *e, uint64_t step);
/* Rank 0; a file that cannot be written is a line in the log, and the next event is tried in a new one. */
void tensorboard_write(const struct epoch *e, uint64_t step, int64_t at_ms, const struct event_scalar *scalars, int n);

#endif
