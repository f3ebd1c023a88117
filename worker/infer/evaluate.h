/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.h - a checkpoint's loss on validation data, on one rank: the same result as an evaluation in the
 * checkpoint's run (worker/epoch/evaluation.h), because samples, their order and the program are the same. */
#ifndef TITAN_WORKER_INFER_EVALUATE_H
#define TITAN_WORKER_INFER_EVALUATE_H

#include "base/error.h"
#include "base/options.h"
#include "worker/infer/inference.h"
#include "worker/metrics/report.h"

struct evaluate_options {
    struct inference_options inference;
    const char *data;    /* file or folder; NULL: the run's validation data */
    const char *dataset; /* kind of the data, as validation.dataset; NULL: the run's */
    int64_t steps;       /* -1 = all of the data once; 0 = as in the run */
    int64_t seq_len;     /* 0 = as in the run */
    /* After each step; NULL = not wanted. */
    void (*progress)(void *arg, uint64_t done, uint64_t steps);
    void *arg;
};

/* If the run has no validation, sequence length and batch size are those of its training, and all of the data is used.
 * TITAN_EINVAL: there is no data, too little data, or data from another tokenizer. */
titan_status evaluate_checkpoint(const struct evaluate_options *options, struct evaluation_report *ret,
                                 struct titan_error *err) TITAN_MUST_USE;

extern const struct command eval_command; /* titan-worker eval */

#endif
