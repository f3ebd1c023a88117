/* SPDX-License-Identifier: Apache-2.0 */
/* convert.c - titanctl convert: a checkpoint as a Hugging Face directory. */
#include "ctl/worker_tool.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    char path[PATH_MAX];
    TRY(checkpoint_resolve(ctl, args, path, err));
    char *argv[] = {"titan-worker", "convert", path, args->words[1], args_has(args, "force") ? "--force" : NULL, NULL};
    return worker_become(argv, err);
}

const struct command command_convert = {
    .name = "convert",
    .summary = "write a checkpoint as a Hugging Face directory",
    .arguments = "JOB|PATH OUT_DIR",
    .text =
        "OUT_DIR gets model.safetensors and config.json, as `transformers` loads them. It must be empty, or missing.",
    .min_args = 2,
    .max_args = 2,
    .word = WORD_JOB,
    .options =
        (const struct option_spec[]){
            {"step", 0, "STEP", "the job's checkpoint of this step, not the newest", WORD_NONE},
            {"force", 'f', NULL, "also into a folder that is not empty; files of the same names are replaced",
             WORD_NONE},
            {NULL}},
    .examples = (const struct example[]){{"titanctl convert 12 ./hf", "a job's newest checkpoint"}, {NULL}},
    .run = run,
};
