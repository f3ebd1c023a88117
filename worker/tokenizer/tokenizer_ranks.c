/* SPDX-License-Identifier: Apache-2.0 */
/* Reads tiktoken's files of ranks, for example Llama 3's tokenizer.model. A line has a token in base64, a space, and
 * its rank. A rank is the token's id, and also gives the order in which pairs become tokens. Mistral's tekken.json
 * holds the same, and a pattern. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "worker/tokenizer/base64.h"
#include "worker/tokenizer/family.h"
#include "worker/tokenizer/tokenizer_parts.h"

#define TOKEN_BYTES_MAX 1024
#define AHEAD 4 /* prefetches the table's places so many tokens ahead */
#define AHEAD_BYTES 16

/* Adds a token of base64 text. "=" stands for no bytes, as in Whisper's file: such a token is never found. */
static titan_status put_token(struct tokenizer *t, const char *base64, size_t n, int64_t id, bool *ret_good,
                              struct titan_error *err)
{
    unsigned char bytes[TOKEN_BYTES_MAX];
    bytes[0] = 0; /* a token without bytes */
    const bool empty = n == 1 && *base64 == '=';
    const ptrdiff_t len = empty ? 0 : n / 4 * 3 <= TOKEN_BYTES_MAX ? base64_read(base64, n, bytes) : -1;
    *ret_good = empty || len > 0;
    if (!*ret_good)
        return TITAN_OK;
    TRY(vocabulary_put(&t->vocabulary, id, (char *)bytes, (size_t)len, err));
    return empty ? TITAN_OK : vocabulary_index(&t->vocabulary, (int32_t)id, err);
}

static titan_status read_line(struct tokenizer *t, size_t number, const char *line, size_t n, struct titan_error *err)
{
    titan_assert(line && number >= 1);
    const char *space = memchr(line, ' ', n);
    int64_t rank = 0;
    const char *at = space ? space + 1 : line, *end = line + n;
    bool good = space && at < end;
    for (; good && at < end; at++) {
        good = *at >= '0' && *at <= '9' && rank < VOCABULARY_MAX;
        rank = rank * 10 + (*at - '0');
    }
    if (good && put_token(t, line, (size_t)(space - line), rank, &good, err) != TITAN_OK)
        return titan_error_wrap(err, "line %zu", number);
    if (!good && number == 1)
        return titan_fail(err, TITAN_EUNSUPPORTED,
                          "it is not a file of ranks (base64 and a number a line); of a SentencePiece model, give the "
                          "tokenizer.json");
    if (!good)
        return titan_fail(err, TITAN_EINVAL,
                          "line %zu: a base64 token of at most %d bytes and its rank should stand here", number,
                          TOKEN_BYTES_MAX);
    return TITAN_OK;
}

/* Returns the id of a family's special token in a file with n ranks. The id in the family's own file is kept if this
 * file leaves it free (p50k does). Otherwise the token is as far after the ranks as in the family's own file. */
static int32_t place_special(const struct tokenizer *t, const struct family *f, int64_t n, int32_t id)
{
    titan_assert(n >= 0 && n <= VOCABULARY_MAX);
    return id < n && !t->vocabulary.tokens[id].there ? id : (int32_t)(id - f->ranks + n);
}

