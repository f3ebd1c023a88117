/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/distance.h"

enum { NAMES_MAX = 128 };

const struct command *command_find(const struct command_table *t, const char *name)
{
    for (size_t i = 0; t->commands[i]; i++)
        if (strcmp(t->commands[i]->name, name) == 0)
            return t->commands[i];
    return NULL;
}

/* Finds an option of all commands or of the command, by its name of this length or by its letter. */
static const struct option_spec *find(const struct command_table *t, const struct args *args, const char *name,
                                      size_t len, char letter)
{
    const struct option_spec *const tables[] = {t->options, args->command ? args->command->options : NULL};
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
        for (const struct option_spec *s = tables[i]; s && s->name; s++)
            if (letter ? s->letter == letter : strlen(s->name) == len && strncmp(s->name, name, len) == 0)
                return s;
    return NULL;
}

/* Takes "--name", "--name=value", "--name value", or the letters of "-ab", "-n3", "-n 3". */
static titan_status take_options(const struct command_table *t, struct args *args, int argc, char **argv, int *at,
                                 struct titan_error *err)
{
    const char *word = argv[(*at)++], *equals = strchrnul(word, '=');
    const bool is_long = word[1] == '-';
    for (const char *p = word + 1; *p;) {
        const char given[] = {'-', *p, '\0'};
        const struct option_spec *spec =
            is_long ? find(t, args, word + 2, (size_t)(equals - word) - 2, 0) : find(t, args, "", 0, *p);
        if (!spec) {
            char name[DISTANCE_TEXT_MAX];
            (void)snprintf(name, sizeof(name), "%.*s", (int)(equals - word), word);
            const char *shown = is_long ? name : given;
            const struct option_spec *const tables[] = {t->options, args->command ? args->command->options : NULL};
            const char *command = args->command ? args->command->name : "", *names[NAMES_MAX];
            size_t n = 0;
            for (size_t i = 0; i < ARRAY_SIZE(tables); i++)
                for (const struct option_spec *s = tables[i]; s && s->name && n < NAMES_MAX; s++)
                    names[n++] = s->name;
            titan_status status =
                titan_fail(err, TITAN_EINVAL, "%s%sunknown option %.95s", command, *command ? ": " : "", shown);
            const char *near = strncmp(shown, "--", 2) == 0 ? text_nearest(shown + 2, names, n) : NULL;
            if (near)
                titan_error_hint(err, "did you mean --%s?", near);
            else
                titan_error_hint(err, "%s %s%s--help lists them", t->name, command, *command ? " " : "");
            return status;
        }
        if (is_long && *equals && !spec->value)
            return titan_fail(err, TITAN_EINVAL, "--%s takes no value", spec->name);
        p = is_long ? equals + (*equals == '=') : p + 1;
        const char *value = NULL;
        if (spec->value) {
            value = *p || (is_long && *equals) ? p : *at < argc ? argv[*at] : NULL;
            *at += value && value != p;
            p = "";
        }
        if (spec->value && !value)
            return titan_fail(err, TITAN_EINVAL, "--%s wants %s", spec->name, spec->value);
        if (args->n_given == OPTIONS_GIVEN_MAX)
            return titan_fail(err, TITAN_EINVAL, "more than %d options", OPTIONS_GIVEN_MAX);
        args->given[args->n_given++] = (struct given){spec, value};
    }
    return TITAN_OK;
}

titan_status args_parse(const struct command_table *t, int argc, char **argv, struct args *args,
                        struct titan_error *err)
{
    memset(args, 0, sizeof(*args));
    bool ended = false; /* "--" has ended the options */
    for (int at = 1; at < argc;) {
        char *word = argv[at];
        if (!ended && word[0] == '-' && word[1] && strcmp(word, "--") != 0) {
            TRY(take_options(t, args, argc, argv, &at, err));
            continue;
        }
        at++;
        if (!ended && strcmp(word, "--") == 0) {
            ended = true;
        } else if (args->command) { /* the word moves in front of the options */
            char **place = args->words + args->n++;
            memmove(place + 1, place, (size_t)(argv + at - 1 - place) * sizeof(*place));
            *place = word;
        } else {
            args->command = command_find(t, word);
            if (!args->command) {
                const char *names[NAMES_MAX], *near;
                size_t n = 0;
                for (; n < NAMES_MAX && t->commands[n]; n++)
                    names[n] = t->commands[n]->name;
                titan_status status = titan_fail(err, TITAN_EINVAL, "unknown %s '%.64s'", t->noun, word);
                if ((near = text_nearest(word, names, n)))
                    titan_error_hint(err, "did you mean %s?", near);
                else
                    titan_error_hint(err, "%s --help lists them", t->name);
                return status;
            }
            args->words = argv + at;
            ended = false;
        }
    }
    const struct command *c = args->command;
    if (!c || args_has(args, "help") || (args->n >= c->min_args && args->n <= c->max_args))
        return TITAN_OK;
    titan_status status =
        args->n < c->min_args
            ? titan_fail(err, TITAN_EINVAL, "%s: %s is missing", c->name, c->arguments)
            : titan_fail(err, TITAN_EINVAL, "%s: unexpected argument '%.64s'", c->name, args->words[c->max_args]);
    titan_error_hint(err, "usage: %s %s [OPTION]...%s%s", t->name, c->name, *c->arguments ? " " : "", c->arguments);
    return status;
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

bool args_read_int(const char *text, int64_t *ret)
{
    char *end;
    errno = 0;
    *ret = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0;
}

titan_status args_int(const struct args *args, const char *option, struct int_range legal, int64_t fallback,
                      int64_t *ret, struct titan_error *err)
{
    const char *text = args_text(args, option, NULL);
    *ret = fallback;
    if (!text)
        return TITAN_OK;
    int64_t value;
    if (!args_read_int(text, &value) || value < legal.min || value > legal.max)
        return titan_fail(err, TITAN_EINVAL, "--%s %.64s: not a whole number from %lld to %lld", option, text,
                          (long long)legal.min, (long long)legal.max);
    *ret = value;
    return TITAN_OK;
}

titan_status args_real(const struct args *args, const char *option, struct real_range legal, double fallback,
                       double *ret, struct titan_error *err)
{
    const char *text = args_text(args, option, NULL);
    *ret = fallback;
    if (!text)
        return TITAN_OK;
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < legal.min || value > legal.max)
        return titan_fail(err, TITAN_EINVAL, "--%s %.64s: not a number from %g to %g", option, text, legal.min,
                          legal.max);
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
