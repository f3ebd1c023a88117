/* SPDX-License-Identifier: Apache-2.0 */
/* inference.h - opens a checkpoint without training: its model, tokenizer, device and compute type. */
#ifndef TITAN_WORKER_INFER_INFERENCE_H
#define TITAN_WORKER_INFER_INFERENCE_H

#include "worker/checkpoint/trained.h"
#include "worker/device/device.h"
#include "worker/tokenizer/tokenizer.h"

struct inference_options {
    const char *checkpoint; /* a checkpoint, or a folder: the newest checkpoint in it */
    const char *tokenizer;  /* NULL: the recipe's */
    const char *pattern;    /* pattern of the tokenizer; NULL: the recipe's */
    const char *device;     /* "cpu", "cuda", "auto"; NULL: the recipe's */
    const char *dtype;      /* "bf16", "f32"; NULL: the run's compute type */
};

struct inference {
    struct trained trained;
    struct tokenizer *tokenizer;
    struct device_handle device;
    enum dtype dt;
};

/* TITAN_EINVAL: the tokenizer cannot be opened, or has more tokens than the model. *ret must be zeroed; inference_close
 * zeroes it, also after a failure. Options are borrowed during the open. */
titan_status inference_open(const struct inference_options *options, struct inference *ret,
                            struct titan_error *err) TITAN_MUST_USE;
void inference_close(struct inference *i);

#endif
