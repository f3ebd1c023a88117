/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "base/utf8.h"

#define JSON_DEPTH_MAX 64

/* --- reading ------------------------------------------------------------------------------------------------------ */

struct parser {
    const char *at, *end, *begin;
    struct titan_error *err;
    bool nul; /* a \u0000 escape becomes JSON_NUL */
};

static titan_status fail(struct parser *p, const char *what)
{
    return titan_fail(p->err, TITAN_EINVAL, "JSON at byte %zu: %s", (size_t)(p->at - p->begin), what);
}

static titan_status no_memory(struct parser *p)
{
    return titan_fail(p->err, TITAN_ENOMEM, "out of memory while reading JSON");
}

static void skip_space(struct parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

/* Reads the four hex digits after "\u"; -1: malformed. */
static int32_t hex4(struct parser *p)
{
    if (p->end - p->at < 4)
        return -1;
    int32_t code = 0;
    for (int i = 0; i < 4; i++) {
        const char c = p->at[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return -1;
        code = code << 4 | digit;
    }
    p->at += 4;
    return code;
}

/* Reads a code point after "\u", including the second half of a surrogate pair. */
static titan_status parse_unicode(struct parser *p, struct buf *out)
{
    int32_t code = hex4(p);
    if (code < 0)
        return fail(p, "\\u must be followed by four hexadecimal digits");
    if (code == 0 && !p->nul)
        return fail(p, "\\u0000 is not accepted in a string");
    if (code == 0)
        return buf_append(out, JSON_NUL, 2) == TITAN_OK ? TITAN_OK : no_memory(p);
    if (code >= 0xdc00 && code <= 0xdfff)
        return fail(p, "low surrogate without a high one");
    if (code >= 0xd800 && code <= 0xdbff) {
        if (p->end - p->at < 6 || p->at[0] != '\\' || p->at[1] != 'u')
            return fail(p, "high surrogate without a low one");
        p->at += 2;
        int32_t low = hex4(p);
        if (low < 0xdc00 || low > 0xdfff)
            return fail(p, "high surrogate without a low one");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    titan_assert(code > 0 && code <= 0x10ffff);
    char utf8[4];
    return buf_append(out, utf8, utf8_encode((uint32_t)code, utf8)) == TITAN_OK ? TITAN_OK : no_memory(p);
}

static titan_status parse_string(struct parser *p, char **ret)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    titan_assert(p->at < p->end && *p->at == '"');
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    if (buf_reserve(&out, 1) != TITAN_OK)
        return no_memory(p);
    p->at++; /* the quote */
    for (;;) {
        const char *start = p->at;
        while (p->at < p->end && *p->at != '"' && *p->at != '\\' && (unsigned char)*p->at >= 0x20)
            p->at++;
        if (buf_append(&out, start, (size_t)(p->at - start)) != TITAN_OK)
            return no_memory(p);
        if (p->at >= p->end)
            return fail(p, "unterminated string");
        if (*p->at == '"')
            break;
        if (*p->at != '\\')
            return fail(p, "control character in a string");
        if (++p->at >= p->end)
            return fail(p, "unterminated string");
        const char c = *p->at, *name = c ? strchr(names, c) : NULL;
        if (c != 'u' && !name)
            return fail(p, "unknown escape in a string");
        p->at++;
        if (c == 'u')
            TRY(parse_unicode(p, &out));
        else if (buf_append(&out, &values[name - names], 1) != TITAN_OK)
            return no_memory(p);
    }
    p->at++;
    *ret = TAKE(out.data);
    return TITAN_OK;
}

static titan_status parse_number(struct parser *p, struct json *node)
{
    titan_assert(p->at < p->end);
    const char *start = p->at;
    bool real = false;
    if (*p->at == '-')
        p->at++;
    if (p->at < p->end && *p->at == '0') {
        p->at++;
    } else {
        const char *digits = p->at;
        while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
            p->at++;
        if (p->at == digits)
            return fail(p, "a number needs a digit here");
    }
    if (p->at < p->end && *p->at == '.') {
        real = true;
        const char *digits = ++p->at;
        while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
            p->at++;
        if (p->at == digits)
            return fail(p, "a number needs a digit after the point");
    }
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        real = true;
        p->at++;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-'))
            p->at++;
        const char *digits = p->at;
        while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
            p->at++;
        if (p->at == digits)
            return fail(p, "a number needs a digit in its exponent");
    }
    char text[512];
    size_t len = (size_t)(p->at - start);
    if (len >= sizeof(text))
        return fail(p, "number too long");
    memcpy(text, start, len);
    text[len] = '\0';
    errno = 0;
    if (!real) {
        node->type = JSON_INT;
        node->integer = strtoll(text, NULL, 10);
        if (!errno)
            return TITAN_OK;
    }
    /* An integer beyond 64 bits becomes the nearest real, as in other parsers. */
    node->type = JSON_REAL;
    node->real = strtod(text, NULL);
    return isfinite(node->real) ? TITAN_OK : fail(p, "number out of range");
}

static titan_status parse_word(struct parser *p, const char *word)
{
    size_t len = strlen(word);
    if ((size_t)(p->end - p->at) < len || memcmp(p->at, word, len) != 0)
        return fail(p, "expected a value");
    p->at += len;
    return TITAN_OK;
}

static titan_status parse_value(struct parser *p, int depth, struct json **ret);

static titan_status parse_members(struct parser *p, int depth, struct json *node)
{
    titan_assert(node->type == JSON_OBJECT || node->type == JSON_ARRAY);
    bool object = node->type == JSON_OBJECT;
    titan_assert(p->at < p->end && *p->at == (object ? '{' : '['));
    char close = object ? '}' : ']';
    if (depth >= JSON_DEPTH_MAX)
        return fail(p, "nested too deep (at most 64 levels)");
    p->at++;
    skip_space(p);
    if (p->at < p->end && *p->at == close) {
        p->at++;
        return TITAN_OK;
    }
    for (struct json **tail = &node->first;; tail = &(*tail)->next) {
        _cleanup_free_ char *key = NULL;
        if (object) {
            skip_space(p);
            if (p->at >= p->end || *p->at != '"')
                return fail(p, "expected a member name in double quotes");
            TRY(parse_string(p, &key));
            skip_space(p);
            if (p->at >= p->end || *p->at != ':')
                return fail(p, "expected ':'");
            p->at++;
        }
        TRY(parse_value(p, depth + 1, tail));
        (*tail)->key = TAKE(key);
        skip_space(p);
        if (p->at < p->end && *p->at == ',') {
            p->at++;
            continue;
        }
        if (p->at >= p->end || *p->at != close)
            return fail(p, object ? "expected ',' or '}'" : "expected ',' or ']'");
        p->at++;
        return TITAN_OK;
    }
}

/* On failure *ret holds the partial value, so that the root frees it. */
static titan_status parse_value(struct parser *p, int depth, struct json **ret)
{
    titan_assert(depth >= 0 && depth <= JSON_DEPTH_MAX);
    skip_space(p);
    if (p->at >= p->end)
        return fail(p, "text ends where a value should stand");
    struct json *node = calloc(1, sizeof(*node));
    if (!node)
        return no_memory(p);
    *ret = node;
    switch (*p->at) {
    case '{':
        node->type = JSON_OBJECT;
        return parse_members(p, depth, node);
    case '[':
        node->type = JSON_ARRAY;
        return parse_members(p, depth, node);
    case '"': {
        char *string = NULL;
        TRY(parse_string(p, &string));
        node->type = JSON_STRING;
        node->string = string;
        return TITAN_OK;
    }
    case 't':
        TRY(parse_word(p, "true"));
        node->type = JSON_BOOL;
        node->boolean = true;
        return TITAN_OK;
    case 'f':
        TRY(parse_word(p, "false"));
        node->type = JSON_BOOL;
        return TITAN_OK;
    case 'n':
        return parse_word(p, "null");
    default:
        if (*p->at != '-' && (*p->at < '0' || *p->at > '9'))
            return fail(p, "expected a value");
        return parse_number(p, node);
    }
}

static titan_status parse_text(const char *text, size_t len, bool nul, struct json **ret, struct titan_error *err)
{
    struct parser p = {.at = text, .begin = text, .end = text + len, .err = err, .nul = nul};
    size_t bad = utf8_check(text, len);
    if (bad < len) {
        p.at += bad;
        return fail(&p, "not valid UTF-8");
    }
    struct json *root = NULL;
    titan_status status = parse_value(&p, 0, &root);
    if (status == TITAN_OK) {
        skip_space(&p);
        if (p.at < p.end)
            status = fail(&p, "text goes on behind the value");
    }
    if (status != TITAN_OK) {
        json_free(root);
        return status;
    }
    *ret = root;
    return TITAN_OK;
}

titan_status json_parse(const char *text, size_t len, struct json **ret, struct titan_error *err)
{
    return parse_text(text, len, false, ret, err);
}

titan_status json_parse_nul(const char *text, size_t len, struct json **ret, struct titan_error *err)
{
    return parse_text(text, len, true, ret, err);
}

/* The parser bounds the depth; siblings are iterated without recursion. */
void json_free(struct json *root)
{
    while (root) {
        struct json *next = root->next;
        if (root->type == JSON_STRING)
            free(root->string);
        else if (root->type == JSON_ARRAY || root->type == JSON_OBJECT)
            json_free(root->first);
        free(root->key);
        free(root);
        root = next;
    }
}

const struct json *json_get(const struct json *object, const char *key)
{
    if (!object || object->type != JSON_OBJECT)
        return NULL;
    for (const struct json *m = object->first; m; m = m->next)
        if (strcmp(m->key, key) == 0)
            return m;
    return NULL;
}

const char *json_string(const struct json *object, const char *key, const char *fallback)
{
    const struct json *m = json_get(object, key);
    return m && m->type == JSON_STRING ? m->string : fallback;
}

int64_t json_int(const struct json *object, const char *key, int64_t fallback)
{
    const struct json *m = json_get(object, key);
    return m && m->type == JSON_INT ? m->integer : fallback;
}

double json_real(const struct json *object, const char *key, double fallback)
{
    const struct json *m = json_get(object, key);
    if (m && m->type == JSON_INT)
        return (double)m->integer;
    return m && m->type == JSON_REAL ? m->real : fallback;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void put_text(struct buf *out, const char *text)
{
    buf_puts(out, "\"");
    for (const char *p = text; *p;) {
        size_t plain = 0;
        while ((unsigned char)p[plain] >= 0x20 && p[plain] != '"' && p[plain] != '\\' && p[plain] != 0x7f)
            plain++;
        buf_put(out, p, plain);
        p += plain;
        if (!*p)
            break;
        if (*p == '"' || *p == '\\')
            buf_printf(out, "\\%c", *p);
        else if (*p == '\n')
            buf_puts(out, "\\n");
        else if (*p == '\t')
            buf_puts(out, "\\t");
        else
            buf_printf(out, "\\u%04x", (unsigned char)*p);
        p++;
    }
    buf_puts(out, "\"");
}

static void indent(struct json_writer *w)
{
    titan_assert(w->depth >= 0);
    buf_printf(w->out, "\n%*s", 2 * w->depth, "");
}

/* Writes comma, line break and "key": before a value. */
static void begin_value(struct json_writer *w, const char *key)
{
    if (w->comma)
        buf_puts(w->out, ",");
    if (w->pretty && w->depth > 0)
        indent(w);
    if (key) {
        put_text(w->out, key);
        buf_puts(w->out, w->pretty ? ": " : ":");
    }
    w->comma = true;
}

static void begin_group(struct json_writer *w, const char *key, const char *open)
{
    titan_assert(w->depth >= 0);
    begin_value(w, key);
    buf_puts(w->out, open);
    w->depth++;
    w->comma = false;
}

static void end_group(struct json_writer *w, const char *close)
{
    titan_assert(w->depth > 0);
    w->depth--;
    if (w->pretty && w->comma)
        indent(w);
    buf_puts(w->out, close);
    w->comma = true;
}

void json_begin_object(struct json_writer *w, const char *key)
{
    begin_group(w, key, "{");
}

void json_end_object(struct json_writer *w)
{
    end_group(w, "}");
}

void json_begin_array(struct json_writer *w, const char *key)
{
    begin_group(w, key, "[");
}

void json_end_array(struct json_writer *w)
{
    end_group(w, "]");
}

void json_put_string(struct json_writer *w, const char *key, const char *value)
{
    begin_value(w, key);
    if (value)
        put_text(w->out, value);
    else
        buf_puts(w->out, "null");
}

/* Writes digits without printf(), which would take most of the time for a long array of records. */
static void put_number(struct buf *out, uint64_t value, bool negative)
{
    char text[21], *at = text + sizeof text;
    do
        *--at = (char)('0' + value % 10);
    while (value /= 10);
    if (negative)
        *--at = '-';
    titan_assert(at >= text);
    buf_put(out, at, (size_t)(text + sizeof text - at));
}

void json_put_int(struct json_writer *w, const char *key, int64_t value)
{
    begin_value(w, key);
    put_number(w->out, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0);
}

void json_put_uint(struct json_writer *w, const char *key, uint64_t value)
{
    begin_value(w, key);
    put_number(w->out, value, false);
}

void json_put_real(struct json_writer *w, const char *key, double value)
{
    begin_value(w, key);
    if (!isfinite(value)) {
        buf_puts(w->out, "null");
        return;
    }
    char text[UNITS_TEXT];
    buf_puts(w->out, format_real(value, text));
}

void json_put_bool(struct json_writer *w, const char *key, bool value)
{
    begin_value(w, key);
    buf_puts(w->out, value ? "true" : "false");
}

void json_put_raw(struct json_writer *w, const char *key, const char *json_text)
{
    titan_assert(json_text[0]);
    begin_value(w, key);
    buf_puts(w->out, json_text);
}
