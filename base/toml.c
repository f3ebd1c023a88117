/* SPDX-License-Identifier: Apache-2.0 */
#include "base/toml.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/utf8.h"

#define TOML_TEXT_MAX ((size_t)1 << 20)
#define TOML_DEPTH_MAX 32
#define TOML_NODES_MAX 65536
#define TOML_KEY_PARTS_MAX 32
#define TOML_MEMBERS_MAX 4096 /* members of one table: look-ups are linear */

/* The origin of a table determines later additions to it (TOML 1.0, "Table"). */
enum origin {
    ORIGIN_IMPLICIT, /* the table is so far only a parent in a [header] */
    ORIGIN_HEADER,   /* made by its own [header] */
    ORIGIN_DOTTED,   /* made by a dotted key */
    ORIGIN_INLINE,   /* an inline table { }, which is closed */
    ORIGIN_ELEMENT   /* one [[element]] of an array of tables */
};
/* The parser's data about a value beyond the public tree. The public part comes first: a pointer to it is also a
 * pointer to this struct. */
struct node {
    struct toml_value value;
    struct toml_value **tail; /* the place to link the next member */
    int members;
    enum origin origin;
    bool tables;            /* array made by [[headers]] */
    struct node *header_of; /* ORIGIN_DOTTED: the table of the section that defined this table */
};

struct parser {
    const char *at, *end, *line_start;
    int line;
    int nodes;
    const char *path;
    struct titan_error *err;
    struct node *root;
};

struct key_part {
    char *text;
    int line, column;
};
struct key {
    struct key_part parts[TOML_KEY_PARTS_MAX];
    int count;
};

/* --- messages and nodes ------------------------------------------------------------------------------------------- */

static int column_of(const struct parser *p)
{
    titan_assert(p->at >= p->line_start);
    return (int)(p->at - p->line_start) + 1;
}

#define fail_at(p, at_line, at_column, ...) fail_text((p), (at_line), (at_column), __LINE__, __VA_ARGS__)
#define fail(p, ...) fail_at((p), (p)->line, column_of(p), __VA_ARGS__)

