/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/tokenizer_file.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "worker/tokenizer/family.h"

#define PARTS_DEEP 8 /* sequences in sequences */

titan_status tokenizer_file_unknown(const struct tokenizer_file *f, const char *what, const char *type,
                                    const char *known)
{
    return titan_fail(f->err, TITAN_EUNSUPPORTED, "%s '%s' is not known; there are %s", what, type, known);
}

bool tokenizer_file_flag(const struct json *part, const char *key, bool fallback)
{
    const struct json *m = json_get(part, key);
    return m && m->type == JSON_BOOL ? m->boolean : fallback;
}

static titan_status each_part(struct tokenizer_file *f, const struct json *part, const char *what, const char *list,
                              tokenizer_file_part read, int depth)
{
    titan_assert(depth >= 0 && depth <= PARTS_DEEP);
    const char *type = json_string(part, "type", NULL);
    if (!part || part->type == JSON_NULL)
        return TITAN_OK;
    if (!type)
        return titan_fail(f->err, TITAN_EINVAL, "%s has no type", what);
    if (depth == PARTS_DEEP)
        return titan_fail(f->err, TITAN_EINVAL, "%s: sequences are nested too deep", what);
    f->t->hash = hash_bytes(f->t->hash, type, strlen(type) + 1);
    if (strcmp(type, "Sequence") != 0)
        return read(f, part, type);
    const struct json *parts = json_get(part, list);
    if (!parts || parts->type != JSON_ARRAY)
        return titan_fail(f->err, TITAN_EINVAL, "%s: a Sequence without %s", what, list);
    for (const struct json *m = parts->first; m; m = m->next)
        TRY(each_part(f, m, what, list, read, depth + 1));
    return TITAN_OK;
}

titan_status tokenizer_file_pattern(struct tokenizer_file *f, const struct json *part, bool *ret_literal,
                                    const char **ret)
{
    const struct json *pattern = json_get(part, "pattern");
    const char *text = json_string(pattern, "String", NULL), *regex = json_string(pattern, "Regex", NULL);
    if (!text && !regex)
        return titan_fail(f->err, TITAN_EINVAL, "'%s' without a pattern of the kind String or Regex",
                          json_string(part, "type", ""));
    *ret_literal = text;
    *ret = text ? text : regex;
    f->t->hash = hash_bytes(f->t->hash, *ret, strlen(*ret) + 1);
    return TITAN_OK;
}

titan_status tokenizer_file_each(struct tokenizer_file *f, const struct json *part, const char *what, const char *list,
                                 tokenizer_file_part read)
{
    return each_part(f, part, what, list, read, 0);
}

/* --- normalizer --------------------------------------------------------------------------------------------------- */

static titan_status add_step_to(struct normalizer *m, struct tokenizer_file *f, enum normalize_kind kind,
                                const char *from, const char *to)
{
    return normalize_add(m, (struct normalize_step){.kind = kind, .from = (char *)from, .to = (char *)to}, f->err);
}

static titan_status add_step(struct tokenizer_file *f, enum normalize_kind kind, const char *from, const char *to)
{
    return add_step_to(&f->t->normalizer, f, kind, from, to);
}

static titan_status add_form(struct tokenizer_file *f, enum unicode_form form)
{
    return normalize_add(&f->t->normalizer, (struct normalize_step){.kind = NORMALIZE_FORM, .form = form}, f->err);
}

/* Reads a flag that changes the encoding, and adds it to the hash. */
static bool take_flag(struct tokenizer_file *f, const struct json *part, const char *key, bool fallback)
{
    const bool flag = tokenizer_file_flag(part, key, fallback);
    f->t->hash = hash_word(f->t->hash, flag);
    return flag;
}

