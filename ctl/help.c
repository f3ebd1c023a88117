/* SPDX-License-Identifier: Apache-2.0 */
/* help.c - see help.h; also the help command. */
#include "ctl/help.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/recipe_conflicts.h"
#include "base/version.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/output.h"

static const struct {
    int code;
    const char *meaning;
} exit_codes[] = {
    {0, "done; for wait, run and --follow: the job completed"},
    {1, "the operation or the job failed, or the job was cancelled"},
    {2, "wrong usage or bad input: command line, run file"},
    {3, "not found: job, node, checkpoint"},
    {4, "the server cannot be reached"},
    {5, "not permitted"},
    {6, "in conflict with the present state, or another version"},
    {7, "the job cannot be placed: too large for the nodes"},
    {75, "titan-worker: its device failed, or is not there"},
    {124, "timed out"},
    {130, "interrupted"},
};

static const struct {
    const char *name, *meaning;
} environment[] = {
    {"TITAN_SERVER",
     "server to talk to when --server is not given: one, or HOST:PORT,HOST:PORT where it may be at one of "
     "several, of which the first that answers is used. Without either, the first socket that is there: "
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

void help_overview(struct buf *out)
{
    buf_puts(out, "usage: titanctl [-s TARGET] [-o table|json] COMMAND [OPTION]... [ARGUMENT]...\n\n"
                  "Train language models: submit runs to titand, watch them, get their results.\n\ncommands\n");
    help_put_commands(&titanctl, out);
    buf_puts(out, "\noptions of all commands\n");
    help_put_options(titanctl.options, out);
    buf_puts(out, "\nexit codes\n");
    for (size_t i = 0; i < ARRAY_SIZE(exit_codes); i++)
        buf_printf(out, "  %-4d %s\n", exit_codes[i].code, exit_codes[i].meaning);
    buf_puts(out, "\n`titanctl COMMAND --help` shows a command's options and examples; titanctl(1) has all of it.\n");
}

/* --- man page ----------------------------------------------------------------------------------------------------- */

/* Escapes text for roff, so that hyphens and backslashes are literal and no line becomes a control line. */
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
    roff_options(out, titanctl.options);
    buf_puts(out, ".SH COMMANDS\n");
    for (size_t i = 0; titanctl.commands[i]; i++) {
        const struct command *c = titanctl.commands[i];
        titan_assert(c->summary[0] && c->examples);
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

/* --- titanctl help ------------------------------------------------------------------------------------------------ */

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    (void)with;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    if (args_has(args, "man")) {
        help_man(&text);
    } else if (args_has(args, "conflicts")) {
        for (int i = 0; i < recipe_conflicts_count; i++)
            buf_printf(&text, "%s, not with %s: %s\n", recipe_conflicts[i].setting, recipe_conflicts[i].with,
                       recipe_conflicts[i].reason);
    } else if (args->n == 0) {
        help_overview(&text);
    } else {
        const struct command *c = command_find(&titanctl, args->words[0]);
        if (!c)
            return titan_fail(err, TITAN_EINVAL, "help: there is no command '%.64s'", args->words[0]);
        help_put_command(&titanctl, c, &text);
    }
    (void)output_line(&text);
    return TITAN_OK;
}

const struct command command_help = {
    .name = "help",
    .summary = "show help for titanctl or one of its commands",
    .arguments = "[COMMAND]",
    .max_args = 1,
    .word = WORD_COMMAND,
    .options = (const struct option_spec[]){{"man", 0, NULL, "the manual page, as roff", WORD_NONE},
                                            {"conflicts", 0, NULL,
                                             "settings of run files that do not go together, and why", WORD_NONE},
                                            {NULL}},
    .examples = (const struct example[]){{"titanctl help submit", "options and examples of submit"},
                                         {"titanctl help --man | man -l -", "read the manual without installing it"},
                                         {NULL}},
    .run = run,
};
