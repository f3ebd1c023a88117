/* SPDX-License-Identifier: Apache-2.0 */
/* convert.c - titanctl convert: a checkpoint to a Hugging Face directory, and back. */
#include "ctl/worker_tool.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    struct ctl *ctl = with;
    char path[PATH_MAX];
    TRY(checkpoint_resolve(ctl, args, path, err));
    return worker_do(ctl, args, (char *[]){path, args->words[1]}, 2, "--output=json", err);
}

const struct command command_convert = {
    .name = "convert",
    .summary = "write a checkpoint as a Hugging Face directory, or one of those as a checkpoint",
    .arguments = "JOB[@STEP]|PATH[@STEP] OUT_DIR",
    .text =
        "OUT_DIR gets model.safetensors and config.json, as `transformers` loads them. It must be empty, or missing.\n"
        "Where PATH is a Hugging Face directory with safetensors, OUT_DIR gets a checkpoint of step 0 with its "
        "weights.",
    .min_args = 2,
    .max_args = 2,
    .word = WORD_JOB,
    .options =
        (const struct option_spec[]){
            {"step", 0, "STEP", "the job's checkpoint of this step, not the newest", WORD_NONE},
            {"dtype", 0, "TYPE", "of the Hugging Face files: bf16 (default), f16 or f32", WORD_NONE},
            {"force", 'f', NULL,
             "also into a folder that is not empty; weights and files of the same names are replaced", WORD_NONE},
            {NULL}},
    .examples = (const struct example[]){{"titanctl convert 12 ./hf", "a job's newest checkpoint"},
                                         {"titanctl convert ./Qwen3-0.6B ./start", "weights to begin from"},
                                         {NULL}},
    .run = run,
};
