/* SPDX-License-Identifier: Apache-2.0 */
/* Reads, overrides and prints run files by the table of keys. */
#include "base/recipe.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/distance.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/options.h"
#include "base/path_pattern.h"
#include "base/recipe_keys.h"
#include "base/toml.h"
#include "base/units.h"

#define SECTION_MAX 256 /* bytes of a section's name with its dots */

/* Position of a value, for messages. */
struct place {
    const char *path;
    int line; /* 0: a command-line override */
};

static titan_status fail_at(const struct place *at, struct titan_error *err, titan_status status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static titan_status fail_at(const struct place *at, struct titan_error *err, titan_status status, const char *fmt, ...)
{
    char text[sizeof(((struct titan_error *)0)->msg)], where[160];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (at->line)
        snprintf(where, sizeof(where), "%.128s:%d", at->path, at->line);
    else
        snprintf(where, sizeof(where), "%.128s", at->path);
    return titan_fail(err, status, "%s: %s", where, text);
}

/* --- the nearest key ---------------------------------------------------------------------------------------------- */

/* The nearest key to a misspelt name, NULL: none. The same name in another section counts as near. */
static const struct recipe_key *nearest(const char *section, const char *name)
{
    char given[SECTION_MAX + DISTANCE_TEXT_MAX], known[SECTION_MAX + DISTANCE_TEXT_MAX];
    if (strlen(name) > DISTANCE_TEXT_MAX)
        return NULL;
    snprintf(given, sizeof(given), "%s.%s", section, name);
    int best = MAX(2, (int)strlen(name) / 3) + 1;
    const struct recipe_key *found = NULL;
    for (int i = 0; i < recipe_keys_count && recipe_keys[i].support == KEY_SUPPORTED; i++) {
        const struct recipe_key *k = &recipe_keys[i];
        snprintf(known, sizeof(known), "%s.%s", k->section, k->name);
        int d = strcmp(k->name, name) == 0 ? 1 : text_distance(given, known);
        if (d < best) {
            best = d;
            found = k;
        }
    }
    return found;
}

static titan_status unknown_key(const struct place *at, const char *section, const char *name, struct titan_error *err)
{
    const struct recipe_key *near = nearest(section, name);
    const char *dot = *section ? "." : "";
    for (int i = 0; i < recipe_newer_count; i++)
        if (strcmp(recipe_newer[i].name, name) == 0 && strcmp(recipe_newer[i].section, section) == 0)
            return fail_at(at, err, TITAN_EINVAL, "unknown key %s.%s, which is of a TorchTitan after v0.2.2; %s",
                           section, name, recipe_newer[i].instead);
    if (near)
        return fail_at(at, err, TITAN_EINVAL, "unknown key %s%s%.64s; did you mean %s.%s?", section, dot, name,
                       near->section, near->name);
    return fail_at(at, err, TITAN_EINVAL, "unknown key %s%s%.64s", section, dot, name);
}

/* --- one value ---------------------------------------------------------------------------------------------------- */

/* Is value in "a|b|c"? found[64] gets the table's spelling. */
static bool among(const char *choices, const char *value, bool nocase, char found[64])
{
    for (const char *p = choices; p && *p;) {
        size_t len = strcspn(p, "|");
        if (strlen(value) == len && len < 64 && (nocase ? strncasecmp(p, value, len) : strncmp(p, value, len)) == 0) {
            memcpy(found, p, len);
            found[len] = '\0';
            return true;
        }
        p += len + (p[len] == '|');
    }
    return false;
}

/* All choices of a string key: "a|b|c"; NULL = any text. */
static const char *choices_of(const struct recipe_key *k, char *all, size_t cap)
{
    titan_assert(cap > 0);
    if (!k->names)
        return k->choices;
    (void)snprintf(all, cap, "%s|%s", k->names(), k->choices);
    return all;
}

static bool any_or_among(const char *choices, const char *value)
{
    char spelled[64];
    return choices && (strcmp(choices, "*") == 0 || among(choices, value, false, spelled));
}

/* "a|b|c" -> "a", "b" or "c" */
static void list_choices(const char *choices, char *out, size_t cap)
{
    titan_assert(cap > 0);
    size_t used = 0;
    out[0] = '\0';
    for (const char *p = choices; *p && used < cap;) {
        size_t len = strcspn(p, "|");
        bool last = p[len] == '\0';
        const char *between = p == choices ? "" : last ? " or " : ", ";
        int n = snprintf(out + used, cap - used, "%s\"%.*s\"", between, (int)len, p);
        used += n > 0 ? (size_t)n : 0;
        p += len + !last;
    }
}

static titan_status wrong_type(const struct recipe_key *k, const struct toml_value *v, const struct place *at,
                               struct titan_error *err)
{
    static const char *const wanted[] = {
        [KEY_STRING] = "text in quotes", [KEY_INT] = "an integer",
        [KEY_REAL] = "a number",         [KEY_BOOL] = "true or false",
        [KEY_LIST] = "an array",         [KEY_REALS] = "an array of numbers",
        [KEY_SOURCES] = "an array",      [KEY_BYTES] = "bytes such as \"16GiB\"",
    };
    if (v->type == TOML_STRING)
        return fail_at(at, err, TITAN_EINVAL, "%s.%s = \"%.64s\": expected %s, not text", k->section, k->name,
                       v->string, wanted[k->type]);
    return fail_at(at, err, TITAN_EINVAL, "%s.%s: expected %s, got %s %s", k->section, k->name, wanted[k->type],
                   v->type == TOML_INT || v->type == TOML_ARRAY ? "an" : "a", toml_type_name(v->type));
}

static titan_status check_type(const struct recipe_key *k, const struct toml_value *v, const struct place *at,
                               struct titan_error *err)
{
    bool fits = (k->type == KEY_STRING && v->type == TOML_STRING) || (k->type == KEY_INT && v->type == TOML_INT) ||
                (k->type == KEY_REAL && (v->type == TOML_INT || v->type == TOML_FLOAT)) ||
                (k->type == KEY_BOOL && v->type == TOML_BOOL) ||
                (k->type == KEY_BYTES && (v->type == TOML_STRING || v->type == TOML_INT)) ||
                ((k->type == KEY_LIST || k->type == KEY_REALS || k->type == KEY_SOURCES) && v->type == TOML_ARRAY);
    /* TorchTitan also writes lists as text with commas. */
    fits = fits || (k->type == KEY_LIST && v->type == TOML_STRING) ||
           (k->on && (v->type == TOML_STRING || v->type == TOML_ARRAY)) || (k->yes_no && v->type == TOML_BOOL) ||
           (k->several && v->type == TOML_ARRAY);
    return fits ? TITAN_OK : wrong_type(k, v, at, err);
}

static titan_status check_range(const struct recipe_key *k, double value, const struct place *at,
                                struct titan_error *err)
{
    titan_assert(k->type == KEY_INT || k->type == KEY_REAL || k->type == KEY_REALS);
    char low[UNITS_TEXT], high[UNITS_TEXT], given[UNITS_TEXT];
    if (k->minus_one && value == -1)
        return TITAN_OK;
    if (isfinite(value) && (k->above_min ? value > k->min : value >= k->min) && (k->max == 0 || value <= k->max))
        return TITAN_OK;
    if (k->type == KEY_INT) {
        snprintf(low, sizeof(low), "%.0f", k->min);
        snprintf(high, sizeof(high), "%.0f", k->max);
        snprintf(given, sizeof(given), "%.0f", value);
    } else {
        snprintf(low, sizeof(low), "%g", k->min);
        snprintf(high, sizeof(high), "%g", k->max);
        snprintf(given, sizeof(given), "%g", value);
    }
    const char * or = k->minus_one ? ", or -1" : "";
    if (k->max == 0)
        return fail_at(at, err, TITAN_EINVAL, "%s.%s = %s is out of range: at least %s%s", k->section, k->name, given,
                       low, or);
    return fail_at(at, err, TITAN_EINVAL, "%s.%s = %s is out of range: %s %s to %s%s", k->section, k->name, given,
                   k->above_min ? "above" : "from", low, high, or);
}

static titan_status set_bytes(const struct recipe_key *k, const struct toml_value *v, const struct place *at,
                              char *field, struct titan_error *err)
{
    titan_assert(k->type == KEY_BYTES && k->size == sizeof(int64_t));
    char low[UNITS_TEXT], high[UNITS_TEXT], given[80];
    uint64_t parsed = 0;
    const bool text = v->type == TOML_STRING;
    if (text)
        (void)snprintf(given, sizeof(given), "\"%.64s\"", v->string);
    else
        (void)snprintf(given, sizeof(given), "%lld", (long long)v->integer);
    if (text && v->string[0] && !units_parse_bytes(v->string, &parsed))
        return fail_at(at, err, TITAN_EINVAL, "%s.%s = %s: expected bytes with a unit, such as \"16GiB\"", k->section,
                       k->name, given);
    const int64_t bytes = text ? (int64_t)parsed : v->integer;
    if (!(text && !v->string[0]) && ((double)bytes < k->min || (double)bytes > k->max))
        return fail_at(at, err, TITAN_EINVAL, "%s.%s = %s is out of range: from %s to %s", k->section, k->name, given,
                       format_exact_bytes((uint64_t)k->min, low), format_exact_bytes((uint64_t)k->max, high));
    memcpy(field, &bytes, sizeof(bytes));
    return TITAN_OK;
}

/* Writes ": it lacks ..." for a refused value; "": no reason known. */
static void describe_lack(const char *section, const char *name, const char *value, char *out, size_t cap)
{
    out[0] = '\0';
    for (int i = 0; i < recipe_lacks_count; i++)
        if (strcmp(recipe_lacks[i].value, value) == 0 && strcmp(recipe_lacks[i].name, name) == 0 &&
            strcmp(recipe_lacks[i].section, section) == 0)
            (void)snprintf(out, cap, ", which lacks %s", recipe_lacks[i].what);
}

static titan_status set_string(const struct recipe_key *k, const char *value, const struct place *at, char *field,
                               struct titan_error *err)
{
    titan_assert(k->type == KEY_STRING);
    char spelled[64], legal[320], all[256], lack[160];
    const char *choices = choices_of(k, all, sizeof(all));
    if (choices && among(choices, value, k->flags & KEY_NOCASE, spelled)) {
        value = spelled;
    } else if (choices && !(k->flags & KEY_LATER)) {
        list_choices(choices, legal, sizeof(legal));
        describe_lack(k->section, k->name, value, lack, sizeof(lack));
        if (any_or_among(k->later, value))
            return fail_at(at, err, TITAN_EUNSUPPORTED, "%s.%s = \"%.64s\" is not supported by this version%s; use %s",
                           k->section, k->name, value, lack, legal);
        return fail_at(at, err, TITAN_EINVAL, "%s.%s = \"%.64s\": expected %s", k->section, k->name, value, legal);
    }
    size_t len = strlen(value);
    if (len >= k->size)
        return fail_at(at, err, TITAN_EINVAL, "%s.%s: text of %zu bytes is too long (at most %zu)", k->section, k->name,
                       len, k->size - 1);
    memset(field, 0, k->size); /* equal recipes are equal in memory */
    memcpy(field, value, len);
    return TITAN_OK;
}

/* Is it one alternative within braces? */
static bool is_one_alternative(const char *path)
{
    int depth = 0;
    for (; *path && depth >= 0; path++) {
        depth += *path == '{' ? 1 : *path == '}' ? -1 : 0;
        if (*path == '\\' || (*path == ',' && depth == 0))
            return false;
    }
    return depth == 0;
}

/* Joins an array of paths to one pattern: "/data/{a,b/c.txt}". */
static titan_status set_paths(const struct recipe_key *k, const struct toml_value *v, const struct place *at,
                              char *field, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    const struct toml_value *first = v->first;
    size_t common = first && first->type == TOML_STRING ? path_pattern_folder(first->string) : 0;
    for (const struct toml_value *e = first; e; e = e->next) {
        if (e->type != TOML_STRING)
            return wrong_type(k, e, at, err);
        if (!e->string[0])
            return fail_at(at, err, TITAN_EINVAL, "%s.%s: an array with an empty path", k->section, k->name);
        if (!is_one_alternative(e->string))
            return fail_at(at, err, TITAN_EINVAL,
                           "%s.%s: \"%.200s\": a path of an array has no backslash, commas and braces only as in "
                           "{a,b}",
                           k->section, k->name, e->string);
        if ((e->string[0] == '/') != (first->string[0] == '/'))
            return fail_at(at, err, TITAN_EINVAL,
                           "%s.%s: \"%.200s\" and \"%.200s\": paths of an array are all relative, or none is",
                           k->section, k->name, first->string, e->string);
        for (size_t i = 0; i < common; i++)
            if (e->string[i] != first->string[i])
                common = i;
    }
    while (common > 0 && first->string[common - 1] != '/')
        common--;
    if (!first || !first->next)
        return set_string(k, first ? first->string : "", at, field, err);
    buf_printf(&text, "%.*s", (int)common, first->string);
    for (const struct toml_value *e = first; e; e = e->next)
        buf_printf(&text, "%s%s", e == first ? "{" : ",", e->string + common);
    buf_puts(&text, "}");
    return buf_failed(&text) ? fail_at(at, err, TITAN_ENOMEM, "%s.%s: no memory", k->section, k->name)
                             : set_string(k, text.data, at, field, err);
}

/* Sets a key that was a switch in earlier versions. */
static titan_status set_word_of_switch(const struct recipe_key *k, bool on, const struct place *at, char *field,
                                       struct titan_error *err)
{
    titan_assert(k->type == KEY_STRING && k->yes_no);
    char word[64];
    size_t yes = strcspn(k->yes_no, "|");
    snprintf(word, sizeof(word), "%.*s", on ? (int)yes : INT_MAX, on ? k->yes_no : k->yes_no + yes + 1);
    return set_string(k, word, at, field, err);
}

/* What the words of a list request: of the list's own switch, and of the second switch that the list sets. */
enum { SWITCH_OWN, SWITCH_OTHER, SWITCHES };
struct switches {
    const struct recipe_key *key[SWITCHES]; /* NULL: no other switch */
    bool on[SWITCHES], idle[SWITCHES];
};

static bool set_word(struct switches *s, const char *word)
{
    char spelled[64];
    for (int i = 0; i < SWITCHES && s->key[i]; i++) {
        const bool idle = s->key[i]->nothing && among(s->key[i]->nothing, word, false, spelled);
        const bool on = !idle && among(s->key[i]->on, word, false, spelled);
        s->idle[i] |= idle;
        s->on[i] |= on;
        if (idle || on)
            return true;
    }
    return word[0] == '\0';
}

/* "float8,quantize.linear.float8": every word turns a switch on. */
static titan_status set_words(struct switches *s, const char *words, const struct place *at, struct titan_error *err)
{
    const struct recipe_key *k = s->key[SWITCH_OWN];
    titan_assert(k->type == KEY_BOOL && k->on);
    char word[64], lack[160];
    for (const char *p = words; *p;) {
        size_t len = strcspn(p, ",");
        (void)snprintf(word, sizeof(word), "%.*s", (int)len, p);
        p += len + (p[len] == ',');
        describe_lack(k->section, k->name, word, lack, sizeof(lack));
        if (!set_word(s, word))
            return fail_at(at, err, any_or_among(k->later, word) ? TITAN_EUNSUPPORTED : TITAN_EINVAL,
                           "%s.%s: \"%s\" is not supported by this version%s; use true or false", k->section, k->name,
                           word, lack);
    }
    return TITAN_OK;
}

/* Marks whether the key requests something without effect. An override replaces the file's mark. */
static void mark_idle(struct recipe *r, int index, bool idle)
{
    titan_assert(index >= 0 && index < recipe_keys_count);
    uint64_t *mask = &r->idle_mask[index / 64], bit = UINT64_C(1) << (index % 64);
    *mask = idle ? *mask | bit : *mask & ~bit;
}

static void store_switch(struct recipe *r, int index, bool on, bool idle)
{
    titan_assert(index >= 0 && index < recipe_keys_count && recipe_keys[index].size == sizeof(bool));
    memcpy((char *)r + recipe_keys[index].offset, &on, sizeof(on));
    mark_idle(r, index, idle);
    r->set_mask[index / 64] |= UINT64_C(1) << (index % 64);
}

/* Sets a switch from true or false, a word, or a list of words, which may also set another switch. */
static titan_status set_bool(struct recipe *r, int index, const struct toml_value *v, const struct place *at,
                             struct titan_error *err)
{
    const struct recipe_key *k = &recipe_keys[index];
    const int other = k->other ? recipe_key_find(k->section, k->other) : -1;
    struct switches s = {.key = {k, other >= 0 ? &recipe_keys[other] : NULL}};
    titan_assert(k->type == KEY_BOOL);
    s.on[SWITCH_OWN] = v->type == TOML_BOOL && v->boolean;
    const struct toml_value *word = v->type == TOML_ARRAY ? v->first : v->type == TOML_STRING ? v : NULL;
    for (; word; word = v->type == TOML_ARRAY ? word->next : NULL) {
        if (word->type != TOML_STRING)
            return wrong_type(k, word, at, err);
        TRY(set_words(&s, word->string, at, err));
    }
    store_switch(r, index, s.on[SWITCH_OWN], s.idle[SWITCH_OWN]);
    if (other >= 0 && v->type != TOML_BOOL)
        store_switch(r, other, s.on[SWITCH_OTHER], s.idle[SWITCH_OTHER]);
    return TITAN_OK;
}

/* Number in "layers.N"; -1: the value has another form. */
static int64_t layer_of(const struct toml_value *v)
{
    int64_t n = -1;
    int end = 0;
    if (v->type != TOML_STRING || sscanf(v->string, "layers.%9" SCNd64 "%n", &n, &end) != 1 || v->string[end])
        return -1;
    return n;
}

/* Converts a list of every stage's modules to split points: the first layer of each stage but the first. Layers must be
 * consecutive across stages, the embedding first, the final norm and the head last. */
static bool stages_to_points(const struct toml_value *stages, struct buf *out)
{
    titan_assert(stages->type == TOML_ARRAY);
    int64_t next = 0;
    bool head = false;
    for (const struct toml_value *stage = stages->first; stage; stage = stage->next) {
        const struct toml_value *m = stage->type == TOML_ARRAY ? stage->first : NULL;
        if (!m || head)
            return false;
        if (stage == stages->first) {
            if (m->type != TOML_STRING || strcmp(m->string, "tok_embeddings") != 0)
                return false;
            m = m->next;
        } else {
            buf_printf(out, "%slayers.%lld", out->len ? "," : "", (long long)next);
        }
        for (; m && layer_of(m) == next; m = m->next)
            next++;
        head = m && m->next && !m->next->next && m->type == TOML_STRING && m->next->type == TOML_STRING &&
               strcmp(m->string, "norm") == 0 && strcmp(m->next->string, "output") == 0;
        if (m && !head)
            return false;
    }
    return head;
}

static titan_status set_points(const struct recipe_key *k, const struct toml_value *v, const struct place *at,
                               char *field, struct titan_error *err)
{
    titan_assert(k->type == KEY_LIST && !k->choices);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    int64_t points[RECIPE_STAGES_MAX];
    if (v->type == TOML_STRING) {
        buf_puts(&text, v->string);
    } else if (v->first && v->first->type == TOML_ARRAY) {
        if (!stages_to_points(v, &text))
            return fail_at(at, err, TITAN_EINVAL,
                           "%s.%s: expected every stage's modules in order: \"tok_embeddings\" first, each of "
                           "\"layers.0\", \"layers.1\", ... once, \"norm\" and \"output\" last",
                           k->section, k->name);
    } else {
        for (const struct toml_value *e = v->first; e; e = e->next) {
            if (e->type != TOML_STRING)
                return fail_at(at, err, TITAN_EINVAL, "%s.%s: expected names such as \"layers.2\", got %s", k->section,
                               k->name, toml_type_name(e->type));
            buf_printf(&text, "%s%s", text.len ? "," : "", e->string);
        }
    }
    if (buf_failed(&text))
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    const char *names = text.len ? text.data : "";
    if (recipe_split_points(names, points, RECIPE_STAGES_MAX) < 0)
        return fail_at(at, err, TITAN_EINVAL,
                       "%s.%s = \"%.48s\": expected layers in ascending order, such as \"layers.2\", \"layers.4\"",
                       k->section, k->name, names);
    if (text.len >= k->size)
        return fail_at(at, err, TITAN_EINVAL, "%s.%s: text of %zu bytes is too long (at most %zu)", k->section, k->name,
                       text.len, k->size - 1);
    titan_assert(text.len < k->size);
    memset(field, 0, k->size);
    memcpy(field, names, text.len);
    return TITAN_OK;
}

static double number_of(const struct toml_value *v)
{
    return v->type == TOML_INT ? (double)v->integer : v->type == TOML_FLOAT ? v->real : 0;
}

static titan_status set_reals(const struct recipe_key *k, const struct toml_value *v, const struct place *at,
                              char *field, struct titan_error *err)
{
    titan_assert(k->type == KEY_REALS && k->size == sizeof(struct recipe_reals));
    struct recipe_reals reals = {0};
    for (const struct toml_value *e = v->first; e; e = e->next) {
        if (e->type != TOML_INT && e->type != TOML_FLOAT)
            return wrong_type(k, e, at, err);
        TRY(check_range(k, number_of(e), at, err));
        if (reals.n == RECIPE_REALS_MAX)
            return fail_at(at, err, TITAN_EINVAL, "%s.%s: more than %d numbers", k->section, k->name, RECIPE_REALS_MAX);
        reals.value[reals.n++] = number_of(e);
    }
    memcpy(field, &reals, sizeof(reals));
    return TITAN_OK;
}

static titan_status set_sources(const struct recipe_key *k, const struct toml_value *v, const struct place *at,
                                char *field, struct titan_error *err)
{
    titan_assert(k->type == KEY_SOURCES && k->size == sizeof(struct recipe_mixture));
    struct recipe_mixture mixture;
    char why[RECIPE_WHY];
    if (!recipe_mixture_read(v, &mixture, why))
        return fail_at(at, err, TITAN_EINVAL, "%s.%s: %s", k->section, k->name, why);
    memcpy(field, &mixture, sizeof(mixture));
    return TITAN_OK;
}

/* Joins a list of words with commas; each must be a choice, and none may repeat. */
static titan_status set_choices(const struct recipe_key *k, const struct toml_value *v, const struct place *at,
                                char *field, struct titan_error *err)
{
    titan_assert(k->type == KEY_LIST && k->choices);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    char legal[320];
    const struct toml_value *e = v->type == TOML_ARRAY ? v->first : v;
    list_choices(k->choices, legal, sizeof(legal));
    for (; e; e = v->type == TOML_ARRAY ? e->next : NULL) {
        const char *word = e->type == TOML_STRING ? e->string : "";
        if (e->type != TOML_STRING)
            return wrong_type(k, e, at, err);
        for (; *word; word += strcspn(word, ","), word += strspn(word, ",")) {
            char one[64];
            if (snprintf(one, sizeof(one), "%.*s", (int)strcspn(word, ","), word) >= (int)sizeof(one))
                return fail_at(at, err, TITAN_EINVAL, "%s.%s: \"%.16s...\" is too long (at most %zu bytes)", k->section,
                               k->name, one, sizeof(one) - 1);
            if (!any_or_among(k->choices, one))
                return fail_at(at, err, TITAN_EINVAL, "%s.%s: \"%s\": expected %s", k->section, k->name, one, legal);
            buf_printf(&text, "%s%s", text.len ? "," : "", one);
        }
    }
    if (text.len >= k->size)
        return fail_at(at, err, TITAN_EINVAL, "%s.%s: text of %zu bytes is too long (at most %zu)", k->section, k->name,
                       text.len, k->size - 1);
    memset(field, 0, k->size);
    memcpy(field, text.len ? text.data : "", text.len);
    return TITAN_OK;
}

static titan_status set_supported(struct recipe *r, int index, const struct toml_value *v, const struct place *at,
                                  struct titan_error *err)
{
    titan_assert(index >= 0 && index < recipe_keys_count);
    const struct recipe_key *k = &recipe_keys[index];
    titan_assert(k->support == KEY_SUPPORTED && k->offset + k->size <= sizeof(*r));
    char *field = (char *)r + k->offset;
    double number = number_of(v);
    switch (k->type) {
    case KEY_STRING:
        TRY(v->type == TOML_BOOL    ? set_word_of_switch(k, v->boolean, at, field, err)
            : v->type == TOML_ARRAY ? set_paths(k, v, at, field, err)
                                    : set_string(k, v->string, at, field, err));
        break;
    case KEY_INT:
        TRY(check_range(k, number, at, err));
        memcpy(field, &v->integer, sizeof(v->integer));
        break;
    case KEY_REAL:
        TRY(check_range(k, number, at, err));
        number += 0.0; /* no negative zero: it would print and hash differently */
        memcpy(field, &number, sizeof(number));
        break;
    case KEY_BOOL:
        TRY(set_bool(r, index, v, at, err));
        break;
    case KEY_LIST:
        TRY(k->choices ? set_choices(k, v, at, field, err) : set_points(k, v, at, field, err));
        break;
    case KEY_REALS:
        TRY(set_reals(k, v, at, field, err));
        break;
    case KEY_SOURCES:
        TRY(set_sources(k, v, at, field, err));
        break;
    case KEY_BYTES:
        TRY(set_bytes(k, v, at, field, err));
        break;
    }
    r->set_mask[index / 64] |= UINT64_C(1) << (index % 64);
    return TITAN_OK;
}

static titan_status check_off(const struct recipe_key *k, const struct toml_value *v, const struct place *at,
                              struct titan_error *err)
{
    char given[80];
    bool off = false;
    switch (k->type) {
    case KEY_BOOL:
        off = v->boolean == (strcmp(k->initial, "true") == 0);
        snprintf(given, sizeof(given), "%s", v->boolean ? "true" : "false");
        break;
    case KEY_INT:
        off = v->integer == strtoll(k->initial, NULL, 10);
        snprintf(given, sizeof(given), "%lld", (long long)v->integer);
        break;
    case KEY_STRING:
        snprintf(given, sizeof(given), "\"%.64s\"", v->string);
        off = strcmp(given, k->initial) == 0;
        break;
    case KEY_LIST:
        off = v->type == TOML_STRING ? !v->string[0] : !v->first;
        snprintf(given, sizeof(given), "[...]");
        break;
    case KEY_REAL:
    case KEY_REALS:
    case KEY_SOURCES:
    case KEY_BYTES:
        break;
    }
    if (off)
        return TITAN_OK;
    return fail_at(at, err, TITAN_EUNSUPPORTED, "%s.%s = %s is not supported by this version; use %s or leave it out",
                   k->section, k->name, given, k->initial);
}

/* Index of the key behind an alias, or index itself. */
static int resolve_alias(const char *section, const char *name)
{
    for (int i = 0; i < recipe_aliases_count; i++) {
        const struct recipe_alias *a = &recipe_aliases[i];
        if (a->name[0] != name[0] || strcmp(a->name, name) != 0 || strcmp(a->section, section) != 0)
            continue;
        const char *dot = strrchr(a->target, '.');
        titan_assert(dot && dot - a->target < 64);
        char target[64];
        snprintf(target, sizeof(target), "%.*s", (int)(dot - a->target), a->target);
        return recipe_key_find(target, dot + 1);
    }
    return recipe_key_find(section, name);
}

static bool same_value(const struct toml_value *a, const struct toml_value *b)
{
    if (a->type != b->type)
        return false;
    switch (a->type) {
    case TOML_BOOL:
        return a->boolean == b->boolean;
    case TOML_INT:
        return a->integer == b->integer;
    case TOML_STRING:
        return strcmp(a->string, b->string) == 0;
    default:
        break;
    }
    const struct toml_value *x = a->first, *y = b->first;
    for (; x && y && same_value(x, y); x = x->next, y = y->next)
        ;
    return a->type == TOML_ARRAY && !x && !y;
}

static titan_status set_idle(struct recipe *r, int index, const struct toml_value *v, struct titan_error *err)
{
    titan_assert(index >= 0 && index < recipe_keys_count && recipe_keys[index].support == KEY_NOTE);
    struct toml_value *initial = NULL;
    TRY(toml_parse_value(recipe_keys[index].initial, "default", &initial, err));
    mark_idle(r, index, !same_value(v, initial));
    toml_free(initial);
    return TITAN_OK;
}

/* seen: keys this document has set, to refuse a key together with its alias; NULL for an override. */
static titan_status set_value(struct recipe *r, const char *section, const char *name, const struct toml_value *v,
                              const struct place *at, uint64_t *seen, struct titan_error *err)
{
    int index = resolve_alias(section, name);
    if (index < 0)
        return unknown_key(at, section, name, err);
    const struct recipe_key *k = &recipe_keys[index];
    TRY(check_type(k, v, at, err));
    if (k->support == KEY_PART)
        return TITAN_OK;
    if (k->support == KEY_NOTE)
        return set_idle(r, index, v, err);
    if (k->support == KEY_OFF)
        return check_off(k, v, at, err);
    if (seen && (seen[index / 64] >> (index % 64) & 1))
        return fail_at(at, err, TITAN_EINVAL, "%s.%s is given twice: %s.%s means the same", section, name, k->section,
                       k->name);
    if (seen)
        seen[index / 64] |= UINT64_C(1) << (index % 64);
    titan_status status = set_supported(r, index, v, at, err);
    if (status != TITAN_OK && strcmp(name, k->name) != 0)
        titan_error_hint(err, "%s.%s is read as %s.%s", section, name, k->section, k->name);
    return status;
}

/* --- whole files -------------------------------------------------------------------------------------------------- */

static struct recipe defaults; /* made once: every submit starts from it */

static void make_defaults(void)
{
    static const struct place table = {.path = "base/recipe_keys.c"};
    struct recipe *r = &defaults;
    for (int i = 0; i < recipe_keys_count && recipe_keys[i].support == KEY_SUPPORTED; i++) {
        if (recipe_keys[i].flags & KEY_FLAVOR)
            continue;
        struct toml_value *v = NULL;
        titan_assert(toml_parse_value(recipe_keys[i].initial, "default", &v, NULL) == TITAN_OK);
        titan_assert(set_supported(r, i, v, &table, NULL) == TITAN_OK);
        toml_free(v);
    }
    memset(r->set_mask, 0, sizeof(r->set_mask));
}

void recipe_init(struct recipe *r)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, make_defaults);
    *r = defaults;
}

