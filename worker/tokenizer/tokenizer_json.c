/* SPDX-License-Identifier: Apache-2.0 */
/* Reads tokenizer.json, as Hugging Face's `tokenizers` writes it, for encoding without special tokens. The file's
 * post-processor, truncation and padding are not read. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/utf8.h"
#include "base/vec.h"
#include "worker/tokenizer/tokenizer_parts.h"
#include "worker/tokenizer/tokenizer_file.h"

#define UNKNOWN_PENALTY 10
#define BAR "\xef\xbd\x9c" /* U+FF5C */
#define DEEPSEEK_BEGIN "<" BAR "begin" METASPACE "of" METASPACE "sentence" BAR ">"
#define DEEPSEEK_END "<" BAR "end" METASPACE "of" METASPACE "sentence" BAR ">"

/* --- vocabulary --------------------------------------------------------------------------------------------------- */

/* GPT-2's alphabet of bytes: printing bytes are themselves, the others follow from U+0100 on. */
static uint32_t letter_of(int byte)
{
    titan_assert(byte >= 0 && byte < 256);
    static const int prints[][2] = {{'!', '~'}, {0xa1, 0xac}, {0xae, 0xff}};
    uint32_t others = 0;
    for (size_t i = 0, at = 0; i < ARRAY_SIZE(prints); i++) {
        if (byte < prints[i][0])
            return 0x100 + others + (uint32_t)byte - (uint32_t)at;
        if (byte <= prints[i][1])
            return (uint32_t)byte;
        others += (uint32_t)prints[i][0] - (uint32_t)at;
        at = (size_t)prints[i][1] + 1;
    }
    return 0; /* not reached: 0xff is a printing byte */
}

/* JSON_NUL becomes a byte 0. Returns the length. */
static size_t mend_nul(char *text)
{
    const size_t n = strlen(text);
    size_t to = 0;
    for (size_t at = 0; at < n; at++) {
        const bool nul = strncmp(text + at, JSON_NUL, 2) == 0;
        text[to++] = nul ? '\0' : text[at];
        at += nul;
    }
    titan_assert(to <= n);
    return to;
}

static titan_status put_name(struct tokenizer_file *f, char *text, int64_t id)
{
    struct vocabulary *names = &f->t->names;
    TRY(vocabulary_put(names, id, text, mend_nul(text), f->err));
    return vocabulary_index(names, (int32_t)id, f->err);
}

/* {"token": id, ...} */
static titan_status read_vocabulary(struct tokenizer_file *f, const struct json *model)
{
    const struct json *vocabulary = json_get(model, "vocab");
    if (!vocabulary || vocabulary->type != JSON_OBJECT || !vocabulary->first)
        return titan_fail(f->err, TITAN_EINVAL, "the model has no vocab, or an empty one");
    for (const struct json *m = vocabulary->first; m; m = m->next) {
        if (m->type != JSON_INT)
            return titan_fail(f->err, TITAN_EINVAL, "the id of token '%.40s' is no whole number", m->key);
        TRY(put_name(f, m->key, m->integer));
    }
    return TITAN_OK;
}

/* Fills the vocabulary. With the alphabet of bytes a token is found by its bytes, otherwise by its text. Tokens that
 * the alphabet cannot spell and marked special tokens are never found, and are decoded as they stand. model: the names
 * so far are the model's; names added later are not found either. */
static titan_status make_vocabulary(struct tokenizer_file *f, bool model)
{
    const struct vocabulary *names = &f->t->names;
    struct vocabulary *v = &f->t->vocabulary;
    int16_t byte_of[512];
    _cleanup_(buf_free) struct buf bytes = BUF_INIT;
    for (int i = 0; i < 512; i++)
        byte_of[i] = -1;
    for (int byte = 0; byte < 256; byte++)
        byte_of[letter_of(byte)] = (int16_t)byte;
    for (size_t id = 0; id < names->n; id++) {
        const struct token *token = &names->tokens[id];
        const char *text = names->bytes.data + token->start;
        if (!token->there || (id < v->n && v->tokens[id].there))
            continue;
        /* Decodes the text in the alphabet of bytes, unless the text has a character outside the alphabet. */
        bool spelled = f->byte_level;
        buf_clear(&bytes);
        for (size_t at = 0, len; spelled && at < token->len; at += len) {
            const uint32_t code = utf8_code((const unsigned char *)text + at, &len);
            const char byte = code < 512 ? (char)byte_of[code] : '\0';
            spelled = code < 512 && byte_of[code] >= 0 && buf_append(&bytes, &byte, 1) == TITAN_OK;
        }
        TRY(vocabulary_put(v, (int64_t)id, spelled ? bytes.data : text, spelled ? bytes.len : token->len, f->err));
        const bool found = spelled || !f->byte_level;
        if (model && found && !(id < f->n_special && f->special[id]))
            TRY(vocabulary_index(v, (int32_t)id, f->err));
    }
    return TITAN_OK;
}

