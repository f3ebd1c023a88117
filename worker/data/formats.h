/* SPDX-License-Identifier: Apache-2.0 */
/* formats.h - the kinds of files that a corpus is made of.
 *
 *   text       the bytes of each file, for the tokenizer "bytes"; a file with a NUL in its first 4 KiB is no text
 *   shards     what `titanctl data build` writes (shard.h)
 *   Megatron   NAME.bin with NAME.idx: "MMIDIDX", version 1 (Megatron-LM, megatron/core/datasets/indexed_dataset.py)
 *   llm.c      256 32-bit numbers, then ids: magic 20240520 (16 bits) and 20240801 (version 1: 16, version 7: 32 bits)
 *   nanoGPT    nothing but ids: of 32 bits where the name ends in ".u32.bin", otherwise of 16
 *
 * Pure of the run: what a path is shows in its name and its first bytes. */
#ifndef TITAN_WORKER_DATA_FORMATS_H
#define TITAN_WORKER_DATA_FORMATS_H

#include "worker/data/corpus.h"
#include "worker/data/files.h"

enum data_format { DATA_TEXT, DATA_SHARDS, DATA_MEGATRON, DATA_LLMC, DATA_NANOGPT };
/* "text", "shards", "Megatron", "llm.c", "nanoGPT". */
const char *data_format_name(enum data_format format);
/* A folder or a pattern is one of tokens where it has .bin files with a header, or "train" in the name of one; or none
 * but such files, and what lies beside them (meta.pkl, prepare.py, input.txt, ...). */
enum data_format data_format_of(const char *path);
/* The files of the path that are of the format, but shards, and of the split. *ret is
 * empty before, and has what is left out also after a failure. TITAN_EINVAL: there are none, with what is left out. */
titan_status data_format_files(const char *path, enum data_format format, enum data_split split, struct data_files *ret,
                               struct titan_error *err) TITAN_MUST_USE;

/* The bytes of the files. What is no text is left out of them. A file that is packed or UTF-16 is not its text: with
 * `decodes`, *ret_encoded is true then, and the corpus not all of it; without, the file is left out. */
titan_status corpus_open_text(struct corpus *c, struct data_files *files, bool decodes, bool *ret_encoded,
                              struct titan_error *err) TITAN_MUST_USE;
/* Megatron, llm.c and nanoGPT, in the order of the files. *ret_separator: the id behind a document as the format has
 * it, where the run's tokenizer does not say; -1: it has none. */
titan_status corpus_open_tokens(struct corpus *c, const struct data_files *files, enum data_format format,
                                int32_t *ret_separator, struct titan_error *err) TITAN_MUST_USE;

#endif
