/* completion.c - titanctl completion: the shell's part. */
#include <string.h>

#include "base/cleanup.h"
#include "ctl/client.h"
#include "ctl/help.h"
#include "ctl/options.h"
#include "ctl/output.h"

static titan_status run(struct ctl *ctl, const struct args *args, struct titan_error *err)
{
    (void)ctl;
    if (strcmp(args->words[0], "bash") != 0)
        return titan_fail(err, TITAN_EINVAL, "completion: there is none for '%.32s', only for bash", args->words[0]);
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    help_bash(&text);
    (void)output_line(&text);
    return TITAN_OK;
}

const struct command command_completion = {
    .name = "completion",
    .summary = "print the completion of commands, options and jobs for a shell",
    .arguments = "bash",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_SHELL,
    .examples = (const struct example[]){{"source <(titanctl completion bash)", "for this shell"}, {NULL}},
    .run = run,
};
