/* help.c - see help.h; and the command that prints it. */
#include "ctl/help.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/version.h"
#include "ctl/client.h"
#include "ctl/options.h"
#include "ctl/output.h"

static const struct {
    int code;
    const char *meaning;
} exit_codes[] = {
    {0, "done; for wait, run and --follow: the job completed"},
    {1, "the operation or the job failed, or the job was cancelled"},
    {2, "wrong usage or bad input: command line, run file"},
    {3, "not found: job, file, checkpoint"},
    {4, "the server cannot be reached"},
    {5, "not permitted"},
    {6, "in conflict with the present state, or another version"},
    {7, "the job cannot be placed: too large for the nodes"},
    {124, "timed out"},
    {130, "interrupted"},
};

static const struct {
    const char *name, *meaning;
} environment[] = {
    {"TITAN_SERVER", "server to talk to when --server is not given. Without either, the first socket that is there: "
                     "$XDG_STATE_HOME/titan/titan.sock or ~/.local/state/titan/titan.sock (not for root), "
                     "/run/titan/titan.sock, /var/lib/titan/titan.sock"},
    {"TITAN_TLS_CA, TITAN_TLS_CERT, TITAN_TLS_KEY",
     "files in PEM for servers at HOST:PORT, when --tls-ca, --tls-cert and --tls-key are not given. Without any of "
     "them, "
     "ca.pem, cert.pem and key.pem of $XDG_CONFIG_HOME/titan, ~/.config/titan or /etc/titan/tls, the first that has a "
     "ca.pem; without any of these, HOST:PORT is spoken to without TLS"},
    {"TITAN_TOKEN", "bearer token to be sent when --token-file is not given (titanctl token)"},
    {"NO_COLOR", "when set and not empty, nothing is coloured. What does not go to a terminal never is"},
    {"TMPDIR", "where run puts its folder without --state-dir (default /tmp)"},
};

/* --- --help ------------------------------------------------------------------------------------------------------- */

static void option_name(const struct option_spec *o, char *out, size_t cap)
{
    char letter[8] = "    ";
    if (o->letter)
        (void)snprintf(letter, sizeof(letter), "-%c, ", o->letter);
    (void)snprintf(out, cap, "%s--%s%s%s", letter, o->name, o->value ? " " : "", o->value ? o->value : "");
}

static void put_options(const struct option_spec *options, struct buf *out)
{
    for (; options && options->name; options++) {
        char name[64];
        option_name(options, name, sizeof(name));
        buf_printf(out, "  %-28s %s\n", name, options->help);
    }
}

void help_overview(struct buf *out)
{
    buf_puts(out, "usage: titanctl [-s TARGET] [-o table|json] COMMAND [OPTION]... [ARGUMENT]...\n\n"
                  "Train language models: submit runs to titand, watch them, get their results.\n\ncommands\n");
    for (size_t i = 0; commands[i]; i++)
        buf_printf(out, "  %-12s %s\n", commands[i]->name, commands[i]->summary);
    buf_puts(out, "\noptions of all commands\n");
    put_options(global_options, out);
    buf_puts(out, "\nexit codes\n");
    for (size_t i = 0; i < ARRAY_SIZE(exit_codes); i++)
        buf_printf(out, "  %-4d %s\n", exit_codes[i].code, exit_codes[i].meaning);
    buf_puts(out, "\n`titanctl COMMAND --help` shows a command's options and examples; titanctl(1) has all of it.\n");
}

void help_command(const struct command *c, struct buf *out)
{
    buf_printf(out, "usage: titanctl %s [OPTION]...%s%s\n\n%c%s.\n", c->name, *c->arguments ? " " : "", c->arguments,
               toupper((unsigned char)c->summary[0]), c->summary + 1);
    if (c->text)
        buf_printf(out, "%s\n", c->text);
    if (c->options && c->options->name) {
        buf_puts(out, "\noptions\n");
        put_options(c->options, out);
    }
    buf_puts(out, "\noptions of all commands\n");
    put_options(global_options, out);
    buf_puts(out, "\nexamples\n");
    for (const struct example *e = c->examples; e->line; e++)
        buf_printf(out, "  %s\n      %s\n", e->line, e->what);
}

/* --- man page ----------------------------------------------------------------------------------------------------- */

/* Text as roff: hyphens that are typed, backslashes, and no control line by accident. */
static void roff(struct buf *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '-')
            buf_puts(out, "\\-");
        else if (*c == '\\')
            buf_puts(out, "\\e");
        else if ((*c == '.' || *c == '\'') && (c == text || c[-1] == '\n'))
            buf_printf(out, "\\&%c", *c);
        else
            buf_printf(out, "%c", *c);
    }
}

