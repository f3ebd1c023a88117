/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl.c - see jsonl.h. */
#include "worker/data/jsonl.h"

#include <stdint.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/utf8.h"

struct scan {
    char *at, *end;
    const char *why, *field;
    /* number of open objects, from the outermost on, that lead to the field */
    int on_way;
    uint64_t objects[JSONL_DEPTH_MAX / 64]; /* a bit by depth: 1 = object, 0 = array */
    int depth;
    bool value;       /* a value comes next */
    bool own;         /* the next value is the value of the field */
    bool leads;       /* if the next value is an object, it holds the field */
    bool found, text; /* found: the record has the field; text: its value is a string */
    char *string;     /* the field's string */
    size_t string_n;
};

static bool fail(struct scan *s, const char *why)
{
    s->why = why;
    return false;
}

static void skip_space(struct scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n'))
        s->at++;
}

static bool next_is(struct scan *s, char c)
{
    skip_space(s);
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

/* --- strings ------------------------------------------------------------------------------------------------------ */

static int32_t hex4(const char *at, const char *end)
{
    int32_t code = 0;
    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const char c = at[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* Decodes what follows a backslash. An unpaired surrogate becomes U+FFFD. */
static bool decode_escape(struct scan *s, char **out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (s->at == s->end)
        return fail(s, "a string has no end");
    const char c = *s->at++;
    if (c != 'u') {
        const char *name = c ? strchr(names, c) : NULL;
        if (!name)
            return fail(s, "unknown escape in a string");
        *(*out)++ = values[name - names];
        return true;
    }
    int32_t code = hex4(s->at, s->end);
    if (code < 0)
        return fail(s, "\\u without four hexadecimal digits");
    s->at += 4;
    if (code >= 0xd800 && code <= 0xdbff && s->end - s->at >= 6 && s->at[0] == '\\' && s->at[1] == 'u') {
        const int32_t low = hex4(s->at + 2, s->end);
        if (low >= 0xdc00 && low <= 0xdfff) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            s->at += 6;
        }
    }
    if (code >= 0xd800 && code <= 0xdfff)
        code = 0xfffd;
    *out += utf8_encode((uint32_t)code, *out);
    return true;
}

/* Decodes a string in place, from after its opening quote. The result is never longer than the source. */
static bool read_string(struct scan *s, char **ret, size_t *ret_n)
{
    char *out = s->at;
    *ret = out;
    for (;;) {
        char *from = s->at;
        while (s->at < s->end && *s->at != '"' && *s->at != '\\' && (unsigned char)*s->at >= 0x20)
            s->at++;
        if (out != from)
            memmove(out, from, (size_t)(s->at - from));
        out += s->at - from;
        if (s->at == s->end)
            return fail(s, "a string has no end");
        const char c = *s->at++;
        if (c == '"')
            break;
        if (c != '\\')
            return fail(s, "a control character in a string");
        if (!decode_escape(s, &out))
            return false;
    }
    *ret_n = (size_t)(out - *ret);
    return true;
}

/* --- the other values --------------------------------------------------------------------------------------------- */

static bool digits(struct scan *s)
{
    char *from = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > from;
}

/* Reads a word or a number. */
static bool read_word(struct scan *s)
{
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(s->end - s->at) >= n && memcmp(s->at, words[i], n) == 0) {
            s->at += n;
            return true;
        }
    }

    if (*s->at == '-')
        s->at++;
    const bool zero = s->at < s->end && *s->at == '0';
    if (zero)
        s->at++;
    else if (!digits(s))
        return fail(s, "a value is missing or no JSON");
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!digits(s))
            return fail(s, "a number without digits");
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-'))
            s->at++;
        if (!digits(s))
            return fail(s, "a number without digits");
    }
    return true;
}

static bool in_object(const struct scan *s)
{
    titan_assert(s->depth > 0 && s->depth <= JSONL_DEPTH_MAX);
    const int top = s->depth - 1;
    return s->objects[top / 64] >> (top % 64) & 1;
}

/* --- a record ----------------------------------------------------------------------------------------------------- */