/* --- added tokens ------------------------------------------------------------------------------------------------- */

static int compare_texts(const void *a, const void *b)
{
    const struct added_token *x = a, *y = b;
    const int differ = memcmp(x->text, y->text, MIN(x->len, y->len));
    return differ ? differ : (x->len > y->len) - (x->len < y->len);
}

static int compare_added(const void *a, const void *b)
{
    const struct added_token *x = a, *y = b;
    return x->len != y->len ? (x->len > y->len ? -1 : 1) : (x->id > y->id) - (x->id < y->id);
}

/* Reads an added token. A special token in a text stays text, so encoding searches only for the others. */
static titan_status read_added(struct tokenizer_file *f, const struct json *m)
{
    struct vocabulary *names = &f->t->names;
    const struct json *content = json_get(m, "content"), *id = json_get(m, "id");
    if (!content || content->type != JSON_STRING || !*content->string || !id || id->type != JSON_INT)
        return titan_fail(f->err, TITAN_EINVAL, "an added token without content or id");
    char *text = content->string;
    const size_t len = mend_nul(text);
    const int32_t known = vocabulary_find(names, text, len);
    if (known >= 0 && known != id->integer)
        return titan_fail(f->err, TITAN_EINVAL,
                          "the added token '%.40s' has the id %" PRId64 ", and %" PRId32 " in the vocabulary", text,
                          id->integer, known);
    if (known < 0) {
        TRY(vocabulary_put(names, id->integer, text, len, f->err));
        TRY(vocabulary_index(names, (int32_t)id->integer, f->err));
    }
    if (tokenizer_file_flag(m, "special", false))
        return TITAN_OK;

    /* For a search after the normalizer, the token must be in the form that the normalizer makes of it. */
    struct tokenizer *t = f->t;
    struct buf work[2] = {BUF_INIT, BUF_INIT};
    const char *form = text;
    const bool behind = tokenizer_file_flag(m, "normalized", true);
    struct added_tokens *set = behind ? &t->added_behind : &t->added;
    struct added_token added = {.id = (int32_t)id->integer,
                                .len = len,
                                .word = tokenizer_file_flag(m, "single_word", false),
                                .takes_space_left = tokenizer_file_flag(m, "lstrip", false),
                                .takes_space_right = tokenizer_file_flag(m, "rstrip", false)};
    const bool kind[] = {behind && t->normalizer.n > 0, added.word, added.takes_space_left, added.takes_space_right};
    if (kind[0] || kind[1] || kind[2] || kind[3])
        t->hash = hash_bytes(t->hash, kind, sizeof(kind));
    titan_status status = behind ? normalize_text(&t->normalizer, true, &form, &added.len, work, f->err) : TITAN_OK;
    if (status == TITAN_OK && added.len == 0)
        status = titan_fail(f->err, TITAN_EUNSUPPORTED, "the normalizer leaves nothing of the added token %" PRId32,
                            added.id);
    if (status == TITAN_OK) {
        added.text = malloc(added.len);
        if (added.text)
            memcpy(added.text, form, added.len);
        if (!added.text || !VEC_PUSH(set->tokens, set->n, set->cap, added)) {
            free(added.text);
            status = titan_fail(f->err, TITAN_ENOMEM, "no memory for %zu added tokens", set->n + 1);
        }
    }
    buf_free(&work[0]);
    buf_free(&work[1]);
    return status;
}

static titan_status order_added(struct tokenizer_file *f, struct added_tokens *set)
{
    if (set->n > 1)
        qsort(set->tokens, set->n, sizeof(*set->tokens), compare_texts);
    for (size_t i = 1; i < set->n; i++)
        if (compare_texts(&set->tokens[i - 1], &set->tokens[i]) == 0)
            return titan_fail(f->err, TITAN_EUNSUPPORTED,
                              "the normalizer makes one text of the added tokens %" PRId32 " and %" PRId32,
                              set->tokens[i - 1].id, set->tokens[i].id);
    if (set->n > 1)
        qsort(set->tokens, set->n, sizeof(*set->tokens), compare_added);
    for (size_t i = 0; i < set->n; i++) {
        const struct added_token *a = &set->tokens[i];
        const unsigned char *text = (const unsigned char *)a->text;
        titan_assert(a->len > 0);
        for (unsigned second = 0; second < 256; second++)
            if (a->len == 1 || text[1] == second)
                set->begins[text[0] << 3 | second >> 5] |= UINT32_C(1) << (second & 31);
        f->t->hash = hash_word(f->t->hash, (uint64_t)a->id);
    }
    return TITAN_OK;
}

