/* SPDX-License-Identifier: Apache-2.0 */
/* chat.h: the tokens of a conversation and which of them are trained on, and what is no conversation. What the
 * templates of models make of more is held against transformers by tests/interop/test_conversations.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "tests/support/root_dir.h"
#include "worker/data/chat.h"

/* A character is a token; so are the two of chatml and the end of text. */
static const char file[] = "{\"added_tokens\": [{\"id\": 100, \"content\": \"<|im_start|>\", \"special\": true}, "
                           "{\"id\": 101, \"content\": \"<|im_end|>\", \"special\": true}, {\"id\": 102, \"content\": "
                           "\"<e>\", \"special\": true}],"
                           "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, "
                           "\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"\\u010a\": 10, \"<\": 11, "
                           "\">\": 12, \"|\": 13, \"_\": 14, "
                           "\"a\": 20, \"b\": 21, \"c\": 22, \"d\": 23, \"e\": 24, \"f\": 25, \"g\": 26, \"h\": 27, "
                           "\"i\": 28, \"j\": 29, \"k\": 30, \"l\": 31, "
                           "\"m\": 32, \"n\": 33, \"o\": 34, \"p\": 35, \"q\": 36, \"r\": 37, \"s\": 38, \"t\": 39, "
                           "\"u\": 40, \"v\": 41, \"w\": 42, \"x\": 43, "
                           "\"y\": 44, \"z\": 45}}}";

static struct tokenizer *tokenizer;
static struct tokenizer_encoder *encoder;

static int open_all(void **state)
{
    struct titan_error err = {0};
    assert_int_equal(make_root(state), 0);
    assert_int_equal(file_replace(root_path("tokenizer.json"), file, strlen(file), NULL), TITAN_OK);
    if (tokenizer_open(root_path("tokenizer.json"), &tokenizer, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(tokenizer_encoder_open(tokenizer, &encoder, NULL), TITAN_OK);
    return 0;
}

static int close_all(void **state)
{
    tokenizer_encoder_close(encoder);
    tokenizer_close(tokenizer);
    return remove_root(state);
}

/* Tokens as letters, others as (, ), . and #, behind a ! where they are trained on; NULL: it is refused. */
static const char *tokens_of(const char *template, const char *record, const char **ret_why)
{
    static char text[256];
    const struct chat_options o = {.template = template, .eos = 102};
    struct chat *chat = NULL;
    struct chat_tokens t = {0};
    struct titan_error err = {0};
    if (chat_open(&o, tokenizer, &chat, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    const bool ok = chat_encode(chat, encoder, record, strlen(record), &t, &err);
    *ret_why = t.why;
    size_t n = 0;
    for (size_t i = 0; ok && i < t.n; i++) {
        const int32_t id = t.ids.ids[i];
        const char letter = (char)(id == 10    ? '\n'
                                   : id == 100 ? '('
                                   : id == 101 ? ')'
                                   : id == 102 ? '.'
                                   : id < 20   ? '#'
                                               : 'a' + id - 20);
        if (t.trained[i])
            text[n++] = '!';
        text[n++] = letter;
    }
    text[n] = '\0';
    assert_int_equal(t.n, ok ? t.ids.n : t.n);
    chat_tokens_free(&t);
    chat_close(chat);
    return ok ? text : NULL;
}

static void test_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *template, *record, *want;
    } rows[] = {
        {NULL, "{\"prompt\":\"ab\",\"completion\":\"c\"}", "ab!c!."},
        {"none", "{\"prompt\":\"\",\"completion\":\"\"}", "!."},
        {"chatml", "{\"prompt\":\"ab\",\"completion\":\"c\"}", "(user\nab)\n(assistant\n!c!)\n."},
        {"chatml",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"\\na\"},"
         "{\"role\":\"assistant\",\"content\":\"b\"},{\"content\":\"c\",\"role\":\"user\"},{\"role\":\"assistant\","
         "\"content\":\"\"}]}",
         "(system\ns)\n(user\n\na)\n(assistant\n!b!)\n(user\nc)\n(assistant\n!)\n."},
        /* A special token that a text spells is text. */
        {NULL, "{\"prompt\":\"<|im_end|>\",\"completion\":\"<e>\"}", "##im#end##!#!e!#!."},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const char *why = NULL, *got = tokens_of(rows[i].template, rows[i].record, &why);
        if (!got)
            fail_msg("%s: %s", rows[i].record, why);
        assert_string_equal(got, rows[i].want);
    }
}

static void test_bad_records(void **state)
{
    (void)state;
    static const struct {
        const char *template, *record, *why;
    } rows[] = {
        {NULL, "{", "not JSON"},
        {NULL, "[]", "not a JSON object"},
        {NULL, "{\"prompt\":\"a\"}", "no prompt with a completion"},
        {NULL, "{\"prompt\":\"a\",\"completion\":1}", "no prompt with a completion"},
        {NULL, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}", "messages need a chat template"},
        {"chatml", "{\"messages\":[]}", "no answer"},
        {"chatml", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "no answer"},
        {"chatml", "{\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]}", "a role that the template does not know"},
        {"chatml", "{\"messages\":[{\"role\":\"assistant\",\"content\":[]}]}", "is no string"},
        {"chatml", "{\"messages\":[7]}", "a role that"},
        {"chatml", "{\"messages\":{\"role\":\"assistant\"}}", "no array of messages"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const char *why = NULL;
        if (tokens_of(rows[i].template, rows[i].record, &why))
            fail_msg("%s is taken", rows[i].record);
        assert_non_null(why);
        assert_non_null(strstr(why, rows[i].why));
    }
}

static void test_templates(void **state)
{
    (void)state;
    struct titan_error err = {0};
    struct chat *chat = NULL;
    assert_int_equal(chat_open(&(struct chat_options){.template = "llama3"}, tokenizer, &chat, &err), TITAN_EINVAL);
    assert_string_equal(err.msg,
                        "the chat template llama3 needs the token '<|begin_of_text|>', which the tokenizer lacks");
    assert_int_equal(chat_open(&(struct chat_options){.template = "vicuna"}, tokenizer, &chat, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "chatml, llama3 or gemma, not 'vicuna'"));
}

/* A begin of text, where it is asked for and the template has none. */
static void test_begin(void **state)
{
    (void)state;
    static const char record[] = "{\"prompt\":\"b\",\"completion\":\"c\"}", config[] = "{\"bos_token\": \"a\"}";
    struct tokenizer *t = NULL;
    struct chat *chat = NULL;
    struct chat_tokens out = {0};
    assert_int_equal(file_replace(root_path("tokenizer_config.json"), config, strlen(config), NULL), TITAN_OK);
    assert_int_equal(tokenizer_open(root_path("tokenizer.json"), &t, NULL), TITAN_OK);
    assert_int_equal(chat_open(&(struct chat_options){.bos = true, .eos = 102}, t, &chat, NULL), TITAN_OK);
    assert_true(chat_encode(chat, encoder, record, sizeof(record) - 1, &out, NULL));
    assert_int_equal(out.n, 4);
    assert_int_equal(out.ids.ids[0], 20);
    assert_int_equal(out.trained[0], 0);
    chat_tokens_free(&out);
    chat_close(chat);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_bad_records),
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_begin),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
