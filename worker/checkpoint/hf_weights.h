/* SPDX-License-Identifier: Apache-2.0 */
/* hf_weights.h - a weights folder of transformers: model.safetensors, or shards with model.safetensors.index.json, and
 * config.json.
 *
 * All content is checked: names of shards are plain names, and each tensor is where the index has it. Before a load,
 * the files must have exactly the model's tensors, with their shapes. Experts of gpt-oss may be in MXFP4 (mxfp4.h).
 * Read-only once open; any mesh reads the slices it needs. */
#ifndef TITAN_WORKER_CHECKPOINT_HF_WEIGHTS_H
#define TITAN_WORKER_CHECKPOINT_HF_WEIGHTS_H

#include <limits.h>

#include "base/hf_config.h"
#include "worker/checkpoint/apart.h"
#include "worker/checkpoint/hf_names.h"
#include "worker/tensor/shard_slice.h"

struct hf_weights;

/* Is there a weights folder at the path? Checks names only; pytorch_model.bin counts, but is never read. */
bool hf_weights_are_at(const char *path);
/* TITAN_ENOTFOUND: the folder or a shard is missing; TITAN_ECORRUPT: a file is damaged. Every message names path. */
titan_status hf_weights_open(const char *path, struct hf_weights **ret, struct titan_error *err) TITAN_MUST_USE;
void hf_weights_close(struct hf_weights *w); /* NULL is fine */
const struct hf_config *hf_weights_config(const struct hf_weights *w);

/* Do the weights fit the model? TITAN_ECONFLICT names the first tensor that is missing, has another shape or is
 * unknown. The embedding serves as a missing tied head. Modules of multi-token prediction may have copies of embedding
 * and head. The copies may be missing, but must equal the model's matrices. */
titan_status hf_weights_check(const struct hf_weights *w, const struct model *m,
                              struct titan_error *err) TITAN_MUST_USE;
/* Appends the parts of the files that the model does not take: layers of multi-token prediction, the coefficient of a
 * balance loss. */
void hf_weights_left_out(const struct hf_weights *w, const struct model *m, struct buf *ret_note);
/* Checks a weights folder, which has no checksums: config.json is of a known model, headers and file sizes fit, the
 * index has each tensor once and no other, and the tensors are m's (m NULL = not checked). TITAN_OK: *ret_files and
 * *ret_bytes have the totals; any other status has the fault. */
titan_status hf_weights_verify(const char *path, const struct model *m, int *ret_files, uint64_t *ret_bytes,
                               struct titan_error *err) TITAN_MUST_USE;
/* Reads a box of tensor p->tensor of the model into p->data, as fp32. watch: as in checkpoint_load. Call
 * hf_weights_check() first. */
titan_status hf_weights_read(const struct hf_weights *w, const struct model *m, const struct shard_slice *p,
                             struct apart_watch *watch, struct titan_error *err) TITAN_MUST_USE;
/* Reads the biases that choose a layer's experts (n_experts numbers); zeros if the files have none. */
titan_status hf_weights_read_biases(const struct hf_weights *w, const struct model *m, int layer, float *out,
                                    struct titan_error *err) TITAN_MUST_USE;

#endif
