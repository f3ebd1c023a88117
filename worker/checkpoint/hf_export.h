/* SPDX-License-Identifier: Apache-2.0 */
/* hf_export.h - exports a checkpoint as a Hugging Face directory for transformers (hf_names.h: names and orders). */
#ifndef TITAN_WORKER_CHECKPOINT_HF_EXPORT_H
#define TITAN_WORKER_CHECKPOINT_HF_EXPORT_H

#include "base/buf.h"
#include "base/error.h"

/* Exports into the open folder `at` (out_dir is its name for messages), or with at -1 into out_dir, made if missing.
 * checkpoint: a checkpoint, or a folder of checkpoints (the newest is exported). dtype: "F32", or "BF16", "F16"
 * (rounded to nearest even). Existing weights in the folder are removed. Writes model.safetensors, or several files of
 * 2 GiB each with an index; generation_config.json; for a tokenizer of bytes, tokenizer.json and tokenizer_config.json.
 * config.json comes last: it marks the directory as complete. Appends the parts left out to *ret_note (NULL is fine):
 * modules of multi-token prediction if the family's configuration has none. TITAN_EUNSUPPORTED: transformers has no
 * class for the model. */
titan_status hf_export(const char *checkpoint, int at, const char *out_dir, const char *dtype, struct buf *ret_note,
                       struct titan_error *err) TITAN_MUST_USE;
/* Appends the tokenizer.json for a tokenizer of bytes. */
void hf_export_byte_tokenizer(struct buf *out);

#endif