/* --- byte-pair encoding ------------------------------------------------------------------------------------------- */

static titan_status read_merges(struct tokenizer_file *f, const struct json *model)
{
    const struct json *merges = json_get(model, "merges");
    const struct vocabulary *names = &f->t->names;
    _cleanup_(buf_free) struct buf whole = BUF_INIT;
    uint32_t rank = 0;
    if (!merges || merges->type != JSON_ARRAY)
        return titan_fail(f->err, TITAN_EINVAL, "the model has no merges");
    for (const struct json *m = merges->first; m; m = m->next, rank++) {
        char *half[2];
        size_t len[2];
        /* Reads the two halves of a merge: ["a", "b"], or "a b". The halves are parts of m's own text; its space
         * becomes a NUL. */
        if (m->type == JSON_ARRAY && m->first && m->first->type == JSON_STRING && m->first->next &&
            m->first->next->type == JSON_STRING && !m->first->next->next) {
            half[0] = m->first->string;
            half[1] = m->first->next->string;
        } else {
            char *space = m->type == JSON_STRING ? strchr(m->string, ' ') : NULL;
            if (!space || strchr(space + 1, ' '))
                return titan_fail(f->err, TITAN_EINVAL, "merge %" PRIu32 " is not two tokens", rank);
            *space = '\0';
            half[0] = m->string;
            half[1] = space + 1;
        }
        for (int i = 0; i < 2; i++)
            len[i] = mend_nul(half[i]);
        buf_clear(&whole);
        if (buf_append(&whole, half[0], len[0]) != TITAN_OK || buf_append(&whole, half[1], len[1]) != TITAN_OK)
            return titan_fail(f->err, TITAN_ENOMEM, "no memory for merge %" PRIu32, rank);
        const int32_t id[3] = {vocabulary_find(names, half[0], len[0]), vocabulary_find(names, half[1], len[1]),
                               vocabulary_find(names, whole.data ? whole.data : "", whole.len)};
        for (int i = 0; i < 3; i++)
            if (id[i] < 0)
                return titan_fail(f->err, TITAN_EINVAL, "merge %" PRIu32 " names '%.40s', which the vocabulary lacks",
                                  rank, i == 2 ? whole.data ? whole.data : "" : half[i]);
        TRY(bpe_add(&f->t->bpe, id[0], id[1], rank, id[2], f->err));
        f->t->hash = hash_word(hash_word(f->t->hash, (uint64_t)id[0]), (uint64_t)id[1]);
    }
    return TITAN_OK;
}

static titan_status read_bpe(struct tokenizer_file *f, const struct json *model)
{
    struct bpe *b = &f->t->bpe;
    const char *unk = json_string(model, "unk_token", NULL);
    if (*json_string(model, "continuing_subword_prefix", "") || *json_string(model, "end_of_word_suffix", ""))
        return titan_fail(f->err, TITAN_EUNSUPPORTED,
                          "BPE with continuing_subword_prefix or end_of_word_suffix is not known");
    if (json_real(model, "dropout", 0) > 0)
        return titan_fail(f->err, TITAN_EUNSUPPORTED, "BPE with dropout is not known");
    TRY(read_vocabulary(f, model));
    b->by_bytes = f->byte_level;
    b->byte_fallback = tokenizer_file_flag(model, "byte_fallback", false);
    b->whole_words = tokenizer_file_flag(model, "ignore_merges", false);
    b->fuse_unknown = tokenizer_file_flag(model, "fuse_unk", false);
    b->unknown = unk ? vocabulary_find(&f->t->names, unk, strlen(unk)) : TOKEN_NONE;
    if (unk && b->unknown < 0)
        return titan_fail(f->err, TITAN_EINVAL, "unk_token '%.40s' is not in the vocabulary", unk);
    if (b->by_bytes && b->byte_fallback)
        return titan_fail(f->err, TITAN_EUNSUPPORTED, "BPE with byte_fallback and the pre-tokenizer 'ByteLevel'");
    const bool kind[] = {b->by_bytes, b->byte_fallback, b->whole_words, b->fuse_unknown};
    f->t->hash = hash_bytes(f->t->hash, kind, sizeof(kind));
    f->t->hash = hash_word(f->t->hash, (uint64_t)(int64_t)b->unknown);
    titan_assert(!(b->by_bytes && b->byte_fallback));

    /* Finds the tokens of single bytes: letters of the alphabet of bytes, or <0xXX>. */
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        titan_assert(letter_of(byte) < 512);
        const size_t len =
            b->by_bytes ? utf8_encode(letter_of(byte), name) : (size_t)sprintf(name, "<0x%02X>", (unsigned)byte);
        b->of_byte[byte] = vocabulary_find(&f->t->names, name, len);
        if (b->byte_fallback && b->of_byte[byte] < 0)
            return titan_fail(f->err, TITAN_EINVAL, "byte_fallback needs the token '%s', which the vocabulary lacks",
                              name);
    }

    return read_merges(f, model);
}

