/* SPDX-License-Identifier: Apache-2.0 */
/* Reads run files and overrides, by the table of keys. */
#include "base/recipe.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/distance.h"
#include "base/file.h"
#include "base/moment_codes.h"
#include "base/options.h"
#include "base/path_pattern.h"
#include "base/recipe_keys.h"

#define SECTION_MAX 256 /* bytes of a section's name with its dots */

static titan_status unknown_key(const struct setting_place *at, const char *section, const char *name,
                                struct titan_error *err)
{
    const struct setting *near = setting_near(recipe_keys, (size_t)recipe_keys_count, section, name);
    const char *dot = *section ? "." : "";
    for (int i = 0; i < recipe_newer_count; i++)
        if (strcmp(recipe_newer[i].name, name) == 0 && strcmp(recipe_newer[i].section, section) == 0)
            return setting_fail(at, NULL, err, TITAN_EINVAL,
                                "unknown key %s.%s, which is of a TorchTitan after v0.2.2; %s", section, name,
                                recipe_newer[i].instead);
    if (near)
        return setting_fail(at, NULL, err, TITAN_EINVAL, "unknown key %s%s%.64s; did you mean %s.%s?", section, dot,
                            name, near->section, near->name);
    return setting_fail(at, NULL, err, TITAN_EINVAL, "unknown key %s%s%.64s", section, dot, name);
}

/* --- one value ---------------------------------------------------------------------------------------------------- */

/* Joins an array of paths to one pattern: "/data/{a,b/c.txt}". */
static titan_status set_paths(const struct setting_place *at, const struct setting *k, const struct toml_value *v,
                              char *field, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    const struct toml_value *first = v->first;
    size_t common = first && first->type == TOML_STRING ? path_pattern_folder(first->string) : 0;
    for (const struct toml_value *e = first; e; e = e->next) {
        if (e->type != TOML_STRING)
            return setting_wrong_type(at, k, e, err);
        if (!e->string[0])
            return setting_fail(at, k, err, TITAN_EINVAL, ": an array with an empty path");
        int depth = 0;
        bool one = true; /* the path is one alternative within braces */
        for (const char *p = e->string; *p && depth >= 0; p++) {
            depth += *p == '{' ? 1 : *p == '}' ? -1 : 0;
            one = one && *p != '\\' && (*p != ',' || depth != 0);
        }
        if (!one || depth != 0)
            return setting_fail(at, k, err, TITAN_EINVAL,
                                ": \"%.200s\": a path of an array has no backslash, commas and braces only as in "
                                "{a,b}",
                                e->string);
        if ((e->string[0] == '/') != (first->string[0] == '/'))
            return setting_fail(at, k, err, TITAN_EINVAL,
                                ": \"%.200s\" and \"%.200s\": paths of an array are all relative, or none is",
                                first->string, e->string);
        for (size_t i = 0; i < common; i++)
            if (e->string[i] != first->string[i])
                common = i;
    }
    while (common > 0 && first->string[common - 1] != '/')
        common--;
    if (first && first->next) {
        buf_printf(&text, "%.*s", (int)common, first->string);
        for (const struct toml_value *e = first; e; e = e->next)
            buf_printf(&text, "%s%s", e == first ? "{" : ",", e->string + common);
        buf_puts(&text, "}");
    } else {
        buf_puts(&text, first ? first->string : "");
    }
    const struct toml_value pattern = {.type = TOML_STRING, .string = text.data};
    return buf_failed(&text) || !text.data ? setting_fail(at, k, err, TITAN_ENOMEM, ": no memory")
                                           : setting_set(at, k, &pattern, field, err);
}

/* Sets a switch from true or false, from a word, or from a list of words such as "float8,quantize.linear.float8". The
 * list may also set another switch. An override replaces the marks that the file has set. */
