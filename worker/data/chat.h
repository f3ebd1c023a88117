/* SPDX-License-Identifier: Apache-2.0 */
/* chat.h - encodes records of conversations as tokens; only the answers are trained on.
 *
 * A record has `messages`, each with a role and content, or two fields, a prompt and its completion. With a template,
 * the prompt is the user's message, and the completion is the assistant's message. Without a template, records have no
 * messages: the tokens of prompt and completion follow each other. A run trains on the assistant's contents and the
 * token that ends its turn, and on completions and the end of text. Only the template's own special tokens become
 * special tokens: a text that spells one stays text. The text between two special tokens is tokenized as a whole. The
 * assistant's content is tokenized by itself, because a model generates it so. */
#ifndef TITAN_WORKER_DATA_CHAT_H
#define TITAN_WORKER_DATA_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/tokenizer/tokenizer.h"

#define CHAT_TEMPLATES "chatml, llama3 or gemma"

struct chat_options {
    const char *template;            /* NULL or "none" = none */
    const char *prompt, *completion; /* field names; NULL = "prompt", "completion" */
    bool bos;    /* a record begins with the tokenizer's begin of text, if the template has no begin */
    int32_t eos; /* ends each record */
};

struct chat;
/* TITAN_EINVAL: no such template, or the tokenizer lacks one of its tokens; the message names the token. */
titan_status chat_open(const struct chat_options *options, const struct tokenizer *tokenizer, struct chat **ret,
                       struct titan_error *err) TITAN_MUST_USE;
void chat_close(struct chat *c);

/* Zeroed = empty; free with chat_tokens_free(). */
struct chat_tokens {
    struct tokens ids;
    uint8_t *trained; /* per token: 0 or 1 */
    size_t n, cap;
    uint64_t text_bytes;
    const char *why; /* the record's fault; NULL: it has none */
};
void chat_tokens_free(struct chat_tokens *t);
/* Replaces *out with the tokens of a record and a final eos. It returns false with out->why set if the record has a
 * fault, and false with out->why NULL if the call failed (err). */
bool chat_encode(const struct chat *c, struct tokenizer_encoder *encoder, const char *record, size_t n,
                 struct chat_tokens *out, struct titan_error *err);

#endif
