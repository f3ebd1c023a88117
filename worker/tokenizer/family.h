/* SPDX-License-Identifier: Apache-2.0 */
/* family.h - the data that a file of ranks (tiktoken's form) lacks: the split pattern and the special tokens. Published
 * families have names; their files are recognized by content. */
#ifndef TITAN_WORKER_TOKENIZER_FAMILY_H
#define TITAN_WORKER_TOKENIZER_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAMILY_NAMES "gpt2, cl100k, o200k, llama3, llama4, qwen"

/* Special tokens with consecutive ids. */
struct special_run {
    int32_t id; /* id of the first token, in the family's own file */
    const char *name;
    int32_t from, n; /* n > 0: a run of n tokens, each `name`, a number and "|>"; the first number is `from` */
};

struct family {
    const char *name, *pattern;
    bool normal_form; /* text is first converted to normal form C */
    int32_t ranks;    /* number of ranks in the family's own file */
    const struct special_run *special;
    size_t n_special;
    int32_t bos, eos; /* ids among the special tokens; TOKEN_NONE = none */
};

/* NULL = no family of that name. */
const struct family *family_find(const char *name);
/* The family of a published file of ranks, by its SHA-256; NULL = none. */
const struct family *family_of_file(const void *bytes, size_t n);

#endif
