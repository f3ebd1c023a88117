/* SPDX-License-Identifier: Apache-2.0 */
/* chat.h - records of conversations as tokens, of which the answers are trained on.
 *
 * A record has `messages`, each with a role and content, or two fields, a prompt and its completion. With a template a
 * prompt is a message of the user and a completion one of the assistant; without one there are no messages, and the two
 * texts are tokens one behind the other. What is trained on: contents of the assistant with the token that ends its
 * turn; completions with the end of text. A template's special tokens are tokens, those that a text spells are text.
 * What lies between two special tokens is tokenised as a whole, but for the assistant's content, which is by itself, as
 * it is where a model writes it. */
#ifndef TITAN_WORKER_DATA_CHAT_H
#define TITAN_WORKER_DATA_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/tokenizer/tokenizer.h"

#define CHAT_TEMPLATES "chatml, llama3 or gemma"

struct chat_options {
    const char *template;            /* NULL or "none": none */
    const char *prompt, *completion; /* fields; NULL: of these names */
    bool bos;                        /* the tokenizer's begin of text in front, where the template has none */
};

struct chat;
/* TITAN_EINVAL: no such template, or the tokenizer lacks one of its tokens, which the message names. */
titan_status chat_open(const struct chat_options *options, const struct tokenizer *tokenizer, struct chat **ret,
                       struct titan_error *err) TITAN_MUST_USE;
void chat_close(struct chat *c);

/* All zero is empty; chat_tokens_free() releases one. */
struct chat_tokens {
    struct tokens ids;
    uint8_t *trained; /* of each: 0 or 1 */
    size_t n, cap;
    uint64_t text_bytes;
};
void chat_tokens_free(struct chat_tokens *t);
/* The tokens of a record, with eos at their end, in place of what `out` had. False: *ret_why says what is wrong with
 * the record, or is NULL and err says what failed. */
bool chat_encode(const struct chat *c, struct tokenizer_encoder *encoder, int32_t eos, const char *record, size_t n,
                 struct chat_tokens *out, const char **ret_why, struct titan_error *err);

#endif
