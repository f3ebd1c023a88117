/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_parts.h - the parts of a tokenizer, for the files that read one (tokenizer_json.c, tokenizer_ranks.c) and
 * its user (tokenizer.c). */
#ifndef TITAN_WORKER_TOKENIZER_TOKENIZER_PARTS_H
#define TITAN_WORKER_TOKENIZER_TOKENIZER_PARTS_H

#include <stdbool.h>

#include "base/error.h"
#include "base/json.h"
#include "worker/tokenizer/bpe.h"
#include "worker/tokenizer/normalize.h"
#include "worker/tokenizer/split.h"
#include "worker/tokenizer/tokenizer.h"
#include "worker/tokenizer/unigram.h"
#include "worker/tokenizer/vocabulary.h"
#include "worker/tokenizer/wordpiece.h"

/* A text that is always one token. */
struct added_token {
    int32_t id;
    size_t len;
    char *text;             /* owned; may contain byte 0 */
    bool word;              /* the text is this token only where no letter, digit or the like is beside it */
    bool takes_space_left;  /* the token includes the white space before it */
    bool takes_space_right; /* the token includes the white space after it */
};

/* Zeroed = empty. */
struct added_tokens {
    struct added_token *tokens; /* longest first */
    size_t n, cap;
    uint32_t begins[1 << 11]; /* bit set of their first two bytes */
};

enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_UNIGRAM, TOKENIZER_WORDPIECE };

struct tokenizer {
    bool bytes;                   /* a token is a byte: only the numbers at the end are used */
    enum tokenizer_kind kind;     /* which of the three models below encodes words */
    struct vocabulary vocabulary; /* for encoding and decoding */
    struct vocabulary names;      /* tokens as the file spells them, for reading the file and for added tokens */
    struct bpe bpe;
    struct unigram unigram;
    struct wordpiece wordpiece;
    struct normalizer normalizer;
    struct normalizer marks; /* the pre-tokenizer's changes to a text before it splits */
    struct split split;
    char *pattern; /* owned; a family's name or an expression, for a file of ranks; NULL: the file has its pattern */
    struct added_tokens added, added_behind; /* `added` is for the raw text, the other for normalized text */

    struct {
        char *from, *to; /* owned; replaced in every token; NULL = none */
        bool from_bytes; /* a token <0xXX> is that byte */
        int64_t strip;   /* maximum number of spaces removed at the beginning of a text */
        bool words;      /* a space before each token, or its prefix removed; not for the first token */
        char *prefix;    /* owned */
        bool tidy;       /* remove the space before punctuation */
    } decoder;

    int64_t n_ids;
    int32_t bos, eos;
    uint64_t hash;
};

/* Reads a tokenizer.json (Hugging Face tokenizers) into an empty tokenizer. */
titan_status tokenizer_read_json(struct tokenizer *t, const char *text, size_t n,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Reads begin and end of text from the tokenizer_config.json beside the tokenizer.json. */
titan_status tokenizer_read_config(struct tokenizer *t, const char *text, size_t n,
                                   struct titan_error *err) TITAN_MUST_USE;
/* Reads lines of a base64 token and its rank (tiktoken). pattern: as in tokenizer_open_as(). */
titan_status tokenizer_read_ranks(struct tokenizer *t, const char *text, size_t n, const char *pattern,
                                  struct titan_error *err) TITAN_MUST_USE;
/* Reads a tekken.json (Mistral). */
titan_status tokenizer_read_tekken(struct tokenizer *t, const struct json *root,
                                   struct titan_error *err) TITAN_MUST_USE;

#endif