static titan_status fail_text(struct parser *p, int line, int column, int source_line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static titan_status fail_text(struct parser *p, int line, int column, int source_line, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return titan_error_set(p->err, TITAN_EINVAL, 0, __FILE__, source_line, "%s:%d:%d: %s", p->path, line, column, text);
}

static titan_status no_memory(struct parser *p)
{
    return titan_fail(p->err, TITAN_ENOMEM, "%s: out of memory", p->path);
}

static titan_status new_node(struct parser *p, enum toml_type type, int line, int column, struct node **ret)
{
    if (++p->nodes > TOML_NODES_MAX)
        return titan_fail(p->err, TITAN_ELIMIT, "%s:%d:%d: more than %d values", p->path, line, column, TOML_NODES_MAX);
    struct node *node = calloc(1, sizeof(*node));
    if (!node)
        return no_memory(p);
    node->value.type = type;
    node->value.line = line;
    node->value.column = column;
    node->tail = &node->value.first;
    *ret = node;
    return TITAN_OK;
}

static void append(struct node *parent, struct node *child)
{
    titan_assert(!*parent->tail && !child->value.next);
    parent->members++;
    *parent->tail = &child->value;
    parent->tail = &child->value.next;
}

static struct node *member(struct node *table, const char *key)
{
    return (struct node *)(void *)toml_get(&table->value, key);
}

/* Checks that the table has room for one more key. */
static titan_status room_in(struct parser *p, const struct node *table, const struct key_part *part)
{
    if (table->members < TOML_MEMBERS_MAX)
        return TITAN_OK;
    return titan_fail(p->err, TITAN_ELIMIT, "%s:%d:%d: more than %d keys in one table", p->path, part->line,
                      part->column, TOML_MEMBERS_MAX);
}

static void key_clear(struct key *key)
{
    for (int i = 0; i < key->count; i++)
        free(key->parts[i].text);
    key->count = 0;
}

/* --- characters --------------------------------------------------------------------------------------------------- */

static bool at_end(const struct parser *p)
{
    return p->at >= p->end;
}

static char peek(const struct parser *p)
{
    return at_end(p) ? '\0' : *p->at;
}

static bool looking_at(const struct parser *p, const char *text)
{
    size_t len = strlen(text);
    return (size_t)(p->end - p->at) >= len && memcmp(p->at, text, len) == 0;
}

static void skip_blank(struct parser *p)
{
    while (peek(p) == ' ' || peek(p) == '\t')
        p->at++;
}

static bool at_newline(const struct parser *p)
{
    return peek(p) == '\n' || looking_at(p, "\r\n");
}

static void take_newline(struct parser *p)
{
    titan_assert(at_newline(p));
    p->at += *p->at == '\r' ? 2 : 1;
    p->line++;
    p->line_start = p->at;
}

static titan_status skip_comment(struct parser *p)
{
    if (peek(p) != '#')
        return TITAN_OK;
    while (!at_end(p) && !at_newline(p)) {
        unsigned char c = (unsigned char)*p->at;
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return fail(p, "control character in a comment");
        p->at++;
    }
    return TITAN_OK;
}

/* Skips blanks, line breaks and comments: between statements and inside arrays. */
static titan_status skip_lines(struct parser *p)
{
    for (;;) {
        skip_blank(p);
        TRY(skip_comment(p));
        if (!at_newline(p))
            return TITAN_OK;
        take_newline(p);
    }
}

static titan_status end_of_line(struct parser *p)
{
    skip_blank(p);
    TRY(skip_comment(p));
    if (at_end(p))
        return TITAN_OK;
    if (!at_newline(p))
        return fail(p, "expected the end of the line");
    take_newline(p);
    return TITAN_OK;
}

/* --- strings ------------------------------------------------------------------------------------------------------ */

static titan_status put(struct parser *p, struct buf *out, const char *data, size_t len)
{
    return buf_append(out, data, len) == TITAN_OK ? TITAN_OK : no_memory(p);
}

/* Skips a backslash before blanks and a line break, up to the next visible character. */
static bool line_continuation(struct parser *p)
{
    const char *q = p->at;
    while (q < p->end && (*q == ' ' || *q == '\t'))
        q++;
    if (q >= p->end || !(*q == '\n' || (*q == '\r' && q + 1 < p->end && q[1] == '\n')))
        return false;
    p->at = q;
    for (;;) {
        if (at_newline(p))
            take_newline(p);
        else if (peek(p) == ' ' || peek(p) == '\t')
            p->at++;
        else
            return true;
    }
}

static titan_status escape(struct parser *p, bool multiline, struct buf *out)
{
    static const char names[] = "btnfr\"\\", values[] = "\b\t\n\f\r\"\\";
    if (multiline && line_continuation(p))
        return TITAN_OK;
    char c = peek(p);
    if (c == 'u' || c == 'U') {
        p->at++;
        int digits = c == 'u' ? 4 : 8;
        uint32_t code = 0;
        for (int i = 0; i < digits; i++) {
            char h = peek(p);
            uint32_t digit = h >= '0' && h <= '9'   ? (uint32_t)(h - '0')
                             : h >= 'a' && h <= 'f' ? (uint32_t)(h - 'a' + 10)
                             : h >= 'A' && h <= 'F' ? (uint32_t)(h - 'A' + 10)
                                                    : 16;
            if (digit > 15)
                return fail(p, "\\%c must be followed by %d hexadecimal digits", digits == 4 ? 'u' : 'U', digits);
            code = code << 4 | digit;
            p->at++;
        }
        if (code == 0)
            return fail(p, "a NUL character is not accepted in a string");
        if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
            return fail(p, "U+%04X is not a Unicode character", (unsigned)code);
        char utf8[4];
        return put(p, out, utf8, utf8_encode(code, utf8));
    }
    const char *name = c ? strchr(names, c) : NULL;
    if (!name)
        return fail(p, "unknown escape in a string (write \\\\ for a backslash, or use '...')");
    p->at++;
    return put(p, out, &values[name - names], 1);
}

static titan_status parse_string(struct parser *p, bool key, char **ret)
{
    const char quote = *p->at, triple[4] = {quote, quote, quote, '\0'};
    const int line = p->line, column = column_of(p);
    const bool multiline = looking_at(p, triple);
    titan_assert(quote == '"' || quote == '\'');
    if (multiline && key)
        return fail(p, "a key cannot be a multi-line string");
    p->at += multiline ? 3 : 1;
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    if (buf_reserve(&out, 1) != TITAN_OK)
        return no_memory(p);
    if (multiline && at_newline(p)) /* directly after the opening quotes: not part of the text */
        take_newline(p);
    for (;;) {
        if (at_end(p) || (!multiline && at_newline(p)))
            return fail_at(p, line, column, "string is not closed");
        unsigned char c = (unsigned char)*p->at;
        if (c == (unsigned char)quote && !multiline) {
            p->at++;
            break;
        }
        if (c == (unsigned char)quote) { /* up to two quotes before the closing quotes belong to the text */
            int n = 0;
            while (n < 5 && p->at + n < p->end && p->at[n] == quote)
                n++;
            TRY(put(p, &out, p->at, (size_t)(n >= 3 ? n - 3 : n)));
            p->at += n;
            if (n >= 3)
                break;
        } else if (c == '\\' && quote == '"') {
            p->at++;
            TRY(escape(p, multiline, &out));
        } else if (multiline && at_newline(p)) {
            take_newline(p);
            TRY(put(p, &out, "\n", 1));
        } else if ((c < 0x20 && c != '\t') || c == 0x7f) {
            return fail(p, "control character in a string");
        } else {
            TRY(put(p, &out, p->at, 1));
            p->at++;
        }
    }
    *ret = TAKE(out.data);
    return TITAN_OK;
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

static bool bare_key_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Reads a.b."c d"; the caller clears key in every case. */
static titan_status parse_key(struct parser *p, struct key *key)
{
    titan_assert(key->count == 0);
    for (;;) {
        if (key->count == TOML_KEY_PARTS_MAX)
            return fail(p, "a key of more than %d parts", TOML_KEY_PARTS_MAX);
        struct key_part *part = &key->parts[key->count];
        *part = (struct key_part){.line = p->line, .column = column_of(p)};
        if (peek(p) == '"' || peek(p) == '\'') {
            TRY(parse_string(p, true, &part->text));
        } else {
            const char *start = p->at;
            while (!at_end(p) && bare_key_char(*p->at))
                p->at++;
            if (p->at == start)
                return fail(p, "expected a key");
            part->text = strndup(start, (size_t)(p->at - start));
            if (!part->text)
                return no_memory(p);
        }
        key->count++;
        skip_blank(p);
        if (peek(p) != '.')
            return TITAN_OK;
        p->at++;
        skip_blank(p);
    }
}

/* --- scalars ------------------------------------------------------------------------------------------------------ */

static bool digits_of(const char *text, int base, bool underscores)
{
    const char *allowed = base == 16  ? "0123456789abcdefABCDEF"
                          : base == 8 ? "01234567"
                          : base == 2 ? "01"
                                      : "0123456789";
    bool digit_before = false;
    for (const char *c = text; *c; c++) {
        if (strchr(allowed, *c)) {
            digit_before = true;
        } else if (*c == '_' && underscores && digit_before && c[1]) {
            digit_before = false;
        } else {
            return false;
        }
    }
    return digit_before;
}

static void drop_underscores(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++)
        if (*from != '_')
            *to++ = *from;
    *to = '\0';
}

/* Parses a word without sign as 0x, 0o, 0b or decimal. False: the word is no integer. */
static bool integer_of(const char *word, bool negative, int64_t *ret, bool *ret_range)
{
    const char *digits = word + (*word == '+' || *word == '-');
    bool sign = digits != word;
    int base = 10;
    if (digits[0] == '0' && digits[1] && !sign)
        base = digits[1] == 'x' ? 16 : digits[1] == 'o' ? 8 : digits[1] == 'b' ? 2 : 10;
    if (base != 10)
        digits += 2;
    if (!digits_of(digits, base, true) || (base == 10 && digits[0] == '0' && digits[1]))
        return false;
    char text[128];
    snprintf(text, sizeof(text), "%s%s", negative ? "-" : "", digits);
    drop_underscores(text);
    errno = 0;
    long long value = strtoll(text, NULL, base);
    *ret_range = errno == ERANGE;
    *ret = value;
    return true;
}

static bool float_of(const char *word, double *ret)
{
    char text[128];
    const char *digits = word + (*word == '+' || *word == '-');
    if (strcmp(digits, "inf") == 0 || strcmp(digits, "nan") == 0) {
        *ret = *digits == 'i' ? INFINITY : NAN;
        if (*word == '-')
            *ret = -*ret;
        return true;
    }
    /* A real is an int part, then .fraction and/or exponent. Each part has digits with underscores between them. */
    snprintf(text, sizeof(text), "%s", digits);
    char *exponent = strpbrk(text, "eE");
    if (exponent)
        *exponent++ = '\0';
    char *fraction = strchr(text, '.');
    if (fraction)
        *fraction++ = '\0';
    if ((!exponent && !fraction) || !digits_of(text, 10, true) || (text[0] == '0' && text[1]) ||
        (fraction && !digits_of(fraction, 10, true)))
        return false;
    if (exponent && !digits_of(exponent + (*exponent == '+' || *exponent == '-'), 10, true))
        return false;
    snprintf(text, sizeof(text), "%s", word);
    drop_underscores(text);
    *ret = strtod(text, NULL);
    return true;
}

static titan_status parse_word(struct parser *p, struct node *node)
{
    int column = column_of(p);
    const char *start = p->at;
    while (!at_end(p) && (bare_key_char(*p->at) || *p->at == '+' || *p->at == '.' || *p->at == ':'))
        p->at++;
    size_t len = (size_t)(p->at - start);
    if (len == 0)
        return fail(p, at_end(p) || at_newline(p) ? "expected a value behind '='" : "expected a value");
    char word[96];
    if (len >= sizeof(word))
        return fail_at(p, p->line, column, "not a value: %.32s... is too long for a number", start);
    memcpy(word, start, len);
    word[len] = '\0';
    if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0) {
        node->value.type = TOML_BOOL;
        node->value.boolean = *word == 't';
        return TITAN_OK;
    }
    bool range = false;
    if (integer_of(word, *word == '-', &node->value.integer, &range)) {
        node->value.type = TOML_INT;
        return range ? fail_at(p, p->line, column, "integer %s does not fit into 64 bits", word) : TITAN_OK;
    }
    if (float_of(word, &node->value.real)) {
        node->value.type = TOML_FLOAT;
        return TITAN_OK;
    }
    const size_t digits = strspn(word, "0123456789"); /* "1979-05-27...", "07:32..." */
    if ((digits == 4 && word[4] == '-' && strspn(word + 5, "0123456789") >= 2) || (digits == 2 && word[2] == ':'))
        return fail_at(p, p->line, column, "dates and times are not supported (write it as a string)");
    return fail_at(p, p->line, column, "not a value: %s (text must stand in quotes)", word);
}

