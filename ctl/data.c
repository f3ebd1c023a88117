/* SPDX-License-Identifier: Apache-2.0 */
/* data.c - titanctl data: token files on this machine. */
#include "base/data_options.h"
#include "ctl/worker_tool.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    return worker_do(with, args, args->words, args->n, "--output=json", err);
}

const struct command command_data = {
    .name = "data",
    .summary = "make files of tokens, look into them, check them",
    .arguments = "build INPUT... | inspect DIR|FILE | verify DIR|FILE...",
    .text =
        "build makes a folder of tokens of text files, files of JSON lines (.jsonl, .json) and folders of them, also "
        "in\n"
        "gzip or zstd: what training.dataset_path then names. A folder with JSON lines gives these alone. Behind each\n"
        "document comes the tokenizer's end of text. The folder does not depend on the number of threads; a build "
        "that\n"
        "was ended goes on where it was when it is given again. inspect and verify also read token files of Megatron,\n"
        "llm.c and nanoGPT. All of it runs in this process, on this machine; docs/data.md has formats and rules.",
    .min_args = 1,
    .max_args = ANY_NUMBER,
    .word = WORD_FILE,
    .options = (const struct option_spec[]){DATA_OPTIONS, {NULL}},
    .examples = (const struct example[]){{"titanctl data build --tokenizer ./llama3 --out ./c4-tokens ./c4/en",
                                          "C4's shards, as they were downloaded"},
                                         {"titanctl data inspect ./c4-tokens --sample 5", "five samples, decoded"},
                                         {NULL}},
    .run = run,
};