/* seen: see set_value; overridden: keys with values to ignore; NULL: none. */
static titan_status set_table(struct recipe *r, const char *section, const struct toml_value *table, const char *path,
                              uint64_t *seen, const uint64_t *overridden, struct titan_error *err)
{
    for (const struct toml_value *v = table->first; v; v = v->next) {
        struct place at = {path, v->line};
        if (v->type != TOML_TABLE) {
            const int index = overridden ? resolve_alias(section, v->key) : -1;
            if (index < 0 || !(overridden[index / 64] >> (index % 64) & 1))
                TRY(set_value(r, section, v->key, v, &at, seen, err));
            continue;
        }
        char below[SECTION_MAX];
        int n = snprintf(below, sizeof(below), "%s%s%s", section, *section ? "." : "", v->key);
        if (n < 0 || (size_t)n >= sizeof(below))
            return fail_at(&at, err, TITAN_EINVAL, "section name too long");
        bool known = !v->first; /* an empty section is always accepted */
        for (int i = 0; !known && i < recipe_keys_count; i++)
            known = recipe_keys[i].section[0] == below[0] && strncmp(recipe_keys[i].section, below, (size_t)n) == 0 &&
                    (recipe_keys[i].section[n] == '\0' || recipe_keys[i].section[n] == '.');
        if (!known) {
            const struct recipe_key *near = nearest(below, v->first->key);
            if (near)
                return fail_at(&at, err, TITAN_EINVAL, "unknown section [%.64s]; did you mean [%s]?", below,
                               near->section);
            return fail_at(&at, err, TITAN_EINVAL, "unknown section [%.64s]", below);
        }
        TRY(set_table(r, below, v, path, seen, overridden, err));
    }
    return TITAN_OK;
}

