/* SPDX-License-Identifier: Apache-2.0 */
/* layers.h - values of single layers: norms of each unit's gradient and masters, and the tokens of each expert. Written
 * to JOB_DIR/layers.jsonl and TensorBoard's event files if metrics.log_layers is set. */
#ifndef TITAN_WORKER_EPOCH_LAYERS_H
#define TITAN_WORKER_EPOCH_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct epoch;

/* Lives as long as an epoch. Written by layers.c only. */
struct layers {
    const float **masters; /* [units] as in exec_batch; NULL: not wanted, or not fp32 on the device */
    bool failed;           /* the last line could not be written, and the log has been told */
};

titan_status layers_open(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
void layers_close(struct epoch *e);
/* Masters for the current step's batch; NULL: no norms of masters are wanted. */
const float *const *layers_masters(const struct epoch *e);
/* Writes the values of the last agreed step, whose statistics the executor still has. Ranks other than 0 do nothing. A
 * failed write is a line in the log; the next step tries again. */
void layers_write(struct epoch *e, uint64_t step, int64_t at_ms);

#endif
