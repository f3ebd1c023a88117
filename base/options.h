/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - a program's commands and options as data. The parser, --help, man pages and shell completion read these
 * tables. */
#ifndef TITAN_BASE_OPTIONS_H
#define TITAN_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

struct args;

/* The kind of words that completion offers. */
enum word { WORD_NONE, WORD_FILE, WORD_JOB, WORD_NODE, WORD_FORMAT, WORD_STATE, WORD_COMMAND, WORD_SHELL };

struct option_spec {
    const char *name;  /* "follow"; NULL ends a table */
    char letter;       /* 'f', or 0 */
    const char *value; /* "N"; NULL for a flag */
    const char *help;
    enum word word; /* kind of the value */
};

struct example {
    const char *line; /* NULL ends a table */
    const char *what;
};

struct command {
    const char *name;
    const char *summary;   /* half a line, no full stop */
    const char *arguments; /* "JOB..."; "" for none */
    const char *text;      /* text of --help between summary and options; NULL for none */
    int min_args, max_args;
    enum word word; /* kind of the arguments */
    const struct option_spec *options;
    const struct example *examples;
    /* Returns TITAN_OK or a status with err filled. with: state shared by the program's commands. */
    titan_status (*run)(void *with, const struct args *args, struct titan_error *err);
};

#define ANY_NUMBER 1000000 /* as max_args: no limit on arguments */

struct command_table {
    const char *name;                      /* "titanctl" */
    const char *noun;                      /* noun for the first word: "command" */
    const struct command *const *commands; /* a NULL ends the array */
    const struct option_spec *options;     /* options of all commands; one is "help" */
};

enum { OPTIONS_GIVEN_MAX = 512 };

struct given {
    const struct option_spec *spec;
    const char *value; /* NULL for a flag */
};

/* All pointers borrow from argv and the tables. */
struct args {
    const struct command *command; /* NULL: no command was given */
    int n;
    char **words; /* the command's arguments */
    struct given given[OPTIONS_GIVEN_MAX];
    int n_given;
};

/* argv[0] is ignored. Options may stand anywhere behind the command, and options of all commands also before it; "--"
 * ends options. TITAN_EINVAL names the wrong word, and the nearest known word for a misspelt one. With --help the
 * number of arguments is not checked. */
titan_status args_parse(const struct command_table *t, int argc, char **argv, struct args *args,
                        struct titan_error *err) TITAN_MUST_USE;

bool args_has(const struct args *args, const char *option);
const char *args_text(const struct args *args, const char *option, const char *fallback); /* the last value given */
/* The i-th value, from 0, of an option that may be repeated; NULL behind the last. */
const char *args_each(const struct args *args, const char *option, int i);
/* A range of legal values, with both ends. */
struct int_range {
    int64_t min, max;
};
struct real_range {
    double min, max;
};
/* Reads a whole number, and nothing else. */
bool args_read_int(const char *text, int64_t *ret);
titan_status args_int(const struct args *args, const char *option, struct int_range legal, int64_t fallback,
                      int64_t *ret, struct titan_error *err) TITAN_MUST_USE;
titan_status args_real(const struct args *args, const char *option, struct real_range legal, double fallback,
                       double *ret, struct titan_error *err) TITAN_MUST_USE;

/* Finds a command by its name; NULL: no such command. */
const struct command *command_find(const struct command_table *t, const char *name);
/* These write parts of --help: commands with their summaries; options, one per line; the whole page of a command. */
void help_put_commands(const struct command_table *t, struct buf *out);
void help_put_options(const struct option_spec *options, struct buf *out);
void help_put_command(const struct command_table *t, const struct command *c, struct buf *out);

#endif
