/* SPDX-License-Identifier: Apache-2.0 */
/* data.c - titanctl data: files of tokens, on this machine. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/data_options.h"
#include "ctl/worker_tool.h"

static titan_status run(void *with, const struct args *args, struct titan_error *err)
{
    const struct ctl *ctl = with;
    static char *const json[] = {"--output", "json"};
    _cleanup_free_ char **argv = calloc((size_t)args->n + 2 * (size_t)args->n_given + 6, sizeof(*argv));
    _cleanup_free_ char(*names)[24] = calloc((size_t)args->n_given + 1, sizeof(*names));
    size_t n = 0;
    if (!argv || !names)
        return titan_fail(err, TITAN_ENOMEM, "out of memory");
    argv[n++] = "titan-worker";
    argv[n++] = "data";
    for (int i = 0; i < args->n_given; i++) {
        const struct given *given = &args->given[i];
        for (const struct option_spec *own = args->command->options; own->name; own++) {
            if (own != given->spec)
                continue;
            (void)snprintf(names[i], sizeof(names[i]), "--%s", own->name);
            argv[n++] = names[i];
            if (given->value)
                argv[n++] = (char *)(uintptr_t)given->value;
        }
    }
    if (ctl->json) {
        argv[n++] = json[0];
        argv[n++] = json[1];
    }
    argv[n++] = "--";
    for (int i = 0; i < args->n; i++)
        argv[n++] = args->words[i];
    titan_assert(n < (size_t)args->n + 2 * (size_t)args->n_given + 6);
    return worker_become(argv, err);
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
