/* SPDX-License-Identifier: Apache-2.0 */
/* hf_names.h - where the files of transformers keep each tensor of a model: what the families have in common, with the
 * names of base/hf_families.h that are their own.
 *
 * One of our tensors is one of theirs, or several, one below the other (the matrices of the experts), or rows of one
 * (queries, keys and values in one matrix). Rows stand in another order where heads are rotated: our rotary embedding
 * turns adjacent pairs (2i, 2i+1) of a head, theirs pairs (i, i + R/2) of its R rotated rows, so that their row i is
 * our row 2i and their row R/2 + i our row 2i+1. Scores, which are dot products over a head, stay the same. DeepSeek's
 * turns adjacent pairs, unless its configuration has "rope_interleave": false. A vector counts as a matrix of one
 * column. */
#ifndef TITAN_WORKER_CHECKPOINT_HF_NAMES_H
#define TITAN_WORKER_CHECKPOINT_HF_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hf_families.h"
#include "worker/tensor/model.h"

#define HF_NAME_MAX 128

struct hf_tensor {
    int parts; /* tensors of theirs, of `rows` rows each */
    int64_t rows, cols;
    int64_t head;  /* rows of a block in which some move; 0: none does */
    int64_t still; /* the first rows of a block, which do not; those behind them that do, and the rest does not */
    int64_t moved;
    int64_t from, whole; /* first row of ours in a part of theirs, and the rows that it has */
};

/* halves: of latent attention, the file has the halves of rotated rows ("rope_interleave": false). */
void hf_find(const struct hf_family *f, const struct model *m, int tensor, bool halves, struct hf_tensor *ret);
/* The name of a part of a tensor. */
void hf_name(const struct hf_family *f, const struct model *m, int tensor, int part, char out[HF_NAME_MAX]);
/* Of the biases with which a layer's experts are chosen. */
void hf_bias_name(const struct hf_family *f, int layer, char out[HF_NAME_MAX]);
/* Their row of a part that is our row of it, 0 <= row < rows. */
int64_t hf_row(const struct hf_tensor *t, int64_t row);

#endif