/* The parts of "section.key=value" in --set; index: index of the key. */
struct assignment {
    char section[SECTION_MAX], name[DISTANCE_TEXT_MAX + 1];
    const char *value;
    int index;
};

static titan_status read_assignment(const char *text, struct assignment *ret, struct titan_error *err)
{
    static const struct place at = {.path = "--set"};
    const char *equals = strchr(text, '=');
    const char *dot = equals ? memrchr(text, '.', (size_t)(equals - text)) : NULL;
    if (!dot || dot == text || equals == dot + 1 || dot - text >= SECTION_MAX || equals - dot > DISTANCE_TEXT_MAX) {
        (void)fail_at(&at, err, TITAN_EINVAL, "expected section.key=value, got '%.100s'", text);
        return TITAN_EINVAL;
    }
    snprintf(ret->section, sizeof(ret->section), "%.*s", (int)(dot - text), text);
    snprintf(ret->name, sizeof(ret->name), "%.*s", (int)(equals - dot - 1), dot + 1);
    ret->value = equals + 1;
    ret->index = resolve_alias(ret->section, ret->name);
    if (ret->index >= 0)
        return TITAN_OK;
    (void)unknown_key(&at, ret->section, ret->name, err);
    return TITAN_EINVAL;
}

static titan_status parse(struct recipe *r, const char *text, const char *path, const uint64_t *overridden,
                          struct titan_error *err)
{
    if (!path)
        path = "<stdin>";
    size_t len = strlen(text);
    if (len > RECIPE_TEXT_MAX)
        return titan_fail(err, TITAN_ELIMIT, "%s: a run file of %zu bytes is too large (at most %d)", path, len,
                          RECIPE_TEXT_MAX);
    struct toml_value *root = NULL;
    TRY(toml_parse(text, len, path, &root, err));
    struct recipe result = *r;
    uint64_t seen[ARRAY_SIZE(r->set_mask)] = {0};
    titan_status status = set_table(&result, "", root, path, seen, overridden, err);
    toml_free(root);
    if (status == TITAN_OK)
        *r = result;
    return status;
}

