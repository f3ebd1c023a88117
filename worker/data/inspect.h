/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.h - what a file or folder of tokens holds, for people and scripts. */
#ifndef TITAN_WORKER_DATA_INSPECT_H
#define TITAN_WORKER_DATA_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

struct inspect_options {
    const char *path;
    const char *tokenizer; /* to decode with; NULL: the one that shards name, where it is what they were built with */
    const char *pattern;   /* of that tokenizer; NULL: as the shards name it */
    int64_t samples;       /* of SAMPLE_TOKENS tokens, at places drawn from the seed */
    uint64_t seed;
    bool json;
};

titan_status data_inspect(const struct inspect_options *options, struct buf *out,
                          struct titan_error *err) TITAN_MUST_USE;
/* Reads all of it: checksums, ids, and that documents follow each other. Files of others have no checksums. */
titan_status data_verify(const char *path, struct buf *out, struct titan_error *err) TITAN_MUST_USE;

#endif
