/* SPDX-License-Identifier: Apache-2.0 */
/* hf_names.h - where the files of transformers keep each tensor of a model: the common part of all families, with each
 * family's names from base/hf_families.h.
 *
 * "Ours" is a tensor of Titan's model, "theirs" a tensor in the files. Our tensor is one of theirs, or several of
 * theirs stacked (the experts' matrices), or rows of one of theirs (queries, keys and values in one matrix). Rotated
 * heads have another order of rows: our rotary embedding turns adjacent pairs (2i, 2i+1) of a head, theirs turns pairs
 * (i, i + R/2) of the head's R rotated rows. So their row i is our row 2i, and their row R/2 + i is our row 2i+1.
 * Scores, dot products over a head, stay the same. DeepSeek's embedding turns adjacent pairs, unless its configuration
 * has "rope_interleave": false. A vector counts as a matrix of one column.
 * gpt-oss has the matrices of all experts in one tensor, each transposed, with rows of gate and up in turn. */
#ifndef TITAN_WORKER_CHECKPOINT_HF_NAMES_H
#define TITAN_WORKER_CHECKPOINT_HF_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hf_families.h"
#include "worker/tensor/model.h"

#define HF_NAME_MAX 128

struct hf_tensor {
    int parts;    /* number of their tensors, with `rows` rows each */
    bool stacked; /* the parts are in one tensor: matrices (parts,cols,whole), or vectors (parts,whole) */
    int64_t rows, cols;
    int64_t step; /* distance in their rows between two of our rows; not 1: another tensor's rows lie between */
    int ndim;     /* dimensions of their tensor */
    int64_t shape[3];
    int64_t head;  /* rows of a block with reordered rows; 0 = no reordering */
    int64_t still; /* a block's rows: first `still` unchanged rows, then `moved` reordered rows, then unchanged rows */
    int64_t moved;
    int64_t from, whole; /* first of our rows in their part, and the part's number of rows */
};

/* halves: latent attention's rotated rows are stored as halves in the file ("rope_interleave": false). */
void hf_find(const struct hf_family *f, const struct model *m, int tensor, bool halves, struct hf_tensor *ret);
/* Their name of a part of a tensor. */
void hf_name(const struct hf_family *f, const struct model *m, int tensor, int part, char out[HF_NAME_MAX]);
/* Their name of the copy of the embedding, or of the head (ROLE_OUTPUT), in a module of multi-token prediction. module:
 * from 1 on. */
void hf_shared_name(const struct model *m, enum tensor_role role, int module, char out[HF_NAME_MAX]);
/* Their name of the biases that choose a layer's experts. */
void hf_bias_name(const struct hf_family *f, int layer, char out[HF_NAME_MAX]);
/* Their row in a part for our row, 0 <= row < rows. */
int64_t hf_row(const struct hf_tensor *t, int64_t row);

#endif