static titan_status set_switches(const struct setting_place *at, struct recipe *r, int index,
                                 const struct toml_value *v, struct titan_error *err)
{
    const struct setting *k = &recipe_keys[index];
    enum { SWITCHES = 3 };
    int keys[SWITCHES] = {index, -1, -1};
    bool on[SWITCHES] = {v->type == TOML_BOOL && v->boolean}, idle[SWITCHES] = {false};
    int n = 1;
    for (const char *p = k->other ? k->other : ""; *p; p += strcspn(p, "|"), p += *p == '|') {
        char name[SETTING_WORD];
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(p, "|"), p);
        titan_assert(n < SWITCHES);
        keys[n++] = recipe_key_find(k->section, name);
    }
    for (const struct toml_value *e = v->type == TOML_ARRAY    ? v->first
                                      : v->type == TOML_STRING ? v
                                                               : NULL;
         e; e = v->type == TOML_ARRAY ? e->next : NULL) {
        if (e->type != TOML_STRING)
            return setting_wrong_type(at, k, e, err);
        for (const char *p = e->string; *p; p += strcspn(p, ","), p += *p == ',') {
            char word[SETTING_WORD];
            (void)snprintf(word, sizeof(word), "%.*s", (int)strcspn(p, ","), p);
            bool known = word[0] == '\0';
            for (size_t i = 0; i < ARRAY_SIZE(keys) && keys[i] >= 0 && !known; i++) {
                const bool nothing = setting_admits(recipe_keys[keys[i]].nothing, word);
                known = nothing || setting_admits(recipe_keys[keys[i]].on, word);
                idle[i] |= nothing;
                on[i] |= known && !nothing;
            }
            if (!known)
                return setting_fail(at, k, err, setting_admits(k->later, word) ? TITAN_EUNSUPPORTED : TITAN_EINVAL,
                                    ": \"%s\" is not supported by this version; use true or false", word);
        }
    }
    for (size_t i = 0; i < ARRAY_SIZE(keys) && keys[i] >= 0 && (i == 0 || v->type != TOML_BOOL); i++) {
        titan_assert(recipe_keys[keys[i]].size == sizeof(bool));
        memcpy((char *)r + recipe_keys[keys[i]].offset, &on[i], sizeof(bool));
        recipe_key_mark(r->idle_mask, keys[i], idle[i]);
        recipe_key_mark(r->set_mask, keys[i], true);
    }
    return TITAN_OK;
}

static titan_status set_supported(const struct setting_place *at, struct recipe *r, int index,
                                  const struct toml_value *v, struct titan_error *err)
{
    const struct setting *k = &recipe_keys[index];
    titan_assert(k->support == KEY_SUPPORTED && k->offset + k->size <= sizeof(*r));
    char *field = (char *)r + k->offset, why[RECIPE_WHY], word[SETTING_WORD];
    if (k->on)
        return set_switches(at, r, index, v, err);
    if (k->yes_no && v->type == TOML_BOOL) { /* a switch in earlier versions */
        const int yes = (int)strcspn(k->yes_no, "|");
        (void)snprintf(word, sizeof(word), "%.*s", v->boolean ? yes : INT_MAX, k->yes_no + (v->boolean ? 0 : yes + 1));
        TRY(setting_set(at, k, &(struct toml_value){.type = TOML_STRING, .string = word}, field, err));
    } else if (k->several && v->type == TOML_ARRAY) {
        TRY(set_paths(at, k, v, field, err));
    } else if (k->type == KEY_SOURCES) {
        if (!recipe_mixture_read(v, (struct recipe_mixture *)(void *)field, why))
            return setting_fail(at, k, err, TITAN_EINVAL, ": %s", why);
    } else if (k->type == KEY_LIST && !k->choices) {
        if (!recipe_points_read(v, field, k->size, why))
            return setting_fail(at, k, err, TITAN_EINVAL, "%s", why);
    } else {
        TRY(setting_set(at, k, v, field, err));
    }
    recipe_key_mark(r->set_mask, index, true);
    return TITAN_OK;
}

int recipe_key_resolve(const char *section, const char *name)
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

/* A recipe while a run file or an assignment is read into it. */
struct reading {
    struct recipe *recipe;
    const char *path;           /* the run file */
    uint64_t *seen;             /* keys that the file has set, to refuse a key and its alias; NULL: an assignment */
    const uint64_t *overridden; /* keys that an option sets: the file's values are ignored; NULL: none */
};

static titan_status set_value(const struct setting_place *at, const struct reading *in, const char *section,
                              const char *name, const struct toml_value *v, struct titan_error *err)
{
    struct recipe *r = in->recipe;
    const int index = recipe_key_resolve(section, name);
    if (index < 0)
        return unknown_key(at, section, name, err);
    const struct setting *k = &recipe_keys[index];
    TRY(setting_check_type(at, k, v, err));
    if (k->support == KEY_NOTE) {
        struct toml_value *initial = NULL;
        TRY(toml_parse_value(k->initial, "default", &initial, err));
        recipe_key_mark(r->idle_mask, index, !same_value(v, initial));
        toml_free(initial);
    }
    if (k->support == KEY_OFF) {
        char given[80];
        titan_assert(k->type == KEY_STRING || k->type == KEY_BOOL);
        if (v->type == TOML_STRING)
            (void)snprintf(given, sizeof(given), "\"%.64s\"", v->string);
        else
            (void)snprintf(given, sizeof(given), "%s", v->boolean ? "true" : "false");
        if (strcmp(given, k->initial) != 0)
            return setting_fail(at, k, err, TITAN_EUNSUPPORTED,
                                " = %s is not supported by this version; use %s or leave it out", given, k->initial);
    }
    if (k->support != KEY_SUPPORTED)
        return TITAN_OK;
    if (in->seen && recipe_key_in(in->seen, index))
        return setting_fail(at, NULL, err, TITAN_EINVAL, "%s.%s is given twice: %s.%s means the same", section, name,
                            k->section, k->name);
    if (in->seen)
        recipe_key_mark(in->seen, index, true);
    titan_status status = set_supported(at, r, index, v, err);
    if (status != TITAN_OK && strcmp(name, k->name) != 0)
        titan_error_hint(err, "%s.%s is read as %s.%s", section, name, k->section, k->name);
    return status;
}