titan_status tokenizer_file_normalizer(struct tokenizer_file *f, const struct json *part, const char *type)
{
    static const struct {
        const char *type;
        enum normalize_kind kind;
        enum unicode_form form;
    } simple[] = {
        {"NFC", NORMALIZE_FORM, UNICODE_NFC},
        {"NFD", NORMALIZE_FORM, UNICODE_NFD},
        {"NFKC", NORMALIZE_FORM, UNICODE_NFKC},
        {"NFKD", NORMALIZE_FORM, UNICODE_NFKD},
        {"Lowercase", NORMALIZE_LOWER, 0},
        {"StripAccents", NORMALIZE_MARKS, 0},
        {"Nmt", NORMALIZE_NMT, 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(simple); i++)
        if (strcmp(type, simple[i].type) == 0)
            return simple[i].kind == NORMALIZE_FORM ? add_form(f, simple[i].form)
                                                    : add_step(f, simple[i].kind, NULL, NULL);
    if (strcmp(type, "Prepend") == 0) {
        const char *prepend = json_string(part, "prepend", "");
        f->t->hash = hash_bytes(f->t->hash, prepend, strlen(prepend) + 1);
        return add_step(f, NORMALIZE_PREPEND, NULL, prepend);
    }
    if (strcmp(type, "Replace") == 0) {
        bool literal;
        const char *from, *to = json_string(part, "content", "");
        struct normalize_step step = {.kind = NORMALIZE_PATTERN, .to = (char *)to};
        TRY(tokenizer_file_pattern(f, part, &literal, &from));
        f->t->hash = hash_bytes(f->t->hash, to, strlen(to) + 1);
        if (literal)
            return add_step(f, NORMALIZE_REPLACE, from, to);
        TRY(pattern_open(from, false, &step.pattern, f->err));
        return normalize_add(&f->t->normalizer, step, f->err);
    }
    if (strcmp(type, "Precompiled") == 0) {
        const char *base64 = json_string(part, "precompiled_charsmap", NULL);
        struct normalize_step step = {.kind = NORMALIZE_CHARSMAP};
        if (!base64)
            return titan_fail(f->err, TITAN_EINVAL, "normalizer 'Precompiled' without precompiled_charsmap");
        f->t->hash = hash_text(f->t->hash, base64);
        TRY(charsmap_open(base64, &step.charsmap, f->err));
        return normalize_add(&f->t->normalizer, step, f->err);
    }
    if (strcmp(type, "Strip") == 0) {
        if (take_flag(f, part, "strip_left", true))
            TRY(add_step(f, NORMALIZE_STRIP_LEFT, NULL, NULL));
        return take_flag(f, part, "strip_right", true) ? add_step(f, NORMALIZE_STRIP_RIGHT, NULL, NULL) : TITAN_OK;
    }
    if (strcmp(type, "BertNormalizer") == 0) {
        const bool clean = take_flag(f, part, "clean_text", true);
        const bool ideographs = take_flag(f, part, "handle_chinese_chars", true);
        const bool lower = take_flag(f, part, "lowercase", true);
        const bool accents = take_flag(f, part, "strip_accents", lower);
        if (clean)
            TRY(add_step(f, NORMALIZE_CLEAN, NULL, NULL));
        if (ideographs)
            TRY(add_step(f, NORMALIZE_IDEOGRAPHS, NULL, NULL));
        if (accents)
            TRY(add_form(f, UNICODE_NFD));
        if (accents)
            TRY(add_step(f, NORMALIZE_ACCENTS, NULL, NULL));
        return lower ? add_step(f, NORMALIZE_LOWER, NULL, NULL) : TITAN_OK;
    }
    return tokenizer_file_unknown(f, "normalizer", type,
                                  "BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, "
                                  "Replace, Sequence, Strip and StripAccents");
}

/* --- pre-tokenizer ------------------------------------------------------------------------------------------------ */

/* A prefix is added to a text before the text is cut. */
static titan_status add_prefix(struct tokenizer_file *f, enum normalize_kind kind, const char *text)
{
    if (f->cut)
        return titan_fail(f->err, TITAN_EUNSUPPORTED, "a pre-tokenizer that adds a prefix, behind one that cuts");
    return add_step_to(&f->t->marks, f, kind, NULL, text);
}

static titan_status read_behavior(struct tokenizer_file *f, const struct json *part, const char *fallback,
                                  enum split_behavior *ret)
{
    static const char *const names[] = {
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_MERGED_BEFORE] = "MergedWithPrevious",
        [SPLIT_MERGED_BEHIND] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *behavior = json_string(part, "behavior", fallback);
    f->t->hash = hash_text(f->t->hash, behavior);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        *ret = (enum split_behavior)i;
        if (strcmp(behavior, names[i]) == 0)
            return TITAN_OK;
    }
    return tokenizer_file_unknown(f, "behavior of a pre-tokenizer", behavior,
                                  "Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous");
}

/* Adds a step that cuts at punctuation. \p{P} in a pattern would not do, because its Unicode version differs. */
static titan_status add_punctuation(struct tokenizer_file *f, enum split_behavior behavior)
{
    _cleanup_(buf_free) struct buf set = BUF_INIT;
    size_t n;
    const struct code_range *ranges = unicode_ranges(UNICODE_PUNCTUATION, &n);
    buf_puts(&set, "[");
    for (size_t i = 0; i < n; i++) {
        char first[5] = {0}, last[5] = {0};
        (void)utf8_encode(ranges[i].first, first);
        (void)utf8_encode(ranges[i].last, last);
        buf_printf(&set, "%s%s-%s%s", ranges[i].first < 0x80 ? "\\" : "", first, ranges[i].last < 0x80 ? "\\" : "",
                   last);
    }
    buf_puts(&set, "]");
    return buf_failed(&set) ? titan_fail(f->err, TITAN_ENOMEM, "no memory for a pattern")
                            : split_add(&f->t->split, set.data, false, behavior, false, f->err);
}

