/* SPDX-License-Identifier: Apache-2.0 */
/* family.h - what a file of ranks (tiktoken's form) does not hold: how text is cut in front of it, and which special
 * tokens go with it. Published families have names; their files are known by their content. */
#ifndef TITAN_WORKER_TOKENIZER_FAMILY_H
#define TITAN_WORKER_TOKENIZER_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAMILY_NAMES "gpt2, cl100k, o200k, llama3, llama4, qwen"

/* Special tokens with ids one behind the other. */
struct special_run {
    int32_t id; /* of the first, where the family's own file has it */
    const char *name;
    int32_t from, n; /* n > 0: name, a number from `from` on, and "|>" */
};

struct family {
    const char *name, *pattern;
    bool normal_form; /* text is brought to normal form C first */
    int32_t ranks;    /* so many are in the family's own file */
    const struct special_run *special;
    size_t n_special;
    int32_t bos, eos; /* among the special tokens; TOKEN_NONE: nothing */
};

/* NULL: no family has that name. */
const struct family *family_find(const char *name);
/* The family that a published file of ranks is of, by its SHA-256; NULL: it is none of them. */
const struct family *family_of_file(const void *bytes, size_t n);

#endif
