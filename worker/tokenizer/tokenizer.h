/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h - text to token ids and back.
 *
 * A path, or a word, names a tokenizer:
 *
 *   "bytes"             a token is a byte, vocabulary 256, end of text 0
 *   a tokenizer.json    of Hugging Face's `tokenizers`: byte-pair encoding over bytes (Llama 3, GPT-2, Qwen, DeepSeek)
 *                       or characters (Llama 2), Unigram (T5, XLNet), WordPiece (BERT); tokenizer_config.json beside it
 *                       has the begin and end of text
 *   a tekken.json       of Mistral: ranks, and the pattern that splits text
 *   any other file      ranks of tiktoken, as Llama 3's tokenizer.model; the caller names the pattern
 *   a folder            its tokenizer.json, else tokenizer.model, else original/tokenizer.model, else tekken.json
 *
 * Special tokens in a text are text: no input yields a token for begin or end of text. U+FFFD replaces each maximal
 * invalid part of UTF-8 ("U+FFFD Substitution of Maximal Subparts", Unicode, chapter 3); "bytes" accepts any bytes
 * unchanged. Ids are the same as from `tokenizers` without special tokens, and as from tiktoken.
 *
 * Thread: an open tokenizer never changes; any number of threads may use it at once. An encoder belongs to one thread,
 * because it caches words. */
#ifndef TITAN_WORKER_TOKENIZER_TOKENIZER_H
#define TITAN_WORKER_TOKENIZER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define TOKEN_NONE (-1)

struct tokenizer;
struct tokenizer_encoder;

/* Token ids (base/vec.h). Zeroed = empty; free(ids) releases it. */
struct tokens {
    int32_t *ids;
    size_t n, cap;
};

/* TITAN_ENOTFOUND: no such file, or none in the folder; TITAN_EINVAL: the file is damaged, or larger than 1 GiB;
 * TITAN_EUNSUPPORTED: the file needs an unknown feature; the message names the feature. */
/* pattern: how to split text for a file of ranks: a family's name (family.h), which also sets special tokens, or a
 * regular expression (pattern.h) without special tokens. NULL or "": only published files are accepted, recognized by
 * content. TITAN_EINVAL: a pattern was given for any other tokenizer, which has its own. */
titan_status tokenizer_open_as(const char *path, const char *pattern, struct tokenizer **ret,
                               struct titan_error *err) TITAN_MUST_USE;
static inline TITAN_MUST_USE titan_status tokenizer_open(const char *path, struct tokenizer **ret,
                                                         struct titan_error *err)
{
    return tokenizer_open_as(path, NULL, ret, err);
}
void tokenizer_close(struct tokenizer *t);
/* Every id is below the returned number. Some smaller numbers may be no tokens. */
int64_t tokenizer_vocabulary(const struct tokenizer *t);
/* Begin and end of text; TOKEN_NONE = none. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
/* The given pattern, or the name of the recognized family; "" = the tokenizer needs none. */
const char *tokenizer_pattern(const struct tokenizer *t);
/* The token of these bytes, special tokens included; TOKEN_NONE = none. Scans all tokens. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n);
/* Equal for tokenizers with the same ids for all texts, and the same begin and end of text. */
uint64_t tokenizer_hash(const struct tokenizer *t);

/* The tokenizer must outlive its encoders. */
titan_status tokenizer_encoder_open(const struct tokenizer *t, struct tokenizer_encoder **ret,
                                    struct titan_error *err) TITAN_MUST_USE;
void tokenizer_encoder_close(struct tokenizer_encoder *e);
/* Appends the ids of n bytes of text, without begin or end of text. TITAN_ELIMIT: the text is larger than 2 GiB. On
 * failure *out may have some of the ids. */
titan_status tokenizer_encode(struct tokenizer_encoder *e, const char *text, size_t n, struct tokens *out,
                              struct titan_error *err) TITAN_MUST_USE;
/* Appends the bytes of n tokens. TITAN_EINVAL: an id is no token. A character's bytes may span several tokens. */
titan_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, struct buf *out,
                              struct titan_error *err) TITAN_MUST_USE;

#endif