/* Finishes both kinds of file. All ids of ranks, [first, end), must be tokens. Words begin as bytes. */
static titan_status finish(struct tokenizer *t, size_t first, size_t end, struct titan_error *err)
{
    titan_assert(end <= t->vocabulary.n);
    for (size_t id = first; id < end; id++)
        if (!t->vocabulary.tokens[id].there)
            return titan_fail(err, TITAN_EINVAL, "no token has the rank %zu, though there are higher ones", id - first);
    for (int byte = 0; byte < 256; byte++) {
        const char one = (char)byte;
        t->bpe.of_byte[byte] = vocabulary_find(&t->vocabulary, &one, 1);
        if (t->bpe.of_byte[byte] < 0)
            return titan_fail(err, TITAN_EINVAL, "the byte 0x%02x is no token", (unsigned)byte);
    }
    t->bpe.by_bytes = t->bpe.whole_words = true;
    t->bpe.unknown = TOKEN_NONE;

    /* Two tokens that together make a third are a pair with the third's rank. */
    const struct vocabulary *v = &t->vocabulary;
    for (size_t id = 0; id < v->n; id++) {
        const struct token *ahead = &v->tokens[MIN(id + AHEAD, v->n - 1)];
        for (size_t cut = 1; cut < MIN(ahead->len, (uint32_t)AHEAD_BYTES); cut++) {
            vocabulary_prefetch(v, v->bytes.data + ahead->start, cut);
            vocabulary_prefetch(v, v->bytes.data + ahead->start + cut, ahead->len - cut);
        }
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

titan_status tokenizer_read_ranks(struct tokenizer *t, const char *text, size_t n, const char *pattern,
                                  struct titan_error *err)
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
    const struct family *f = pattern ? family_find(pattern) : family_of_file(text, n);
    /* the first character that no name has; with such a character the text is a pattern */
    const char *sign = pattern ? pattern : "";
    while (isalnum((unsigned char)*sign) || (*sign && strchr("_.-", *sign)))
        sign++;
    if (!f && !*sign)
        return titan_fail(err, TITAN_EUNSUPPORTED,
                          "%s%s%s; --pattern, model.tokenizer_pattern of a run file, is one of " FAMILY_NAMES
                          ", or a regular expression",
                          pattern ? "there is no pattern '" : "a file of ranks does not hold how text is cut",
                          pattern ? pattern : "", pattern ? "'" : "");
    const size_t ranks = t->vocabulary.n;
    if (f) {
        t->bos = f->bos == TOKEN_NONE ? TOKEN_NONE : place_special(t, f, (int64_t)ranks, f->bos);
        t->eos = f->eos == TOKEN_NONE ? TOKEN_NONE : place_special(t, f, (int64_t)ranks, f->eos);
        for (size_t i = 0; i < f->n_special; i++)
            for (int32_t k = 0; k < MAX(f->special[i].n, 1); k++) {
                const struct special_run *run = &f->special[i];
                char name[64];
                const int len = run->n ? snprintf(name, sizeof(name), "%s%" PRId32 "|>", run->name, run->from + k)
                                       : snprintf(name, sizeof(name), "%s", run->name);
                TRY(vocabulary_put(&t->vocabulary, place_special(t, f, (int64_t)ranks, run->id + k), name, (size_t)len,
                                   err));
            }
    }

    const char *expression = f ? f->pattern : pattern;
    t->hash = hash_text(t->hash, expression);
    t->pattern = strdup(f ? f->name : pattern);
    if (!t->pattern)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a pattern");
    if (f && f->normal_form) {
        t->hash = hash_text(t->hash, "NFC");
        TRY(normalize_add(&t->normalizer, (struct normalize_step){.kind = NORMALIZE_FORM, .form = UNICODE_NFC}, err));
    }
    TRY(split_add(&t->split, expression, false, SPLIT_ISOLATED, false, err));

    return finish(t, 0, ranks, err);
}

/* --- tekken.json -------------------------------------------------------------------------------------------------- */

/* The special tokens of a file that names none. */
static const char *const tekken_special[] = {"<unk>",
                                             "<s>",
                                             "</s>",
                                             "[INST]",
                                             "[/INST]",
                                             "[AVAILABLE_TOOLS]",
                                             "[/AVAILABLE_TOOLS]",
                                             "[TOOL_RESULTS]",
                                             "[/TOOL_RESULTS]",
                                             "[TOOL_CALLS]",
                                             "[IMG]",
                                             "<pad>",
                                             "[IMG_BREAK]",
                                             "[IMG_END]",
                                             "[PREFIX]",
                                             "[MIDDLE]",
                                             "[SUFFIX]",
                                             "[SYSTEM_PROMPT]",
                                             "[/SYSTEM_PROMPT]",
                                             "[TOOL_CONTENT]"};

static titan_status put_special(struct tokenizer *t, int64_t id, const char *name, struct titan_error *err)
{
    t->bos = strcmp(name, "<s>") == 0 ? (int32_t)id : t->bos;
    t->eos = strcmp(name, "</s>") == 0 ? (int32_t)id : t->eos;
    return vocabulary_put(&t->vocabulary, id, name, strlen(name), err);
}

titan_status tokenizer_read_tekken(struct tokenizer *t, const struct json *root, struct titan_error *err)
{
    const struct json *config = json_get(root, "config"), *vocabulary = json_get(root, "vocab");
    const char *pattern = json_string(config, "pattern", NULL);
    const int64_t size = json_int(config, "default_vocab_size", 0),
                  special = json_int(config, "default_num_special_tokens", -1);
    if (!pattern || special < 0 || size <= special || size > VOCABULARY_MAX)
        return titan_fail(err, TITAN_EINVAL,
                          "config lacks a pattern, default_vocab_size or default_num_special_tokens, or they are not "
                          "what they may be");

    /* The first `special` ids are the special tokens that the file names, else the usual ones. Ids without a token get
     * fillers. */
    const struct json *list = json_get(root, "special_tokens");
    const bool named = list && list->type == JSON_ARRAY;
    for (const struct json *m = named ? list->first : NULL; m; m = m->next) {
        const int64_t id = json_int(m, "rank", -1);
        const char *name = json_string(m, "token_str", NULL);
        if (!name || id < 0 || id >= special)
            return titan_fail(err, TITAN_EINVAL,
                              "a special token without token_str, or of a rank that is not below %" PRId64, special);
        TRY(put_special(t, id, name, err));
    }
    for (int64_t id = 0; id < special; id++) {
        char filler[40];
        (void)snprintf(filler, sizeof(filler), "<SPECIAL_%" PRId64 ">", id);
        if ((size_t)id < t->vocabulary.n && t->vocabulary.tokens[id].there)
            continue;
        TRY(put_special(t, id, !named && id < (int64_t)ARRAY_SIZE(tekken_special) ? tekken_special[id] : filler, err));
    }

    for (const struct json *m = vocabulary ? vocabulary->first : NULL; m; m = m->next) {
        const int64_t rank = json_int(m, "rank", -1);
        const char *base64 = json_string(m, "token_bytes", NULL);
        bool good = base64 && rank >= 0;
        if (good && rank >= size - special)
            continue; /* the file has more ranks than are used */
        if (good)
            TRY(put_token(t, base64, strlen(base64), rank + special, &good, err));
        if (!good)
            return titan_fail(err, TITAN_EINVAL, "a token of vocab has no rank, or no token_bytes of at most %d bytes",
                              TOKEN_BYTES_MAX);
    }
    if ((int64_t)t->vocabulary.n < size)
        return titan_fail(err, TITAN_EINVAL, "vocab has %zu tokens, default_vocab_size is %" PRId64, t->vocabulary.n,
                          size);
    t->hash = hash_text(t->hash, pattern);
    TRY(split_add(&t->split, pattern, false, SPLIT_ISOLATED, false, err));
    return finish(t, (size_t)special, t->vocabulary.n, err);
}
