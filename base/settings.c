/* SPDX-License-Identifier: Apache-2.0 */
#include "base/settings.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/distance.h"
#include "base/units.h"

#define CHOICES_TEXT 320
#define NAME_TEXT 448 /* a path's first 128 bytes, a line, section and name */

static const struct {
    const char *wanted, *name;
    unsigned accepted; /* bits by enum toml_type */
} types[] = {
    [KEY_STRING] = {"text in quotes", "string", 1u << TOML_STRING},
    [KEY_INT] = {"an integer", "integer", 1u << TOML_INT},
    [KEY_REAL] = {"a number", "number", 1u << TOML_INT | 1u << TOML_FLOAT},
    [KEY_BOOL] = {"true or false", "boolean", 1u << TOML_BOOL},
    [KEY_LIST] = {"an array", "array", 1u << TOML_ARRAY},
    [KEY_REALS] = {"an array of numbers", "array of numbers", 1u << TOML_ARRAY},
    [KEY_SOURCES] = {"an array", "array of tables", 1u << TOML_ARRAY},
    [KEY_BYTES] = {"bytes such as \"16GiB\"", "bytes", 1u << TOML_STRING | 1u << TOML_INT},
    [KEY_WORD] = {"text in quotes", "string", 1u << TOML_STRING},
};

/* --- messages ----------------------------------------------------------------------------------------------------- */

static const char *name_of(const struct setting_place *at, const struct setting *s, char out[NAME_TEXT])
{
    char line[16] = "";
    if (at->line)
        (void)snprintf(line, sizeof(line), ":%d", at->line);
    if (!s || at->flag)
        (void)snprintf(out, NAME_TEXT, "%.128s%s%s", at->path, line, s ? "" : ": ");
    else
        (void)snprintf(out, NAME_TEXT, "%.128s%s: %s.%s", at->path, line, s->section, s->name);
    return out;
}

titan_status setting_fail(const struct setting_place *at, const struct setting *s, struct titan_error *err,
                          titan_status status, const char *fmt, ...)
{
    char text[sizeof(((struct titan_error *)0)->msg)], name[NAME_TEXT];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return titan_fail(err, status, "%s%s", name_of(at, s, name), text);
}

titan_status setting_wrap(const struct setting_place *at, const struct setting *s, struct titan_error *err)
{
    char name[NAME_TEXT];
    return titan_error_wrap(err, "%s", name_of(at, s, name));
}

titan_status setting_wrong_type(const struct setting_place *at, const struct setting *s, const struct toml_value *v,
                                struct titan_error *err)
{
    const bool text = s->type == KEY_STRING || s->type == KEY_WORD;
    const char *wanted = types[s->type].wanted, *article = v->type == TOML_INT || v->type == TOML_ARRAY ? "an" : "a";
    if (at->daemon)
        return setting_fail(at, s, err, TITAN_EINVAL, ": expected %s, found %s",
                            text                  ? "a string"
                            : s->type == KEY_LIST ? "an array of strings"
                                                  : wanted,
                            toml_type_name(v->type));
    if (v->type == TOML_STRING)
        return setting_fail(at, s, err, TITAN_EINVAL, " = \"%.64s\": expected %s, not text", v->string, wanted);
    return setting_fail(at, s, err, TITAN_EINVAL, ": expected %s, got %s %s", wanted, article, toml_type_name(v->type));
}

const struct setting *setting_near(const struct setting *rows, size_t n, const char *section, const char *name)
{
    char given[4 * DISTANCE_TEXT_MAX], known[4 * DISTANCE_TEXT_MAX];
    if (strlen(name) > DISTANCE_TEXT_MAX)
        return NULL;
    (void)snprintf(given, sizeof(given), "%s.%s", section, name);
    int best = MAX(2, (int)strlen(name) / 3) + 1;
    const struct setting *found = NULL;
    for (const struct setting *s = rows; s < rows + n; s++) {
        if (s->support != KEY_SUPPORTED)
            continue;
        (void)snprintf(known, sizeof(known), "%s.%s", s->section, s->name);
        const int d = strcmp(s->name, name) == 0 ? 1 : text_distance(given, known);
        if (d < best) {
            best = d;
            found = s;
        }
    }
    return found;
}