/* --- arrays and tables -------------------------------------------------------------------------------------------- */

static titan_status parse_value(struct parser *p, int depth, struct node **ret);

static titan_status parse_array(struct parser *p, int depth, struct node *array)
{
    titan_assert(peek(p) == '[' && array->value.type == TOML_ARRAY);
    int line = p->line, column = column_of(p);
    p->at++;
    for (;;) {
        TRY(skip_lines(p));
        if (at_end(p))
            return fail_at(p, line, column, "array is not closed");
        if (peek(p) == ']')
            break;
        struct node *element = NULL;
        titan_status status = parse_value(p, depth + 1, &element);
        if (element)
            append(array, element);
        TRY(status);
        TRY(skip_lines(p));
        if (at_end(p))
            return fail_at(p, line, column, "array is not closed");
        if (peek(p) == ',')
            p->at++;
        else if (peek(p) != ']')
            return fail(p, "expected ',' or ']'");
    }
    p->at++;
    return TITAN_OK;
}

static titan_status parse_pair(struct parser *p, int depth, struct node *section)
{
    _cleanup_(key_clear) struct key key = {.count = 0};
    TRY(parse_key(p, &key));
    if (peek(p) != '=')
        return fail(p, "expected '=' behind the key");
    p->at++;
    skip_blank(p);

    /* Finds the table for a dotted key's last part, creating missing ones. section: the table of the header (or the
     * inline table) that contains the key; only tables that this section created may be extended. */
    titan_assert(key.count >= 1 && section->value.type == TOML_TABLE);
    struct node *table = section;
    for (int i = 0; i + 1 < key.count; i++) {
        const struct key_part *part = &key.parts[i];
        struct node *next = member(table, part->text);
        if (!next) {
            TRY(room_in(p, table, part));
            TRY(new_node(p, TOML_TABLE, part->line, part->column, &next));
            next->origin = ORIGIN_DOTTED;
            next->header_of = section;
            append(table, next);
            next->value.key = strdup(part->text);
            if (!next->value.key)
                return no_memory(p);
        } else if (next->value.type != TOML_TABLE) {
            return fail_at(p, part->line, part->column, "'%s' is already a value (line %d), not a table", part->text,
                           next->value.line);
        } else if (next->origin == ORIGIN_IMPLICIT) { /* the table was only a parent so far: this header defines it */
            next->origin = ORIGIN_DOTTED;
            next->header_of = section;
        } else if (next->origin != ORIGIN_DOTTED || next->header_of != section) {
            return fail_at(p, part->line, part->column, "table '%s' is already defined (line %d)", part->text,
                           next->value.line);
        }
        table = next;
    }

    struct key_part *last = &key.parts[key.count - 1];
    const struct node *before = member(table, last->text);
    if (before)
        return fail_at(p, last->line, last->column, "'%s' is given twice (first in line %d)", last->text,
                       before->value.line);
    TRY(room_in(p, table, last));
    struct node *node = NULL;
    titan_status status = parse_value(p, depth, &node);
    if (node) {
        node->value.key = TAKE(last->text);
        node->value.line = last->line;
        node->value.column = last->column;
        append(table, node);
    }
    return status;
}

