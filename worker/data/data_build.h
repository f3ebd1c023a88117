/* SPDX-License-Identifier: Apache-2.0 */
/* data_build.h - text into shards of tokens (shard.h).
 *
 * One thread reads and unpacks the files in order and cuts them into pieces, threads make tokens of the pieces, and the
 * caller's thread writes them in order: what is written does not depend on the number of threads. Behind each document
 * comes the tokenizer's end of text. A build that was ended goes on behind its last whole shard when it is given again,
 * and ends with the same bytes.
 *
 * Documents: of a text file the whole; of a file of JSON lines (.jsonl, .ndjson, .json) the field of each line, or,
 * where it has an array or records over several lines, of each record. A folder that has any of these gives these
 * alone. A text of more than a piece is tokenised in pieces that end with a line: byte-level BPE with the patterns of
 * GPT-2, Llama 3 and Qwen gives the same ids as for the whole. Bad records (records that are no such JSON, or of more
 * than 1 GiB; packed data that is damaged, with what would follow in the file) are left out and counted. */
#ifndef TITAN_WORKER_DATA_DATA_BUILD_H
#define TITAN_WORKER_DATA_DATA_BUILD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/chat.h"
#include "worker/data/decoded.h"
#include "worker/data/files.h"
#include "worker/tokenizer/tokenizer.h"

#define BUILD_NOTES 5
#define BUILD_SHARD_TOKENS (INT64_C(1) << 28)

enum build_files { BUILD_AUTO, BUILD_TEXT, BUILD_JSONL, BUILD_SFT };

struct build_progress {
    uint64_t bytes, bytes_all; /* of the files, as they lie on disk */
    uint64_t documents, tokens;
};

struct build_options {
    const char *const *inputs; /* files, folders and patterns */
    int n_inputs;
    const char *out; /* made where it is missing */
    const struct tokenizer *tokenizer;
    const char *tokenizer_name;
    enum build_files files;
    const char *c4_split;        /* of a folder that has files with "c4-SPLIT" in their names, these alone; NULL: all */
    enum data_split split;       /* of a folder or a pattern */
    const char *field;           /* NULL: "text" */
    struct chat_options chat;    /* BUILD_SFT: records are conversations */
    enum text_encoding encoding; /* of files without a byte order mark */
    const int32_t *eos;          /* behind each document, in place of the tokenizer's end of text; NULL: that */
    bool bos;                    /* begin of text in front of each document, where the tokenizer has one */
    bool strict;                 /* the first bad record ends it */
    bool fresh;                  /* over what is in the folder */
    bool wait;                   /* for another build into the folder, instead of refusing */
    int threads;
    int64_t shard_tokens;                                          /* a shard ends with the document that reaches it */
    void (*progress)(void *arg, const struct build_progress *now); /* on the caller's thread; NULL: none */
    void *progress_arg;
};

struct build_report {
    uint64_t files; /* that are read */
    struct data_left_out left_out;
    uint64_t replaced; /* bytes of text that are not UTF-8 */
    uint64_t documents, tokens, text_bytes, bad_records, shards;
    char notes[BUILD_NOTES][320]; /* the first bad records: file, line, what is wrong */
    int n_notes;
    bool there; /* the folder had all of it */
    bool resumed;
};

/* TITAN_EEXIST: the folder has something else; TITAN_ECONFLICT: another process builds there, or an unfinished build is
 * of something else. After a failure the folder is what a build can go on from; where no shard is whole it is as it was
 * before, unless others wait for it. */
titan_status data_build(const struct build_options *options, struct build_report *ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* Of what goes in: the tokenizer, names, sizes and times of files, and what else decides the bytes that come out; and
 * the bytes of the files. TITAN_EINVAL: there are none of the kind. */
titan_status data_build_inputs(const struct build_options *options, uint64_t *ret_hash, uint64_t *ret_bytes,
                               struct titan_error *err) TITAN_MUST_USE;

/* Is the file one of JSON lines by its name? */
bool data_build_reads_lines(const char *path);

#endif