titan_status recipe_parse(struct recipe *r, const char *text, const char *path, struct titan_error *err)
{
    return parse(r, text, path, NULL, err);
}

titan_status recipe_parse_with(struct recipe *r, const char *text, const char *path, const struct args *args,
                               struct titan_error *err)
{
    uint64_t overridden[ARRAY_SIZE(r->set_mask)] = {0};
    struct assignment a;
    const char *assignment;
    for (int i = 0; (assignment = args_each(args, "set", i)); i++) {
        TRY(read_assignment(assignment, &a, err));
        overridden[a.index / 64] |= UINT64_C(1) << (a.index % 64);
    }
    TRY(parse(r, text, path, overridden, err));
    for (int i = 0; (assignment = args_each(args, "set", i)); i++)
        TRY(recipe_set(r, assignment, err));
    return TITAN_OK;
}

static titan_status read_text(const char *path, struct buf *text, struct titan_error *err)
{
    TRY(file_read(path, RECIPE_TEXT_MAX, text, err));
    if (text->len && memchr(text->data, '\0', text->len))
        return titan_fail(err, TITAN_EINVAL, "%s: NUL byte: not a run file", path);
    return TITAN_OK;
}

titan_status recipe_load(struct recipe *r, const char *path, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    TRY(read_text(path, &text, err));
    return recipe_parse(r, text.len ? text.data : "", path, err);
}

