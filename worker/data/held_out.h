/* SPDX-License-Identifier: Apache-2.0 */
/* held_out.h - a recipe's validation data, and the samples of an evaluation.
 *
 * Samples are drawn with their own seed: every evaluation of every run of a recipe uses the same samples in the same
 * order. validation.steps = -1: each sample once; the last step is filled up with samples that do not count. */
#ifndef TITAN_WORKER_DATA_HELD_OUT_H
#define TITAN_WORKER_DATA_HELD_OUT_H

#include "worker/data/dataset.h"

struct held_out {
    struct dataset *data;
    uint16_t *token_bytes; /* [vocabulary] bytes of text per token */
    uint64_t steps;        /* per evaluation */
    uint64_t samples;      /* total of an evaluation */
};

/* Opens [validation] of a resolved recipe. cache, threads: as in dataset_options. Failures of dataset_open;
 * TITAN_EINVAL: too little data for one step of an evaluation. *ret must be zeroed; held_out_close zeroes it. */
titan_status held_out_open(const struct recipe *recipe, const struct tokenizer *tokenizer, const char *cache,
                           int threads, struct held_out *ret, struct titan_error *err) TITAN_MUST_USE;
void held_out_close(struct held_out *h);

#endif
