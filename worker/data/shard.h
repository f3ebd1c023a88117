/* SPDX-License-Identifier: Apache-2.0 */
/* shard.h - Titan's own token files: a folder of shards with one description, specified in docs/data.md.
 *
 *   DIR/titan-data.json    the description (struct shard_set); written last, so a folder without it is unfinished
 *   DIR/shard-00000.bin    a header of 64 bytes, token ids of 16 or 32 bits, zeros up to a multiple of 8, and the place
 * of each document's first token, 64 bits each, with the number of tokens after the last; in version 2 then a mask, a
 * bit per token, lowest first, zeros up to a multiple of 8 bytes: 1 is trained on
 *
 * All numbers are little-endian. A document ends with the eos token and lies in one shard. */
#ifndef TITAN_WORKER_DATA_SHARD_H
#define TITAN_WORKER_DATA_SHARD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/corpus.h"

#define SHARD_MAGIC "TITANTOK"
#define SHARD_VERSION 1
#define SHARD_VERSION_MASKED 2 /* with a mask */
#define SHARD_HEADER_BYTES 64
#define SHARD_SET_NAME "titan-data.json"
#define SHARD_BUILD_NAME "titan-build.json" /* a file beside the description: the build's inputs and progress */

/* A shard's header as stored. */
struct shard_header {
    char magic[8];
    uint32_t version, width; /* width: 2 or 4 bytes per id */
    uint64_t tokens, documents, tokenizer_hash;
    uint32_t id_max, eos;
    uint32_t tokens_crc, index_crc; /* CRC-32C of tokens and of index with mask, without padding */
    uint32_t reserved, header_crc;  /* 0; CRC-32C of the 60 bytes before */
};
_Static_assert(sizeof(struct shard_header) == SHARD_HEADER_BYTES, "a shard's header is 64 bytes");

/* Reads the header from a file of `bytes` bytes, and checks it against that size. */
titan_status shard_header_read(const char *path, const void *file, uint64_t bytes, struct shard_header *ret,
                               struct titan_error *err) TITAN_MUST_USE;
/* Verifies both checksums over the whole file. TITAN_ECORRUPT: one is wrong. */
titan_status shard_verify(const char *path, const void *file, const struct shard_header *h,
                          struct titan_error *err) TITAN_MUST_USE;
/* Offsets of the index and of the mask in the file, and the mask's size, 0 = none. */
uint64_t shard_index_at(const struct shard_header *h);
uint64_t shard_mask_at(const struct shard_header *h);
uint64_t shard_mask_bytes(const struct shard_header *h);

/* --- a set -------------------------------------------------------------------------------------------------------- */

struct shard_info {
    uint64_t tokens, documents;
    uint32_t tokens_crc, index_crc;
};

struct shard_set {
    char tokenizer[512]; /* the tokenizer's name as the user gave it */
    char pattern[1024];  /* tokenizer_pattern() */
    uint64_t tokenizer_hash;
    int64_t vocab_size;
    int32_t eos, id_max;
    uint32_t width;
    uint64_t tokens, documents, text_bytes, bad_records;
    struct shard_info *shards;
    size_t n, cap;
};
void shard_set_clear(struct shard_set *set);
/* Does the folder hold a set, finished or not? */
bool shard_folder(const char *path);
/* TITAN_EINVAL: the build is not finished; TITAN_ECORRUPT, TITAN_EVERSION: this version cannot read it. */
titan_status shard_set_read(const char *dir, struct shard_set *ret, struct titan_error *err) TITAN_MUST_USE;
titan_status shard_set_write(const char *dir, const struct shard_set *set, struct titan_error *err) TITAN_MUST_USE;
void shard_path(const char *dir, size_t i, char ret[PATH_MAX]);

/* Opens a folder, or a single shard, as a corpus; *ret says how the data was made; for a single shard, only as far as
 * its header says it. Small sets are verified at once. */
titan_status corpus_open_shards(struct corpus *c, const char *path, struct shard_set *ret,
                                struct titan_error *err) TITAN_MUST_USE;

/* --- writing ------------------------------------------------------------------------------------------------------ */

struct shard_writer;
/* Writes to PATH.part. shard_writer_finish syncs the file to disk and renames it to PATH. */
titan_status shard_writer_open(const char *path, uint32_t width, uint64_t tokenizer_hash, int32_t eos,
                               struct shard_writer **ret, struct titan_error *err) TITAN_MUST_USE;
/* ids: n of `width` bytes each. trained: 0 or 1 per id; NULL: no mask. Either all calls have it or no call. */
titan_status shard_writer_add(struct shard_writer *w, const void *ids, const uint8_t *trained, uint64_t n,
                              uint32_t id_max, struct titan_error *err) TITAN_MUST_USE;
/* Ends the current document. */
titan_status shard_writer_end_document(struct shard_writer *w, struct titan_error *err) TITAN_MUST_USE;
uint64_t shard_writer_tokens(const struct shard_writer *w);
/* Closes w in any case. */
titan_status shard_writer_finish(struct shard_writer *w, struct shard_info *ret, uint32_t *ret_id_max,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Closes w and removes its file; NULL is fine. */
void shard_writer_abandon(struct shard_writer *w);

#endif
