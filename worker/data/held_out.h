/* SPDX-License-Identifier: Apache-2.0 */
/* held_out.h - the validation data of a recipe, and which of its samples an evaluation reads.
 *
 * Samples are drawn with a seed of their own: every evaluation of every run of a recipe has the same, in the same
 * order. validation.steps = -1: each of them once, the last step filled up with what does not count. */
#ifndef TITAN_WORKER_DATA_HELD_OUT_H
#define TITAN_WORKER_DATA_HELD_OUT_H

#include "worker/data/dataset.h"

struct held_out {
    struct dataset *data;
    uint16_t *token_bytes; /* [vocabulary] of text behind each */
    uint64_t steps;        /* of an evaluation */
    uint64_t samples;      /* of all its steps */
};

/* [validation] of a resolved recipe. cache, threads: as in dataset_options. Failures of dataset_open, and TITAN_EINVAL
 * where the data is not enough for one of validation.steps. *ret is empty before; held_out_close leaves it so. */
titan_status held_out_open(const struct recipe *recipe, const struct tokenizer *tokenizer, const char *cache,
                           int threads, struct held_out *ret, struct titan_error *err) TITAN_MUST_USE;
void held_out_close(struct held_out *h);

#endif