/* --- WordPiece and Unigram ---------------------------------------------------------------------------------------- */

static titan_status read_wordpiece(struct tokenizer_file *f, const struct json *model)
{
    struct wordpiece *w = &f->t->wordpiece;
    const char *unk = json_string(model, "unk_token", "[UNK]");
    const char *prefix = json_string(model, "continuing_subword_prefix", "##");
    TRY(read_vocabulary(f, model));
    w->prefix = strdup(prefix);
    w->max_chars = json_int(model, "max_input_chars_per_word", 100);
    w->unknown = vocabulary_find(&f->t->names, unk, strlen(unk));
    if (!w->prefix)
        return titan_fail(f->err, TITAN_ENOMEM, "no memory for continuing_subword_prefix");
    if (w->max_chars < 0 || w->max_chars > WORDPIECE_CHARS_MAX)
        return titan_fail(f->err, TITAN_EUNSUPPORTED,
                          "max_input_chars_per_word is %" PRId64 "; 0 to %d characters are known", w->max_chars,
                          WORDPIECE_CHARS_MAX);
    if (w->unknown < 0)
        return titan_fail(f->err, TITAN_EINVAL, "unk_token '%.40s' is not in the vocabulary", unk);
    f->t->hash = hash_bytes(f->t->hash, prefix, strlen(prefix) + 1);
    f->t->hash = hash_word(hash_word(f->t->hash, (uint64_t)w->max_chars), (uint64_t)w->unknown);
    return TITAN_OK;
}

static titan_status read_unigram(struct tokenizer_file *f, const struct json *model)
{
    struct unigram *u = &f->t->unigram;
    const int64_t unknown = json_int(model, "unk_id", -1);

    /* [["token", score], ...] */
    const struct json *vocabulary = json_get(model, "vocab");
    double lowest = INFINITY;
    if (!vocabulary || vocabulary->type != JSON_ARRAY || !vocabulary->first)
        return titan_fail(f->err, TITAN_EINVAL, "the model has no vocab, or an empty one");
    for (const struct json *m = vocabulary->first; m; m = m->next) {
        const struct json *token = m->type == JSON_ARRAY ? m->first : NULL, *score = token ? token->next : NULL;
        if (!score || token->type != JSON_STRING || (score->type != JSON_REAL && score->type != JSON_INT) ||
            score->next)
            return titan_fail(f->err, TITAN_EINVAL, "entry %zu of vocab is not a token and its score", u->n_scores);
        const double value = score->type == JSON_INT ? (double)score->integer : unigram_score(score->real);
        TRY(put_name(f, token->string, (int64_t)u->n_scores));
        if (!VEC_PUSH(u->scores, u->n_scores, u->cap_scores, value))
            return titan_fail(f->err, TITAN_ENOMEM, "no memory for %zu tokens", u->n_scores + 1);
        f->t->hash = hash_bytes(f->t->hash, &value, sizeof(value));
        lowest = MIN(lowest, value);
    }
    u->unknown_score = lowest - UNKNOWN_PENALTY;

    if (unknown < 0 || (size_t)unknown >= u->n_scores)
        return titan_fail(f->err, unknown < 0 ? TITAN_EUNSUPPORTED : TITAN_EINVAL,
                          unknown < 0 ? "Unigram without unk_id is not known" : "unk_id is not a token of vocab");
    u->unknown = (int32_t)unknown;
    u->byte_fallback = tokenizer_file_flag(model, "byte_fallback", false);
    for (int byte = 0; byte < 256; byte++) {
        char name[8];
        const int len = sprintf(name, "<0x%02X>", (unsigned)byte);
        u->of_byte[byte] = vocabulary_find(&f->t->names, name, (size_t)len);
    }
    f->t->hash = hash_word(hash_word(f->t->hash, (uint64_t)unknown), u->byte_fallback);
    return TITAN_OK;
}

