/* SPDX-License-Identifier: Apache-2.0 */
/* json.h */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/json.h"

static struct json *parse(const char *text)
{
    struct json *j = NULL;
    struct titan_error err = {0};
    if (json_parse(text, strlen(text), &j, &err) != TITAN_OK)
        fail_msg("%s: %s", text, err.msg);
    return j;
}

static void test_read(void **state)
{
    (void)state;
    struct json *j =
        parse(" {\"a\": 1, \"b\": [true, false, null, -2.5e3], \"c\": {\"d\": \"x\\n\\u00e9\\ud83d\\ude00\"}} ");
    assert_int_equal(json_int(j, "a", -1), 1);
    assert_int_equal(json_int(j, "missing", -1), -1);
    assert_true(json_real(j, "a", 0) == 1.0);
    const struct json *b = json_get(j, "b");
    assert_int_equal(b->type, JSON_ARRAY);
    assert_true(b->first->boolean);
    assert_int_equal(b->first->next->next->type, JSON_NULL);
    assert_true(b->first->next->next->next->real == -2500.0);
    assert_string_equal(json_string(json_get(j, "c"), "d", ""), "x\n\xc3\xa9\xf0\x9f\x98\x80");
    assert_null(json_get(b, "a"));
    assert_null(json_get(NULL, "a"));
    assert_string_equal(json_string(j, "a", "other type"), "other type");
    json_free(j);
}

static void test_numbers(void **state)
{
    (void)state;
    struct json *j = parse("[9223372036854775807, -9223372036854775808, 9223372036854775808, 0, -0, 1e2, 0.1]");
    const struct json *n = j->first;
    assert_true(n->type == JSON_INT && n->integer == INT64_MAX);
    n = n->next;
    assert_true(n->type == JSON_INT && n->integer == INT64_MIN);
    n = n->next;
    assert_true(n->type == JSON_REAL && n->real == 0x1p63);
    n = n->next->next;
    assert_true(n->type == JSON_INT && n->integer == 0);
    n = n->next;
    assert_true(n->type == JSON_REAL && n->real == 100.0);
    assert_true(n->next->real == 0.1);
    json_free(j);
}

static void test_strict(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "[",
        "[1",
        "[1,",
        "[1,]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{'a':1}",
        "[1 2]",
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e+",
        "0x10",
        "NaN",
        "Infinity",
        "-Infinity",
        "tru",
        "truex",
        "nul",
        "\"",
        "\"a",
        "\"\\",
        "\"\\q\"",
        "\"\\u12\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "\"\\udc00\"",
        "\"tab\there\"",
        "\"line\nbreak\"",
        "1 2",
        "[] []",
        "// comment\n1",
        "{\"a\":1 \"b\":2}",
        "[1}",
        "{\"a\":1]",
        "\"\xff\"",
        "\"\xc0\x80\"",
        "1e999",
        "[,1]",
        "{,}",
        "]",
        "}",
        ":",
        ",",
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct json *j = NULL;
        struct titan_error err = {0};
        if (json_parse(bad[i], strlen(bad[i]), &j, &err) != TITAN_EINVAL)
            fail_msg("accepted: %s", bad[i]);
        assert_null(j);
        assert_int_equal(strncmp(err.msg, "JSON at byte ", 13), 0);
    }
    struct json *j = NULL;
    assert_int_equal(json_parse("[1]\0", 4, &j, NULL), TITAN_EINVAL);
}

/* What a \u0000 becomes, where it is accepted, is no other text. */
static void test_nul(void **state)
{
    (void)state;
    struct json *root = NULL;
    static const char text[] = "{\"a\\u0000b\": \"\\u0000\"}", raw[] = "\"" JSON_NUL "\"";
    assert_int_equal(json_parse_nul(text, strlen(text), &root, NULL), TITAN_OK);
    assert_string_equal(root->first->key, "a" JSON_NUL "b");
    assert_string_equal(root->first->string, JSON_NUL);
    json_free(root);
    assert_int_equal(json_parse_nul(raw, strlen(raw), &root, NULL), TITAN_EINVAL);
}

static void test_depth(void **state)
{
    (void)state;
    char text[140];
    struct json *j = NULL;
    memset(text, '[', 70);
    memset(text + 70, ']', 70);
    assert_int_equal(json_parse(text, 140, &j, NULL), TITAN_EINVAL);
    assert_int_equal(json_parse(text + 6, 128, &j, NULL), TITAN_OK);
    json_free(j);
    char *many = malloc(1 << 20);
    memset(many, '[', 1 << 20);
    assert_int_equal(json_parse(many, 1 << 20, &j, NULL), TITAN_EINVAL);
    free(many);
}

static void test_write(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    struct json_writer w = {.out = &out};
    json_begin_object(&w, NULL);
    json_put_string(&w, "s", "q\"b\\n\nt\tc\x01 \xc3\xa9");
    json_put_string(&w, "null", NULL);
    json_begin_array(&w, "list");
    json_put_int(&w, NULL, INT64_MIN);
    json_put_uint(&w, NULL, UINT64_MAX);
    json_put_real(&w, NULL, 0.1);
    json_put_real(&w, NULL, 3);
    json_put_real(&w, NULL, NAN);
    json_put_real(&w, NULL, -INFINITY);
    json_put_bool(&w, NULL, true);
    json_begin_object(&w, NULL);
    json_end_object(&w);
    json_end_array(&w);
    json_put_raw(&w, "raw", "[1,2]");
    json_begin_array(&w, "empty");
    json_end_array(&w);
    json_end_object(&w);
    assert_string_equal(out.data, "{\"s\":\"q\\\"b\\\\n\\nt\\tc\\u0001 \xc3\xa9\",\"null\":null,"
                                  "\"list\":[-9223372036854775808,18446744073709551615,0.1,3.0,null,null,true,{}],"
                                  "\"raw\":[1,2],\"empty\":[]}");
    struct json *j = parse(out.data);
    assert_string_equal(json_string(j, "s", ""), "q\"b\\n\nt\tc\x01 \xc3\xa9");
    json_free(j);
}

static void test_pretty(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf out = BUF_INIT;
    struct json_writer w = {.out = &out, .pretty = true};
    json_begin_object(&w, NULL);
    json_put_int(&w, "a", 1);
    json_begin_array(&w, "b");
    json_put_int(&w, NULL, 2);
    json_put_int(&w, NULL, 3);
    json_end_array(&w);
    json_begin_object(&w, "c");
    json_end_object(&w);
    json_end_object(&w);
    assert_string_equal(out.data, "{\n  \"a\": 1,\n  \"b\": [\n    2,\n    3\n  ],\n  \"c\": {}\n}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),  cmocka_unit_test(test_numbers), cmocka_unit_test(test_strict),
        cmocka_unit_test(test_depth), cmocka_unit_test(test_write),   cmocka_unit_test(test_pretty),
        cmocka_unit_test(test_nul),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