/* --- whole files -------------------------------------------------------------------------------------------------- */

static struct recipe defaults; /* made once: every submit starts from it */

static void make_defaults(void)
{
    static const struct setting_place table = {.path = "base/recipe_keys.c"};
    struct recipe *r = &defaults;
    for (int i = 0; recipe_keys[i].support == KEY_SUPPORTED; i++) {
        if (recipe_keys[i].flags & KEY_FLAVOR)
            continue;
        struct toml_value *v = NULL;
        titan_status status = toml_parse_value(recipe_keys[i].initial, "default", &v, NULL);
        if (status == TITAN_OK)
            status = set_supported(&table, r, i, v, NULL);
        titan_assert(status == TITAN_OK); /* every default is legal */
        toml_free(v);
    }
    memset(r->set_mask, 0, sizeof(r->set_mask));
}

const struct recipe *recipe_defaults(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, make_defaults);
    return &defaults;
}

void recipe_init(struct recipe *r)
{
    *r = *recipe_defaults();
}

static titan_status set_table(const struct reading *in, const char *section, const struct toml_value *table,
                              struct titan_error *err)
{
    for (const struct toml_value *v = table->first; v; v = v->next) {
        const struct setting_place at = {.path = in->path, .line = v->line};
        if (v->type != TOML_TABLE) {
            const int index = in->overridden ? recipe_key_resolve(section, v->key) : -1;
            if (index < 0 || !recipe_key_in(in->overridden, index))
                TRY(set_value(&at, in, section, v->key, v, err));
            continue;
        }
        char below[SECTION_MAX];
        int n = snprintf(below, sizeof(below), "%s%s%s", section, *section ? "." : "", v->key);
        if (n < 0 || (size_t)n >= sizeof(below))
            return setting_fail(&at, NULL, err, TITAN_EINVAL, "section name too long");
        bool known = !v->first; /* an empty section is always accepted */
        for (int i = 0; !known && i < recipe_keys_count; i++)
            known = recipe_keys[i].section[0] == below[0] && strncmp(recipe_keys[i].section, below, (size_t)n) == 0 &&
                    (recipe_keys[i].section[n] == '\0' || recipe_keys[i].section[n] == '.');
        if (!known) {
            const struct setting *near = setting_near(recipe_keys, (size_t)recipe_keys_count, below, v->first->key);
            if (near)
                return setting_fail(&at, NULL, err, TITAN_EINVAL, "unknown section [%.64s]; did you mean [%s]?", below,
                                    near->section);
            return setting_fail(&at, NULL, err, TITAN_EINVAL, "unknown section [%.64s]", below);
        }
        TRY(set_table(in, below, v, err));
    }
    return TITAN_OK;
}

/* The parts of "section.key=value" in --set; index: index of the key. */
struct assignment {
    char section[SECTION_MAX], name[DISTANCE_TEXT_MAX + 1];
    const char *value;
    int index;
};
static const struct setting_place override = {.path = "--set"};

static titan_status read_assignment(const char *text, struct assignment *ret, struct titan_error *err)
{
    const char *equals = strchr(text, '=');
    const char *dot = equals ? memrchr(text, '.', (size_t)(equals - text)) : NULL;
    if (!dot || dot == text || equals == dot + 1 || dot - text >= SECTION_MAX || equals - dot > DISTANCE_TEXT_MAX) {
        (void)setting_fail(&override, NULL, err, TITAN_EINVAL, "expected section.key=value, got '%.100s'", text);
        return TITAN_EINVAL;
    }
    snprintf(ret->section, sizeof(ret->section), "%.*s", (int)(dot - text), text);
    snprintf(ret->name, sizeof(ret->name), "%.*s", (int)(equals - dot - 1), dot + 1);
    ret->value = equals + 1;
    ret->index = recipe_key_resolve(ret->section, ret->name);
    if (ret->index >= 0)
        return TITAN_OK;
    (void)unknown_key(&override, ret->section, ret->name, err);
    return TITAN_EINVAL;
}

