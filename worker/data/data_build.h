/* SPDX-License-Identifier: Apache-2.0 */
/* data_build.h - tokenizes text into shards (shard.h).
 *
 * One thread reads and unpacks the files in order and cuts them into pieces, other threads tokenize the pieces, and the
 * caller's thread writes the tokens in order. So the output does not depend on the number of threads. Each document
 * ends with the tokenizer's end of text. When an interrupted build is started again, it resumes after its last whole
 * shard, and gives the same bytes.
 *
 * A text file is one document. A file of JSON lines (.jsonl, .ndjson, .json) has a document in the field of each line,
 * or of each record if the file has an array or records over several lines. If a folder has files of JSON lines, only
 * these are read. A text longer than a piece is tokenized in pieces that end with a line. Byte-level BPE with the
 * patterns of GPT-2, Llama 3 and Qwen then gives the same ids as for the whole text. Bad records are skipped and
 * counted: invalid JSON, records of more than 1 GiB, and damaged packed data with the rest of its file. */
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
    uint64_t bytes, bytes_all; /* sizes of the files as stored on disk */
    uint64_t documents, tokens;
};

struct build_options {
    const char *const *inputs; /* files, folders and patterns */
    int n_inputs;
    const char *out; /* made if missing */
    const struct tokenizer *tokenizer;
    const char *tokenizer_name;
    enum build_files files;
    const char *c4_split;     /* in a folder with "c4-SPLIT" in file names, the only split that is read; NULL = all */
    enum data_split split;    /* for a folder or a pattern */
    const char *field;        /* NULL: "text" */
    struct chat_options chat; /* BUILD_SFT: records are conversations */
    enum text_encoding encoding; /* for files without a byte order mark */
    const int32_t *eos;          /* ends each document instead of the tokenizer's end of text; NULL = the tokenizer's */
    bool bos;                    /* begins each document with the tokenizer's begin of text, if it has one */
    bool strict;                 /* the first bad record ends the build */
    bool fresh;                  /* overwrite the folder's content */
    bool wait;                   /* if another build writes into the folder, wait for it instead of failing */
    int threads;
    int64_t shard_tokens; /* a shard ends with the document that reaches this number */
    void (*progress)(void *arg, const struct build_progress *now); /* on the caller's thread; NULL = none */
    void *progress_arg;
};

struct build_report {
    uint64_t files, bytes; /* files read, and their bytes on disk */
    uint64_t line_files;   /* files of JSON lines among `files` */
    struct data_left_out left_out;
    uint64_t replaced; /* bytes of invalid UTF-8 */
    uint64_t documents, tokens, text_bytes, bad_records, shards;
    char notes[BUILD_NOTES][320]; /* the first bad records: file, line, fault */
    int n_notes;
    bool there; /* the folder already had the complete data */
    bool resumed;
};

/* TITAN_EEXIST: the folder has other content; TITAN_ECONFLICT: another process builds there, or the folder has an
 * unfinished build of other inputs. After a failure a build can resume in the folder. If there is no whole shard yet,
 * the folder is left as it was before, unless other processes may wait for it (options->wait). */
titan_status data_build(const struct build_options *options, struct build_report *ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* Hash of all inputs that determine the output (the tokenizer, files' names, sizes and times, options), and the files'
 * bytes. TITAN_EINVAL: no files of the kind. */
titan_status data_build_inputs(const struct build_options *options, uint64_t *ret_hash, uint64_t *ret_bytes,
                               struct titan_error *err) TITAN_MUST_USE;

/* Counts the tokens and documents that data_build would write. It writes nothing, and does not read options->out and
 * options->shard_tokens. ret->shards is 0. */
titan_status data_count(const struct build_options *options, struct build_report *ret,
                        struct titan_error *err) TITAN_MUST_USE;
/* Is the file one of JSON lines, by its name? */
bool data_build_reads_lines(const char *path);

#endif
