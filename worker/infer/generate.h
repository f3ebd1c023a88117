/* SPDX-License-Identifier: Apache-2.0 */
/* generate.h - text from a checkpoint. */
#ifndef TITAN_WORKER_INFER_GENERATE_H
#define TITAN_WORKER_INFER_GENERATE_H

#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/options.h"

struct generate_options {
    const char *checkpoint; /* a checkpoint, or a folder: the newest checkpoint in it */
    const char *prompt;
    const char *tokenizer, *pattern; /* NULL = the recipe's */
    int64_t max_tokens;
    double temperature; /* 0 = always the most likely token */
    int64_t top_k;      /* draw among the k most likely; 0 = all */
    uint64_t seed;
    const char *device;      /* "cpu", "cuda", "auto"; NULL = the recipe's */
    const char *dtype;       /* "bf16", "f32"; NULL = the run's compute type */
    const char *logits_path; /* logits of every position of the prompt, safetensors: "logits" (T,V) F32 and "tokens"
                                (T) I32; NULL = none */
};

/* Writes the prompt and its continuation to out, token by token. Token number i is drawn with the random number of
 * (seed, i), so the same seed gives the same text. Ends after max_tokens or with the end-of-text token. Beyond the
 * trained length, the model sees the last part of the text only. */
titan_status generate_text(const struct generate_options *options, FILE *out, struct titan_error *err) TITAN_MUST_USE;

/* Index of the token drawn from logits (v): softmax at this temperature among the top_k most likely, by the uniform
 * number u in [0,1). Ties go to the lower index. work: v int32 of scratch. */
int32_t generate_draw(const float *logits, int64_t v, double temperature, int64_t top_k, double u, int32_t *work);

extern const struct command generate_command; /* titan-worker generate */

#endif
