/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/distance.h"

enum { SPECS_MAX = 64, LONG_BASE = 1000 };

/* The tables in getopt's form. The code of an option is LONG_BASE + its index. */
struct merged {
    const struct option_spec *specs[SPECS_MAX];
    struct option longs[SPECS_MAX + 1];
    char shorts[2 * SPECS_MAX + 3];
    int n;
};

static void merged_add(struct merged *merged, const struct option_spec *specs)
{
    for (; specs && specs->name; specs++) {
        titan_assert(merged->n < SPECS_MAX);
        merged->specs[merged->n] = specs;
        merged->longs[merged->n] =
            (struct option){specs->name, specs->value ? required_argument : no_argument, NULL, LONG_BASE + merged->n};
        merged->n++;
    }
}

static void merged_close(struct merged *merged, bool stop_at_word)
{
    titan_assert(merged->n <= SPECS_MAX);
    char *s = merged->shorts;
    *s++ = stop_at_word ? '+' : ':';
    if (stop_at_word)
        *s++ = ':';
    for (int i = 0; i < merged->n; i++) {
        if (!merged->specs[i]->letter)
            continue;
        *s++ = merged->specs[i]->letter;
        if (merged->specs[i]->value)
            *s++ = ':';
    }
    *s = '\0';
    memset(&merged->longs[merged->n], 0, sizeof(merged->longs[0]));
}

static const struct option_spec *merged_find(const struct merged *merged, int code)
{
    titan_assert(code < LONG_BASE + merged->n);
    if (code >= LONG_BASE)
        return merged->specs[code - LONG_BASE];
    for (int i = 0; i < merged->n; i++)
        if (merged->specs[i]->letter == code)
            return merged->specs[i];
    return NULL;
}

static titan_status unknown_option(const struct command_table *t, const struct merged *merged, const struct args *args,
                                   const char *word, struct titan_error *err)
{
    char given[DISTANCE_TEXT_MAX];
    bool is_long = strncmp(word, "--", 2) == 0;
    (void)snprintf(given, sizeof(given), "%.*s", (int)strcspn(word, "="), word);
    const char *command = args->command ? args->command->name : "", *blank = args->command ? " " : "";
    titan_status status =
        titan_fail(err, TITAN_EINVAL, "%s%sunknown option %s", command, args->command ? ": " : "", given);
    const char *names[SPECS_MAX];
    for (int i = 0; i < merged->n; i++)
        names[i] = merged->specs[i]->name;
    const char *near = is_long ? text_nearest(given + 2, names, (size_t)merged->n) : NULL;
    if (near)
        titan_error_hint(err, "did you mean --%s?", near);
    else
        titan_error_hint(err, "%s %s%s--help lists them", t->name, command, blank);
    return status;
}

/* Runs getopt once; with stop_at_word it stops at the first word that is no option. */
static titan_status parse_options(const struct command_table *t, const struct merged *merged, int argc, char **argv,
                                  struct args *args, struct titan_error *err)
{
    opterr = 0;
    optind = 0; /* glibc: reset */
    for (;;) {
        int before = MAX(optind, 1);
        int code = getopt_long(argc, argv, merged->shorts, merged->longs, NULL);
        if (code == -1)
            return TITAN_OK;
        const struct option_spec *spec = code == '?' || code == ':' ? NULL : merged_find(merged, code);
        if (code == ':') {
            const struct option_spec *missing = merged_find(merged, optopt);
            return titan_fail(err, TITAN_EINVAL, "--%s wants %s", missing->name, missing->value);
        }
        if (!spec && optopt >= LONG_BASE)
            return titan_fail(err, TITAN_EINVAL, "--%s takes no value", merged_find(merged, optopt)->name);
        if (!spec) {
            char letter[3] = {'-', (char)optopt, '\0'};
            return unknown_option(t, merged, args, optopt ? letter : argv[MAX(before, optind - 1)], err);
        }
        if (!strncmp(argv[before], "--", 2) && strcspn(argv[before] + 2, "=") != strlen(spec->name))
            return unknown_option(t, merged, args, argv[before], err); /* getopt also accepts a prefix of a name */
        if (args->n_given == OPTIONS_GIVEN_MAX)
            return titan_fail(err, TITAN_EINVAL, "more than %d options", OPTIONS_GIVEN_MAX);
        titan_assert(spec && args->n_given < OPTIONS_GIVEN_MAX);
        args->given[args->n_given++] = (struct given){spec, spec->value ? optarg : NULL};
    }
}

const struct command *command_find(const struct command_table *t, const char *name)
{
    for (size_t i = 0; t->commands[i]; i++)
        if (strcmp(t->commands[i]->name, name) == 0)
            return t->commands[i];
    return NULL;
}

static titan_status unknown_command(const struct command_table *t, const char *word, struct titan_error *err)
{
    const char *names[SPECS_MAX];
    size_t n = 0;
    for (; n < SPECS_MAX && t->commands[n]; n++)
        names[n] = t->commands[n]->name;
    const char *near = text_nearest(word, names, n);
    titan_status status = titan_fail(err, TITAN_EINVAL, "unknown %s '%.64s'", t->noun, word);
    if (near)
        titan_error_hint(err, "did you mean %s?", near);
    else
        titan_error_hint(err, "%s --help lists them", t->name);
    return status;
}

