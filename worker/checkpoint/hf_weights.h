/* SPDX-License-Identifier: Apache-2.0 */
/* hf_weights.h - a folder of weights as transformers writes it: model.safetensors, or shards with
 * model.safetensors.index.json, and config.json.
 *
 * Nothing in it is taken on trust: names of shards are plain names, each tensor stands where the index says, and before
 * anything is loaded every tensor of the model is there with its shape and none besides. Read-only after it is open;
 * any mesh reads the slices it needs. */
#ifndef TITAN_WORKER_CHECKPOINT_HF_WEIGHTS_H
#define TITAN_WORKER_CHECKPOINT_HF_WEIGHTS_H

#include <limits.h>

#include "base/hf_config.h"
#include "worker/checkpoint/apart.h"
#include "worker/checkpoint/hf_names.h"
#include "worker/tensor/shard_slice.h"

struct hf_weights;

/* Is there such a folder at the path? By the names in it only, pytorch_model.bin among them, which is not read. */
bool hf_weights_are_at(const char *path);
/* TITAN_ENOTFOUND: the folder or a shard is missing; TITAN_ECORRUPT: it is damaged. path names it in every message. */
titan_status hf_weights_open(const char *path, struct hf_weights **ret, struct titan_error *err) TITAN_MUST_USE;
void hf_weights_close(struct hf_weights *w); /* NULL is fine */
const struct hf_config *hf_weights_config(const struct hf_weights *w);

/* Are they the model's? TITAN_ECONFLICT names the first tensor that is missing, has another shape or is none of its.
 * A head that is not there and is tied there is the embedding's. */
titan_status hf_weights_check(const struct hf_weights *w, const struct model *m,
                              struct titan_error *err) TITAN_MUST_USE;
/* Appends what of the files no model takes. */
void hf_weights_left_out(const struct hf_weights *w, struct buf *ret_note);
/* What can be seen without checksums, which such a folder does not have: config.json is of a model that is known,
 * headers and sizes of the files fit, the index has each tensor once and no other, and, m not NULL, they are the
 * model's. TITAN_OK: *ret_files and *ret_bytes say how much it is; any other status says what is wrong. */
titan_status hf_weights_verify(const char *path, const struct model *m, int *ret_files, uint64_t *ret_bytes,
                               struct titan_error *err) TITAN_MUST_USE;
/* A box of tensor p->tensor of the model into p->data, as fp32. watch: as checkpoint_load's. After a check. */
titan_status hf_weights_read(const struct hf_weights *w, const struct model *m, const struct shard_slice *p,
                             struct apart_watch *watch, struct titan_error *err) TITAN_MUST_USE;
/* The biases with which a layer's experts are chosen (n_experts numbers); zeros where the files have none. */
titan_status hf_weights_read_biases(const struct hf_weights *w, const struct model *m, int layer, float *out,
                                    struct titan_error *err) TITAN_MUST_USE;

#endif
