/* SPDX-License-Identifier: Apache-2.0 */
/* toml.h against what Python's tomllib reads (toml_cases.json, written by make_toml_cases.py), and its messages. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/toml.h"

static int members(const struct toml_value *v)
{
    int n = 0;
    for (const struct toml_value *m = v->first; m; m = m->next)
        n++;
    return n;
}

/* want: {"int": "1"} and the like */
static bool equal(const struct toml_value *got, const struct json *want)
{
    const struct json *w = want->first;
    const struct toml_value *m;
    switch (got->type) {
    case TOML_BOOL:
        return strcmp(w->key, "bool") == 0 && got->boolean == w->boolean;
    case TOML_INT:
        return strcmp(w->key, "int") == 0 && got->integer == strtoll(w->string, NULL, 10);
    case TOML_FLOAT: {
        double expected = strcmp(w->key, "float") == 0 ? strtod(w->string, NULL) : NAN;
        return got->real == expected && signbit(got->real) == signbit(expected);
    }
    case TOML_STRING:
        return strcmp(w->key, "string") == 0 && strcmp(got->string, w->string) == 0;
    case TOML_ARRAY:
        if (strcmp(w->key, "array") != 0)
            return false;
        m = got->first;
        for (const struct json *e = w->first; e; e = e->next, m = m->next)
            if (!m || !equal(m, e))
                return false;
        return m == NULL;
    case TOML_TABLE: {
        if (strcmp(w->key, "table") != 0)
            return false;
        int n = 0;
        for (const struct json *e = w->first; e; e = e->next, n++) {
            const struct toml_value *v = toml_get(got, e->key);
            if (!v || !equal(v, e))
                return false;
        }
        return n == members(got);
    }
    }
    return false;
}

static void test_oracle(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT;
    struct json *cases = NULL;
    struct titan_error err = {0};
    assert_int_equal(file_read(TITAN_SOURCE_DIR "/tests/unit/base/toml_cases.json", 1 << 20, &text, &err), TITAN_OK);
    assert_int_equal(json_parse(text.data, text.len, &cases, &err), TITAN_OK);
    int valid = 0, invalid = 0, wrong = 0;
    for (const struct json *c = cases->first; c; c = c->next) {
        const char *doc = json_string(c, "doc", NULL);
        const struct json *want = json_get(c, "value");
        struct toml_value *got = NULL;
        titan_status status = toml_parse(doc, strlen(doc), "case", &got, &err);
        bool expected = want->type != JSON_NULL;
        bool good = (status == TITAN_OK) == expected && (!expected || equal(got, want));
        if (!good) {
            printf("# %s: %s\n# %s\n", expected ? "should be read" : "should be refused", doc,
                   status == TITAN_OK ? "" : err.msg);
            wrong++;
        }
        if (status != TITAN_OK)
            assert_int_equal(strncmp(err.msg, "case:", 5), 0);
        valid += expected;
        invalid += !expected;
        toml_free(got);
    }
    printf("# %d valid, %d invalid documents\n", valid, invalid);
    assert_true(valid >= 40 && invalid >= 60);
    assert_int_equal(wrong, 0);
    json_free(cases);
}

