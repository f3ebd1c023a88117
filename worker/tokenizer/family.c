/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/tokenizer/family.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/mac.h"
#include "worker/tokenizer/tokenizer.h"

/* The patterns of tiktoken 0.14 and of the models' own code. Most possessive repetitions of the originals are plain
 * repetitions here. */
#define WORDS_CL100K "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define WORDS_O200K(first, rest)                                                                                       \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]" first "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]" rest            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SIGNS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
/* White space at the end of a text is one word, including line ends. */
static const char cl100k_pattern[] =
    "'(?i:[sdmt]|ll|ve|re)|" WORDS_CL100K "|\\p{N}{1,3}|" SIGNS "|\\s++(?!\\S)|\\s*[\\r\\n]|\\s+(?!\\S)|\\s";
static const char llama3_pattern[] = SHORT_FORMS "|" WORDS_CL100K "|\\p{N}{1,3}|" SIGNS "|" SPACES;
static const char qwen_pattern[] = SHORT_FORMS "|" WORDS_CL100K "|\\p{N}|" SIGNS "|" SPACES;
static const char o200k_pattern[] =
    WORDS_O200K("*", "+") "|" WORDS_O200K("+", "*") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;

static const struct special_run gpt2_special[] = {{50256, "<|endoftext|>", 0, 0}};
static const struct special_run cl100k_special[] = {{100257, "<|endoftext|>", 0, 0},
                                                    {100258, "<|fim_prefix|>", 0, 0},
                                                    {100259, "<|fim_middle|>", 0, 0},
                                                    {100260, "<|fim_suffix|>", 0, 0},
                                                    {100276, "<|endofprompt|>", 0, 0}};
static const struct special_run o200k_special[] = {{199999, "<|endoftext|>", 0, 0}, {200018, "<|endofprompt|>", 0, 0}};
static const struct special_run qwen_special[] = {{151643, "<|endoftext|>", 0, 0},
                                                  {151644, "<|im_start|>", 0, 0},
                                                  {151645, "<|im_end|>", 0, 0},
                                                  {151646, "<|extra_", 0, 205}};
#define RESERVED "<|reserved_special_token_"
static const struct special_run llama3_special[] = {{128000, "<|begin_of_text|>", 0, 0},
                                                    {128001, "<|end_of_text|>", 0, 0},
                                                    {128002, RESERVED, 0, 2},
                                                    {128004, "<|finetune_right_pad_id|>", 0, 0},
                                                    {128005, "<|step_id|>", 0, 0},
                                                    {128006, "<|start_header_id|>", 0, 0},
                                                    {128007, "<|end_header_id|>", 0, 0},
                                                    {128008, "<|eom_id|>", 0, 0},
                                                    {128009, "<|eot_id|>", 0, 0},
                                                    {128010, "<|python_tag|>", 0, 0},
                                                    {128011, RESERVED, 2, 245}};
static const struct special_run llama4_special[] = {{200000, "<|begin_of_text|>", 0, 0},
                                                    {200001, "<|end_of_text|>", 0, 0},
                                                    {200002, "<|fim_prefix|>", 0, 0},
                                                    {200003, "<|fim_middle|>", 0, 0},
                                                    {200004, "<|fim_suffix|>", 0, 0},
                                                    {200005, "<|header_start|>", 0, 0},
                                                    {200006, "<|header_end|>", 0, 0},
                                                    {200007, "<|eom|>", 0, 0},
                                                    {200008, "<|eot|>", 0, 0},
                                                    {200009, "<|step|>", 0, 0},
                                                    {200010, "<|text_post_train_reserved_special_token_", 0, 6},
                                                    {200016, "<|python_start|>", 0, 0},
                                                    {200017, "<|python_end|>", 0, 0},
                                                    {200018, "<|finetune_right_pad|>", 0, 0},
                                                    {200019, "<|text_post_train_reserved_special_token_", 8, 61},
                                                    {200080, "<|image_start|>", 0, 0},
                                                    {200081, "<|image_end|>", 0, 0},
                                                    {200082, "<|vision_reserved_special_token_", 0, 2},
                                                    {200084, "<|tile_x_separator|>", 0, 0},
                                                    {200085, "<|tile_y_separator|>", 0, 0},
                                                    {200086, "<|vision_reserved_special_token_", 2, 4},
                                                    {200090, "<|image|>", 0, 0},
                                                    {200091, "<|vision_reserved_special_token_", 6, 1},
                                                    {200092, "<|patch|>", 0, 0},
                                                    {200093, "<|vision_reserved_special_token_", 7, 1041},
                                                    {201134, "<|reasoning_reserved_special_token_", 0, 8},
                                                    {201142, "<|reasoning_thinking_start|>", 0, 0},
                                                    {201143, "<|reasoning_thinking_end|>", 0, 0},
                                                    {201144, RESERVED, 0, 904}};

