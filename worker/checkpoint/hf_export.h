/* SPDX-License-Identifier: Apache-2.0 */
/* hf_export.h - a checkpoint as a Hugging Face directory that transformers opens (hf_names.h: names and orders). */
#ifndef TITAN_WORKER_CHECKPOINT_HF_EXPORT_H
#define TITAN_WORKER_CHECKPOINT_HF_EXPORT_H

#include "base/buf.h"
#include "base/error.h"

/* Write into the open folder at, which out_dir names in messages; -1: out_dir is made if missing: model.safetensors, or
 * several with an index above 2 GiB each; config.json, generation_config.json and, for a tokenizer of bytes,
 * tokenizer.json and tokenizer_config.json. checkpoint: one, or a folder of them (the newest). Weights of those names
 * that are there already are removed. dtype: "F32", or "BF16", "F16" (rounded to nearest even). config.json comes last:
 * with it the directory is complete. TITAN_EUNSUPPORTED: transformers has no class for the model. */
titan_status hf_export(const char *checkpoint, int at, const char *out_dir, const char *dtype,
                       struct titan_error *err) TITAN_MUST_USE;
/* Appends the tokenizer.json that a tokenizer of bytes gets. */
void hf_export_byte_tokenizer(struct buf *out);

#endif