/* --- choices ------------------------------------------------------------------------------------------------------ */

int setting_choice(const char *choices, const char *value, bool nocase, char found[SETTING_WORD])
{
    int i = 0;
    for (const char *p = choices; p && *p; i++) {
        const size_t len = strcspn(p, "|");
        if (strlen(value) == len && len < SETTING_WORD &&
            (nocase ? strncasecmp(p, value, len) : strncmp(p, value, len)) == 0) {
            (void)snprintf(found, SETTING_WORD, "%.*s", (int)len, p);
            return i;
        }
        p += len + (p[len] == '|');
    }
    return -1;
}

bool setting_admits(const char *choices, const char *value)
{
    char spelled[SETTING_WORD];
    return choices && (strcmp(choices, "*") == 0 || setting_choice(choices, value, false, spelled) >= 0);
}

/* All choices: "a|b|c"; NULL = any text. */
static const char *choices_of(const struct setting *s, char all[CHOICES_TEXT])
{
    if (!s->names)
        return s->choices;
    (void)snprintf(all, CHOICES_TEXT, "%s%s%s", s->names(), s->choices ? "|" : "", s->choices ? s->choices : "");
    return all;
}

/* Appends the choices of "a|b|c", each within `quote`, with `last_between` before the last choice. */
static void join_choices(const char *choices, const char *quote, const char *last_between, struct buf *out)
{
    for (const char *p = choices; *p;) {
        const size_t len = strcspn(p, "|");
        const bool last = p[len] == '\0';
        const char *between = p == choices ? "" : last ? last_between : ", ";
        buf_printf(out, "%s%s%.*s%s", between, quote, (int)len, p, quote);
        p += len + !last;
    }
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

titan_status setting_check_type(const struct setting_place *at, const struct setting *s, const struct toml_value *v,
                                struct titan_error *err)
{
    const bool text = v->type == TOML_STRING, array = v->type == TOML_ARRAY;
    const bool fits =
        (types[s->type].accepted >> v->type & 1) || (s->on && (text || array)) || (s->yes_no && v->type == TOML_BOOL) ||
        (s->several && array) ||
        (s->type == KEY_LIST && text && !at->daemon); /* TorchTitan also writes lists as text with commas */
    return fits ? TITAN_OK : setting_wrong_type(at, s, v, err);
}

static double number_of(const struct toml_value *v)
{
    return v->type == TOML_INT ? (double)v->integer : v->type == TOML_FLOAT ? v->real : 0;
}

static titan_status check_range(const struct setting_place *at, const struct setting *s, const struct toml_value *v,
                                struct titan_error *err)
{
    char low[UNITS_TEXT], high[UNITS_TEXT], given[UNITS_TEXT];
    const double value = number_of(v);
    const char * or = s->minus_one ? ", or -1" : "";
    if ((s->minus_one && value == -1) ||
        (isfinite(value) && (s->above_min ? value > s->min : value >= s->min) && (s->max == 0 || value <= s->max)))
        return TITAN_OK;
    const int digits = s->type == KEY_INT ? 15 : 6; /* significant digits of whole numbers, and of other numbers */
    (void)snprintf(low, sizeof(low), "%.*g", digits, s->min);
    (void)snprintf(high, sizeof(high), "%.*g", digits, s->max);
    if (s->type == KEY_INT)
        (void)snprintf(given, sizeof(given), "%lld", (long long)v->integer);
    else
        (void)snprintf(given, sizeof(given), "%g", value);
    if (at->daemon)
        return setting_fail(at, s, err, TITAN_EINVAL, ": %s is not between %s and %s", given, low, high);
    if (s->max == 0)
        return setting_fail(at, s, err, TITAN_EINVAL, " = %s is out of range: at least %s%s", given, low, or);
    return setting_fail(at, s, err, TITAN_EINVAL, " = %s is out of range: %s %s to %s%s", given,
                        s->above_min ? "above" : "from", low, high, or);
}

/* Stores a text. Unused bytes become 0, so that equal structs are equal in memory. */
static titan_status store_text(const struct setting_place *at, const struct setting *s, const char *text, char *field,
                               struct titan_error *err)
{
    const size_t len = strlen(text);
    if (len >= s->size)
        return setting_fail(at, s, err, TITAN_EINVAL, ": text of %zu bytes is too long (at most %zu)", len,
                            s->size - 1);
    if (len < (size_t)s->min)
        return setting_fail(at, s, err, TITAN_EINVAL, ": must not be empty");
    memset(field, 0, s->size);
    memcpy(field, text, len);
    return TITAN_OK;
}

/* Stores a text, which must be one of the choices if there are any. */
static titan_status set_text(const struct setting_place *at, const struct setting *s, const char *value, void *field,
                             struct titan_error *err)
{
    char spelled[SETTING_WORD], all[CHOICES_TEXT], lack[160] = "";
    const char *choices = choices_of(s, all);
    const int number = setting_choice(choices, value, s->flags & KEY_NOCASE, spelled);
    if (number >= 0 && s->type == KEY_WORD) {
        titan_assert(s->size == sizeof(number));
        memcpy(field, &number, sizeof(number));
        return TITAN_OK;
    }
    if (!choices || number >= 0 || s->flags & KEY_LATER)
        return store_text(at, s, number >= 0 ? spelled : value, field, err);
    _cleanup_(buf_free) struct buf legal = BUF_INIT;
    join_choices(choices, at->daemon ? "" : "\"", at->daemon ? ", " : " or ", &legal);
    const char *text = legal.len ? legal.data : "";
    if (at->daemon)
        return setting_fail(at, s, err, TITAN_EINVAL, ": '%.64s' is not one of %s", value, text);
    if (!setting_admits(s->later, value))
        return setting_fail(at, s, err, TITAN_EINVAL, " = \"%.64s\": expected %s", value, text);
    const size_t len = strlen(value);
    for (const char *p = s->lacks ? s->lacks : ""; *p; p += strcspn(p, "|"), p += *p == '|')
        if (strncmp(p, value, len) == 0 && p[len] == '=')
            (void)snprintf(lack, sizeof(lack), ", which lacks %.*s", (int)strcspn(p, "|") - (int)len - 1, p + len + 1);
    return setting_fail(at, s, err, TITAN_EUNSUPPORTED, " = \"%.64s\" is not supported by this version%s; use %s",
                        value, lack, text);
}

/* Joins a list of words with commas; each must be a choice. */
static titan_status set_list(const struct setting_place *at, const struct setting *s, const struct toml_value *v,
                             void *field, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT, legal = BUF_INIT;
    titan_assert(s->choices);
    join_choices(s->choices, "\"", " or ", &legal);
    for (const struct toml_value *e = v->type == TOML_ARRAY ? v->first : v; e;
         e = v->type == TOML_ARRAY ? e->next : NULL) {
        const char *word = e->type == TOML_STRING ? e->string : "";
        if (e->type != TOML_STRING)
            return setting_wrong_type(at, s, e, err);
        for (; *word; word += strcspn(word, ","), word += strspn(word, ",")) {
            char one[SETTING_WORD];
            if (snprintf(one, sizeof(one), "%.*s", (int)strcspn(word, ","), word) >= (int)sizeof(one))
                return setting_fail(at, s, err, TITAN_EINVAL, ": \"%.16s...\" is too long (at most %zu bytes)", one,
                                    sizeof(one) - 1);
            if (!setting_admits(s->choices, one))
                return setting_fail(at, s, err, TITAN_EINVAL, ": \"%s\": expected %s", one,
                                    legal.len ? legal.data : "");
            buf_printf(&text, "%s%s", text.len ? "," : "", one);
        }
    }
    return store_text(at, s, text.len ? text.data : "", field, err);
}

static titan_status set_bytes(const struct setting_place *at, const struct setting *s, const struct toml_value *v,
                              void *field, struct titan_error *err)
{
    char low[UNITS_TEXT], high[UNITS_TEXT], given[80];
    const bool text = v->type == TOML_STRING, none = text && !v->string[0] && !at->daemon;
    uint64_t parsed = 0;
    if (text)
        (void)snprintf(given, sizeof(given), "\"%.64s\"", v->string);
    else
        (void)snprintf(given, sizeof(given), "%lld", (long long)v->integer);
    if (text && !none && !units_parse_bytes(v->string, &parsed))
        return at->daemon ? setting_fail(at, s, err, TITAN_EINVAL,
                                         ": '%.64s' is not bytes with a unit, such as \"16GiB\"", v->string)
                          : setting_fail(at, s, err, TITAN_EINVAL,
                                         " = %s: expected bytes with a unit, such as \"16GiB\"", given);
    const int64_t bytes = text ? (int64_t)parsed : v->integer;
    if (!none && ((double)bytes < s->min || (double)bytes > s->max)) {
        (void)format_exact_bytes((uint64_t)s->min, low);
        (void)format_exact_bytes((uint64_t)s->max, high);
        return at->daemon
                   ? setting_fail(at, s, err, TITAN_EINVAL, ": not between %s and %s", low, high)
                   : setting_fail(at, s, err, TITAN_EINVAL, " = %s is out of range: from %s to %s", given, low, high);
    }
    memcpy(field, &bytes, sizeof(bytes));
    return TITAN_OK;
}

titan_status setting_set(const struct setting_place *at, const struct setting *s, const struct toml_value *v,
                         void *field, struct titan_error *err)
{
    uint32_t narrow;
    titan_assert(s->size > 0 && s->type != KEY_SOURCES && !s->on);
    switch (s->type) {
    case KEY_STRING:
    case KEY_WORD:
        return set_text(at, s, v->string, field, err);
    case KEY_LIST:
        return set_list(at, s, v, field, err);
    case KEY_BYTES:
        return set_bytes(at, s, v, field, err);
    case KEY_BOOL:
        memcpy(field, &v->boolean, sizeof(v->boolean));
        return TITAN_OK;
    case KEY_INT:
        TRY(check_range(at, s, v, err));
        narrow = (uint32_t)v->integer;
        if (s->size == sizeof(narrow))
            memcpy(field, &narrow, sizeof(narrow));
        else
            memcpy(field, &v->integer, sizeof(v->integer));
        return TITAN_OK;
    case KEY_REAL: {
        TRY(check_range(at, s, v, err));
        const double number = number_of(v) + 0.0; /* no negative zero: it would print and hash differently */
        narrow = s->unit > 0 ? (uint32_t)lround(number * s->unit) : 0;
        if (s->unit > 0)
            memcpy(field, &narrow, sizeof(narrow));
        else
            memcpy(field, &number, sizeof(number));
        return TITAN_OK;
    }
    default:
        break;
    }
    double values[128] = {0};
    const int64_t most = (int64_t)((s->size - sizeof(int64_t)) / sizeof(double));
    int64_t n = 0;
    titan_assert(s->type == KEY_REALS && most <= (int64_t)ARRAY_SIZE(values));
    for (const struct toml_value *e = v->first; e; e = e->next) {
        if (e->type != TOML_INT && e->type != TOML_FLOAT)
            return setting_wrong_type(at, s, e, err);
        TRY(check_range(at, s, e, err));
        if (n == most)
            return setting_fail(at, s, err, TITAN_EINVAL, ": more than %lld numbers", (long long)most);
        values[n++] = number_of(e);
    }
    memcpy(field, &n, sizeof(n));
    memcpy((char *)field + sizeof(n), values, s->size - sizeof(n));
    return TITAN_OK;
}

/* --- printing ----------------------------------------------------------------------------------------------------- */

void setting_print_text(struct buf *out, const char *text)
{
    buf_puts(out, "\"");
    for (const char *p = text; *p; p++) {
        size_t plain = 0; /* length of text to copy unchanged */
        while ((unsigned char)p[plain] >= 0x20 && p[plain] != 0x7f && p[plain] != '"' && p[plain] != '\\')
            plain++;
        if (plain) {
            buf_printf(out, "%.*s", (int)plain, p);
            p += plain - 1;
        } else if (*p == '"' || *p == '\\') {
            buf_printf(out, "\\%c", *p);
        } else {
            buf_printf(out, "\\u%04X", (unsigned char)*p);
        }
    }
    buf_puts(out, "\"");
}

void setting_print(const struct setting *s, const void *field, struct buf *out)
{
    char text[UNITS_TEXT];
    int64_t integer = 0;
    double real = 0;
    titan_assert(s->type != KEY_SOURCES && s->type != KEY_WORD && s->unit == 0);
    if (s->type == KEY_INT || s->type == KEY_BYTES || s->type == KEY_REALS)
        memcpy(&integer, field, sizeof(integer));
    switch (s->type) {
    case KEY_INT:
        buf_printf(out, "%lld", (long long)integer);
        break;
    case KEY_REAL:
        memcpy(&real, field, sizeof(real));
        buf_puts(out, format_real(real, text));
        break;
    case KEY_BOOL:
        buf_puts(out, *(const char *)field ? "true" : "false");
        break;
    case KEY_LIST: /* "a,b" -> ["a", "b"] */
        buf_puts(out, "[");
        for (const char *p = field; *p; p += strcspn(p, ","), p += *p == ',')
            buf_printf(out, "%s\"%.*s\"", p == field ? "" : ", ", (int)strcspn(p, ","), p);
        buf_puts(out, "]");
        break;
    case KEY_REALS:
        buf_puts(out, "[");
        for (int64_t i = 0; i < integer; i++) {
            memcpy(&real, (const char *)field + sizeof(integer) + (size_t)i * sizeof(real), sizeof(real));
            buf_printf(out, "%s%s", i ? ", " : "", format_real(real, text));
        }
        buf_puts(out, "]");
        break;
    case KEY_BYTES:
        buf_printf(out, "\"%s\"", integer ? format_exact_bytes((uint64_t)integer, text) : "");
        break;
    default:
        setting_print_text(out, field);
    }
}

void setting_print_row(const struct setting *s, struct buf *out)
{
    char all[CHOICES_TEXT], low[UNITS_TEXT], high[UNITS_TEXT];
    const char *choices = choices_of(s, all), *quote = s->flags & KEY_FLAVOR ? "" : "`";
    buf_printf(out, "| `%s`%s | %s | %s%s%s | ", s->name, s->flags & KEY_TITAN ? " *" : "", types[s->type].name, quote,
               s->flags & KEY_FLAVOR ? "flavor's" : s->initial, quote);
    if (s->type == KEY_BYTES) {
        buf_printf(out, "`\"\"`, `\"%s\"` to `\"%s\"`", format_exact_bytes((uint64_t)s->min, low),
                   format_exact_bytes((uint64_t)s->max, high));
    } else if (choices && strcmp(choices, "*") != 0) {
        join_choices(choices, "`", ", ", out);
    } else if (s->type == KEY_INT || s->type == KEY_REAL || s->type == KEY_REALS) {
        if (s->minus_one)
            buf_puts(out, "-1, ");
        if (s->max == 0)
            buf_printf(out, "%s%.15g", s->above_min ? "> " : "≥ ", s->min);
        else
            buf_printf(out, "%s%.15g to %.15g", s->above_min ? "above " : "", s->min, s->max);
    }
    buf_printf(out, " | %s |\n", s->doc);
}
