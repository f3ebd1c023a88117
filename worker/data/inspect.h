/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.h - describes a file or folder of tokens or text, for people and scripts. */
#ifndef TITAN_WORKER_DATA_INSPECT_H
#define TITAN_WORKER_DATA_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "worker/data/data_build.h"

struct inspect_options {
    const char *path;
    const char *tokenizer; /* for decoding; NULL: the tokenizer that the shards name, if its hash is the shards' */
    const char *pattern;   /* pattern of the tokenizer; NULL: the shards' pattern */
    int64_t samples;       /* number of samples of SAMPLE_TOKENS tokens, at places drawn from the seed */
    uint64_t seed;
    bool json;
    int threads;                                                   /* for counting text */
    void (*progress)(void *arg, const struct build_progress *now); /* reports the progress of the count; NULL: none */
    void *progress_arg;
};

titan_status data_inspect(const struct inspect_options *options, struct buf *out,
                          struct titan_error *err) TITAN_MUST_USE;
/* Reads all data and checks it: checksums, ids, and the sequence of documents. Other formats have no checksums. */
titan_status data_verify(const char *path, struct buf *out, struct titan_error *err) TITAN_MUST_USE;

#endif