/* --- model -------------------------------------------------------------------------------------------------------- */

static titan_status read_model(struct tokenizer_file *f, const struct json *root, const struct json *model)
{
    const char *type = json_string(model, "type", json_get(model, "merges") ? "BPE" : "");
    if (strcmp(type, "BPE") == 0) {
        TRY(read_bpe(f, model));
        return make_vocabulary(f, true);
    }
    const bool unigram = strcmp(type, "Unigram") == 0;
    if (!unigram && strcmp(type, "WordPiece") != 0)
        return tokenizer_file_unknown(f, "model", type, "BPE, Unigram and WordPiece");
    if (f->byte_level)
        return titan_fail(f->err, TITAN_EUNSUPPORTED, "pre-tokenizer 'ByteLevel' is known with the model BPE, not %s",
                          type);
    f->t->kind = unigram ? TOKENIZER_UNIGRAM : TOKENIZER_WORDPIECE;
    f->t->hash = hash_text(f->t->hash, type);
    TRY(unigram ? read_unigram(f, model) : read_wordpiece(f, model));

    /* Marks the special tokens of the vocabulary. Without the mark these models would find them in text. */
    const struct vocabulary *names = &f->t->names;
    const struct json *list = json_get(root, "added_tokens");
    f->special = calloc(names->n, sizeof(*f->special));
    f->n_special = names->n;
    if (!f->special)
        return titan_fail(f->err, TITAN_ENOMEM, "no memory for %zu tokens", names->n);
    for (const struct json *m = list && list->type == JSON_ARRAY ? list->first : NULL; m; m = m->next) {
        const int64_t id = json_int(m, "id", -1);
        if (id >= 0 && (size_t)id < f->n_special && tokenizer_file_flag(m, "special", false))
            f->special[id] = true;
    }

    TRY(make_vocabulary(f, true));
    const size_t n_scores = f->t->unigram.n_scores; /* tokens with a score; 0: not Unigram */
    for (size_t id = 0; id < n_scores; id++) {
        size_t len;
        const char *text = vocabulary_bytes(names, (int64_t)id, &len);
        titan_assert(text && id < f->n_special);
        if (!f->special[id])
            TRY(unigram_add(&f->t->unigram, text, len, (int32_t)id, f->err));
    }
    return TITAN_OK;
}

/* --- decoder ------------------------------------------------------------------------------------------------------ */

static titan_status set_replacement(struct tokenizer_file *f, const char *from, const char *to)
{
    struct tokenizer *t = f->t;
    if (t->decoder.from)
        return titan_fail(f->err, TITAN_EUNSUPPORTED, "a decoder that replaces two texts");
    if (!*from)
        return titan_fail(f->err, TITAN_EINVAL, "a decoder replaces an empty text");
    t->decoder.from = strdup(from);
    t->decoder.to = strdup(to);
    return t->decoder.from && t->decoder.to ? TITAN_OK : titan_fail(f->err, TITAN_ENOMEM, "no memory for a decoder");
}

