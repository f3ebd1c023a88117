/* SPDX-License-Identifier: Apache-2.0 */
/* inference.h - what work with a checkpoint begins with, when nothing is trained: its model, tokenizer, device and
 * compute type. */
#ifndef TITAN_WORKER_INFER_INFERENCE_H
#define TITAN_WORKER_INFER_INFERENCE_H

#include "worker/checkpoint/trained.h"
#include "worker/device/device.h"
#include "worker/tokenizer/tokenizer.h"

struct inference_options {
    const char *checkpoint; /* or a folder of them: the newest */
    const char *tokenizer;  /* NULL: the recipe's */
    const char *pattern;    /* of the tokenizer; NULL: the recipe's */
    const char *device;     /* "cpu", "cuda", "auto"; NULL: the recipe's */
    const char *dtype;      /* "bf16", "f32"; NULL: what the run computed in */
};

struct inference {
    struct trained trained;
    struct tokenizer *tokenizer;
    struct device_handle device;
    enum dtype dt;
};

/* TITAN_EINVAL: the tokenizer cannot be opened, or has more tokens than the model. *ret is empty before;
 * inference_close leaves it so, also after a failure. Options are borrowed while it opens. */
titan_status inference_open(const struct inference_options *options, struct inference *ret,
                            struct titan_error *err) TITAN_MUST_USE;
void inference_close(struct inference *i);

#endif
