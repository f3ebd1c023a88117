/* SPDX-License-Identifier: Apache-2.0 */
/* eval.c - titanctl eval: a checkpoint's loss on validation data. */
#include "base/eval_options.h"
#include "ctl/worker_tool.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    char path[PATH_MAX];
    TRY(checkpoint_resolve(ctl, args, path, err));
    return worker_do(ctl, args, (char *[]){path}, 1, "--output=json", err);
}

const struct command command_eval = {
    .name = "eval",
    .summary = "the loss of a checkpoint on validation data",
    .arguments = "JOB[@STEP]|PATH[@STEP]",
    .text =
        "Takes the newest checkpoint of a job or the one of a step, or a checkpoint's folder. Prints loss in nats,\n"
        "perplexity, bits per byte where the tokenizer tells what a token stands for, and how many tokens there were. "
        "The\n"
        "samples are those of an evaluation in the run, in the same order, and so is the arithmetic. The model runs in "
        "this\n"
        "process, on this machine.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .options = (const struct option_spec[]){EVAL_OPTIONS, {NULL}},
    .examples = (const struct example[]){{"titanctl eval 12 --data ./held-out", "a job's newest checkpoint"},
                                         {"titanctl eval 12@300", "that of step 300, on the run's validation data"},
                                         {NULL}},
    .run = run,
};
