/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h - text to token ids and back.
 *
 * A tokenizer is named by a path, or a word:
 *
 *   "bytes"             a token is a byte, vocabulary 256, end of text 0
 *   a tokenizer.json    of Hugging Face's `tokenizers`: byte-pair encoding over bytes (Llama 3, GPT-2, Qwen, DeepSeek)
 *                       or characters (Llama 2), Unigram (T5, XLNet), WordPiece (BERT); tokenizer_config.json beside it
 *                       says what begins and ends a text
 *   a tekken.json       of Mistral: ranks, and the pattern that text is cut by
 *   any other file      ranks of tiktoken, as Llama 3's tokenizer.model; how text is cut is named beside it
 *   a folder            its tokenizer.json, else tokenizer.model, else original/tokenizer.model, else tekken.json
 *
 * Special tokens in a text are text: no input makes a begin or end of text. Text that is not UTF-8 is read as if U+FFFD
 * stood in the place of each maximal part that is not ("U+FFFD Substitution of Maximal Subparts", Unicode, chapter 3);
 * "bytes" takes any bytes as they are. Ids are those of `tokenizers` without special tokens, and of tiktoken.
 *
 * Thread: a tokenizer does not change once it is open, any number of threads may use it at once. An encoder is one
 * thread's: it keeps the words it has met. */
#ifndef TITAN_WORKER_TOKENIZER_TOKENIZER_H
#define TITAN_WORKER_TOKENIZER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define TOKEN_NONE (-1)

struct tokenizer;
struct tokenizer_encoder;

/* Token ids (base/vec.h). All zero is empty; free(ids) releases it. */
struct tokens {
    int32_t *ids;
    size_t n, cap;
};

/* TITAN_ENOTFOUND: there is no such file, or none of the folder's; TITAN_EINVAL: it is damaged, or larger than 1 GiB;
 * TITAN_EUNSUPPORTED: it asks for what is not known here, which the message names. */
/* pattern: how the text in front of a file of ranks is cut: a family's name (family.h), which has special tokens too,
 * or a regular expression (pattern.h), without any. NULL or "": only a published file is read, known by its content.
 * TITAN_EINVAL with any other tokenizer, which has its own. */
titan_status tokenizer_open_as(const char *path, const char *pattern, struct tokenizer **ret,
                               struct titan_error *err) TITAN_MUST_USE;
static inline TITAN_MUST_USE titan_status tokenizer_open(const char *path, struct tokenizer **ret,
                                                         struct titan_error *err)
{
    return tokenizer_open_as(path, NULL, ret, err);
}
void tokenizer_close(struct tokenizer *t);
/* Every id is below it. Not every number below it need be a token. */
int64_t tokenizer_vocabulary(const struct tokenizer *t);
/* What begins and ends a text; TOKEN_NONE: nothing does. */
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
/* As it was given, or the name of the family that the file is known to be of; "": none is needed. */
const char *tokenizer_pattern(const struct tokenizer *t);
/* The token of these bytes, special ones too, by their text; TOKEN_NONE: there is none. Looks at all of them. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n);
/* Equal where all text becomes the same ids, and begin and end of text are the same. */
uint64_t tokenizer_hash(const struct tokenizer *t);

/* The tokenizer outlives its encoders. */
titan_status tokenizer_encoder_open(const struct tokenizer *t, struct tokenizer_encoder **ret,
                                    struct titan_error *err) TITAN_MUST_USE;
void tokenizer_encoder_close(struct tokenizer_encoder *e);
/* Appends the ids of n bytes of text, without begin or end of text. One text at most 2 GiB: TITAN_ELIMIT beyond. On
 * failure *out may have some of the ids. */
titan_status tokenizer_encode(struct tokenizer_encoder *e, const char *text, size_t n, struct tokens *out,
                              struct titan_error *err) TITAN_MUST_USE;
/* Appends the bytes of n tokens. TITAN_EINVAL: an id is no token. A character's bytes may lie in several tokens. */
titan_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, struct buf *out,
                              struct titan_error *err) TITAN_MUST_USE;

#endif
