/* SPDX-License-Identifier: Apache-2.0 */
/* corpus.h - one source of training data as a stream of tokens over mapped files.
 *
 * A corpus is an array of segments, one behind the other: a segment is a file, or a part of one, that holds token ids
 * of 1, 2, 4 or 8 bytes, little-endian. A text file is a segment of bytes with one separator behind it. Where the file
 * has an index of documents, boundaries are the index's; elsewhere a separator ends its document. Reading takes 64-bit
 * places and memory in proportion to the number of files, not to their size.
 *
 * Files are mapped read-only; one that is truncated while it is mapped is not noticed. Any one thread at a time. */
#ifndef TITAN_WORKER_DATA_CORPUS_H
#define TITAN_WORKER_DATA_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/bins.h"
#include "worker/data/files.h"

struct mapping {
    void *at; /* NULL: none */
    size_t bytes;
};

/* Where the documents of a segment begin; offset d is a 64-bit number of `unit` bytes a token. */
struct document_index {
    const uint8_t *offsets; /* NULL: there is none */
    const uint8_t *select;  /* Megatron: document d begins at offset number select[d] */
    uint64_t documents, n_offsets;
    uint32_t unit;
};

struct segment {
    const uint8_t *data; /* NULL: in corpus.small, at small_offset */
    size_t small_offset;
    uint64_t start, tokens; /* place in the stream; tokens with the separator */
    uint32_t width;         /* bytes a token */
    bool separated;         /* the last token is the corpus's separator and in no file */
    int64_t id_max;         /* no id is larger; -1: not known */
    const uint8_t *mask;    /* a bit a token, from the lowest on: trained on; NULL: all are */
    struct document_index index;
    struct mapping mapping, index_mapping;
};

struct corpus {
    struct segment *segments;
    size_t n, cap;
    uint8_t *small; /* files too small to be mapped, one after the other */
    size_t small_len, small_cap;
    uint64_t tokens, hash;
    int32_t separator;
};

/* All zero is an empty corpus; corpus_close leaves it so. */
void corpus_close(struct corpus *c);
/* Takes over what the segment has mapped, also when it fails. name goes into the hash. */
titan_status corpus_add(struct corpus *c, struct segment segment, const char *name,
                        struct titan_error *err) TITAN_MUST_USE;
/* n tokens from place `at` on. TITAN_ECORRUPT: an id is vocab_size or more, with both numbers. */
titan_status corpus_read(const struct corpus *c, uint64_t at, int64_t n, int64_t vocab_size, int32_t *ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* For each of the n tokens from `at` on: where its document begins, counted from `at`; 0 where that lies before.
 * tokens: what corpus_read gave. */
void corpus_starts(const struct corpus *c, uint64_t at, int64_t n, const int32_t *tokens, int32_t *ret);
/* The first token of document d of a segment with an index; not beyond its end, whatever the index says. */
uint64_t corpus_document(const struct segment *s, uint64_t d);
/* Of n targets, which are the tokens from `at` on: -1 in the place of those that are not trained on. Returns how many
 * are. targets NULL: counts only. */
int64_t corpus_mask(const struct corpus *c, uint64_t at, int64_t n, int32_t *targets);
bool corpus_masked(const struct corpus *c);
/* Where the documents are: *ret has corpus_documents() of them, to be freed. TITAN_EINVAL: a file has no index. */
titan_status corpus_list_documents(const struct corpus *c, struct bin_document **ret,
                                   struct titan_error *err) TITAN_MUST_USE;
/* By its indexes, or files of text; 0: it has neither. */
uint64_t corpus_documents(const struct corpus *c);
/* Ids that are too large for the model, as far as they are known at once: by headers, else by reading the whole of
 * what is small and evenly spread parts of what is not. TITAN_EINVAL with both numbers. */
titan_status corpus_check_ids(const struct corpus *c, int64_t vocab_size, struct titan_error *err) TITAN_MUST_USE;

/* Maps a regular file; TITAN_EINVAL where it is none, or empty. */
titan_status corpus_map(const char *path, struct mapping *ret, struct titan_error *err) TITAN_MUST_USE;
void corpus_unmap(struct mapping *m);

#endif