titan_status recipe_load_with(struct recipe *r, const char *path, const struct args *args, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    TRY(read_text(path, &text, err));
    return recipe_parse_with(r, text.len ? text.data : "", path, args, err);
}

#define WORD_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

/* Is it a value without quotes, as from a shell: text, words of a list or of a switch? */
static bool is_word(const struct recipe_key *k, const char *value)
{
    bool list = value[0] == '[', plain = strcmp(value, "true") == 0 || strcmp(value, "false") == 0;
    if (value[0] == '"' || value[0] == '\'')
        return false;
    if (k->several && (strncmp(value, "[\"", 2) == 0 || strncmp(value, "['", 2) == 0))
        return false;
    return (k->type == KEY_STRING && !(k->yes_no && plain)) || (k->type == KEY_LIST && !list) ||
           (k->type == KEY_BYTES && (!*value || value[strspn(value, "+-_0123456789")])) || (k->on && !list && !plain);
}

titan_status recipe_set(struct recipe *r, const char *assignment, struct titan_error *err)
{
    static const struct place at = {.path = "--set"};
    struct assignment a;
    TRY(read_assignment(assignment, &a, err));
    if (is_word(&recipe_keys[a.index], a.value)) {
        struct toml_value word = {.type = TOML_STRING, .string = (char *)(uintptr_t)a.value};
        return set_value(r, a.section, a.name, &word, &at, NULL, err);
    }
    struct toml_value *v = NULL;
    char where[SECTION_MAX + DISTANCE_TEXT_MAX + 16];
    snprintf(where, sizeof(where), "--set %s.%s", a.section, a.name);
    titan_status status = toml_parse_value(a.value, where, &v, err);
    if (status != TITAN_OK && a.value[strspn(a.value, WORD_CHARACTERS)] == '\0' && a.value[0] > '9') {
        /* Parses a word as a string even where none is legal: the type error helps more than a TOML syntax error. */
        struct toml_value word = {.type = TOML_STRING, .string = (char *)(uintptr_t)a.value};
        return set_value(r, a.section, a.name, &word, &at, NULL, err);
    }
    if (status == TITAN_OK)
        status = set_value(r, a.section, a.name, v, &at, NULL, err);
    toml_free(v);
    return status;
}

/* --- warnings ----------------------------------------------------------------------------------------------------- */

/* Checkpoint keys have no effect in a run that writes no checkpoints. */
static bool is_idle(const struct recipe *r, int i)
{
    titan_assert(i >= 0 && i < recipe_keys_count);
    return recipe_keys[i].support == KEY_NOTE && (r->idle_mask[i / 64] >> (i % 64) & 1) &&
           (r->checkpoint.enable || strcmp(recipe_keys[i].section, "checkpoint") != 0);
}

/* Excluding the step also excludes everything derived from the step. */
static void warn_of_exclusions(const struct recipe *r, struct buf *out)
{
    static const char *const parts[] = {"lr_scheduler", "dataloader"};

    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        if (recipe_excludes(r, parts[i]) && !recipe_excludes(r, "train_state"))
            buf_printf(out,
                       "checkpoint.exclude_from_loading: \"%s\" has no effect: It follows from the step, which "
                       "\"train_state\" leaves out\n",
                       parts[i]);
}

/* Warns of braces in text. */
static void warn_of_text(const struct recipe *r, struct buf *out)
{
    const char *dot = strrchr(r->training.dataset_path, '.');

    if (dot && strcmp(dot, ".jsonl") == 0 && strcmp(r->training.dataset, "text") == 0)
        buf_printf(out,
                   "training.dataset_path: a .jsonl file is read as plain text; training.dataset = \"jsonl\" reads "
                   "the text of its records\n");
}

static void warn_of_template(const struct recipe *r, struct buf *out)
{
    bool used = (r->training.mixture.n == 0 && strcmp(r->training.dataset, "sft") == 0) ||
                (r->validation.enable && strcmp(r->validation.dataset, "sft") == 0);

    for (int64_t i = 0; i < r->training.mixture.n; i++) {
        const char *its = r->training.mixture.source[i].dataset;
        used = used || strcmp(*its ? its : r->training.dataset, "sft") == 0;
    }
    if (!used && strcmp(r->training.chat_template, "none") != 0)
        buf_puts(out, "training.chat_template has no effect: no data is of the kind \"sft\"\n");
}

/* Warns of a folder that the run never writes to. */
static void warn_of_dump_folder(const struct recipe *r, struct buf *out)
{
    if (!r->job.dump_folder[0])
        return;
    if (!r->checkpoint.enable)
        buf_puts(out, "job.dump_folder has no effect: only checkpoints go there, and checkpoint.enable is false\n");
    else if (r->checkpoint.folder[0] == '/')
        buf_puts(out, "job.dump_folder has no effect: only checkpoints go there, and checkpoint.folder is absolute\n");
}

