/* SPDX-License-Identifier: Apache-2.0 */
/* resume.c - titanctl resume: continues a job that has ended. */
#include <stdio.h>

#include "base/cleanup.h"
#include "ctl/args.h"
#include "ctl/client.h"
#include "ctl/command.h"
#include "ctl/run_file.h"
#include "ctl/submit.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    _cleanup_(run_file_clear) struct run_file file = {.text = BUF_INIT};
    _cleanup_message_ Titan__V1__GetRecipeResponse *reply = NULL;
    struct submit_from from = {.resume = true, .whole = true};
    char named[32];
    TRY(args_job(args, 0, &from.job, err));
    TRY(submit_recipe_of(ctl, from.job, &reply, err));
    (void)snprintf(named, sizeof(named), "job %llu", (unsigned long long)from.job);
    TRY(run_file_load(&file, &(struct run_source){named, reply->recipe, NULL}, args, 0, false, err));
    return submit_and_show(ctl, &file, args, &from, err);
}

const struct command command_resume = {
    .name = "resume",
    .summary = "go on with a job that has ended, as a new job",
    .arguments = "JOB",
    .text =
        "The new job has the run file, the owner and the folder of checkpoints of JOB and begins at the newest one "
        "there;\nits number is printed. JOB was cancelled, has failed, or has completed and gets more steps. Keys that "
        "change no\nnumber of a step may be given: training.steps, elastic.*, checkpoint.interval. For others there is "
        "titanctl\nsubmit --from.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .options = (const struct option_spec[]){RUN_FILE_OPTIONS, SUBMIT_OPTIONS, {NULL}},
    .examples =
        (const struct example[]){{"titanctl resume 12 --follow", "after it was cancelled, or has failed"},
                                 {"titanctl resume 12 --set training.steps=2000", "more steps than it has done"},
                                 {NULL}},
    .run = run,
};