static titan_status parse_inline_table(struct parser *p, int depth, struct node *table)
{
    titan_assert(peek(p) == '{' && table->value.type == TOML_TABLE);
    table->origin = ORIGIN_INLINE;
    p->at++;
    skip_blank(p);
    if (peek(p) == '}') {
        p->at++;
        return TITAN_OK;
    }
    for (;;) {
        skip_blank(p);
        TRY(parse_pair(p, depth + 1, table));
        skip_blank(p);
        if (peek(p) == '}')
            break;
        if (peek(p) != ',')
            return fail(p, "expected ',' or '}' (an inline table stands on one line)");
        p->at++;
    }
    p->at++;
    return TITAN_OK;
}

/* On failure *ret may hold a partial value; the caller links it into the tree, which is freed as a whole. */
static titan_status parse_value(struct parser *p, int depth, struct node **ret)
{
    titan_assert(depth >= 0);
    if (depth > TOML_DEPTH_MAX)
        return titan_fail(p->err, TITAN_ELIMIT, "%s:%d:%d: nested deeper than %d levels", p->path, p->line,
                          column_of(p), TOML_DEPTH_MAX);
    char c = peek(p);
    enum toml_type type = c == '[' ? TOML_ARRAY : c == '{' ? TOML_TABLE : TOML_INT;
    struct node *node;
    TRY(new_node(p, type, p->line, column_of(p), &node));
    *ret = node;
    if (c == '[')
        return parse_array(p, depth, node);
    if (c == '{')
        return parse_inline_table(p, depth, node);
    if (c == '"' || c == '\'') {
        char *string = NULL;
        TRY(parse_string(p, false, &string));
        node->value.type = TOML_STRING;
        node->value.string = string;
        return TITAN_OK;
    }
    return parse_word(p, node);
}