static titan_status read_metaspace(struct tokenizer_file *f, const struct json *part)
{
    const char *mark = json_string(part, "replacement", METASPACE);
    const char *scheme =
        json_string(part, "prepend_scheme", tokenizer_file_flag(part, "add_prefix_space", true) ? "always" : "never");
    f->t->hash = hash_text(f->t->hash, scheme);
    f->t->hash = hash_text(f->t->hash, mark);
    const bool split = tokenizer_file_flag(part, "split", true), always = strcmp(scheme, "always") == 0;
    size_t one = 0;
    if (*mark)
        (void)utf8_code((const unsigned char *)mark, &one);
    if (one == 0 || mark[one])
        return titan_fail(f->err, TITAN_EINVAL, "pre-tokenizer 'Metaspace': its replacement is not one character");
    if (f->cut_at_space && always && split) {
        f->t->hash = hash_word(f->t->hash, split);
        split_free(&f->t->split);
        TRY(add_step_to(&f->t->marks, f, NORMALIZE_PREFIX_WORD, NULL, mark));
        return split_add(&f->t->split, mark, true, SPLIT_MERGED_BEHIND, false, f->err);
    }
    if (f->cut)
        return titan_fail(f->err, TITAN_EUNSUPPORTED,
                          "pre-tokenizer 'Metaspace' behind one that cuts is known behind "
                          "'WhitespaceSplit', with prepend_scheme 'always' and split");

    /* "first" adds the prefix only at the beginning of a text. In `tokenizers` a beginning that the normalizer removed
     * still counts. So only normalizers that keep the beginning are accepted. */
    bool keeps = true;
    for (size_t i = 0; i < f->t->normalizer.n; i++) {
        const enum normalize_kind kind = f->t->normalizer.steps[i].kind;
        keeps &= kind == NORMALIZE_FORM || kind == NORMALIZE_REPLACE || kind == NORMALIZE_PREPEND;
    }
    if (strcmp(scheme, "first") == 0 && !keeps)
        return titan_fail(f->err, TITAN_EUNSUPPORTED,
                          "prepend_scheme 'first' behind a normalizer that may take the beginning of a text away");
    TRY(add_step_to(&f->t->marks, f, NORMALIZE_REPLACE, " ", mark));
    if (always)
        TRY(add_prefix(f, NORMALIZE_PREFIX, mark));
    else if (strcmp(scheme, "first") == 0)
        TRY(add_prefix(f, NORMALIZE_PREFIX_1, mark));
    else if (strcmp(scheme, "never") != 0)
        return tokenizer_file_unknown(f, "prepend_scheme", scheme, "always, first and never");
    f->t->hash = hash_word(f->t->hash, split);
    return split ? split_add(&f->t->split, mark, true, SPLIT_MERGED_BEHIND, false, f->err) : TITAN_OK;
}

titan_status tokenizer_file_pre_tokenizer(struct tokenizer_file *f, const struct json *part, const char *type)
{
    struct split *split = &f->t->split;
    enum split_behavior behavior;
    if (f->byte_level)
        return titan_fail(f->err, TITAN_EUNSUPPORTED, "pre-tokenizer '%s' behind 'ByteLevel'", type);
    if (strcmp(type, "Split") == 0) {
        bool literal;
        const char *pattern;
        TRY(tokenizer_file_pattern(f, part, &literal, &pattern));
        TRY(read_behavior(f, part, "", &behavior));
        TRY(split_add(split, pattern, literal, behavior, take_flag(f, part, "invert", false), f->err));
    } else if (strcmp(type, "ByteLevel") == 0) {
        f->byte_level = true;
        const bool prefix = take_flag(f, part, "add_prefix_space", true);
        const bool regex = take_flag(f, part, "use_regex", true);
        if (prefix)
            TRY(add_prefix(f, NORMALIZE_PREFIX, " "));
        if (regex)
            TRY(split_add(split, family_find("gpt2")->pattern, false, SPLIT_ISOLATED, false, f->err));
    } else if (strcmp(type, "Metaspace") == 0) {
        TRY(read_metaspace(f, part));
    } else if (strcmp(type, "Digits") == 0) {
        behavior = take_flag(f, part, "individual_digits", false) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        TRY(split_add(split, "\\p{N}", false, behavior, false, f->err));
    } else if (strcmp(type, "WhitespaceSplit") == 0) {
        TRY(split_add(split, "\\s", false, SPLIT_REMOVED, false, f->err));
    } else if (strcmp(type, "BertPreTokenizer") == 0) {
        TRY(split_add(split, "\\s", false, SPLIT_REMOVED, false, f->err));
        TRY(add_punctuation(f, SPLIT_ISOLATED));
    } else if (strcmp(type, "Punctuation") == 0) {
        TRY(read_behavior(f, part, "Isolated", &behavior));
        TRY(add_punctuation(f, behavior));
    } else {
        return tokenizer_file_unknown(f, "pre-tokenizer", type,
                                      "BertPreTokenizer, ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split "
                                      "and WhitespaceSplit");
    }
    f->cut_at_space = !f->cut && strcmp(type, "WhitespaceSplit") == 0;
    f->cut = split->n > 0;
    return TITAN_OK;
}