static void roff_options(struct buf *out, const struct option_spec *options)
{
    for (; options && options->name; options++) {
        buf_puts(out, ".TP\n");
        if (options->letter)
            buf_printf(out, "\\fB\\-%c\\fR, ", options->letter);
        buf_puts(out, "\\fB\\-\\-");
        roff(out, options->name);
        buf_printf(out, "\\fR%s%s%s\n", options->value ? " \\fI" : "", options->value ? options->value : "",
                   options->value ? "\\fR" : "");
        roff(out, options->help);
        buf_puts(out, "\n");
    }
}

static void roff_command(struct buf *out, const struct command *c)
{
    buf_puts(out, ".SS ");
    buf_printf(out, "%s \\fR\\fI", c->name);
    roff(out, c->arguments);
    buf_printf(out, "\\fR\n%c", toupper((unsigned char)c->summary[0]));
    roff(out, c->summary + 1);
    buf_puts(out, ".\n");
    if (c->text) {
        roff(out, c->text);
        buf_puts(out, "\n");
    }
    roff_options(out, c->options);
    for (const struct example *e = c->examples; e->line; e++) {
        buf_puts(out, ".PP\n");
        roff(out, e->what);
        buf_puts(out, ":\n.PP\n.RS 4\n.nf\n");
        roff(out, e->line);
        buf_puts(out, "\n.fi\n.RE\n");
    }
}

void help_man(struct buf *out)
{
    buf_puts(out, ".\\\" Written by `titanctl help --man`.\n"
                  ".TH TITANCTL 1 \"\" \"Titan " TITAN_VERSION "\" \"Titan\"\n"
                  ".SH NAME\ntitanctl \\- submit, watch and control training runs\n"
                  ".SH SYNOPSIS\n.B titanctl\n[\\fB\\-s\\fR \\fITARGET\\fR] [\\fB\\-o table\\fR|\\fBjson\\fR] "
                  "\\fICOMMAND\\fR [\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]...\n"
                  ".SH DESCRIPTION\n"
                  "titanctl talks to a Titan server (\\fBtitand\\fR(8)) over gRPC. Results go to standard output, "
                  "progress and messages to standard error; an error is one line.\n"
                  ".PP\nWith \\fB\\-o json\\fR the results have the field names of the API. Times are RFC 3339 in UTC; "
                  "what is not there yet is null. Streams (events, metrics, logs) are one object a line.\n"
                  ".SH OPTIONS\n");
    roff_options(out, global_options);
    buf_puts(out, ".SH COMMANDS\n");
    for (size_t i = 0; commands[i]; i++)
        roff_command(out, commands[i]);
    buf_puts(out, ".SH EXIT STATUS\n");
    for (size_t i = 0; i < ARRAY_SIZE(exit_codes); i++) {
        buf_printf(out, ".TP\n.B %d\n", exit_codes[i].code);
        roff(out, exit_codes[i].meaning);
        buf_puts(out, "\n");
    }
    buf_puts(out, ".SH ENVIRONMENT\n");
    for (size_t i = 0; i < ARRAY_SIZE(environment); i++) {
        buf_printf(out, ".TP\n.B %s\n", environment[i].name);
        roff(out, environment[i].meaning);
        buf_puts(out, "\n");
    }
    buf_puts(out, ".SH SEE ALSO\n\\fBtitand\\fR(8), \\fBtitan\\-worker\\fR(1)\n");
}

/* --- bash --------------------------------------------------------------------------------------------------------- */

static const char *word_action(enum word word)
{
    switch (word) {
    case WORD_FILE:
        return "COMPREPLY=($(compgen -f -- \"$cur\"))";
    case WORD_JOB:
        return "COMPREPLY=($(compgen -W \"$(_titanctl_jobs)\" -- \"$cur\"))";
    case WORD_NODE:
        return "COMPREPLY=($(compgen -W \"$(_titanctl_nodes)\" -- \"$cur\"))";
    case WORD_FORMAT:
        return "COMPREPLY=($(compgen -W 'table json' -- \"$cur\"))";
    case WORD_STATE:
        return "COMPREPLY=($(compgen -W 'PENDING FORMING RUNNING RECOVERING RESIZING CANCELLING COMPLETED FAILED "
               "CANCELLED' -- \"$cur\"))";
    case WORD_COMMAND:
        return "COMPREPLY=($(compgen -W \"$commands\" -- \"$cur\"))";
    case WORD_SHELL:
        return "COMPREPLY=($(compgen -W 'bash' -- \"$cur\"))";
    case WORD_NONE:
        break;
    }
    return "COMPREPLY=()";
}