static titan_status parse_header(struct parser *p, struct node **ret_section)
{
    titan_assert(peek(p) == '[');
    _cleanup_(key_clear) struct key key = {.count = 0};
    bool element = looking_at(p, "[[");
    const char *close = element ? "]]" : "]";
    p->at += strlen(close);
    skip_blank(p);
    TRY(parse_key(p, &key));
    if (!looking_at(p, close))
        return fail(p, "expected '%s'", close);
    p->at += strlen(close);
    struct node *parent = p->root;
    for (int i = 0; i + 1 < key.count; i++) {
        /* Follows one part of a [header]'s path: into a table, or into the last element of an array of tables. */
        const struct key_part *part = &key.parts[i];
        titan_assert(parent->value.type == TOML_TABLE);
        struct node *next = member(parent, part->text);
        if (!next) {
            TRY(room_in(p, parent, part));
            TRY(new_node(p, TOML_TABLE, part->line, part->column, &next));
            append(parent, next);
            next->value.key = strdup(part->text);
            if (!next->value.key)
                return no_memory(p);
        } else if (next->value.type == TOML_ARRAY && next->tables) {
            next =
                (struct node *)(void *)((char *)next->tail - offsetof(struct toml_value, next)); /* the last element */
        } else if (next->value.type != TOML_TABLE || next->origin == ORIGIN_INLINE) {
            return fail_at(p, part->line, part->column, "'%s' is already a value (line %d), not a table", part->text,
                           next->value.line);
        }
        parent = next;
    }

    struct key_part *last = &key.parts[key.count - 1];
    struct node *node = member(parent, last->text);
    if (!node) {
        TRY(room_in(p, parent, last));
        TRY(new_node(p, element ? TOML_ARRAY : TOML_TABLE, last->line, last->column, &node));
        node->tables = element;
        node->value.key = TAKE(last->text);
        append(parent, node);
    } else if (element ? !node->tables : node->value.type != TOML_TABLE || node->origin != ORIGIN_IMPLICIT) {
        return fail_at(p, last->line, last->column, "'%s' is given twice (first in line %d)", last->text,
                       node->value.line);
    }
    if (!element) {
        node->origin = ORIGIN_HEADER;
        *ret_section = node;
        return TITAN_OK;
    }
    struct node *table;
    TRY(new_node(p, TOML_TABLE, last->line, last->column, &table));
    table->origin = ORIGIN_ELEMENT;
    append(node, table);
    *ret_section = table;
    return TITAN_OK;
}

