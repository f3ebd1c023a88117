/* SPDX-License-Identifier: Apache-2.0 */
/* Ids are compared with those of other packages in tests/interop/test_tokenizer.py; here: what needs none of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "tests/support/root_dir.h"
#include "worker/tokenizer/pattern.h"
#include "worker/tokenizer/tokenizer.h"

/* Its path, until the next call. */
static const char *put_file(const char *name, const char *text, size_t n)
{
    static char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static struct tokenizer *must_open_as(const char *path, const char *pattern)
{
    struct tokenizer *t = NULL;
    struct titan_error err = {0};
    if (tokenizer_open_as(path, pattern, &t, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    return t;
}

static struct tokenizer *must_open(const char *path)
{
    return must_open_as(path, NULL);
}

static void expect_ids(const struct tokenizer *t, const char *text, size_t n, const int32_t *ids, size_t n_ids)
{
    struct tokenizer_encoder *e = NULL;
    struct tokens tokens = {0};
    assert_int_equal(tokenizer_encoder_open(t, &e, NULL), TITAN_OK);
    for (int i = 0; i < 2; i++) { /* the second time words have been met */
        tokens.n = 0;
        assert_int_equal(tokenizer_encode(e, text, n, &tokens, NULL), TITAN_OK);
        assert_int_equal(tokens.n, n_ids);
        assert_memory_equal(tokens.ids, ids, n_ids * sizeof(*ids));
    }
    free(tokens.ids);
    tokenizer_encoder_close(e);
}

static void bytes_are_tokens(void **state)
{
    (void)state;
    struct tokenizer *t = must_open("bytes");
    struct buf text = BUF_INIT;
    unsigned char all[256];
    int32_t ids[256];
    for (int i = 0; i < 256; i++)
        ids[i] = all[i] = (unsigned char)(255 - i);

    assert_int_equal(tokenizer_vocabulary(t), 256);
    assert_int_equal(tokenizer_bos(t), TOKEN_NONE);
    assert_int_equal(tokenizer_eos(t), 0);
    expect_ids(t, (const char *)all, sizeof(all), ids, 256);
    assert_int_equal(tokenizer_decode(t, ids, 256, &text, NULL), TITAN_OK);
    assert_int_equal(text.len, sizeof(all));
    assert_memory_equal(text.data, all, sizeof(all));

    const int32_t wrong[2] = {-1, 256};
    for (int i = 0; i < 2; i++)
        assert_int_equal(tokenizer_decode(t, &wrong[i], 1, &text, NULL), TITAN_EINVAL);
    buf_free(&text);
    tokenizer_close(t);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

#define MODEL(vocab, merges) "\"model\": {\"type\": \"BPE\", \"vocab\": {" vocab "}, \"merges\": [" merges "]}"
#define LEVEL "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}"
#define SPLIT(pattern)                                                                                                 \
    "\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": {\"Regex\": \"" pattern "\"}}"
#define CHARSMAP(base64) "\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"" base64 "\"}"
#define LOWER "\"normalizer\": {\"type\": \"Lowercase\"},"
#define STRIP "\"normalizer\": {\"type\": \"Strip\"},"
#define FILE_OF(text) "{" text "}"
#define ADDED(...) "\"added_tokens\": [{" __VA_ARGS__ "}]"

/* The folder's configuration names begin and end; special tokens in a text are text, others are found. */
static void a_folder_is_read(void **state)
{
    (void)state;
    static const char file[] =
        FILE_OF("\"added_tokens\": [{\"id\": 9, \"content\": \"<e>\", \"special\": true}, "
                "{\"id\": 7, \"content\": \"[x]\", \"special\": false, \"normalized\": false}]," LEVEL
                "," MODEL("\"a\": 0, \"b\": 1, \"ab\": 2, \"<\": 3, \"e\": 4, \">\": 5, \"\\u0000\": 6", "\"a b\""));
    static const char config[] = "{\"bos_token\": {\"content\": \"ab\"}, \"eos_token\": \"<e>\"}";
    static const int32_t ids[] = {2, 3, 4, 5, 7, 2, 2, 0}, nul = 6, gap = 8;
    struct buf text = BUF_INIT;

    (void)put_file("tokenizer_config.json", config, strlen(config));
    struct tokenizer *by_file = must_open(put_file("tokenizer.json", file, strlen(file))), *t = must_open(root);
    assert_int_equal(tokenizer_vocabulary(t), 10);
    assert_int_equal(tokenizer_bos(t), 2);
    assert_int_equal(tokenizer_eos(t), 9);
    expect_ids(t, "ab<e>[x]ab?aba", 14, ids, ARRAY_SIZE(ids)); /* ? is no token, and left out */
    assert_int_equal(tokenizer_decode(t, &nul, 1, &text, NULL), TITAN_OK);
    assert_int_equal(text.len, 1);
    assert_int_equal(text.data[0], 0);
    assert_int_equal(tokenizer_decode(t, &gap, 1, &text, NULL), TITAN_EINVAL);
    buf_free(&text);

    assert_true(tokenizer_hash(t) == tokenizer_hash(by_file));
    tokenizer_close(by_file);
    (void)put_file("tokenizer_config.json", "{}", 2);
    struct tokenizer *other = must_open(root);
    assert_int_equal(tokenizer_bos(other), TOKEN_NONE);
    assert_true(tokenizer_hash(t) != tokenizer_hash(other));
    tokenizer_close(other);
    tokenizer_close(t);
}

/* Behind the normalizer, at the end of words, with the white space beside it; what has been taken is not taken again.
 */
static void added_tokens_are_found(void **state)
{
    (void)state;
    static const char file[] = FILE_OF(LOWER ADDED(
        "\"id\": 10, \"content\": \"X\"}, {\"id\": 11, \"content\": \"Y\", \"normalized\": false}, "
        "{\"id\": 12, \"content\": \"<l>\", \"lstrip\": true}, "
        "{\"id\": 13, \"content\": \"<r>\", \"rstrip\": true}, "
        "{\"id\": 14, \"content\": \"<w>\", \"single_word\": true}, "
        "{\"id\": 15, \"content\": \"<W>\", \"normalized\": false, \"special\": true") "," LEVEL
                                                                                       "," MODEL(
                                                                                           "\"a\": 0, \"\\u0120\": 1, "
                                                                                           "\"x\": 2, \"y\": 3, \"<\": "
                                                                                           "4, \"w\": 5, \">\": 6, "
                                                                                           "\"\\u010a\": 7",
                                                                                           ""));
    static const struct {
        const char *text;
        int32_t ids[8];
        size_t n;
    } cases[] = {
        {"axX", {0, 10, 10}, 3},          {"yYy", {3, 11, 3}, 3},   {"a  <L>\n", {0, 12, 7}, 3},
        {"a <R> \na", {0, 1, 13, 0}, 4},  {"<r> <l>", {13, 12}, 2}, {"a<w>", {0, 4, 5, 6}, 4},
        {"a <W> a", {0, 1, 14, 1, 0}, 5}, {"\xc2\xb2<w>", {14}, 1},
    };
    struct tokenizer *t = must_open(put_file("tokenizer.json", file, strlen(file)));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        expect_ids(t, cases[i].text, strlen(cases[i].text), cases[i].ids, cases[i].n);
    tokenizer_close(t);
}

struct bad {
    const char *text, *message;
};

static void expect_refusals(const char *name, const char *pattern, const struct bad *bad, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct tokenizer *t = NULL;
        struct titan_error err = {0};
        const titan_status status =
            tokenizer_open_as(put_file(name, bad[i].text, strlen(bad[i].text)), pattern, &t, &err);
        assert_true(status == TITAN_EINVAL || status == TITAN_EUNSUPPORTED);
        if (!strstr(err.msg, bad[i].message) || !strstr(err.msg, root) || strchr(err.msg, '\n'))
            fail_msg("%s\n  should say: %s", err.msg, bad[i].message);
    }
}

static void bad_files_are_refused(void **state)
{
    (void)state;
    static const struct bad json[] = {
        {"", "JSON at byte 0"},
        {"{\"model\": {\"type\": \"BPE\", \"voc", "JSON at byte 30"},
        {"[1]", "it has no model"},
        {FILE_OF("\"model\": {\"type\": \"WordLevel\"}"), "model 'WordLevel' is not known; there are BPE"},
        {FILE_OF("\"model\": {\"type\": \"BPE\", \"merges\": []}"), "the model has no vocab"},
        {FILE_OF("\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}"), "the model has no merges"},
        {FILE_OF(MODEL("\"a\": 0, \"b\": 0", "")), "two tokens have the id 0, 'b' is the second"},
        {FILE_OF(MODEL("\"a\": 0, \"a\": 1", "")), "the tokens 0 and 1 are the same, 'a'"},
        {FILE_OF(MODEL("\"a\": -1", "")), "token 'a' has the id -1; ids are 0 to 16777215"},
        {FILE_OF(MODEL("\"a\": 16777216", "")), "token 'a' has the id 16777216"},
        {FILE_OF(MODEL("\"a\": 99999999999999999999", "")), "the id of token 'a' is no whole number"},
        {FILE_OF(MODEL("\"a\": \"x\"", "")), "the id of token 'a' is no whole number"},
        {FILE_OF(MODEL("\"a\": 0, \"b\": 1", "\"a b\"")), "merge 0 names 'ab', which the vocabulary lacks"},
        {FILE_OF(MODEL("\"a\": 0, \"aa\": 1", "\"a a\", [\"a\", \"c\"]")), "merge 1 names 'c'"},
        {FILE_OF(MODEL("\"a\": 0", "\"a b c\"")), "merge 0 is not two tokens"},
        {FILE_OF(MODEL("\"a\": 0", "[\"a\"]")), "merge 0 is not two tokens"},
        {FILE_OF("\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"a\": 0}, \"merges\": []}"),
         "unk_token '?' is not in the vocabulary"},
        {FILE_OF("\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {\"a\": 0}, \"merges\": []}"),
         "byte_fallback needs the token '<0x00>'"},
        {FILE_OF("\"model\": {\"type\": \"BPE\", \"dropout\": 0.1, \"vocab\": {\"a\": 0}, \"merges\": []}"), "dropout"},
        {FILE_OF("\"model\": {\"type\": \"BPE\", \"end_of_word_suffix\": \"w\", \"vocab\": {}, \"merges\": []}"),
         "end_of_word_suffix is not known"},
        {FILE_OF("\"normalizer\": {\"type\": \"ByteLevel\"}," MODEL("\"a\": 0", "")),
         "normalizer 'ByteLevel' is not known; there are BertNormalizer"},
        {FILE_OF("\"normalizer\": {\"type\": \"Precompiled\"}," MODEL("\"a\": 0", "")), "without precompiled_charsmap"},
        {FILE_OF(CHARSMAP("AAAA") "," MODEL("\"a\": 0", "")), "precompiled_charsmap is not a table"},
        {FILE_OF(CHARSMAP("BAAAAAAAAAA?") "," MODEL("\"a\": 0", "")), "precompiled_charsmap is not a table"},
        {FILE_OF(CHARSMAP("CAAAAAAAAAA=") "," MODEL("\"a\": 0", "")), "precompiled_charsmap is not a table"},
        {FILE_OF(CHARSMAP("BAAAAAAAAAD/AAAA") "," MODEL("\"a\": 0", "")),
         "precompiled_charsmap has text that is no UTF-8"},
        {FILE_OF("\"normalizer\": {}," MODEL("\"a\": 0", "")), "normalizer has no type"},
        {FILE_OF("\"pre_tokenizer\": {\"type\": \"Whitespace\"}," MODEL("\"a\": 0", "")),
         "pre-tokenizer 'Whitespace' is not known; there are BertPreTokenizer"},
        {FILE_OF("\"normalizer\": {\"type\": \"Strip\"}, \"pre_tokenizer\": {\"type\": \"Metaspace\", "
                 "\"prepend_scheme\": \"first\"}," MODEL("\"a\": 0", "")),
         "prepend_scheme 'first' behind a normalizer"},
        {FILE_OF("\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"WhitespaceSplit\"}, "
                 "{\"type\": \"Metaspace\", \"split\": false}]}," MODEL("\"a\": 0", "")),
         "'Metaspace' behind one that cuts is known behind 'WhitespaceSplit'"},
        {FILE_OF("\"model\": {\"type\": \"Unigram\", \"vocab\": {}}"), "the model has no vocab"},
        {FILE_OF("\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", 0.5], [\"b\"]]}"),
         "entry 1 of vocab is not a token and its score"},
        {FILE_OF("\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", 0.5], [\"a\", 1]]}"),
         "the tokens 0 and 1 are the same, 'a'"},
        {FILE_OF("\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", 0.5]]}"),
         "Unigram without unk_id is not known"},
        {FILE_OF("\"model\": {\"type\": \"Unigram\", \"unk_id\": 1, \"vocab\": [[\"a\", 0.5]]}"),
         "unk_id is not a token"},
        {FILE_OF("\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}"),
         "unk_token '[UNK]' is not in the vocabulary"},
        {FILE_OF("\"model\": {\"type\": \"WordPiece\", \"max_input_chars_per_word\": 1001, \"vocab\": {\"a\": 0}}"),
         "max_input_chars_per_word is 1001; 0 to 1000 characters are known"},
        {FILE_OF(LEVEL ", \"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}"),
         "pre-tokenizer 'ByteLevel' is known with the model BPE, not WordPiece"},
        {FILE_OF("\"decoder\": {\"type\": \"CTC\"}," MODEL("\"a\": 0", "")), "decoder 'CTC' is not known"},
        {FILE_OF(SPLIT("(?<=a)b") "," MODEL("\"a\": 0", "")), "byte 1: this kind of group is not known"},
        {FILE_OF(SPLIT("\\\\p{Han}+") "," MODEL("\"a\": 0", "")), "only general categories are known"},
        {FILE_OF(SPLIT("a*") "," MODEL("\"a\": 0", "")), "it matches an empty text"},
        {FILE_OF(ADDED("\"id\": 1, \"content\": \"a\"") "," MODEL("\"a\": 0", "")),
         "the added token 'a' has the id 1, and 0 in the vocabulary"},
        {FILE_OF(ADDED("\"id\": 0, \"content\": \"b\"") "," MODEL("\"a\": 0", "")), "two tokens have the id 0"},
        {FILE_OF(
             LOWER ADDED("\"id\": 1, \"content\": \"b\"}, {\"id\": 2, \"content\": \"B\"") "," MODEL("\"a\": 0", "")),
         "the normalizer makes one text of the added tokens 1 and 2"},
        {FILE_OF(STRIP ADDED("\"id\": 1, \"content\": \" \"") "," MODEL("\"a\": 0", "")),
         "the normalizer leaves nothing of the added token 1"},
        {FILE_OF(ADDED("\"id\": 1") "," MODEL("\"a\": 0", "")), "an added token without content"},
    };
    static const struct bad ranks[] = {
        {"", "it is not a file of ranks"},
        {"\n\x0b\x3cunk> 0 1", "it is not a file of ranks"},
        {"IQ== 0\nIg== x\n", "line 2: a base64 token"},
        {"IQ== 0\nIg==1\n", "line 2: a base64 token"},
        {"IQ== 0\nI=== 1\n", "line 2: a base64 token"},
        {"IQ== 0\nIg== 0\n", "line 2: two tokens have the id 0"},
        {"IQ== 0\nIQ== 1\n", "line 2: the tokens 0 and 1 are the same"},
        {"IQ== 0\nIg== 99999999\n", "line 2: token '\"' has the id 99999999"},
        {"IQ== 0\n== 1\n", "line 2: a base64 token"},
        {"IQ== 0\nIg== 2\n", "no token has the rank 1"},
        {"IQ== 0\nIg== 1\n", "the byte 0x00 is no token"},
        {"IQ== 0\n= 1\n", "the byte 0x00 is no token"},
    };
#define TEKKEN(pattern, size, special, more)                                                                           \
    "{\"config\": {\"pattern\": \"" pattern "\", \"default_vocab_size\": " #size                                       \
    ", \"default_num_special_tokens\": " #special "}, \"vocab\": [{\"rank\": 0, \"token_bytes\": \"IQ==\"}]" more "}"
    static const struct bad tekken[] = {
        {TEKKEN("a", 2, 1, ""), "the byte 0x00 is no token"},
        {TEKKEN("a", 3, 1, ""), "vocab has 2 tokens, default_vocab_size is 3"},
        {TEKKEN("a*", 2, 1, ""), "it matches an empty text"},
        {TEKKEN("a", 2, 2, ""), "config lacks a pattern"},
        {TEKKEN("a", 2, -1, ""), "config lacks a pattern"},
        {TEKKEN("a", 16777217, 1, ""), "config lacks a pattern"},
        {TEKKEN("a", 2, 1, ", \"special_tokens\": [{\"rank\": 1, \"token_str\": \"x\"}]"), "rank that is not below 1"},
        {TEKKEN("a", 2, 1, ", \"special_tokens\": [{\"rank\": 0}]"), "a special token without token_str"},
        {"{\"config\": {}, \"vocab\": []}", "config lacks a pattern"},
        {"{\"config\": {\"pattern\": \"a\", \"default_vocab_size\": 1, \"default_num_special_tokens\": 0}, \"vocab\": "
         "[{\"rank\": 0, "
         "\"token_bytes\": \"I===\"}]}",
         "a token of vocab has no rank, or no token_bytes"},
    };
    static const struct bad patterns[] = {
        {"", "a file of ranks does not hold how text is cut; --pattern, model.tokenizer_pattern"},
        {"cl100k_base", "there is no pattern 'cl100k_base'; --pattern"},
        {"a|", "'a|', byte 2: it matches an empty text"},
    };
    char deep[300] = {0};
    const struct bad nested = {deep, "nested too deep"};
    memset(deep, '[', sizeof(deep) - 1);
    (void)remove(put_file("tokenizer_config.json", "", 0));
    expect_refusals("tokenizer.json", NULL, json, ARRAY_SIZE(json));
    expect_refusals("tokenizer.json", NULL, &nested, 1);
    expect_refusals("tokenizer.model", "gpt2", ranks, ARRAY_SIZE(ranks));
    expect_refusals("tekken.json", NULL, tekken, ARRAY_SIZE(tekken));
    expect_refusals("tekken.json", "gpt2", &(struct bad){TEKKEN("a", 2, 1, ""), "has its own pattern: --pattern"}, 1);
    for (size_t i = 0; i < ARRAY_SIZE(patterns); i++)
        expect_refusals("tokenizer.model", patterns[i].text, &(struct bad){"IQ== 0\n", patterns[i].message}, 1);
    (void)remove(put_file("tekken.json", "", 0));

    struct tokenizer *t = NULL;
    struct titan_error err = {0};
    static const char good[] = FILE_OF(MODEL("\"a\": 0", ""));
    (void)put_file("tokenizer.json", good, strlen(good));
    (void)put_file("tokenizer_config.json", "{\"eos_token\": \"z\"}", 18);
    assert_int_equal(tokenizer_open(root, &t, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "tokenizer_config.json': eos_token 'z' is no token"));
    assert_int_equal(tokenizer_open("/nowhere", &t, &err), TITAN_ENOTFOUND);
    char empty[96];
    (void)snprintf(empty, sizeof(empty), "%s/empty", root);
    assert_int_equal(mkdir(empty, 0755), 0);
    assert_int_equal(tokenizer_open(empty, &t, &err), TITAN_ENOTFOUND);
    assert_non_null(strstr(err.msg, "has neither tokenizer.json nor a tokenizer.model"));
}

/* --- patterns ----------------------------------------------------------------------------------------------------- */

static void patterns_match(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text;
        size_t bytes; /* of the match at the text's beginning; 0: none */
    } cases[] = {
        {"a|ab", "ab", 1},        {"ab|a", "ab", 2},         {"a+?", "", SIZE_MAX},  {"a+b", "aab", 3},
        {"a+a", "aaa", 3},        {"a++a", "aaa", 0},        {"(?:a|b)?c", "bc", 2}, {"(?:a|b)?c", "c", 1},
        {"(?i:'s)", "'S", 2},     {"(?i:s)", "\u017f", 2},   {"s", "S", 0},          {"\\s+(?!\\S)", "   x", 2},
        {"\\s+(?!\\S)", "  ", 2}, {"a{2,3}", "aaaa", 3},     {"a{2}", "a", 0},       {"[^\\r\\n\\p{L}]", "\u00e9", 0},
        {"[a\\-z]+", "a-z", 3},   {"\\p{N}+", "1\u00b2", 3}, {"[]]", "", SIZE_MAX},  {"a{3,2}", "", SIZE_MAX},
        {"(a", "", SIZE_MAX},     {"a)", "", SIZE_MAX},      {"[a", "", SIZE_MAX},   {"a**", "", SIZE_MAX},
        {"(a)+", "", SIZE_MAX},   {"^a", "", SIZE_MAX},      {"a$", "", SIZE_MAX},   {"\\w", "", SIZE_MAX},
        {"[a[b]]", "", SIZE_MAX}, {"a{1,2}+", "", SIZE_MAX}, {"x*", "", SIZE_MAX},   {"a|", "", SIZE_MAX},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct pattern *p = NULL;
        struct titan_error err = {0};
        const titan_status status = pattern_open(cases[i].pattern, false, &p, &err);
        if ((status == TITAN_OK) == (cases[i].bytes == SIZE_MAX))
            fail_msg("'%s': %s", cases[i].pattern, status == TITAN_OK ? "accepted" : err.msg);
        const unsigned char *text = (const unsigned char *)cases[i].text;
        if (status == TITAN_OK && pattern_match(p, text, text + strlen(cases[i].text)) != cases[i].bytes)
            fail_msg("'%s' on '%s'", cases[i].pattern, cases[i].text);
        pattern_close(p);
    }
}

/* A pattern that would try every way to share out a run of letters is given up, and says so. */
static void endless_patterns_end(void **state)
{
    (void)state;
    struct pattern *p = NULL;
    unsigned char run[4000];
    memset(run, 'a', sizeof(run));
    assert_int_equal(pattern_open("a*a*a*a*a*a*a*a*b", false, &p, NULL), TITAN_OK);
    assert_true(pattern_match(p, run, run + sizeof(run)) == PATTERN_TOO_LONG);
    pattern_close(p);
}

/* --- long texts, many threads ------------------------------------------------------------------------------------- */

#define RUN (1 << 20)

/* Ranks of all bytes, and of aa, aaaa, ... of up to 256. */
static struct tokenizer *open_runs(const char *pattern)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct buf text = BUF_INIT;
    for (int b = 0; b < 256; b++)
        buf_printf(&text, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
    for (int power = 1; power <= 8; power++) {
        const int n = 1 << power;
        for (int i = 0; i + 2 < n; i += 3)
            buf_puts(&text, "YWFh");
        buf_puts(&text, n % 3 == 2 ? "YWE=" : n % 3 == 1 ? "YQ==" : "");
        buf_printf(&text, " %d\n", 255 + power);
    }
    struct tokenizer *t = must_open_as(put_file("tokenizer.model", text.data, text.len), pattern);
    buf_free(&text);
    return t;
}

struct thread {
    pthread_t id;
    const struct tokenizer *t;
    const char *text;
    struct tokens tokens;
};

static void *encode_run(void *arg)
{
    struct thread *me = arg;
    struct tokenizer_encoder *e = NULL;
    if (tokenizer_encoder_open(me->t, &e, NULL) == TITAN_OK)
        (void)!tokenizer_encode(e, me->text, RUN + 3, &me->tokens, NULL);
    tokenizer_encoder_close(e);
    return NULL;
}

/* A word of a megabyte, by several threads at once: 4,096 times the longest token, then what the lower ranks leave. */
static void long_words_are_merged(void **state)
{
    (void)state;
    struct tokenizer *t = open_runs("llama3");
    char *text = malloc(RUN + 3);
    struct thread threads[3] = {{0}};
    assert_non_null(text);
    memset(text, 'a', RUN + 3);
    assert_int_equal(tokenizer_vocabulary(t), 264 + 256);
    assert_int_equal(tokenizer_bos(t), 264);
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
        threads[i] = (struct thread){.t = t, .text = text};
        assert_int_equal(pthread_create(&threads[i].id, NULL, encode_run, &threads[i]), 0);
    }
    for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
        const struct tokens *k = &threads[i].tokens;
        assert_int_equal(pthread_join(threads[i].id, NULL), 0);
        assert_int_equal(k->n, RUN / 256 + 2);
        for (size_t j = 0; j < RUN / 256; j++)
            assert_int_equal(k->ids[j], 263);
        assert_int_equal(k->ids[k->n - 2], 256);
        assert_int_equal(k->ids[k->n - 1], 'a');
        free(threads[i].tokens.ids);
    }
    free(text);
    tokenizer_close(t);
}

