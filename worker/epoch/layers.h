/* SPDX-License-Identifier: Apache-2.0 */
/* layers.h - what is known of single layers: norms of each unit's gradient and masters, and the tokens of each expert,
 * in JOB_DIR/layers.jsonl and TensorBoard's event files, where metrics.log_layers asks for them. */
#ifndef TITAN_WORKER_EPOCH_LAYERS_H
#define TITAN_WORKER_EPOCH_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct epoch;

/* As long as an epoch. Written by layers.c only. */
struct layers {
    const float **masters; /* [units] as exec_batch has them; NULL: not asked for, or not fp32 on the device */
    bool failed;           /* the last line was not written, and the log says so */
};

titan_status layers_open(struct epoch *e, struct titan_error *err) TITAN_MUST_USE;
void layers_close(struct epoch *e);
/* For the batch of the step under way; NULL: its masters are not asked for. */
const float *const *layers_masters(const struct epoch *e);
/* The last step agreed on; the executor has its statistics still. Rank 0; others do nothing. A file that cannot be
 * written is a line in the log; the next step tries again. */
void layers_write(struct epoch *e, uint64_t step, int64_t at_ms);

#endif