/* Warns of conversions that model.converters requests without effect. */
static void warn_of_float8(const struct recipe *r, struct buf *out)
{
    const bool automatic = strcmp(r->training.mixed_precision_param, "auto") == 0;
    const char *type =
        automatic ? "bfloat16 or float32, whichever the device is fast at" : r->training.mixed_precision_param;
    const int at = recipe_key_find("model", "float8"), mx = recipe_key_find("model", "mxfp8");

    if (r->model.float8 && strcmp(r->device.name, "cpu") != 0)
        buf_printf(out, "model.converters: on GPUs before Hopper products are in %s, not in float8\n", type);
    if (r->idle_mask[at / 64] >> (at % 64) & 1)
        buf_printf(out, "model.converters: products of routed experts are in %s, not in float8\n", type);
    if (r->model.mxfp8 && strcmp(r->device.name, "cpu") != 0)
        buf_puts(
            out,
            "model.converters: GPUs before Blackwell (compute capability 10.0) have no MXFP8 and refuse the run\n");
    if (r->idle_mask[mx / 64] >> (mx % 64) & 1)
        buf_printf(out, "model.converters: products of routed experts are in %s, not in MXFP8\n", type);
}

void recipe_warnings(const struct recipe *r, struct buf *out)
{
    warn_of_float8(r, out);
    warn_of_template(r, out);
    warn_of_text(r, out);
    warn_of_dump_folder(r, out);
    if (strcmp(r->parallelism.fsdp_reshard_after_forward, "always") == 0 &&
        r->parallelism.pipeline_parallel_degree == 1)
        buf_puts(out, "parallelism.fsdp_reshard_after_forward = \"always\" has no effect: without a pipeline "
                      "\"default\" is the same\n");
    for (int i = 0; i < recipe_keys_count; i++) {
        if (!is_idle(r, i))
            continue;
        int others = 0;
        for (int j = 0; j < i && others == 0; j++) /* one line names all keys with the same reason */
            others += is_idle(r, j) && strcmp(recipe_keys[j].doc, recipe_keys[i].doc) == 0;
        if (others > 0)
            continue;
        for (int j = i; j < recipe_keys_count; j++)
            if (is_idle(r, j) && strcmp(recipe_keys[j].doc, recipe_keys[i].doc) == 0)
                buf_printf(out, "%s%s.%s", others++ ? ", " : "", recipe_keys[j].section, recipe_keys[j].name);
        buf_printf(out, " %s no effect: %s\n", others > 1 ? "have" : "has", recipe_keys[i].doc);
    }
    warn_of_exclusions(r, out);
}

void recipe_print_warnings(const struct recipe *r, FILE *to)
{
    _cleanup_(buf_free) struct buf lines = BUF_INIT;
    recipe_warnings(r, &lines);
    for (const char *at = lines.len ? lines.data : ""; *at; at += strcspn(at, "\n") + 1)
        (void)fprintf(to, "note: %.*s\n", (int)strcspn(at, "\n"), at);
}

/* --- printing ----------------------------------------------------------------------------------------------------- */

static void print_string(struct buf *out, const char *text)
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

/* "a,b" -> ["a", "b"] */
static void print_list(struct buf *out, const char *text)
{
    buf_puts(out, "[");
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ",");
        buf_printf(out, "%s\"%.*s\"", p == text ? "" : ", ", (int)len, p);
        p += len + (p[len] == ',');
    }
    buf_puts(out, "]");
}

static void print_reals(const struct recipe_reals *reals, struct buf *out)
{
    char text[UNITS_TEXT];
    buf_puts(out, "[");
    for (int64_t i = 0; i < reals->n; i++)
        buf_printf(out, "%s%s", i ? ", " : "", format_real(reals->value[i], text));
    buf_puts(out, "]");
}

static void print_sources(const struct recipe_mixture *m, struct buf *out)
{
    char text[UNITS_TEXT];
    buf_puts(out, "[");
    for (int64_t i = 0; i < m->n; i++) {
        const struct recipe_source *source = &m->source[i];
        buf_puts(out, i ? ", {path = " : "{path = ");
        print_string(out, source->path);
        if (source->weight > 0)
            buf_printf(out, ", weight = %s", format_real(source->weight, text));
        if (source->dataset[0]) {
            buf_puts(out, ", dataset = ");
            print_string(out, source->dataset);
        }
        buf_puts(out, "}");
    }
    buf_puts(out, "]");
}

static void print_value(const struct recipe *r, const struct recipe_key *k, struct buf *out)
{
    titan_assert(k->support == KEY_SUPPORTED);
    const char *field = (const char *)r + k->offset;
    char text[UNITS_TEXT];
    int64_t integer;
    double real;
    bool boolean;
    switch (k->type) {
    case KEY_STRING:
        print_string(out, field);
        break;
    case KEY_INT:
        memcpy(&integer, field, sizeof(integer));
        buf_printf(out, "%lld", (long long)integer);
        break;
    case KEY_REAL:
        memcpy(&real, field, sizeof(real));
        buf_puts(out, format_real(real, text));
        break;
    case KEY_BOOL:
        memcpy(&boolean, field, sizeof(boolean));
        buf_puts(out, boolean ? "true" : "false");
        break;
    case KEY_LIST:
        print_list(out, field);
        break;
    case KEY_REALS:
        print_reals((const struct recipe_reals *)(const void *)field, out);
        break;
    case KEY_SOURCES:
        print_sources((const struct recipe_mixture *)(const void *)field, out);
        break;
    case KEY_BYTES:
        memcpy(&integer, field, sizeof(integer));
        buf_printf(out, "\"%s\"", integer ? format_exact_bytes((uint64_t)integer, text) : "");
        break;
    }
}

/* "key = default\n" of every key, made once: most keys of most recipes are defaults, and every submit prints a
 * recipe. */
static struct buf default_lines[RECIPE_KEYS_MAX];

static void print_line(const struct recipe *r, const struct recipe_key *k, struct buf *out)
{
    buf_puts(out, k->name);
    buf_puts(out, " = ");
    print_value(r, k, out);
    buf_puts(out, "\n");
}

static void make_default_lines(void)
{
    struct recipe r;
    recipe_init(&r);
    titan_assert(recipe_keys_count <= RECIPE_KEYS_MAX);
    for (int i = 0; i < recipe_keys_count && recipe_keys[i].support == KEY_SUPPORTED; i++)
        print_line(&r, &recipe_keys[i], &default_lines[i]);
}

static bool is_default(const struct recipe *r, const struct recipe_key *k)
{
    titan_assert(k->support == KEY_SUPPORTED);
    return memcmp((const char *)r + k->offset, (const char *)&defaults + k->offset, k->size) == 0;
}

#define PRINTED_BYTES 8000 /* size of most printed recipes; larger ones grow the buffer */

void recipe_print(const struct recipe *r, struct buf *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *section = "";
    (void)pthread_once(&once, make_default_lines);
    (void)!buf_reserve(out, PRINTED_BYTES);
    for (int i = 0; i < recipe_keys_count && recipe_keys[i].support == KEY_SUPPORTED; i++) {
        const struct recipe_key *k = &recipe_keys[i];
        if (strcmp(section, k->section) != 0) {
            buf_puts(out, *section ? "\n[" : "[");
            buf_puts(out, k->section);
            buf_puts(out, "]\n");
            section = k->section;
        }
        /* The flavor's dimensions are known only after recipe_resolve(). */
        if ((k->flags & KEY_FLAVOR) && !recipe_key_given(r, i))
            continue;
        if (is_default(r, k) && default_lines[i].len)
            buf_put(out, default_lines[i].data, default_lines[i].len);
        else
            print_line(r, k, out);
    }
}

uint64_t recipe_hash(const struct recipe *r)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    for (int i = 0; i < recipe_keys_count && recipe_keys[i].support == KEY_SUPPORTED; i++) {
        const struct recipe_key *k = &recipe_keys[i];
        if (!(k->flags & KEY_NUMBERS) ||
            is_default(r, k)) /* defaults are skipped, so new keys change no existing hash */
            continue;
        buf_printf(&text, "%s.%s=", k->section, k->name);
        print_value(r, k, &text);
        buf_puts(&text, "\n");
    }
    titan_assert(!buf_failed(&text));
    return hash_bytes(HASH_INIT, text.data, text.len);
}