static void test_messages(void **state)
{
    (void)state;
    static const struct {
        const char *doc, *msg;
    } cases[] = {
        {"a = 1\nb = x\n", "f:2:5: not a value: x (text must stand in quotes)"},
        {"a = 1\n\n  a = 2\n", "f:3:3: 'a' is given twice (first in line 1)"},
        {"[a]\n[b]\n[a]\n", "f:3:2: 'a' is given twice (first in line 1)"},
        {"t = 1979-05-27T07:32:00Z\n", "f:1:5: dates and times are not supported (write it as a string)"},
        {"t = 07:32:00\n", "f:1:5: dates and times are not supported (write it as a string)"},
        {"s = \"abc\n", "f:1:5: string is not closed"},
        {"s = '''\nabc\n", "f:1:5: string is not closed"},
        {"s = \"a\\u0000\"\n", "f:1:13: a NUL character is not accepted in a string"},
        {"a = [1,\n2\n", "f:1:5: array is not closed"},
        {"a = 99999999999999999999\n", "f:1:5: integer 99999999999999999999 does not fit into 64 bits"},
        {"a = \n", "f:1:5: expected a value behind '='"},
        {"a = 1 2\n", "f:1:7: expected the end of the line"},
        {"a.b = 1\n[a.b]\n", "f:2:4: 'b' is given twice (first in line 1)"},
        {"a = 1\n[a.b]\n", "f:2:2: 'a' is already a value (line 1), not a table"},
        {"a = 1\n\xff\n", "f:2:1: not valid UTF-8"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct toml_value *got = NULL;
        struct titan_error err = {0};
        assert_int_equal(toml_parse(cases[i].doc, strlen(cases[i].doc), "f", &got, &err), TITAN_EINVAL);
        assert_string_equal(err.msg, cases[i].msg);
    }
    struct toml_value *got = NULL;
    struct titan_error err = {0};
    assert_int_equal(toml_parse("a = 1\n#\0\n", 9, "f", &got, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, "f:2:2: NUL byte");
}

static void test_positions(void **state)
{
    (void)state;
    const char *doc = "a = 1\n[t]\n  key = [\n1,\n  2]\n";
    struct toml_value *root = NULL;
    assert_int_equal(toml_parse(doc, strlen(doc), "f", &root, NULL), TITAN_OK);
    const struct toml_value *key = toml_get(toml_get(root, "t"), "key");
    assert_int_equal(key->line, 3);
    assert_int_equal(key->column, 3);
    assert_int_equal(key->first->next->line, 5);
    assert_int_equal(key->first->next->column, 3);
    assert_int_equal(toml_get(root, "t")->line, 2);
    assert_null(toml_get(root, "none"));
    assert_null(toml_get(key, "none"));
    assert_string_equal(toml_type_name(key->type), "array");
    toml_free(root);
}

static void test_value(void **state)
{
    (void)state;
    struct toml_value *v = NULL;
    struct titan_error err = {0};
    assert_int_equal(toml_parse_value(" 3 ", "x", &v, &err), TITAN_OK);
    assert_int_equal(v->integer, 3);
    toml_free(v);
    assert_int_equal(toml_parse_value("[1, \"a\"]", "x", &v, &err), TITAN_OK);
    assert_int_equal(members(v), 2);
    toml_free(v);
    assert_int_equal(toml_parse_value("", "x", &v, &err), TITAN_EINVAL);
    assert_int_equal(toml_parse_value("1\n2", "x", &v, &err), TITAN_EINVAL);
    assert_int_equal(toml_parse_value("1 2", "x", &v, &err), TITAN_EINVAL);
    assert_int_equal(toml_parse_value("[1", "x", &v, &err), TITAN_EINVAL);
}

static titan_status parse_buf(struct buf *b)
{
    struct toml_value *root = NULL;
    struct titan_error err = {0};
    titan_status status = toml_parse(b->data, b->len, "f", &root, &err);
    if (status == TITAN_OK)
        toml_free(root);
    return status;
}

static void test_limits(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf b = BUF_INIT;
    buf_puts(&b, "a = ");
    for (int i = 0; i < 40; i++)
        buf_puts(&b, "[");
    for (int i = 0; i < 40; i++)
        buf_puts(&b, "]");
    assert_int_equal(parse_buf(&b), TITAN_ELIMIT);
    buf_clear(&b);
    buf_puts(&b, "a = [");
    for (int i = 0; i < 70000; i++)
        buf_puts(&b, "1,");
    buf_puts(&b, "]");
    assert_int_equal(parse_buf(&b), TITAN_ELIMIT);
    buf_clear(&b);
    for (int i = 0; i < 5000; i++)
        buf_printf(&b, "k%d=1\n", i);
    assert_int_equal(parse_buf(&b), TITAN_ELIMIT);
    buf_clear(&b);
    for (int i = 0; i < 30000; i++)
        buf_puts(&b, "[[a]]\n");
    assert_int_equal(parse_buf(&b), TITAN_OK);
    buf_clear(&b);
    for (int i = 0; i < (1 << 20) + 1; i++)
        buf_puts(&b, "\n");
    assert_int_equal(parse_buf(&b), TITAN_ELIMIT);
    buf_clear(&b);
    buf_puts(&b, "a");
    for (int i = 0; i < 100; i++)
        buf_puts(&b, ".a");
    buf_puts(&b, "=1");
    assert_int_equal(parse_buf(&b), TITAN_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle), cmocka_unit_test(test_messages), cmocka_unit_test(test_positions),
        cmocka_unit_test(test_value),  cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
