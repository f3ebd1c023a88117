/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.h - one source of training data as a stream of tokens over mapped files.
 *
 * A corpus is a sequence of segments: a segment is a file, or a part of one, with token ids of 1, 2, 4 or 8 bytes,
 * little-endian. A text file is a segment of bytes with one separator after it. If a file has an index of documents,
 * the index gives the boundaries. Otherwise a separator ends each document. Places are 64-bit. Memory is proportional
 * to the number of files, not to their size.
 *
 * Files are mapped read-only; a truncation of a mapped file goes unnoticed. Thread: any one at a time. */
#ifndef TITAN_WORKER_DATA_CORPUS_H
#define TITAN_WORKER_DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/bins.h"
#include "worker/data/files.h"

struct mapping {
    void *at; /* NULL = none */
    size_t bytes;
};

/* Where a segment's documents begin. An offset is a 64-bit number; divided by `unit`, it is the number of a token. */
struct document_index {
    const uint8_t *offsets; /* NULL = none */
    const uint8_t *select;  /* Megatron: document d begins at offset number select[d] */
    uint64_t documents, n_offsets;
    uint32_t unit;
};

struct segment {
    const uint8_t *data; /* NULL: the data is in corpus.small, at small_offset */
    size_t small_offset;
    uint64_t start, tokens; /* start: place in the stream; tokens: with the separator */
    uint32_t width;         /* bytes per token */
    bool separated;         /* the last token is the corpus's separator, which is not in the file */
    int64_t id_max;         /* upper bound of the ids; -1 = unknown */
    const uint8_t *mask;    /* a bit per token, lowest bit first; 1: the token is trained on. NULL = all tokens are */
    struct document_index index;
    struct mapping mapping, index_mapping;
};

struct corpus {
    struct segment *segments;
    size_t n, cap;
    uint8_t *small; /* contents of files too small to be mapped */
    size_t small_len, small_cap;
    uint64_t tokens, hash;
    int32_t separator;
};

/* Zeroed = an empty corpus; corpus_close zeroes it. */
void corpus_close(struct corpus *c);
/* Adds a segment and takes over its mappings, also on failure. name goes into the hash. */
titan_status corpus_add(struct corpus *c, struct segment segment, const char *name,
                        struct titan_error *err) TITAN_MUST_USE;
/* Reads n tokens from place `at` on. TITAN_ECORRUPT: an id is at least vocab_size; the message has both numbers. */
titan_status corpus_read(const struct corpus *c, uint64_t at, int64_t n, int64_t vocab_size, int32_t *ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* For each of the n tokens from `at` on: where its document begins, relative to `at`; 0 if the document begins before
 * `at`. tokens: from corpus_read. */
void corpus_starts(const struct corpus *c, uint64_t at, int64_t n, const int32_t *tokens, int32_t *ret);
/* Place of the first token of document d of a segment with an index; never beyond the segment's end. */
uint64_t corpus_document(const struct segment *s, uint64_t d);
/* `targets` has the n tokens from `at` on. Each target that is not trained on is set to -1. Returns the number of
 * tokens trained on. With targets NULL it only counts. */
int64_t corpus_mask(const struct corpus *c, uint64_t at, int64_t n, int32_t *targets);
bool corpus_masked(const struct corpus *c);
/* Lists the corpus_documents() documents in *ret; the caller frees it. TITAN_EINVAL: a file has no index. */
titan_status corpus_list_documents(const struct corpus *c, struct bin_document **ret,
                                   struct titan_error *err) TITAN_MUST_USE;
/* Number of documents: from the corpus's indexes, or the number of its text files. 0 = the corpus has no indexes and no
 * text files. */
uint64_t corpus_documents(const struct corpus *c);
/* Checks for ids too large for the model, as far as this is possible at once. It uses headers if the files have them.
 * Otherwise it reads small files whole, and evenly spread parts of others. TITAN_EINVAL: an id is too large; the
 * message has both numbers. */
titan_status corpus_check_ids(const struct corpus *c, int64_t vocab_size, struct titan_error *err) TITAN_MUST_USE;

/* Maps a regular file; TITAN_EINVAL: not a regular file, or empty. */
titan_status corpus_map(const char *path, struct mapping *ret, struct titan_error *err) TITAN_MUST_USE;
void corpus_unmap(struct mapping *m);

#endif