static titan_status parse_document(struct parser *p)
{
    struct node *section = p->root;
    for (;;) {
        TRY(skip_lines(p));
        if (at_end(p))
            return TITAN_OK;
        if (peek(p) == '[')
            TRY(parse_header(p, &section));
        else
            TRY(parse_pair(p, 0, section));
        TRY(end_of_line(p));
    }
}

/* --- entry points ------------------------------------------------------------------------------------------------- */

static titan_status begin(struct parser *p, const char *text, size_t len)
{
    if (len > TOML_TEXT_MAX)
        return titan_fail(p->err, TITAN_ELIMIT, "%s: larger than %zu bytes", p->path, TOML_TEXT_MAX);
    size_t bad = utf8_check(text, len);
    const char *nul = memchr(text, '\0', len);
    size_t nul_at = nul ? (size_t)(nul - text) : len;
    if (bad < len || nul_at < len) {
        for (p->at = text; p->at < text + MIN(bad, nul_at); p->at++) {
            if (*p->at == '\n') {
                p->line++;
                p->line_start = p->at + 1;
            }
        }
        return fail(p, bad < nul_at ? "not valid UTF-8" : "NUL byte");
    }
    return TITAN_OK;
}

titan_status toml_parse(const char *text, size_t len, const char *path, struct toml_value **ret,
                        struct titan_error *err)
{
    struct parser p = {
        .at = text, .end = text + len, .line_start = text, .line = 1, .path = path ? path : "<toml>", .err = err};
    TRY(begin(&p, text, len));
    p.at = p.line_start = text;
    if (looking_at(&p, "\xef\xbb\xbf")) /* byte order mark */
        p.at = p.line_start = text + 3;
    TRY(new_node(&p, TOML_TABLE, 1, 1, &p.root));
    p.root->origin = ORIGIN_HEADER;
    titan_status status = parse_document(&p);
    if (status != TITAN_OK) {
        toml_free(&p.root->value);
        return status;
    }
    *ret = &p.root->value;
    return TITAN_OK;
}

titan_status toml_parse_value(const char *text, const char *path, struct toml_value **ret, struct titan_error *err)
{
    size_t len = strlen(text);
    struct parser p = {
        .at = text, .end = text + len, .line_start = text, .line = 1, .path = path ? path : "<toml>", .err = err};
    TRY(begin(&p, text, len));
    struct node *node = NULL;
    skip_blank(&p);
    titan_status status = parse_value(&p, 0, &node);
    if (status == TITAN_OK) {
        status = end_of_line(&p);
        if (status == TITAN_OK && !at_end(&p))
            status = fail(&p, "text goes on behind the value");
    }
    if (status != TITAN_OK) {
        toml_free(node ? &node->value : NULL);
        return status;
    }
    *ret = &node->value;
    return TITAN_OK;
}

/* The parser bounds the depth: 32 levels of values below 32 parts of a header, and 32 parts of a key at each level. */
void toml_free(struct toml_value *root)
{
    while (root) {
        struct toml_value *next = root->next;
        if (root->type == TOML_STRING)
            free(root->string);
        else if (root->type == TOML_TABLE || root->type == TOML_ARRAY)
            toml_free(root->first);
        free(root->key);
        free(root); /* the node's first member */
        root = next;
    }
}

const struct toml_value *toml_get(const struct toml_value *table, const char *key)
{
    if (!table || table->type != TOML_TABLE)
        return NULL;
    for (const struct toml_value *v = table->first; v; v = v->next)
        if (v->key && strcmp(v->key, key) == 0)
            return v;
    return NULL;
}

const char *toml_type_name(enum toml_type type)
{
    static const char *const names[] = {
        [TOML_TABLE] = "table", [TOML_ARRAY] = "array", [TOML_STRING] = "string",
        [TOML_INT] = "integer", [TOML_FLOAT] = "float", [TOML_BOOL] = "boolean",
    };
    return (size_t)type < ARRAY_SIZE(names) ? names[type] : "?";
}