titan_status args_parse(const struct command_table *t, int argc, char **argv, struct args *args,
                        struct titan_error *err)
{
    memset(args, 0, sizeof(*args));
    struct merged merged = {.n = 0};
    merged_add(&merged, t->options);
    merged_close(&merged, true);
    TRY(parse_options(t, &merged, argc, argv, args, err));
    argc -= optind;
    argv += optind;
    if (argc == 0)
        return TITAN_OK;

    args->command = command_find(t, argv[0]);
    if (!args->command)
        return unknown_command(t, argv[0], err);
    merged_add(&merged, args->command->options);
    merged_close(&merged, false);
    TRY(parse_options(t, &merged, argc, argv, args, err));
    args->n = argc - optind;
    args->words = argv + optind;
    const struct command *c = args->command;
    if (args_has(args, "help"))
        return TITAN_OK;
    if (args->n < c->min_args || args->n > c->max_args) {
        titan_status status =
            args->n < c->min_args
                ? titan_fail(err, TITAN_EINVAL, "%s: %s is missing", c->name, c->arguments)
                : titan_fail(err, TITAN_EINVAL, "%s: unexpected argument '%.64s'", c->name, args->words[c->max_args]);
        titan_error_hint(err, "usage: %s %s [OPTION]...%s%s", t->name, c->name, *c->arguments ? " " : "", c->arguments);
        return status;
    }
    return TITAN_OK;
}

/* --- what was given ----------------------------------------------------------------------------------------------- */

bool args_has(const struct args *args, const char *option)
{
    return args_text(args, option, NULL) != NULL;
}

const char *args_text(const struct args *args, const char *option, const char *fallback)
{
    for (int i = args->n_given - 1; i >= 0; i--)
        if (strcmp(args->given[i].spec->name, option) == 0)
            return args->given[i].value ? args->given[i].value : "";
    return fallback;
}

const char *args_each(const struct args *args, const char *option, int i)
{
    titan_assert(i >= 0);
    for (int k = 0; k < args->n_given; k++)
        if (strcmp(args->given[k].spec->name, option) == 0 && i-- == 0)
            return args->given[k].value;
    return NULL;
}

titan_status args_int(const struct args *args, const char *option, int64_t min, int64_t max, int64_t fallback,
                      int64_t *ret, struct titan_error *err)
{
    titan_assert(min <= max);
    const char *text = args_text(args, option, NULL);
    *ret = fallback;
    if (!text)
        return TITAN_OK;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < min || value > max)
        return titan_fail(err, TITAN_EINVAL, "--%s %.64s: not a whole number from %lld to %lld", option, text,
                          (long long)min, (long long)max);
    *ret = value;
    return TITAN_OK;
}

titan_status args_real(const struct args *args, const char *option, double min, double max, double fallback,
                       double *ret, struct titan_error *err)
{
    titan_assert(min <= max);
    const char *text = args_text(args, option, NULL);
    *ret = fallback;
    if (!text)
        return TITAN_OK;
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < min || value > max)
        return titan_fail(err, TITAN_EINVAL, "--%s %.64s: not a number from %g to %g", option, text, min, max);
    *ret = value;
    return TITAN_OK;
}

/* --- --help ------------------------------------------------------------------------------------------------------- */

enum { NAME_COLUMNS = 28, LINE_COLUMNS = 118 };

/* Writes text beside a name column, wrapped at blanks. */
static void put_wrapped(struct buf *out, const char *name, int columns, const char *text)
{
    titan_assert(columns > 0 && columns < LINE_COLUMNS - 3);
    const int room = LINE_COLUMNS - columns - 3;
    buf_printf(out, "  %-*s", columns, name);
    while (*text) {
        int len = (int)strlen(text);
        if (len > room)
            for (len = room; len > 0 && text[len] != ' '; len--)
                ;
        len = len > 0 ? len : (int)strlen(text);
        buf_printf(out, " %.*s\n", len, text);
        text += len;
        text += strspn(text, " ");
        if (*text)
            buf_printf(out, "  %*s", columns, "");
    }
}

void help_put_commands(const struct command_table *t, struct buf *out)
{
    for (size_t i = 0; t->commands[i]; i++)
        put_wrapped(out, t->commands[i]->name, 12, t->commands[i]->summary);
}

void help_put_options(const struct option_spec *options, struct buf *out)
{
    for (; options && options->name; options++) {
        char name[64], letter[8] = "    ";
        if (options->letter)
            (void)snprintf(letter, sizeof(letter), "-%c, ", options->letter);
        (void)snprintf(name, sizeof(name), "%s--%s%s%s", letter, options->name, options->value ? " " : "",
                       options->value ? options->value : "");
        put_wrapped(out, name, NAME_COLUMNS, options->help);
    }
}

void help_put_command(const struct command_table *t, const struct command *c, struct buf *out)
{
    titan_assert(c->summary[0]);
    buf_printf(out, "usage: %s %s [OPTION]...%s%s\n\n%c%s.\n", t->name, c->name, *c->arguments ? " " : "", c->arguments,
               toupper((unsigned char)c->summary[0]), c->summary + 1);
    if (c->text)
        buf_printf(out, "%s\n", c->text);
    if (c->options && c->options->name) {
        buf_puts(out, "\noptions\n");
        help_put_options(c->options, out);
    }
    buf_printf(out, "\noptions of all %ss\n", t->noun);
    help_put_options(t->options, out);
    if (c->examples)
        buf_puts(out, "\nexamples\n");
    for (const struct example *e = c->examples; e && e->line; e++)
        buf_printf(out, "  %s\n      %s\n", e->line, e->what);
}
