/* SPDX-License-Identifier: Apache-2.0 */
/* ctl.c - titanctl without its process: parses, runs the command, reports the error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/standard_streams.h"
#include "base/version.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/completion.h"
#include "ctl/help.h"
#include "ctl/outcomes.h"
#include "ctl/output.h"
#include "ctl/tls.h"

titan_status ctl_set_up(struct ctl *ctl, const struct args *args, struct titan_error *err)
{
    titan_assert(!ctl->channel);
    const char *output = args_text(args, "output", "table"), *no_color = getenv("NO_COLOR");
    if (strcmp(output, "table") != 0 && strcmp(output, "json") != 0)
        return titan_fail(err, TITAN_EINVAL, "--output: unknown format '%.32s' (table|json)", output);
    ctl->command = args->command;
    ctl->json = strcmp(output, "json") == 0;
    ctl->online = isatty(STDOUT_FILENO);
    ctl->color = output_terminal(STDOUT_FILENO) && !(no_color && *no_color);
    TRY(ctl_server(args_text(args, "server", NULL), ctl->server, sizeof(ctl->server), err));
    TRY(ctl_load_tls(args, ctl->server, err));
    return ctl_load_token(args_text(args, "token-file", NULL), err);
}

static titan_status dispatch(int argc, char **argv, struct titan_error *err)
{
    struct args args;
    struct ctl ctl = {.channel = NULL};
    TRY(args_parse(&titanctl, argc, argv, &args, err));
    if (args_has(&args, "help")) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        if (args.command)
            help_put_command(&titanctl, args.command, &text);
        else
            help_overview(&text);
        (void)output_line(&text);
        return TITAN_OK;
    }
    if (args_has(&args, "version")) {
        (void)printf("titanctl %s\n", titan_version);
        return TITAN_OK;
    }
    if (!args.command) {
        titan_status status = titan_fail(err, TITAN_EINVAL, "no command was given");
        titan_error_hint(err, "titanctl --help lists them");
        return status;
    }
    TRY(ctl_set_up(&ctl, &args, err));
    titan_assert(args.n >= args.command->min_args);
    titan_status status = args.command->run(&ctl, &args, err);
    rpc_channel_close(ctl.channel);
    return status;
}

int ctl_main(int argc, char **argv)
{
    struct titan_error err = {.status = TITAN_OK};
    log_set_level(LOG_LEVEL_ERROR);
    if (argc > 1 && strcmp(argv[1], "__complete") == 0) { /* the shell calls this; help and manual do not list it */
        completion_print(argc - 2, argv + 2);
        return 0;
    }
    titan_status status = dispatch(argc, argv, &err);
    /* A person who pressed Ctrl-C needs no message about it. */
    if (status != TITAN_OK && !(status == TITAN_ECANCELLED && ctl_interrupted))
        outcome_print(&err);
    if (status == TITAN_OK && !standard_streams_flush("titanctl"))
        return 1; /* part of the output was not written */
    /* A missing file gets the exit code of bad input; "not found" is only for jobs, nodes and checkpoints. */
    return titan_status_exit(status == TITAN_ENOTFOUND && err.sys_errno ? TITAN_EINVAL : status);
}