/* Reads a member's name and colon. */
static bool read_name(struct scan *s)
{
    char *name;
    size_t n;
    if (!next_is(s, '"'))
        return fail(s, "a name in quotes is missing");
    if (!read_string(s, &name, &n))
        return false;
    const char *part = s->field; /* the part of the field's name that this object's member must have */
    bool deep = true;            /* the field's name has a part for this depth */
    for (int i = 1; i < s->depth && deep; i++) {
        const char *dot = strchr(part, '.');
        deep = dot != NULL;
        part = deep ? dot + 1 : part;
    }
    const size_t len = strcspn(part, ".");
    const bool on_way = deep && s->on_way == s->depth;
    s->leads = on_way && part[len] && n == len && memcmp(name, part, n) == 0;
    s->own = (on_way && !part[len] && n == len && memcmp(name, part, n) == 0) ||
             (s->depth == 1 && n == strlen(s->field) && memcmp(name, s->field, n) == 0);
    s->value = true;
    return next_is(s, ':') || fail(s, "a colon is missing");
}

/* Begins an object or array after its opening bracket. */
static bool begin_container(struct scan *s, bool object)
{
    const bool leads = object && (s->leads || s->depth == 0);
    s->own = s->leads = false;
    titan_assert(s->depth >= 0 && s->depth <= JSONL_DEPTH_MAX);
    if (s->depth == JSONL_DEPTH_MAX)
        return fail(s, "nested too deeply");
    const uint64_t bit = UINT64_C(1) << (s->depth % 64);
    uint64_t *word = &s->objects[s->depth++ / 64];
    *word = object ? *word | bit : *word & ~bit;
    s->on_way = leads ? s->depth : MIN(s->on_way, s->depth - 1);
    if (next_is(s, object ? '}' : ']')) {
        s->depth--;
        s->on_way = MIN(s->on_way, s->depth);
        s->value = false;
        return true;
    }
    s->value = true;
    return !object || read_name(s);
}

static bool read_value(struct scan *s)
{
    const char c = s->at < s->end ? *s->at : '\0';
    const bool own = s->own;
    char *string = NULL;
    size_t n = 0;
    if (own) {
        s->found = true;
        s->text = c == '"';
    }
    if (s->at == s->end)
        return fail(s, "it ends early");
    if (c == '{' || c == '[') {
        s->at++;
        return begin_container(s, c == '{');
    }
    s->own = s->leads = s->value = false;
    if (c != '"')
        return read_word(s);
    s->at++;
    if (!read_string(s, &string, &n))
        return false;
    if (own) {
        s->string = string;
        s->string_n = n;
    }
    return true;
}

/* Reads a comma, or the end of the container. */
static bool read_end(struct scan *s)
{
    if (next_is(s, ',')) {
        s->value = true;
        return !in_object(s) || read_name(s);
    }
    if (!next_is(s, in_object(s) ? '}' : ']'))
        return fail(s, s->at == s->end ? "it ends early" : "a comma is missing");
    s->depth--;
    s->on_way = MIN(s->on_way, s->depth);
    return true;
}

static bool read_record(struct scan *s)
{
    if (utf8_check(s->at, (size_t)(s->end - s->at)) != (size_t)(s->end - s->at))
        return fail(s, "not UTF-8");
    if (!next_is(s, '{'))
        return fail(s, "not a JSON object");
    for (bool ok = begin_container(s, true); s->depth > 0; ok = s->value ? read_value(s) : read_end(s)) {
        if (!ok)
            return false;
        skip_space(s);
    }
    skip_space(s);
    if (s->at < s->end)
        return fail(s, "something follows the object");
    if (!s->found)
        return fail(s, "no such field");
    return s->text || fail(s, "the field is no string");
}

bool jsonl_text(char *record, size_t n, const char *field, char **ret, size_t *ret_n, const char **ret_why)
{
    titan_assert(record && field);
    struct scan s = {.at = record, .end = record + n, .field = field};
    const bool ok = read_record(&s);
    *ret = s.string;
    *ret_n = s.string_n;
    *ret_why = s.why;
    return ok;
}

/* --- where records end -------------------------------------------------------------------------------------------- */

size_t jsonl_gap(const char *text, size_t n)
{
    size_t at = 0;
    while (at < n && text[at] && strchr(" \t\r\n,]", text[at]))
        at++;
    return at;
}

size_t jsonl_value(const char *text, size_t n)
{
    uint64_t depth = 0;
    size_t at = 0;
    while (at < n) {
        const char c = text[at++];
        if (c == '"') {
            while (at < n && text[at] != '"')
                at += text[at] == '\\' ? 2 : 1;
            at = at < n ? at + 1 : n + 1; /* n + 1: the string has no end */
        } else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && depth > 0)
            depth--;
        else if (depth == 0 && (at == n || !text[at] || strchr(" \t\r\n,]}", text[at]))) /* a number or a word */
            return at < n ? at : 0;
        else
            continue;
        if (depth == 0)
            return at <= n ? at : 0;
    }
    return 0;
}