/* The cases for "the word before is an option with a value". */
static void bash_values(struct buf *out, const char *command, const struct option_spec *options)
{
    for (; options && options->name; options++) {
        if (!options->value)
            continue;
        buf_printf(out, "    %s:--%s", command, options->name);
        if (options->letter)
            buf_printf(out, " | %s:-%c", command, options->letter);
        buf_printf(out, ")\n        %s\n        return\n        ;;\n", word_action(options->word));
    }
}

static void bash_names(struct buf *out, const struct option_spec *options)
{
    for (; options && options->name; options++) {
        buf_printf(out, " --%s", options->name);
        if (options->letter)
            buf_printf(out, " -%c", options->letter);
    }
}

void help_bash(struct buf *out)
{
    buf_puts(out, "# bash completion for titanctl; written by `titanctl completion bash`.\n"
                  "# Load it with: source <(titanctl completion bash)\n\n"
                  "_titanctl_jobs() {\n"
                  "    titanctl ${server:+--server \"$server\"} list --limit 50 2>/dev/null | awk 'NR > 1 {print $1}'\n"
                  "}\n\n"
                  "_titanctl_nodes() {\n"
                  "    titanctl ${server:+--server \"$server\"} nodes 2>/dev/null | awk 'NR > 1 {print $1}'\n"
                  "}\n\n"
                  "_titanctl() {\n"
                  "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
                  "    local commands='");
    for (size_t i = 0; commands[i]; i++)
        buf_printf(out, "%s%s", i ? " " : "", commands[i]->name);
    buf_puts(out, "' command='' server='' i\n"
                  "    COMPREPLY=()\n"
                  "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                  "        case ${COMP_WORDS[i]} in\n"
                  "        -s | --server) server=${COMP_WORDS[++i]} ;;\n"
                  "        -o | --output | --token-file | --tls-ca | --tls-cert | --tls-key) ((++i)) ;;\n"
                  "        -*) ;;\n"
                  "        *) [ -n \"$command\" ] || command=${COMP_WORDS[i]} ;;\n"
                  "        esac\n"
                  "    done\n"
                  "    case $command:$prev in\n");
    bash_values(out, "*", global_options);
    for (size_t i = 0; commands[i]; i++)
        bash_values(out, commands[i]->name, commands[i]->options);
    buf_puts(out, "    esac\n    local options='");
    for (const struct option_spec *o = global_options; o->name; o++)
        buf_printf(out, o->letter ? "%s--%s -%c" : "%s--%s", o == global_options ? "" : " ", o->name, o->letter);
    buf_puts(out,
             "'\n    case $command in\n    '')\n        COMPREPLY=($(compgen -W \"$commands $options\" -- \"$cur\"))\n"
             "        return\n        ;;\n");
    for (size_t i = 0; commands[i]; i++) {
        buf_printf(out, "    %s)\n        options+='", commands[i]->name);
        bash_names(out, commands[i]->options);
        buf_printf(out, "'\n        [[ $cur == -* ]] || %s\n        ;;\n", word_action(commands[i]->word));
    }
    buf_puts(out, "    esac\n"
                  "    [[ $cur == -* ]] && COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
                  "    return 0\n"
                  "}\n\n"
                  "complete -o filenames -F _titanctl titanctl\n");
}

/* --- titanctl help ------------------------------------------------------------------------------------------------ */

static titan_status run(struct ctl *ctl, const struct args *args, struct titan_error *err)
{
    (void)ctl;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    if (args_has(args, "man")) {
        help_man(&text);
    } else if (args->n == 0) {
        help_overview(&text);
    } else {
        const struct command *c = command_find(args->words[0]);
        if (!c)
            return titan_fail(err, TITAN_EINVAL, "help: there is no command '%.64s'", args->words[0]);
        help_command(c, &text);
    }
    (void)output_line(&text);
    return TITAN_OK;
}

const struct command command_help = {
    .name = "help",
    .summary = "say how titanctl or one of its commands is used",
    .arguments = "[COMMAND]",
    .max_args = 1,
    .word = WORD_COMMAND,
    .options = (const struct option_spec[]){{"man", 0, NULL, "the manual page, as roff", WORD_NONE}, {NULL}},
    .examples = (const struct example[]){{"titanctl help submit", "options and examples of submit"},
                                         {"titanctl help --man | man -l -", "read the manual without installing it"},
                                         {NULL}},
    .run = run,
};
