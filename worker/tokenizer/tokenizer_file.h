/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_file.h - a tokenizer.json while it is read, for the files that read its parts. */
#ifndef TITAN_WORKER_TOKENIZER_TOKENIZER_FILE_H
#define TITAN_WORKER_TOKENIZER_TOKENIZER_FILE_H

#include <stdbool.h>

#include "base/error.h"
#include "base/json.h"
#include "worker/tokenizer/tokenizer_parts.h"

#define METASPACE "\xe2\x96\x81" /* U+2581 */

struct tokenizer_file {
    struct tokenizer *t;
    bool byte_level;   /* words are spelled in the alphabet of bytes */
    bool cut;          /* a pre-tokenizer has been read that cuts */
    bool cut_at_space; /* that one is WhitespaceSplit, the only one */
    bool *special;     /* by id: an added token that is text where a text has it; owned */
    size_t n_special;
    struct titan_error *err;
};

typedef titan_status (*tokenizer_file_part)(struct tokenizer_file *f, const struct json *part, const char *type);

/* TITAN_EUNSUPPORTED: what is of a type that is not among the known ones. */
titan_status tokenizer_file_unknown(const struct tokenizer_file *f, const char *what, const char *type,
                                    const char *known) TITAN_MUST_USE;
/* Calls read for a part of the file, or for each part of a Sequence, which holds them under `list`. */
titan_status tokenizer_file_each(struct tokenizer_file *f, const struct json *part, const char *what, const char *list,
                                 tokenizer_file_part read) TITAN_MUST_USE;
/* pattern: {"String": text} or {"Regex": text}. */
titan_status tokenizer_file_pattern(struct tokenizer_file *f, const struct json *part, bool *ret_literal,
                                    const char **ret) TITAN_MUST_USE;
bool tokenizer_file_flag(const struct json *part, const char *key, bool fallback);

/* What is done to a text before the model has it. */
titan_status tokenizer_file_normalizer(struct tokenizer_file *f, const struct json *part,
                                       const char *type) TITAN_MUST_USE;
titan_status tokenizer_file_pre_tokenizer(struct tokenizer_file *f, const struct json *part,
                                          const char *type) TITAN_MUST_USE;

#endif
