/* command.h - the commands of titanctl as data: the parser, --help, the man page and the shell completion all come from
 * these tables. */
#ifndef TITAN_CTL_COMMAND_H
#define TITAN_CTL_COMMAND_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct ctl; /* client.h */
struct args;

/* What completion offers for a word. */
enum word { WORD_NONE, WORD_FILE, WORD_JOB, WORD_NODE, WORD_FORMAT, WORD_STATE, WORD_COMMAND, WORD_SHELL };

struct option_spec {
    const char *name;  /* "follow"; NULL ends a table */
    char letter;       /* 'f', or 0 */
    const char *value; /* "N"; NULL for a flag */
    const char *help;
    enum word word; /* of the value */
};

struct example {
    const char *line; /* NULL ends a table */
    const char *what;
};

struct command {
    const char *name;
    const char *summary;   /* half a line, no full stop */
    const char *arguments; /* "JOB..." */
    const char *text;      /* what --help says between summary and options; NULL for nothing */
    int min_args, max_args;
    enum word word; /* of the arguments */
    const struct option_spec *options;
    const struct example *examples;
    /* TITAN_OK or a status with err filled; the exit code comes from the status. */
    titan_status (*run)(struct ctl *ctl, const struct args *args, struct titan_error *err);
};

#define ANY_NUMBER 1000000

extern const struct command *const commands[]; /* NULL ends it */
extern const struct option_spec global_options[];
const struct command *command_find(const char *name); /* NULL: no such command */
size_t command_names(const char **names, size_t cap);

extern const struct command command_submit, command_run, command_status, command_list, command_cancel, command_resize,
    command_checkpoint, command_pki, command_drain, command_undrain, command_node, command_wait, command_logs,
    command_events, command_metrics, command_nodes, command_counters, command_checkpoints, command_generate,
    command_convert, command_plan, command_admin, command_audit, command_token, command_version, command_help,
    command_completion;

/* The program without its process: parse, run, print the error; returns the exit code. */
int ctl_main(int argc, char **argv);

#endif
