/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl.h: the text of a line, against cases by hand and against base/json.h on random lines. TITAN_TEST_SEED
 * repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/hash.h"
#include "base/json.h"
#include "tests/support/seeded.h"
#include "worker/data/jsonl.h"

/* want NULL: refused. The line lies in memory of its own, without a terminator. */
static void check(const char *line, size_t n, const char *want, size_t want_n)
{
    char *text = NULL;
    size_t len = 0;
    const char *why = NULL;
    _cleanup_free_ char *copy = malloc(n + !n);
    memcpy(copy, line, n);
    const bool ok = jsonl_text(copy, n, "text", &text, &len, &why);
    if (ok != (want != NULL))
        fail_msg("%.*s: %s", (int)n, line, ok ? "taken" : why);
    if (!ok)
        assert_non_null(why);
    else if (len != want_n || memcmp(text, want, len) != 0)
        fail_msg("%.*s: '%.*s'", (int)n, line, (int)len, text);
}

static void is(const char *line, const char *want)
{
    check(line, strlen(line), want, want ? strlen(want) : 0);
}

static void test_by_hand(void **state)
{
    (void)state;
    is("{\"text\":\"a\"}", "a");
    is(" { \"x\" : [1, {\"text\":\"no\"}, []], \"text\" : \"a b\" , \"y\":{} } \r", "a b");
    is("{\"text\":\"a\",\"text\":\"b\"}", "b"); /* as Python has it */
    is("{\"text\":\"\"}", "");
    is("{\"te\\u0078t\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t");
    is("{\"text\":\"\\u00e9\\u20ac\\ud83d\\ude00\"}", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    is("{\"text\":\"\\ud83d!\\ude00\"}", "\xef\xbf\xbd!\xef\xbf\xbd");
    is("{\"text\":\"\\ud83d\\ud83d\\ude00\"}", "\xef\xbf\xbd\xf0\x9f\x98\x80");
    check("{\"text\":\"a\\u0000b\"}", 19, "a\0b", 3);
    is("{\"a\":-0.5e+3,\"b\":true,\"c\":null,\"text\":\"z\"}", "z");
    static const char *const refused[] = {
        "",
        "{",
        "{}",
        "[]",
        "\"text\"",
        "{\"text\"}",
        "{\"text\":}",
        "{\"text\":1}",
        "{\"text\":null}",
        "{\"text\":[\"a\"]}",
        "{\"text\":\"a\"",
        "{\"text\":\"a",
        "{\"text\":\"a\"} x",
        "{\"text\":\"a\",}",
        "{\"text\":\"a\" \"b\":1}",
        "{text:\"a\"}",
        "{\"text\":\"\\x\"}",
        "{\"text\":\"\\u12\"}",
        "{\"text\":\"\\\"}",
        "{\"text\":\"a\tb\"}",
        "{\"a\":01,\"text\":\"a\"}",
        "{\"a\":+1,\"text\":\"a\"}",
        "{\"a\":1.,\"text\":\"a\"}",
        "{\"a\":tru,\"text\":\"a\"}",
        "{\"a\":[1,],\"text\":\"a\"}",
        "{\"a\":[1 2],\"text\":\"a\"}",
        "{\"a\":[}],\"text\":\"a\"}",
        "{\"other\":\"a\"}",
        "{\"text\":\"\xff\"}",
        "{\"text\":\"a\"}}",
        "{\"text\":\"a\",\"text\":1}",
        "{\"a\":-,\"text\":\"a\"}",
        "{\"a\":1e,\"text\":\"a\"}",
    };
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++)
        is(refused[i], NULL);
}

static void test_depth(void **state)
{
    (void)state;
    for (int depth = JSONL_DEPTH_MAX - 2; depth <= JSONL_DEPTH_MAX + 1; depth++) {
        _cleanup_(buf_free) struct buf line = BUF_INIT;
        buf_puts(&line, "{\"a\":");
        for (int i = 0; i < depth; i++)
            buf_puts(&line, "[");
        for (int i = 0; i < depth; i++)
            buf_puts(&line, "]");
        buf_puts(&line, ",\"text\":\"deep\"}");
        is(line.data, depth < JSONL_DEPTH_MAX ? "deep" : NULL);
    }
    _cleanup_(buf_free) struct buf endless = BUF_INIT;
    buf_puts(&endless, "{\"a\":");
    for (int i = 0; i < 1 << 20; i++)
        buf_puts(&endless, "[");
    is(endless.data, NULL);
}

static const char *const parts[] = {
    "{",    "}",   "[", "]",  ",",       ":",       "\"text\"", "\"text\":\"", "\"a\"", "1",
    "-0.5", "1e9", " ", "\"", "\\n",     "\\u00e9", "true",     "null",        "\t",    "{\"text\":\"a\"}",
    "\\",   "x",   "é", "\r", "{\"a\":", "\"}"};

/* Lines put together of parts: both readers take the same ones, and read the same. */
static void test_against_the_other_reader(void **state)
{
    (void)state;
    uint64_t rng = seeded_seed(0);
    int taken = 0;
    for (int i = 0; i < 200000; i++) {
        char line[256] = "{\"text\":\"";
        size_t n = i % 3 ? strlen(line) : 0;
        for (uint64_t k = hash_draw(&rng) % 12; k > 0; k--) {
            const char *part = parts[hash_draw(&rng) % ARRAY_SIZE(parts)];
            memcpy(line + n, part, strlen(part));
            n += strlen(part);
        }
        line[n] = '\0';
        struct json *root = NULL;
        const bool parsed = json_parse(line, n, &root, NULL) == TITAN_OK;
        const char *want = parsed ? json_string(root, "text", NULL) : NULL;
        int members = 0;
        for (const struct json *e = parsed && root->type == JSON_OBJECT ? root->first : NULL; e; e = e->next)
            members += strcmp(e->key, "text") == 0;
        if (members < 2) /* of two the other takes the first, or none */
            is(line, want);
        taken += want != NULL;
        json_free(root);
    }
    assert_true(taken > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_against_the_other_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
