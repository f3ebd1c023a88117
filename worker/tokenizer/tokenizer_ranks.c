/* SPDX-License-Identifier: Apache-2.0 */
/* tiktoken's files of ranks, as Llama 3's tokenizer.model is one: a line a token, base64, a space, its rank. Ranks are
 * ids and say in which order pairs become tokens. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "worker/tokenizer/base64.h"
#include "worker/tokenizer/tokenizer_parts.h"

#define TOKEN_BYTES_MAX 1024
#define SPECIAL_TOKENS 256

/* The pattern of Meta's tokenizer.py. */
static const char llama3_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                                     " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/* Its special tokens; <|reserved_special_token_2|> and so on fill up to 256. */
static const char *const llama3_special[] = {"<|begin_of_text|>",
                                             "<|end_of_text|>",
                                             "<|reserved_special_token_0|>",
                                             "<|reserved_special_token_1|>",
                                             "<|finetune_right_pad_id|>",
                                             "<|step_id|>",
                                             "<|start_header_id|>",
                                             "<|end_header_id|>",
                                             "<|eom_id|>",
                                             "<|eot_id|>",
                                             "<|python_tag|>"};

static titan_status read_line(struct tokenizer *t, size_t number, const char *line, size_t n, struct titan_error *err)
{
    titan_assert(line && number >= 1);
    unsigned char bytes[TOKEN_BYTES_MAX];
    const char *space = memchr(line, ' ', n);
    const size_t written = space ? (size_t)(space - line) : 0;
    const ptrdiff_t len = written / 4 * 3 <= TOKEN_BYTES_MAX ? base64_read(line, written, bytes) : -1;
    int64_t rank = 0;
    const char *at = space ? space + 1 : line, *end = line + n;
    bool good = len > 0 && at < end;
    for (; good && at < end; at++) {
        good = *at >= '0' && *at <= '9' && rank < VOCABULARY_MAX;
        rank = rank * 10 + (*at - '0');
    }
    if (!good && number == 1)
        return titan_fail(err, TITAN_EUNSUPPORTED,
                          "it is not a file of ranks (base64 and a number a line); of a SentencePiece model, give the "
                          "tokenizer.json");
    if (!good)
        return titan_fail(err, TITAN_EINVAL,
                          "line %zu: a base64 token of at most %d bytes and its rank should stand here", number,
                          TOKEN_BYTES_MAX);
    titan_status status = vocabulary_put(&t->vocabulary, rank, (char *)bytes, (size_t)len, err);
    if (status == TITAN_OK)
        status = vocabulary_index(&t->vocabulary, (int32_t)rank, err);
    return status == TITAN_OK ? status : titan_error_wrap(err, "line %zu", number);
}

/* Every way to make a token out of two others has the token's rank. */
static titan_status add_pairs(struct tokenizer *t, struct titan_error *err)
{
    const struct vocabulary *v = &t->vocabulary;
    for (size_t id = 0; id < v->n; id++) {
        const size_t len = v->tokens[id].len;
        const char *bytes = v->bytes.data + v->tokens[id].start;
        for (size_t cut = 1; cut < len; cut++) {
            const int32_t left = vocabulary_find(v, bytes, cut);
            const int32_t right = left < 0 ? -1 : vocabulary_find(v, bytes + cut, len - cut);
            if (right >= 0)
                TRY(bpe_add(&t->bpe, left, right, (uint32_t)id, (int32_t)id, err));
        }
    }
    return TITAN_OK;
}

static titan_status add_special(struct tokenizer *t, struct titan_error *err)
{
    const int64_t base = (int64_t)t->vocabulary.n;
    titan_assert(base >= 0);
    for (int i = 0; i < SPECIAL_TOKENS; i++) {
        char name[48];
        const int reserved = i - (int)ARRAY_SIZE(llama3_special) + 2;
        if (i < (int)ARRAY_SIZE(llama3_special))
            (void)snprintf(name, sizeof(name), "%s", llama3_special[i]);
        else
            (void)snprintf(name, sizeof(name), "<|reserved_special_token_%d|>", reserved);
        TRY(vocabulary_put(&t->vocabulary, base + i, name, strlen(name), err));
    }
    t->bos = (int32_t)base;
    t->eos = (int32_t)base + 1;
    return TITAN_OK;
}

titan_status tokenizer_read_ranks(struct tokenizer *t, const char *text, size_t n, struct titan_error *err)
{
    titan_assert(!t->bytes && t->vocabulary.n == 0);
    size_t number = 1;
    for (const char *line = text, *end = text + n; line < end || number == 1; number++) {
        const char *stop = line < end ? memchr(line, '\n', (size_t)(end - line)) : NULL;
        stop = stop ? stop : end;
        if (stop > line || number == 1)
            TRY(read_line(t, number, line, (size_t)(stop - line), err));
        line = stop + 1;
    }
    for (size_t id = 0; id < t->vocabulary.n; id++)
        if (!t->vocabulary.tokens[id].there)
            return titan_fail(err, TITAN_EINVAL, "no token has the rank %zu, though there are higher ones", id);
    for (int byte = 0; byte < 256; byte++) {
        const char one = (char)byte;
        t->bpe.of_byte[byte] = vocabulary_find(&t->vocabulary, &one, 1);
        if (t->bpe.of_byte[byte] < 0)
            return titan_fail(err, TITAN_EINVAL, "the byte 0x%02x is no token", (unsigned)byte);
    }
    t->bpe.by_bytes = t->bpe.whole_words = true;
    t->bpe.unknown = TOKEN_NONE;
    t->hash = hash_text(t->hash, llama3_pattern);
    TRY(split_add(&t->split, llama3_pattern, false, SPLIT_ISOLATED, false, err));
    TRY(add_pairs(t, err));
    return add_special(t, err);
}
