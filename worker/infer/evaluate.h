/* SPDX-License-Identifier: Apache-2.0 */
/* evaluate.h - the loss of a checkpoint on validation data, on one rank: what an evaluation in its run gives
 * (worker/epoch/evaluation.h), with the same samples in the same order and the same program. */
#ifndef TITAN_WORKER_INFER_EVALUATE_H
#define TITAN_WORKER_INFER_EVALUATE_H

#include "base/error.h"
#include "base/options.h"
#include "worker/infer/inference.h"
#include "worker/metrics/report.h"

struct evaluate_options {
    struct inference_options inference;
    const char *data;    /* file or folder; NULL: the run's validation data */
    const char *dataset; /* its kind, as validation.dataset; NULL: the run's */
    int64_t steps;       /* -1: all of the data once; 0: as the run */
    int64_t seq_len;     /* 0: as the run */
    /* After each of its steps; NULL: not wanted. */
    void (*progress)(void *arg, uint64_t done, uint64_t steps);
    void *arg;
};

/* A run that does not validate has the samples of its training for length, those of its steps for number, and all of
 * the data. TITAN_EINVAL: no data, not enough of it, or of another tokenizer. */
titan_status evaluate_checkpoint(const struct evaluate_options *options, struct evaluation_report *ret,
                                 struct titan_error *err) TITAN_MUST_USE;

extern const struct command eval_command; /* titan-worker eval */

#endif
