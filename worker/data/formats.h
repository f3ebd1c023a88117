/* SPDX-License-Identifier: Apache-2.0 */
/* formats.h - the kinds of files in a corpus.
 *
 *   text       the bytes of each file, for the tokenizer "bytes"; a file with a NUL in its first 4 KiB is no text
 *   shards     output of `titanctl data build` (shard.h)
 *   Megatron   NAME.bin with NAME.idx: "MMIDIDX", version 1 (Megatron-LM, megatron/core/datasets/indexed_dataset.py)
 *   llm.c      256 32-bit numbers, then ids: magic 20240520 (16 bits) and 20240801 (version 1: 16, version 7: 32 bits)
 *   nanoGPT    ids only: of 32 bits if the name ends in ".u32.bin", otherwise of 16
 *
 * The format depends only on a file's name and first bytes, not on the run. */
#ifndef TITAN_WORKER_DATA_FORMATS_H
#define TITAN_WORKER_DATA_FORMATS_H

#include "worker/data/corpus.h"
#include "worker/data/files.h"

enum data_format { DATA_TEXT, DATA_SHARDS, DATA_MEGATRON, DATA_LLMC, DATA_NANOGPT };
/* "text", "shards", "Megatron", "llm.c", "nanoGPT". */
const char *data_format_name(enum data_format format);
/* A folder or a pattern has files of tokens under one of three conditions: .bin files with a header, .bin files with
 * "train" in a name, or only .bin files and their companions (meta.pkl, prepare.py, input.txt, ...). */
enum data_format data_format_of(const char *path);
/* The path's files of the format (not shards) and of the split. *ret must be zeroed. Also after a failure it has the
 * files that were left out. TITAN_EINVAL: no such files; the message has the files left out. */
titan_status data_format_files(const char *path, enum data_format format, enum data_split split, struct data_files *ret,
                               struct titan_error *err) TITAN_MUST_USE;

/* Opens the bytes of the files, and removes files that are no text from the list. A packed or UTF-16 file needs
 * decoding: with `decodes`, *ret_encoded becomes true and the corpus is incomplete; without `decodes`, the file is left
 * out. */
titan_status corpus_open_text(struct corpus *c, struct data_files *files, bool decodes, bool *ret_encoded,
                              struct titan_error *err) TITAN_MUST_USE;
/* Opens files of Megatron, llm.c or nanoGPT, in their order. *ret_separator: the format's own separator of documents,
 * for a tokenizer that has no separator; -1 = none. */
titan_status corpus_open_tokens(struct corpus *c, const struct data_files *files, enum data_format format,
                                int32_t *ret_separator, struct titan_error *err) TITAN_MUST_USE;

#endif
