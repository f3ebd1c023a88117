/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/vec.h"

#define BYTES_VOCABULARY 256
#define BYTES_EOS 0

struct tokenizer {
    int64_t vocabulary;
    int32_t bos, eos;
    uint64_t hash;
};

struct tokenizer_encoder {
    const struct tokenizer *tokenizer;
};

/* --- opening ------------------------------------------------------------------------------------------------------ */

titan_status tokenizer_open(const char *path, struct tokenizer **ret, struct titan_error *err)
{
    if (strcmp(path, "bytes") != 0)
        return titan_fail(err, TITAN_EUNSUPPORTED, "tokenizer '%s' is not known; there is \"bytes\"", path);
    struct tokenizer *t = calloc(1, sizeof(*t));
    if (!t)
        return titan_fail(err, TITAN_ENOMEM, "no memory for a tokenizer");
    *t = (struct tokenizer){.vocabulary = BYTES_VOCABULARY, .bos = TOKEN_NONE, .eos = BYTES_EOS};
    t->hash = hash_text(HASH_INIT, "bytes");
    *ret = t;
    return TITAN_OK;
}

void tokenizer_close(struct tokenizer *t)
{
    free(t);
}

int64_t tokenizer_vocabulary(const struct tokenizer *t)
{
    return t->vocabulary;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

uint64_t tokenizer_hash(const struct tokenizer *t)
{
    return t->hash;
}

/* --- text --------------------------------------------------------------------------------------------------------- */

titan_status tokenizer_encoder_open(const struct tokenizer *t, struct tokenizer_encoder **ret, struct titan_error *err)
{
    struct tokenizer_encoder *e = calloc(1, sizeof(*e));
    if (!e)
        return titan_fail(err, TITAN_ENOMEM, "no memory for an encoder");
    e->tokenizer = t;
    *ret = e;
    return TITAN_OK;
}

void tokenizer_encoder_close(struct tokenizer_encoder *e)
{
    free(e);
}

titan_status tokenizer_encode(struct tokenizer_encoder *e, const char *text, size_t n, struct tokens *out,
                              struct titan_error *err)
{
    (void)e;
    if (n > INT32_MAX)
        return titan_fail(err, TITAN_ELIMIT, "a text of %zu bytes; at most %d are encoded at a time", n, INT32_MAX);
    if (!VEC_RESERVE(out->ids, out->cap, out->n + n))
        return titan_fail(err, TITAN_ENOMEM, "no memory for %zu tokens", out->n + n);
    for (size_t i = 0; i < n; i++)
        out->ids[out->n++] = (unsigned char)text[i];
    return TITAN_OK;
}

titan_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, struct buf *out,
                              struct titan_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->vocabulary)
            return titan_fail(err, TITAN_EINVAL, "%" PRId32 " is no token of this tokenizer", ids[i]);
        const char byte = (char)ids[i];
        if (buf_append(out, &byte, 1) != TITAN_OK)
            return titan_fail(err, TITAN_ENOMEM, "no memory for %zu bytes of text", out->len + 1);
    }
    return TITAN_OK;
}
