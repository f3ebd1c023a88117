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
/* A folder of tokens holds files that end in .bin and nothing else, but for their .idx. */
enum data_format data_format_of(const char *path);

/* root: what was named, for messages and names; a file of the list is root itself or lies below it. */
titan_status corpus_open_text(struct corpus *c, const char *root, struct data_files *files,
                              struct titan_error *err) TITAN_MUST_USE;
/* Megatron, llm.c and nanoGPT: a file, or the .bin files of a folder, in the order of their paths. *ret_separator: the
 * id behind a document as the format has it, where the run's tokenizer does not say; -1: it has none. */
titan_status corpus_open_tokens(struct corpus *c, const char *root, enum data_format format, int32_t *ret_separator,
                                struct titan_error *err) TITAN_MUST_USE;

#endif