static titan_status read_decoder(struct tokenizer_file *f, const struct json *part, const char *type)
{
    if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "Fuse") == 0)
        return TITAN_OK; /* byte tokens are joined in any case */
    if (strcmp(type, "ByteFallback") == 0) {
        f->t->decoder.from_bytes = true;
        return TITAN_OK;
    }
    if (strcmp(type, "Replace") == 0) {
        bool literal;
        const char *from;
        TRY(tokenizer_file_pattern(f, part, &literal, &from));
        if (!literal)
            return titan_fail(f->err, TITAN_EUNSUPPORTED, "decoder 'Replace' is known with a String, not a Regex");
        return set_replacement(f, from, json_string(part, "content", ""));
    }
    if (strcmp(type, "Strip") == 0) {
        if (strcmp(json_string(part, "content", ""), " ") != 0 || json_int(part, "stop", 0) != 0 ||
            json_int(part, "start", 0) < 0)
            return titan_fail(f->err, TITAN_EUNSUPPORTED, "decoder 'Strip' is known for spaces at the beginning");
        f->t->decoder.strip = json_int(part, "start", 0);
        return TITAN_OK;
    }
    if (strcmp(type, "Metaspace") == 0) {
        const bool prefix = tokenizer_file_flag(part, "add_prefix_space", true);
        f->t->decoder.strip = strcmp(json_string(part, "prepend_scheme", prefix ? "always" : "never"), "never") != 0;
        return set_replacement(f, json_string(part, "replacement", METASPACE), " ");
    }
    if (strcmp(type, "WordPiece") == 0) {
        f->t->decoder.words = true;
        f->t->decoder.tidy = tokenizer_file_flag(part, "cleanup", true);
        f->t->decoder.prefix = strdup(json_string(part, "prefix", "##"));
        return f->t->decoder.prefix ? TITAN_OK : titan_fail(f->err, TITAN_ENOMEM, "no memory for a decoder");
    }
    return tokenizer_file_unknown(f, "decoder", type,
                                  "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip and WordPiece");
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static titan_status read_file(struct tokenizer_file *f, const struct json *root)
{
    const struct json *model = json_get(root, "model");
    if (!model || model->type != JSON_OBJECT)
        return titan_fail(f->err, TITAN_EINVAL, "it has no model");
    TRY(tokenizer_file_each(f, json_get(root, "normalizer"), "normalizer", "normalizers", tokenizer_file_normalizer));
    TRY(tokenizer_file_each(f, json_get(root, "pre_tokenizer"), "pre-tokenizer", "pretokenizers",
                            tokenizer_file_pre_tokenizer));
    TRY(read_model(f, root, model));
    const struct json *added = json_get(root, "added_tokens");
    for (const struct json *m = added && added->type == JSON_ARRAY ? added->first : NULL; m; m = m->next)
        TRY(read_added(f, m));
    TRY(order_added(f, &f->t->added));
    TRY(order_added(f, &f->t->added_behind));
    TRY(make_vocabulary(f, false));
    return tokenizer_file_each(f, json_get(root, "decoder"), "decoder", "decoders", read_decoder);
}

static void free_json(struct json **root)
{
    json_free(*root);
}

/* Returns the file's first special token of these names, for use without a configuration. */
static int32_t find_first(const struct vocabulary *names, const char *const *text)
{
    int32_t id = TOKEN_NONE;
    for (; *text && id < 0; text++)
        id = vocabulary_find(names, *text, strlen(*text));
    return id;
}

titan_status tokenizer_read_json(struct tokenizer *t, const char *text, size_t n, struct titan_error *err)
{
    static const char *const begins[] = {"<|begin_of_text|>", "<s>", DEEPSEEK_BEGIN, "[CLS]", NULL};
    static const char *const ends[] = {"<|end_of_text|>", "<|endoftext|>", "</s>", DEEPSEEK_END, "[SEP]", NULL};
    struct tokenizer_file f = {.t = t, .err = err};
    _cleanup_(free_json) struct json *root = NULL;
    TRY(json_parse_nul(text, n, &root, err));
    if (!json_get(root, "model") && json_get(root, "config") && json_get(root, "vocab"))
        return tokenizer_read_tekken(t, root, err);
    const titan_status status = read_file(&f, root);
    free(f.special);
    TRY(status);
    t->bos = find_first(&t->names, begins);
    t->eos = find_first(&t->names, ends);
    return TITAN_OK;
}

/* Reads "bos_token": "text", {"content": "text"}, or null for no such token. */
static titan_status read_end(const struct tokenizer *t, const struct json *config, const char *key, int32_t *id,
                             struct titan_error *err)
{
    const struct json *m = json_get(config, key);
    if (!m)
        return TITAN_OK;
    const char *text = m->type == JSON_STRING ? m->string : json_string(m, "content", NULL);
    *id = text ? vocabulary_find(&t->names, text, strlen(text)) : TOKEN_NONE;
    if (text && *id < 0)
        return titan_fail(err, TITAN_EINVAL, "%s '%.40s' is no token", key, text);
    return TITAN_OK;
}

titan_status tokenizer_read_config(struct tokenizer *t, const char *text, size_t n, struct titan_error *err)
{
    _cleanup_(free_json) struct json *config = NULL;
    TRY(json_parse_nul(text, n, &config, err));
    TRY(read_end(t, config, "bos_token", &t->bos, err));
    return read_end(t, config, "eos_token", &t->eos, err);
}
