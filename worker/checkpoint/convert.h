/* SPDX-License-Identifier: Apache-2.0 */
/* convert.h - a checkpoint as a Hugging Face directory that transformers' LlamaForCausalLM opens.
 *
 * Names and layouts are changed as transformers expects. Our rotary embedding turns adjacent pairs (2i, 2i+1) of a
 * head, theirs pairs (i, i + D/2); so the rows of each head of wq and wk move: their row i is our row 2i, their row
 * D/2 + i our row 2i+1. Scores, which are dot products over a head, stay the same. */
#ifndef TITAN_WORKER_CHECKPOINT_CONVERT_H
#define TITAN_WORKER_CHECKPOINT_CONVERT_H

#include <stdint.h>

#include "base/error.h"
#include "base/options.h"

/* Rows of w (heads*d, cols), from adjacent pairs to halves and back. in and out must not overlap; d is even. */
void convert_pairs_to_halves(float *out, const float *in, int64_t heads, int64_t d, int64_t cols);
void convert_halves_to_pairs(float *out, const float *in, int64_t heads, int64_t d, int64_t cols);

/* Write out_dir (made if missing): model.safetensors, or several with an index above 2 GB each; config.json,
 * generation_config.json and, for a tokenizer of bytes, tokenizer.json and tokenizer_config.json. dtype: "bf16" (round
 * to nearest even) or "f32". config.json comes last: with it the directory is complete. */
titan_status convert_checkpoint(const char *checkpoint, const char *out_dir, const char *dtype,
                                struct titan_error *err) TITAN_MUST_USE;

extern const struct command convert_command; /* titan-worker convert */

#endif