/* In place: "/a//b/./c/" -> "/a/b/c". */
static void tidy_path(char *path)
{
    char *to = path;
    for (const char *p = path; *p;) {
        if (p[0] == '/' && (p[1] == '/' || !p[1]) && (p[1] || to > path))
            p++;
        else if (p[0] == '/' && p[1] == '.' && (p[2] == '/' || !p[2]))
            p += 2;
        else
            *to++ = *p++;
    }
    if (to == path)
        *to++ = '/';
    *to = '\0';
}

titan_status recipe_checkpoint_folder(const struct recipe *r, const char *job_dir, char *out, struct titan_error *err)
{
    const char *dump = r->job.dump_folder, *folder = r->checkpoint.folder;
    int n;
    if (folder[0] == '/')
        n = snprintf(out, PATH_MAX, "%s", folder);
    else if (dump[0] == '/')
        n = snprintf(out, PATH_MAX, "%s/%s", dump, folder);
    else
        n = snprintf(out, PATH_MAX, "%s/%s/%s", job_dir, dump, folder);
    if (n >= PATH_MAX)
        return titan_fail(err, TITAN_EINVAL, "checkpoint.folder: the path is too long");
    tidy_path(out);
    return TITAN_OK;
}

static bool differ(const struct recipe *r, const struct recipe *other, const struct recipe_key *k, struct buf *here,
                   struct buf *there)
{
    print_value(r, k, here);
    print_value(other, k, there);
    return here->len != there->len || (here->len > 0 && memcmp(here->data, there->data, here->len) != 0);
}

/* Keys for locations. */
static bool says_where(const struct recipe_key *k)
{
    return strcmp(k->section, "checkpoint") == 0
               ? strncmp(k->name, "initial_load_", 13) == 0 || strcmp(k->name, "load_step") == 0 ||
                     strcmp(k->name, "folder") == 0 || strcmp(k->name, "folder_owner") == 0
               : strcmp(k->section, "job") == 0 && (strcmp(k->name, "dump_folder") == 0 ||
                                                    strcmp(k->name, "owner") == 0 || strcmp(k->name, "as_user") == 0);
}

void recipe_changes(const struct recipe *r, const struct recipe *other, struct buf *out)
{
    for (int i = 0; i < recipe_keys_count && recipe_keys[i].support == KEY_SUPPORTED; i++) {
        const struct recipe_key *k = &recipe_keys[i];
        _cleanup_(buf_free) struct buf here = BUF_INIT, there = BUF_INIT;
        if (!says_where(k) && differ(r, other, k, &here, &there))
            buf_printf(out, "%s.%s = %s, there %s\n", k->section, k->name, here.len ? here.data : "",
                       there.len ? there.data : "");
    }
}

/* Does "a,b,c" contain the word? */
static bool has_word(const char *list, const char *word)
{
    const size_t len = strlen(word);
    titan_assert(len > 0);
    for (const char *at = list; *at; at += strcspn(at, ","), at += strspn(at, ","))
        if (strcspn(at, ",") == len && strncmp(at, word, len) == 0)
            return true;
    return false;
}

bool recipe_accepts(const struct recipe *r, const char *part)
{
    return has_word(r->checkpoint.accept_changed, part);
}

/* Name of the key's part in checkpoint.accept_changed; "": none. */
static const char *part_of(const struct recipe_key *k)
{
    static const char *const of_data[] = {"dataset", "dataset_path", "mixture"};
    static const char *const of_batch[] = {"local_batch_size", "global_batch_size", "seq_len"};
    if (strcmp(k->section, "model") == 0)
        return strcmp(k->name, "tokenizer") == 0 ? "tokenizer" : k->flags & KEY_FLAVOR ? "model" : "";
    if (strcmp(k->section, "optimizer") == 0 || strcmp(k->section, "lr_scheduler") == 0)
        return "optimizer";
    if (strcmp(k->section, "training") != 0)
        return "";
    for (size_t i = 0; i < ARRAY_SIZE(of_data); i++)
        if (strcmp(k->name, of_data[i]) == 0)
            return "data";
    for (size_t i = 0; i < ARRAY_SIZE(of_batch); i++)
        if (strcmp(k->name, of_batch[i]) == 0)
            return "batch";
    return strcmp(k->name, "max_norm") == 0 ? "optimizer" : "";
}

/* Compares mixtures without the sources' locations. */
static bool mixtures_alike(const struct recipe_mixture *a, const struct recipe_mixture *b)
{
    bool alike = a->n == b->n;
    for (int64_t i = 0; alike && i < a->n; i++)
        alike = a->source[i].weight == b->source[i].weight && strcmp(a->source[i].dataset, b->source[i].dataset) == 0;
    return alike;
}

/* Paths may differ, because data is compared by content. A batch size that follows from the mesh may differ with the
 * mesh. */
static bool may_differ(const struct recipe *r, const struct recipe *other, const struct recipe_key *k)
{
    const char *part = part_of(k);
    if (*part && recipe_accepts(r, part))
        return true;
    if (strcmp(part, "batch") == 0)
        return r->checkpoint.exclude_from_loading[0] && strcmp(k->name, "seq_len") != 0;
    if (strcmp(k->name, "mixture") == 0)
        return mixtures_alike(&r->training.mixture, &other->training.mixture);
    return strcmp(k->name, "dataset_path") == 0 || strcmp(part, "tokenizer") == 0;
}

#define DIFFERENCES_NAMED 3

/* Prints differing keys with one of the flags, except keys that may differ. */
static void put_differences(const struct recipe *r, const struct recipe *other, unsigned flags,
                            bool (*may)(const struct recipe *r, const struct recipe *other, const struct recipe_key *k),
                            struct buf *out)
{
    titan_assert(flags != 0);
    int found = 0;
    for (int i = 0; i < recipe_keys_count && recipe_keys[i].support == KEY_SUPPORTED; i++) {
        const struct recipe_key *k = &recipe_keys[i];
        _cleanup_(buf_free) struct buf here = BUF_INIT, there = BUF_INIT;
        if (!(k->flags & flags) || may(r, other, k) || !differ(r, other, k, &here, &there))
            continue;
        if (++found <= DIFFERENCES_NAMED)
            buf_printf(out, "%s%s.%s = %.64s, there %.64s", found > 1 ? "; " : "", k->section, k->name,
                       here.len ? here.data : "", there.len ? there.data : "");
    }
    if (found > DIFFERENCES_NAMED)
        buf_printf(out, "; and %d more", found - DIFFERENCES_NAMED);
}

bool recipe_continues(const struct recipe *r, uint64_t hash, const char *text, struct buf *keys)
{
    _cleanup_(buf_free) struct buf differing = BUF_INIT;
    _cleanup_free_ struct recipe *other = NULL;
    if (hash == recipe_hash(r))
        return true;
    if (!(other = malloc(sizeof(*other))))
        return false;
    recipe_init(other);
    if (recipe_parse(other, text, "recipe", NULL) != TITAN_OK || recipe_resolve(other, NULL) != TITAN_OK)
        return false;
    if (recipe_hash(other) != hash) /* the text does not match the hash */
        return false;
    put_differences(r, other, KEY_NUMBERS, may_differ, &differing);
    if (keys)
        buf_puts(keys, differing.len ? differing.data : "");
    return differing.len == 0 && !buf_failed(&differing);
}

/* Training keys and the balancing of experts do not affect the model's output. */
static bool is_of_training(const struct recipe *r, const struct recipe *other, const struct recipe_key *k)
{
    (void)r;
    (void)other;
    return strcmp(k->section, "model") != 0 || strcmp(k->name, "balance_rate") == 0 ||
           strcmp(k->name, "balance_loss") == 0;
}

void recipe_model_differences(const struct recipe *r, const struct recipe *other, struct buf *out)
{
    put_differences(r, other, KEY_FLAVOR, is_of_training, out);
}

bool recipe_writes_checkpoints(const struct recipe *r)
{
    return r->checkpoint.enable && !r->checkpoint.load_only;
}

bool recipe_filters_float8(const struct recipe *r, const char *word)
{
    return has_word(r->float8.filter_fqns, word);
}

