/* options.c - see options.h. */
#include "ctl/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/distance.h"

enum { SPECS_MAX = 64, LONG_BASE = 1000 };

/* The tables in getopt's form. An option's code is LONG_BASE + its index. */
struct table {
    const struct option_spec *specs[SPECS_MAX];
    struct option longs[SPECS_MAX + 1];
    char shorts[2 * SPECS_MAX + 3];
    int n;
};

static void table_add(struct table *table, const struct option_spec *specs)
{
    for (; specs && specs->name; specs++) {
        titan_assert(table->n < SPECS_MAX);
        table->specs[table->n] = specs;
        table->longs[table->n] =
            (struct option){specs->name, specs->value ? required_argument : no_argument, NULL, LONG_BASE + table->n};
        table->n++;
    }
}

static void table_close(struct table *table, bool stop_at_word)
{
    char *s = table->shorts;
    *s++ = stop_at_word ? '+' : ':';
    if (stop_at_word)
        *s++ = ':';
    for (int i = 0; i < table->n; i++) {
        if (!table->specs[i]->letter)
            continue;
        *s++ = table->specs[i]->letter;
        if (table->specs[i]->value)
            *s++ = ':';
    }
    *s = '\0';
    memset(&table->longs[table->n], 0, sizeof(table->longs[0]));
}

static const struct option_spec *table_find(const struct table *table, int code)
{
    if (code >= LONG_BASE)
        return table->specs[code - LONG_BASE];
    for (int i = 0; i < table->n; i++)
        if (table->specs[i]->letter == code)
            return table->specs[i];
    return NULL;
}

static titan_status unknown_option(const struct table *table, const struct args *args, const char *word,
                                   struct titan_error *err)
{
    char given[DISTANCE_TEXT_MAX];
    bool is_long = strncmp(word, "--", 2) == 0;
    (void)snprintf(given, sizeof(given), "%.*s", (int)strcspn(word, "="), word);
    const char *const whose = args->command ? args->command->name : NULL;
    titan_status status =
        titan_fail(err, TITAN_EINVAL, "%s%sunknown option %s", whose ? whose : "", whose ? ": " : "", given);
    const char *names[SPECS_MAX];
    for (int i = 0; i < table->n; i++)
        names[i] = table->specs[i]->name;
    const char *near = is_long ? text_nearest(given + 2, names, (size_t)table->n) : NULL;
    if (near)
        titan_error_hint(err, "did you mean --%s?", near);
    else
        titan_error_hint(err, "titanctl %s%s--help lists them", whose ? whose : "", whose ? " " : "");
    return status;
}

/* One pass of getopt; stops at the first word that is no option when stop_at_word. */
static titan_status parse_options(const struct table *table, int argc, char **argv, struct args *args,
                                  struct titan_error *err)
{
    opterr = 0;
    optind = 0; /* glibc: start anew */
    for (;;) {
        int before = MAX(optind, 1);
        int code = getopt_long(argc, argv, table->shorts, table->longs, NULL);
        if (code == -1)
            return TITAN_OK;
        const struct option_spec *spec = code == '?' || code == ':' ? NULL : table_find(table, code);
        if (code == ':') {
            const struct option_spec *missing = table_find(table, optopt);
            return titan_fail(err, TITAN_EINVAL, "--%s wants %s", missing->name, missing->value);
        }
        if (!spec && optopt >= LONG_BASE)
            return titan_fail(err, TITAN_EINVAL, "--%s takes no value", table_find(table, optopt)->name);
        if (!spec) {
            char letter[3] = {'-', (char)optopt, '\0'};
            return unknown_option(table, args, optopt ? letter : argv[MAX(before, optind - 1)], err);
        }
        if (!strncmp(argv[before], "--", 2) && strcspn(argv[before] + 2, "=") != strlen(spec->name))
            return unknown_option(table, args, argv[before], err); /* getopt takes what begins a name for it */
        if (args->n_given == OPTIONS_GIVEN_MAX)
            return titan_fail(err, TITAN_EINVAL, "more than %d options", OPTIONS_GIVEN_MAX);
        args->given[args->n_given++] = (struct given){spec, spec->value ? optarg : NULL};
    }
}

static titan_status unknown_command(const char *word, struct titan_error *err)
{
    const char *names[SPECS_MAX];
    const char *near = text_nearest(word, names, command_names(names, SPECS_MAX));
    titan_status status = titan_fail(err, TITAN_EINVAL, "unknown command '%.64s'", word);
    if (near)
        titan_error_hint(err, "did you mean %s?", near);
    else
        titan_error_hint(err, "titanctl help lists them");
    return status;
}

titan_status args_parse(int argc, char **argv, struct args *args, struct titan_error *err)
{
    memset(args, 0, sizeof(*args));
    struct table table = {.n = 0};
    table_add(&table, global_options);
    table_close(&table, true);
    TRY(parse_options(&table, argc, argv, args, err));
    argc -= optind;
    argv += optind;
    if (argc == 0)
        return TITAN_OK;

    args->command = command_find(argv[0]);
    if (!args->command)
        return unknown_command(argv[0], err);
    table_add(&table, args->command->options);
    table_close(&table, false);
    TRY(parse_options(&table, argc, argv, args, err));
    args->n = argc - optind;
    args->words = argv + optind;
    const struct command *c = args->command;
    if (args_has(args, "help"))
        return TITAN_OK;
    if (args->n < c->min_args || args->n > c->max_args) {
        titan_status status =
            args->n < c->min_args
                ? titan_fail(err, TITAN_EINVAL, "%s: %s is missing", c->name, c->arguments)
                : titan_fail(err, TITAN_EINVAL, "%s: '%.64s' is one word too many", c->name, args->words[c->max_args]);
        titan_error_hint(err, "usage: titanctl %s [OPTION]...%s%s", c->name, *c->arguments ? " " : "", c->arguments);
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
    for (int k = 0; k < args->n_given; k++)
        if (strcmp(args->given[k].spec->name, option) == 0 && i-- == 0)
            return args->given[k].value;
    return NULL;
}

titan_status args_int(const struct args *args, const char *option, int64_t min, int64_t max, int64_t fallback,
                      int64_t *ret, struct titan_error *err)
{
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

titan_status args_job(const struct args *args, int i, uint64_t *ret, struct titan_error *err)
{
    const char *text = args->words[i];
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value == 0 || value > INT64_MAX) {
        titan_status status = titan_fail(err, TITAN_EINVAL, "'%.64s' is not the number of a job", text);
        titan_error_hint(err, "titanctl list shows them");
        return status;
    }
    *ret = value;
    return TITAN_OK;
}
