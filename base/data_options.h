/* SPDX-License-Identifier: Apache-2.0 */
/* data_options.h - the options of `titanctl data` and of the `titan-worker data` that it starts. */
#ifndef TITAN_BASE_DATA_OPTIONS_H
#define TITAN_BASE_DATA_OPTIONS_H

#include "base/options.h"

/* Rows of a table of struct option_spec. */
#define DATA_OPTIONS                                                                                                   \
    {"tokenizer", 0, "T", "bytes, a tokenizer's file, or a folder with one; inspect: to decode or count with",         \
     WORD_FILE},                                                                                                       \
        {"pattern", 0, "P",                                                                                            \
         "of a file of ranks as tokenizer: gpt2, cl100k, o200k, llama3, llama4, qwen or a regular expression",         \
         WORD_NONE},                                                                                                   \
        {"out", 0, "DIR", "build: the folder of shards", WORD_FILE},                                                   \
        {"field", 0, "NAME", "build: the field of a JSON record that is the text; a.b is b in a (default text)",       \
         WORD_NONE},                                                                                                   \
        {"encoding", 0, "NAME", "build: of files without a byte order mark: utf-8 (default) or latin-1", WORD_NONE},   \
        {"eos", 0, "TOKEN", "build: the token behind each document, where the tokenizer names none", WORD_NONE},       \
        {"format", 0, "KIND", "build: what files are: auto (by their names), text, jsonl or sft", WORD_NONE},          \
        {"chat-template", 0, "NAME", "build: of conversations (sft): none (default), chatml, llama3 or gemma",         \
         WORD_NONE},                                                                                                   \
        {"prompt", 0, "NAME", "build: sft: the field that is asked (default prompt)", WORD_NONE},                      \
        {"completion", 0, "NAME", "build: sft: the field that answers (default completion)", WORD_NONE},               \
        {"bos", 0, NULL, "build: begin of text in front of each document too", WORD_NONE},                             \
        {"threads", 0, "N", "build: threads that tokenise (default: all cores)", WORD_NONE},                           \
        {"shard-tokens", 0, "N", "build: a shard ends with the document that reaches so many (default 268435456)",     \
         WORD_NONE},                                                                                                   \
        {"strict", 0, NULL, "build: stop at the first bad record", WORD_NONE},                                         \
        {"force", 0, NULL, "build: begin anew, whatever the folder holds", WORD_NONE},                                 \
        {"sample", 0, "N", "inspect: how many samples (default 3)", WORD_NONE},                                        \
    {                                                                                                                  \
        "seed", 0, "N", "inspect: another seed shows other samples", WORD_NONE                                         \
    }

#endif
