/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_file.h - state of reading a tokenizer.json, for the files that read its parts. */
#ifndef TITAN_WORKER_TOKENIZER_TOKENIZER_FILE_H
#define TITAN_WORKER_TOKENIZER_TOKENIZER_FILE_H

#include <stdbool.h>

#include "base/error.h"
#include "base/json.h"
#include "worker/tokenizer/tokenizer_parts.h"

#define METASPACE "\xe2\x96\x81" /* U+2581 */

struct tokenizer_file {
    struct tokenizer *t;
    bool byte_level;   /* words are spelled in the byte-level alphabet */
    bool cut;          /* a pre-tokenizer that splits was read */
    bool cut_at_space; /* the only splitting pre-tokenizer is WhitespaceSplit */
    bool *special;     /* by id: true for an added token that stays text when a text contains it; owned */
    size_t n_special;
    struct titan_error *err;
};

typedef titan_status (*tokenizer_file_part)(struct tokenizer_file *f, const struct json *part, const char *type);

/* TITAN_EUNSUPPORTED: `what` has an unknown type; known lists the known types. */
titan_status tokenizer_file_unknown(const struct tokenizer_file *f, const char *what, const char *type,
                                    const char *known) TITAN_MUST_USE;
/* Calls read for a part of the file, or for each part of a Sequence (in its member `list`). */
titan_status tokenizer_file_each(struct tokenizer_file *f, const struct json *part, const char *what, const char *list,
                                 tokenizer_file_part read) TITAN_MUST_USE;
/* pattern: {"String": text} or {"Regex": text}. */
titan_status tokenizer_file_pattern(struct tokenizer_file *f, const struct json *part, bool *ret_literal,
                                    const char **ret) TITAN_MUST_USE;
bool tokenizer_file_flag(const struct json *part, const char *key, bool fallback);

/* These functions read how a text is changed before the tokenizer's model gets it. */
titan_status tokenizer_file_normalizer(struct tokenizer_file *f, const struct json *part,
                                       const char *type) TITAN_MUST_USE;
titan_status tokenizer_file_pre_tokenizer(struct tokenizer_file *f, const struct json *part,
                                          const char *type) TITAN_MUST_USE;

#endif