/* The pattern decides ids, and so it is part of the hash; the family's name and its expression cut alike. */
static void patterns_are_told_apart(void **state)
{
    (void)state;
    static const char *const patterns[] = {"gpt2",   "cl100k", "o200k",     "llama3",
                                           "llama4", "qwen",   "\\S+|\\s+", "\\S|\\s+"};
    static const int32_t eos[] = {264, 265, 265, 265, 265, 264, TOKEN_NONE, TOKEN_NONE};
    static const int64_t vocabulary[] = {265, 285, 285, 520, 2312, 472, 264, 264};
    uint64_t hashes[ARRAY_SIZE(patterns)];
    for (size_t i = 0; i < ARRAY_SIZE(patterns); i++) {
        struct tokenizer *t = open_runs(patterns[i]);
        hashes[i] = tokenizer_hash(t);
        assert_string_equal(tokenizer_pattern(t), patterns[i]);
        assert_int_equal(tokenizer_eos(t), eos[i]);
        assert_int_equal(tokenizer_vocabulary(t), vocabulary[i]);
        for (size_t k = 0; k < i; k++)
            assert_true(hashes[k] != hashes[i]);
        tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_tokens),
        cmocka_unit_test_setup_teardown(a_folder_is_read, make_root, remove_root),
        cmocka_unit_test_setup_teardown(added_tokens_are_found, make_root, remove_root),
        cmocka_unit_test_setup_teardown(bad_files_are_refused, make_root, remove_root),
        cmocka_unit_test(patterns_match),
        cmocka_unit_test(endless_patterns_end),
        cmocka_unit_test_setup_teardown(long_words_are_merged, make_root, remove_root),
        cmocka_unit_test_setup_teardown(patterns_are_told_apart, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
