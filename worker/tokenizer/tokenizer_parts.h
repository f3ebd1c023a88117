/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_parts.h - what a tokenizer is made of, for the files that read one (tokenizer_json.c, tokenizer_ranks.c)
 * and the one that uses it (tokenizer.c). */
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

/* A text that is a token of its own, wherever it stands. */
struct added_token {
    int32_t id;
    size_t len;
    char *text;             /* owned; may have a byte 0 */
    bool word;              /* only where no letter, digit or the like stands beside it */
    bool takes_space_left;  /* the white space in front is part of it, */
    bool takes_space_right; /* that behind it */
};

/* All zero is an empty one. */
struct added_tokens {
    struct added_token *tokens; /* the longest first */
    size_t n, cap;
    uint32_t begins[1 << 11]; /* by their first two bytes, a bit each */
};

enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_UNIGRAM, TOKENIZER_WORDPIECE };

struct tokenizer {
    bool bytes;                   /* a token is a byte: nothing below is used but the numbers at the end */
    enum tokenizer_kind kind;     /* which of the three models below words are given to */
    struct vocabulary vocabulary; /* what encoding looks for, and what decoding gives */
    struct vocabulary names;      /* as the file writes them: while it is read, and of added tokens */
    struct bpe bpe;
    struct unigram unigram;
    struct wordpiece wordpiece;
    struct normalizer normalizer;
    struct normalizer marks; /* what the pre-tokenizer does to a text before it cuts */
    struct split split;
    char *pattern; /* owned; of a file of ranks, the name of its family or the expression; NULL: the file has it */
    struct added_tokens added, added_behind; /* looked for in a text as it comes, and behind the normalizer */

    struct {
        char *from, *to; /* owned; in every token, NULL: nothing is replaced */
        bool from_bytes; /* a token <0xXX> is that byte */
        int64_t strip;   /* spaces that are taken from the beginning of a text, at most */
        bool words;      /* a space in front of each token, or its prefix goes; not of the first */
        char *prefix;    /* owned */
        bool tidy;       /* without the space in front of a sign */
    } decoder;

    int64_t n_ids;
    int32_t bos, eos;
    uint64_t hash;
};

/* The bytes of a tokenizer.json (Hugging Face tokenizers) into an empty tokenizer. */
titan_status tokenizer_read_json(struct tokenizer *t, const char *text, size_t n,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Begin and end of text as the tokenizer_config.json beside it names them. */
titan_status tokenizer_read_config(struct tokenizer *t, const char *text, size_t n,
                                   struct titan_error *err) TITAN_MUST_USE;
/* Lines of a base64 token and its rank (tiktoken). pattern: as tokenizer_open_as() has it. */
titan_status tokenizer_read_ranks(struct tokenizer *t, const char *text, size_t n, const char *pattern,
                                  struct titan_error *err) TITAN_MUST_USE;
/* A tekken.json (Mistral). */
titan_status tokenizer_read_tekken(struct tokenizer *t, const struct json *root,
                                   struct titan_error *err) TITAN_MUST_USE;

#endif