enum { GPT2, CL100K, O200K, LLAMA3, LLAMA4, QWEN };
#define SPECIAL(of) .special = (of), .n_special = ARRAY_SIZE(of)
static const struct family families[] = {
    [GPT2] = {"gpt2", gpt2_pattern, false, 50256, SPECIAL(gpt2_special), .bos = TOKEN_NONE, .eos = 50256},
    [CL100K] = {"cl100k", cl100k_pattern, false, 100256, SPECIAL(cl100k_special), .bos = TOKEN_NONE, .eos = 100257},
    [O200K] = {"o200k", o200k_pattern, false, 199998, SPECIAL(o200k_special), .bos = TOKEN_NONE, .eos = 199999},
    [LLAMA3] = {"llama3", llama3_pattern, false, 128000, SPECIAL(llama3_special), .bos = 128000, .eos = 128001},
    [LLAMA4] = {"llama4", o200k_pattern, false, 200000, SPECIAL(llama4_special), .bos = 200000, .eos = 200001},
    [QWEN] = {"qwen", qwen_pattern, true, 151643, SPECIAL(qwen_special), .bos = TOKEN_NONE, .eos = 151643},
};

const struct family *family_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(families); i++)
        if (strcmp(families[i].name, name) == 0)
            return &families[i];
    return NULL;
}

const struct family *family_of_file(const void *bytes, size_t n)
{
    static const struct {
        uint8_t sum[MAC_BYTES];
        int family;
    } files[] = {
        {{0x30, 0x6c, 0xd2, 0x7f, 0x03, 0xc1, 0xa7, 0x14, 0xec, 0xa7, 0x10, 0x8e, 0x03, 0xd6, 0x6b, 0x7d,
          0xc0, 0x42, 0xab, 0xe8, 0xc2, 0x58, 0xb4, 0x4c, 0x19, 0x9a, 0x7e, 0xd9, 0x83, 0x8d, 0xd9, 0x30},
         GPT2}, /* r50k_base.tiktoken, and Whisper's gpt2.tiktoken */
        {{0x94, 0xb5, 0xca, 0x7d, 0xff, 0x4d, 0x00, 0x76, 0x7b, 0xc2, 0x56, 0xfd, 0xd1, 0xb2, 0x7e, 0x5b,
          0x17, 0x36, 0x1d, 0x7b, 0x8a, 0x5f, 0x96, 0x85, 0x47, 0xf9, 0xf2, 0x3e, 0xb7, 0x0d, 0x20, 0x69},
         GPT2}, /* p50k_base.tiktoken */
        {{0xb3, 0x4b, 0x36, 0x0d, 0xbb, 0x49, 0x3e, 0x78, 0x1e, 0x47, 0x97, 0x94, 0x58, 0x6d, 0x66, 0x17,
          0x00, 0x67, 0x0d, 0x65, 0x56, 0x40, 0x01, 0xf2, 0x30, 0x24, 0x97, 0x1d, 0x1f, 0x2f, 0xa1, 0x26},
         GPT2}, /* Whisper's multilingual.tiktoken */
        {{0x22, 0x39, 0x21, 0xb7, 0x6e, 0xe9, 0x9b, 0xde, 0x99, 0x5b, 0x7f, 0xf7, 0x38, 0x51, 0x3e, 0xef,
          0x10, 0x0f, 0xb5, 0x1d, 0x18, 0xc9, 0x35, 0x97, 0xa1, 0x13, 0xbc, 0xff, 0xe8, 0x65, 0xb2, 0xa7},
         CL100K}, /* cl100k_base.tiktoken */
        {{0x44, 0x6a, 0x95, 0x38, 0xcb, 0x6c, 0x34, 0x8e, 0x35, 0x16, 0x12, 0x0d, 0x7c, 0x08, 0xb0, 0x9f,
          0x57, 0xc3, 0x64, 0x95, 0xe2, 0xac, 0xff, 0xfe, 0x59, 0xa5, 0xbf, 0x8b, 0x0c, 0xfb, 0x1a, 0x2d},
         O200K}, /* o200k_base.tiktoken */
        {{0x82, 0xe9, 0xd3, 0x19, 0x79, 0xe9, 0x2a, 0xb9, 0x29, 0xcd, 0x54, 0x44, 0x40, 0xf1, 0x29, 0xd9,
          0xec, 0xd7, 0x97, 0xb6, 0x9e, 0x32, 0x7f, 0x80, 0xf1, 0x7e, 0x1c, 0x50, 0xd5, 0x55, 0x1b, 0x55},
         LLAMA3}, /* Llama 3's tokenizer.model */
        {{0xd0, 0xbd, 0xba, 0xf5, 0x9b, 0x07, 0x62, 0xc8, 0xc8, 0x07, 0x61, 0x7e, 0x2d, 0x8e, 0xa5, 0x14,
          0x20, 0xeb, 0x1b, 0x1d, 0xe2, 0x66, 0xdf, 0x24, 0x95, 0xbe, 0x75, 0x5c, 0x8e, 0x0e, 0xd6, 0xed},
         LLAMA4}, /* Llama 4's */
        {{0xb2, 0xb1, 0xb8, 0xdf, 0xb5, 0xcc, 0x5f, 0x02, 0x4b, 0xaf, 0xc3, 0x73, 0x12, 0x1c, 0x6a, 0xba,
          0x3f, 0x66, 0xf9, 0xa5, 0xa0, 0x26, 0x9e, 0x24, 0x34, 0x70, 0xa1, 0xde, 0x16, 0xa3, 0x31, 0x86},
         QWEN}, /* qwen.tiktoken */
    };
    struct sha256 s;
    uint8_t sum[MAC_BYTES];
    sha256_begin(&s);
    sha256_add(&s, bytes, n);
    sha256_end(&s, sum);
    for (size_t i = 0; i < ARRAY_SIZE(files); i++)
        if (memcmp(files[i].sum, sum, MAC_BYTES) == 0)
            return &families[files[i].family];
    return NULL;
}
