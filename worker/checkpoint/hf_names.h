/* SPDX-License-Identifier: Apache-2.0 */
/* hf_names.h - where the files of transformers keep each tensor of a model: Llama, Qwen 3, Qwen 3 with experts,
 * DeepSeek V2 and V3.
 *
 * One of our tensors is one of theirs, or several, one below the other: the matrices of the experts. Rows stand in
 * another order where heads are rotated: our rotary embedding turns adjacent pairs (2i, 2i+1) of a head, theirs pairs
 * (i, i + D/2), so that their row i is our row 2i and their row D/2 + i our row 2i+1. Scores, which are dot products
 * over a head, stay the same. DeepSeek's turns adjacent pairs, unless its configuration has "rope_interleave": false. A
 * vector counts as a matrix of one column. */
#ifndef TITAN_WORKER_CHECKPOINT_HF_NAMES_H
#define TITAN_WORKER_CHECKPOINT_HF_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/tensor/model.h"

#define HF_NAME_MAX 128

struct hf_tensor {
    int parts; /* tensors of theirs, of `rows` rows each */
    int64_t rows, cols;
    int64_t head;  /* rows of a block in which some move; 0: none does */
    int64_t still; /* the first rows of a block, which do not */
};

/* Does transformers have a class for the model? TITAN_EUNSUPPORTED says why not. */
titan_status hf_check_model(const struct model *m, struct titan_error *err) TITAN_MUST_USE;
/* halves: of latent attention, the file has the halves of rotated rows ("rope_interleave": false). */
void hf_find(const struct model *m, int tensor, bool halves, struct hf_tensor *ret);
/* The name of a part of a tensor. */
void hf_name(const struct model *m, int tensor, int part, char out[HF_NAME_MAX]);
/* Of the biases with which a layer's experts are chosen. */
void hf_bias_name(int layer, char out[HF_NAME_MAX]);
/* Their row of a part that is our row of it. */
int64_t hf_row(const struct hf_tensor *t, int64_t row);

#endif
