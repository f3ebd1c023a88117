/* SPDX-License-Identifier: Apache-2.0 */
/* eval_options.h - the options of `titanctl eval` and of the `titan-worker eval` that replaces it. */
#ifndef TITAN_BASE_EVAL_OPTIONS_H
#define TITAN_BASE_EVAL_OPTIONS_H

#include "base/options.h"

/* Rows of a table of struct option_spec. */
#define EVAL_OPTIONS                                                                                                   \
    {"data", 0, "PATH", "a file or a folder (default: the run's validation data)", WORD_FILE},                         \
        {"dataset", 0, "KIND", "what it is: text, jsonl, c4, c4_test, c4_validation or sft (default: as in the run)",  \
         WORD_NONE},                                                                                                   \
        {"steps", 0, "N", "steps of the run's validation batch, -1 = all of the data (default: as in the run)",        \
         WORD_NONE},                                                                                                   \
        {"seq-len", 0, "N", "tokens of a sample (default: as in the run)", WORD_NONE},                                 \
        {"tokenizer", 't', "T", "where the run's tokenizer is now (default: where it was)", WORD_FILE},                \
        {"pattern", 0, "P", "of a file of ranks as tokenizer: how text is cut (default: as in the run)", WORD_NONE},   \
        {"device", 0, "NAME", "auto, cpu or cuda (default: the run's)", WORD_NONE},                                    \
    {                                                                                                                  \
        "dtype", 0, "TYPE", "bf16 or f32 (default: what the run computed in)", WORD_NONE                               \
    }

#endif