bool recipe_traces_rank(const struct recipe *r, int rank)
{
    titan_assert(rank >= 0);
    const char *at = r->profiling.ranks;
    for (int first, last, end; sscanf(at, "%9d%n", &first, &end) == 1; at += strspn(at, ",")) {
        at += end;
        if (sscanf(at, "-%9d%n", &last, &end) == 1)
            at += end;
        else
            last = first;
        if (rank >= first && rank <= last)
            return true;
    }
    return r->profiling.ranks[0] == '\0';
}

bool recipe_excludes(const struct recipe *r, const char *part)
{
    return has_word(r->checkpoint.exclude_from_loading, part);
}

/* --- reference ---------------------------------------------------------------------------------------------------- */

static const char *key_type_name(enum key_type type)
{
    titan_assert(type <= KEY_BYTES);
    static const char *const names[] = {"string", "integer",          "number",          "boolean",
                                        "array",  "array of numbers", "array of tables", "bytes"};
    return names[type];
}

static void print_choices(const char *choices, struct buf *out)
{
    for (const char *p = choices; *p;) {
        size_t len = strcspn(p, "|");
        buf_printf(out, "%s`%.*s`", p == choices ? "" : ", ", (int)len, p);
        p += len + (p[len] == '|');
    }
}

static void print_legal(const struct recipe_key *k, struct buf *out)
{
    char all[256], low[UNITS_TEXT], high[UNITS_TEXT];
    const char *choices = choices_of(k, all, sizeof(all));
    if (k->type == KEY_BYTES) {
        buf_printf(out, "`\"\"`, `\"%s\"` to `\"%s\"`", format_exact_bytes((uint64_t)k->min, low),
                   format_exact_bytes((uint64_t)k->max, high));
    } else if (choices && strcmp(choices, "*") != 0) {
        print_choices(choices, out);
    } else if (k->type == KEY_INT || k->type == KEY_REAL || k->type == KEY_REALS) {
        if (k->minus_one)
            buf_puts(out, "-1, ");
        if (k->max == 0)
            buf_printf(out, "%s%.15g", k->above_min ? "> " : "≥ ", k->min);
        else
            buf_printf(out, "%s%.15g to %.15g", k->above_min ? "above " : "", k->min, k->max);
    }
}

static void print_supported(struct buf *out)
{
    const char *section = "";
    for (int i = 0; i < recipe_keys_count && recipe_keys[i].support == KEY_SUPPORTED; i++) {
        const struct recipe_key *k = &recipe_keys[i];
        if (strcmp(section, k->section) != 0) {
            buf_printf(out, "\n## [%s]\n\n| Key | Type | Default | Values | Meaning |\n|---|---|---|---|---|\n",
                       k->section);
            section = k->section;
        }
        const char *initial = k->flags & KEY_FLAVOR ? "flavor's" : k->initial;
        buf_printf(out, "| `%s`%s | %s | %s%s%s | ", k->name, k->flags & KEY_TITAN ? " *" : "", key_type_name(k->type),
                   k->flags & KEY_FLAVOR ? "" : "`", initial, k->flags & KEY_FLAVOR ? "" : "`");
        print_legal(k, out);
        buf_printf(out, " | %s |\n", k->doc);
    }
}

static void print_flavors(struct buf *out)
{
    buf_puts(out,
             "\n## Flavors\n\n`ffn` is the width of the feed-forward layer, with experts that of the first, dense "
             "layers. `experts`: routed, of these\nchosen, shared, and the width of one. `tied`: the output head is "
             "the embedding. Families with latent attention\nproject keys and values to 512 values and 64 rotated "
             "ones (`tiny`: 32 and 8).\n\n"
             "| `name` | `flavor` | dim | layers | heads | kv heads | head dim | ffn | experts | vocabulary | tied | "
             "parameters | |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < recipe_flavors_count; i++) {
        const struct recipe_flavor *f = &recipe_flavors[i];
        struct recipe r = {.model.dims = f->dims};
        struct model_dims *d = &r.model.dims;
        d->head_dim = d->head_dim ? d->head_dim : d->dim / d->n_heads;
        buf_printf(out, "| `%s` | `%s` | %lld | %lld | %lld | %lld | %lld | %lld | ", f->family, f->name,
                   (long long)d->dim, (long long)d->n_layers, (long long)d->n_heads, (long long)d->n_kv_heads,
                   (long long)d->head_dim, (long long)d->ffn_hidden);
        if (d->n_experts)
            buf_printf(out, "%lld, %lld, %lld, %lld", (long long)d->n_experts, (long long)d->top_k,
                       (long long)d->n_shared_experts, (long long)d->moe_hidden);
        buf_printf(out, " | %lld | %s | %lld | %s |\n", (long long)d->vocab_size, d->tied_embeddings ? "yes" : "",
                   (long long)recipe_params(&r), f->doc);
    }
}

/* Writes how Titan treats TorchTitan's key. */
static void print_here(const struct recipe_key *k, struct buf *out)
{
    switch (k->support) {
    case KEY_SUPPORTED:
        if (k->theirs)
            buf_printf(out, "default `%s`", k->initial);
        else
            buf_puts(out, "the same");
        break;
    case KEY_OFF:
        buf_printf(out, "refused unless `%s`. %s", k->initial, k->doc);
        break;
    case KEY_NOTE:
        buf_printf(out, "no effect, submit says so. %s", k->doc);
        break;
    case KEY_PART:
        buf_printf(out, "a detail of `%s`", k->doc);
        break;
    }
}

static void print_theirs(const char *section, const char *name, const char *theirs, struct buf *out)
{
    const char *quote = strcmp(theirs, "none") == 0 ? "" : "`";
    buf_printf(out, "| `%s.%s` | %s%s%s | ", section, name, quote, theirs, quote);
}

static void print_torchtitan_section(const char *section, struct buf *out)
{
    for (int i = 0; i < recipe_keys_count; i++) {
        const struct recipe_key *k = &recipe_keys[i];
        if ((k->flags & KEY_TITAN) || strcmp(k->section, section) != 0)
            continue;
        print_theirs(section, k->name, k->theirs ? k->theirs : k->initial, out);
        print_here(k, out);
        buf_puts(out, " |\n");
    }
    for (int i = 0; i < recipe_aliases_count; i++) {
        const struct recipe_alias *a = &recipe_aliases[i];
        const struct recipe_key *k = &recipe_keys[resolve_alias(a->section, a->name)];
        if (strcmp(a->section, section) != 0)
            continue;
        print_theirs(section, a->name, a->theirs, out);
        buf_printf(out, "read as `%s`, default `%s`", a->target, k->initial);
        if (k->other)
            buf_printf(out, "; what it lists of `%s.%s` as that", k->section, k->other);
        buf_puts(out, " |\n");
    }
}

static void print_torchtitan(struct buf *out)
{
    buf_puts(out, "\n## TorchTitan's keys\n\nTheir defaults at v0.2.2 and what they are here; older names, too, and at "
                  "the end newer ones. A key that is "
                  "the same has the meaning given above.\n\n| Key | TorchTitan's default | Here |\n|---|---|---|\n");
    for (int i = 0; i < recipe_keys_count; i++) {
        bool first = true;
        for (int j = 0; j < i && first; j++)
            first = strcmp(recipe_keys[j].section, recipe_keys[i].section) != 0;
        if (first)
            print_torchtitan_section(recipe_keys[i].section, out);
    }
    buf_puts(out, "\nTorchTitan has left run files for Python since. Its newer names are refused with what there is in "
                  "their place:\n\n| Key | Here |\n|---|---|\n");
    for (int i = 0; i < recipe_newer_count; i++) {
        const struct recipe_newer *n = &recipe_newer[i];
        buf_printf(out, "| `%s.%s` | %s |\n", n->section, n->name, n->instead);
    }
}

void recipe_print_reference(struct buf *out)
{
    buf_puts(
        out,
        "# Run files: every key\n\n"
        "A run file is TOML with the section and key names of TorchTitan v0.2.2, its last version with run files; keys "
        "marked * are Titan's "
        "own.\nKeys left out have their default. An unknown key, a wrong type or a value out of range is "
        "refused with its line.\nAny key can be given on the command line: `--set training.steps=100`; what the file "
        "says of it is then not looked at.\nWhat is accepted without effect is said when a run is submitted.\n\n"
        "This file is written by `make docs` from the table the parser uses (`base/recipe_keys.c`).\n");
    print_supported(out);
    print_flavors(out);
    print_torchtitan(out);
}
