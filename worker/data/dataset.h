/* SPDX-License-Identifier: Apache-2.0 */
/* dataset.h - training samples as a pure function of (seed, step, position).
 *
 * The corpus is the bytes of one file or of every regular file below a folder (in path order), tokenised; documents are
 * separated by one end-of-text token. It is cut into windows of seq_len+1 tokens at multiples of seq_len (inputs are
 * the first seq_len, targets the last). Sample number g = step*global_batch + i of a run reads window permute(seed,
 * epoch g/windows)(g % windows): a stateless permutation per pass over the data (base/rng.h), so that there is no
 * loader state and every sample is seen exactly once a pass, whatever the world size.
 *
 * Thread: any one thread at a time. Files are mapped read-only; a file that is truncated while mapped is an error at
 * open only. */
#ifndef TITAN_WORKER_DATA_DATASET_H
#define TITAN_WORKER_DATA_DATASET_H

#include <stdint.h>

#include "base/error.h"

struct dataset;

struct dataset_options {
    const char *path;      /* file or folder */
    const char *tokenizer; /* "bytes": token = byte, vocabulary 256, separator 0 */
    int64_t seq_len;
    uint64_t seed;
    uint64_t corpus_bytes_max; /* stop collecting files beyond it; 0 = 1 GiB */
};

/* TITAN_ENOTFOUND: no such path; TITAN_EINVAL: it cannot be opened or read, or it has fewer than one window of data,
 * with both numbers in the message. What cannot be read below a folder is left out and counted. */
titan_status dataset_open(const struct dataset_options *options, struct dataset **ret,
                          struct titan_error *err) TITAN_MUST_USE;
void dataset_close(struct dataset *ds);
int64_t dataset_vocabulary(const struct dataset *ds);
uint64_t dataset_tokens(const struct dataset *ds);
uint64_t dataset_windows(const struct dataset *ds);
/* Over the documents in their order: path below options.path and size in bytes. Alike where the same corpus is read. */
uint64_t dataset_hash(const struct dataset *ds);
/* How many files and folders could not be read. *ret_first: the first of them and why. */
uint64_t dataset_left_out(const struct dataset *ds, const char **ret_first);
/* The token between two documents. */
int32_t dataset_separator(const struct dataset *ds);
/* Sample g: inputs and targets (seq_len each). A target of -1 is not counted in the loss. */
void dataset_sample(const struct dataset *ds, uint64_t g, int32_t *inputs, int32_t *targets);

#endif