titan_status recipe_parse_with(struct recipe *r, const char *text, const char *path, const struct args *args,
                               struct titan_error *err)
{
    uint64_t overridden[ARRAY_SIZE(r->set_mask)] = {0}, seen[ARRAY_SIZE(r->set_mask)] = {0};
    const size_t len = strlen(text);
    struct assignment a;
    const char *assignment;
    for (int i = 0; args && (assignment = args_each(args, "set", i)); i++) {
        TRY(read_assignment(assignment, &a, err));
        recipe_key_mark(overridden, a.index, true);
    }
    path = path ? path : "<stdin>";
    if (len > RECIPE_TEXT_MAX)
        return titan_fail(err, TITAN_ELIMIT, "%s: a run file of %zu bytes is too large (at most %d)", path, len,
                          RECIPE_TEXT_MAX);
    struct toml_value *root = NULL;
    TRY(toml_parse(text, len, path, &root, err));
    struct recipe result = *r;
    const struct reading in = {&result, path, seen, args ? overridden : NULL};
    titan_status status = set_table(&in, "", root, err);
    toml_free(root);
    TRY(status);
    *r = result;
    for (int i = 0; args && (assignment = args_each(args, "set", i)); i++)
        TRY(recipe_set(r, assignment, err));
    return TITAN_OK;
}

titan_status recipe_parse(struct recipe *r, const char *text, const char *path, struct titan_error *err)
{
    return recipe_parse_with(r, text, path, NULL, err);
}

titan_status recipe_load_with(struct recipe *r, const char *path, const struct args *args, struct titan_error *err)
{
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    TRY(file_read(path, RECIPE_TEXT_MAX, &text, err));
    if (text.len && memchr(text.data, '\0', text.len))
        return titan_fail(err, TITAN_EINVAL, "%s: NUL byte: not a run file", path);
    return recipe_parse_with(r, text.len ? text.data : "", path, args, err);
}

titan_status recipe_load(struct recipe *r, const char *path, struct titan_error *err)
{
    return recipe_load_with(r, path, NULL, err);
}

#define WORD_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

titan_status recipe_set(struct recipe *r, const char *assignment, struct titan_error *err)
{
    struct assignment a;
    TRY(read_assignment(assignment, &a, err));
    const struct setting *k = &recipe_keys[a.index];
    const char *value = a.value;
    const bool list = value[0] == '[', plain = strcmp(value, "true") == 0 || strcmp(value, "false") == 0;
    const bool quoted = value[0] == '"' || value[0] == '\'' ||
                        (k->several && (strncmp(value, "[\"", 2) == 0 || strncmp(value, "['", 2) == 0));
    /* Is the value written without quotes, as from a shell: text, words of a list or of a switch? */
    bool word = !quoted && ((k->type == KEY_STRING && !(k->yes_no && plain)) || (k->type == KEY_LIST && !list) ||
                            (k->type == KEY_BYTES && (!*value || value[strspn(value, "+-_0123456789")])) ||
                            (k->on && !list && !plain));
    struct toml_value text = {.type = TOML_STRING, .string = (char *)(uintptr_t)value}, *parsed = NULL;
    if (!word) {
        char where[SECTION_MAX + DISTANCE_TEXT_MAX + 16];
        snprintf(where, sizeof(where), "--set %s.%s", a.section, a.name);
        const titan_status status = toml_parse_value(value, where, &parsed, err);
        /* Parses a word as a string even where none is legal: the type error helps more than a TOML syntax error. */
        word = status != TITAN_OK && value[strspn(value, WORD_CHARACTERS)] == '\0' && value[0] > '9';
        if (status != TITAN_OK && !word)
            return status;
    }
    const struct reading in = {.recipe = r};
    const titan_status status = set_value(&override, &in, a.section, a.name, word ? &text : parsed, err);
    toml_free(parsed);
    return status;
}

/* --- questions ---------------------------------------------------------------------------------------------------- */

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

bool recipe_excludes(const struct recipe *r, const char *part)
{
    return has_word(r->checkpoint.exclude_from_loading, part);
}

int64_t recipe_scales_every(const struct recipe *r)
{
    return r->model.float8 && strcmp(r->float8.recipe_name, "scalify") == 0 ? r->float8.scalify_refresh : 1;
}

bool recipe_filters_float8(const struct recipe *r, const char *word)
{
    return has_word(r->float8.filter_fqns, word);
}

bool recipe_writes_checkpoints(const struct recipe *r)
{
    return r->checkpoint.enable && !r->checkpoint.load_only;
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

int recipe_master_bytes(const struct recipe *r)
{
    return strcmp(r->training.dtype, "bfloat16") == 0 ? 2 : 4;
}

double recipe_moment_bytes(const struct recipe *r)
{
    if (strcmp(r->optimizer.state_dtype, "int8") == 0)
        return (double)sizeof(struct moment_block) / MOMENT_BLOCK;
    return recipe_master_bytes(r) == 2 || strcmp(r->optimizer.state_dtype, "bfloat16") == 0 ? 2 : 4;
}
