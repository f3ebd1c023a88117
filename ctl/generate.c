/* SPDX-License-Identifier: Apache-2.0 */
/* generate.c - titanctl generate: text from a trained model. */
#include "ctl/worker_tool.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    char path[PATH_MAX];
    int64_t whole;
    double real;
    TRY(args_int(args, "max-tokens", (struct int_range){1, 1000000}, 1, &whole, err));
    TRY(args_real(args, "temperature", (struct real_range){0, 100}, 0, &real, err));
    TRY(args_int(args, "top-k", (struct int_range){0, 1000000}, 0, &whole, err));
    TRY(args_int(args, "seed", (struct int_range){0, INT64_MAX}, 0, &whole, err));
    if (!args_has(args, "prompt"))
        return titan_fail(err, TITAN_EINVAL, "generate: --prompt TEXT is missing");
    TRY(checkpoint_resolve(ctl, args, path, err));
    return worker_do(ctl, args, (char *[]){path}, 1, "--output=json", err);
}

const struct command command_generate = {
    .name = "generate",
    .summary = "generate text from a checkpoint",
    .arguments = "JOB[@STEP]|PATH[@STEP]",
    .text = "Takes the newest checkpoint of a job, or a checkpoint's folder. The model runs in this process, on this "
            "machine.\n-o json has the text that follows the prompt, when all of it is there.",
    .min_args = 1,
    .max_args = 1,
    .word = WORD_JOB,
    .options =
        (const struct option_spec[]){
            {"prompt", 'p', "TEXT", "the text to continue", WORD_NONE},
            {"max-tokens", 'n', "N", "how many tokens to add", WORD_NONE},
            {"temperature", 't', "T", "0 takes the likeliest token every time", WORD_NONE},
            {"top-k", 0, "K", "draw among the K likeliest; 0 = all", WORD_NONE},
            {"seed", 0, "N", "the same seed gives the same text", WORD_NONE},
            {"step", 0, "STEP", "the job's checkpoint of this step, not the newest", WORD_NONE},
            {NULL}},
    .examples =
        (const struct example[]){
            {"titanctl generate 12 --prompt '#include <' --max-tokens 200", "from a job's newest checkpoint"},
            {"titanctl generate ./step-300 --prompt 'int main' --temperature 0", "from a folder, no chance involved"},
            {NULL}},
    .run = run,
};
