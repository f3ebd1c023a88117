/* SPDX-License-Identifier: Apache-2.0 */
/* Each type of setting is read, stored, refused in both ways of saying it, and printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/settings.h"

struct box {
    char text[8], words[16];
    int64_t whole, bytes;
    uint32_t narrow, thousandths;
    int word;
    double real;
    bool on;
    struct {
        int64_t n;
        double value[3];
    } reals;
};
#define ROW(key, kind, ...)                                                                                            \
    {                                                                                                                  \
        .section = "box", .name = #key, .type = (kind), .offset = offsetof(struct box, key),                           \
        .size = sizeof(((struct box *)0)->key), __VA_ARGS__                                                            \
    }
enum { TEXT, WORDS, WHOLE, BYTES, NARROW, THOUSANDTHS, WORD, REAL, ON, REALS };
static const struct setting rows[] = {
    [TEXT] = ROW(text, KEY_STRING, .min = 1),
    [WORDS] = ROW(words, KEY_LIST, .choices = "a|b"),
    [WHOLE] = ROW(whole, KEY_INT, .min = 1, .minus_one = true),
    [BYTES] = ROW(bytes, KEY_BYTES, .min = 1024, .max = 1 << 20),
    [NARROW] = ROW(narrow, KEY_INT, .min = 2, .max = 9),
    [THOUSANDTHS] = ROW(thousandths, KEY_REAL, .min = 0.5, .max = 4, .unit = 1000),
    [WORD] = ROW(word, KEY_WORD, .choices = "zero|one|two"),
    [REAL] = ROW(real, KEY_REAL, .above_min = true, .max = 1),
    [ON] = ROW(on, KEY_BOOL, .doc = ""),
    [REALS] = ROW(reals, KEY_REALS, .max = 10),
};

/* Sets a field from TOML, in the words of run files or of titand's settings. */
static titan_status set(struct box *b, int row, const char *toml, bool daemon, struct titan_error *err)
{
    const struct setting_place at = {
        .path = daemon ? "--box" : "f", .line = daemon ? 0 : 3, .flag = daemon, .daemon = daemon};
    struct toml_value *v = NULL;
    assert_int_equal(toml_parse_value(toml, "value", &v, err), TITAN_OK);
    titan_status status = setting_check_type(&at, &rows[row], v, err);
    if (status == TITAN_OK)
        status = setting_set(&at, &rows[row], v, (char *)b + rows[row].offset, err);
    toml_free(v);
    return status;
}

static void test_stored_and_printed(void **state)
{
    (void)state;
    static const struct {
        int row;
        const char *toml, *printed;
    } cases[] = {{TEXT, "\"a\\\"b\"", "\"a\\\"b\""},
                 {WORDS, "[\"b\", \"a\"]", "[\"b\", \"a\"]"},
                 {WORDS, "\"a,b\"", "[\"a\", \"b\"]"},
                 {WHOLE, "-1", "-1"},
                 {WHOLE, "9223372036854775807", "9223372036854775807"},
                 {BYTES, "\"2KiB\"", "\"2KiB\""},
                 {BYTES, "1024", "\"1KiB\""},
                 {BYTES, "\"\"", "\"\""},
                 {REAL, "1", "1.0"},
                 {ON, "true", "true"},
                 {REALS, "[1, 2.5]", "[1.0, 2.5]"}};
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_(buf_free) struct buf out = BUF_INIT;
        struct box b;
        struct titan_error err = {0};
        memset(&b, 0xff, sizeof(b));
        if (set(&b, cases[i].row, cases[i].toml, false, &err) != TITAN_OK)
            fail_msg("%s: %s", cases[i].toml, err.msg);
        setting_print(&rows[cases[i].row], (const char *)&b + rows[cases[i].row].offset, &out);
        assert_string_equal(out.data, cases[i].printed);
    }
    struct box b = {.reals.value = {7, 7, 7}};
    assert_int_equal(set(&b, NARROW, "9", true, NULL), TITAN_OK);
    assert_int_equal(set(&b, THOUSANDTHS, "2.5", true, NULL), TITAN_OK);
    assert_int_equal(set(&b, WORD, "\"two\"", true, NULL), TITAN_OK);
    assert_int_equal(set(&b, REALS, "[1]", false, NULL), TITAN_OK);
    assert_true(b.narrow == 9 && b.thousandths == 2500 && b.word == 2);
    assert_true(b.reals.n == 1 && b.reals.value[0] == 1 && b.reals.value[2] == 0);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        int row;
        const char *toml, *run_file, *daemon;
    } cases[] = {
        {TEXT, "1", "f:3: box.text: expected text in quotes, got an integer",
         "--box: expected a string, found integer"},
        {TEXT, "\"\"", "f:3: box.text: must not be empty", "--box: must not be empty"},
        {TEXT, "\"12345678\"", "f:3: box.text: text of 8 bytes is too long (at most 7)",
         "--box: text of 8 bytes is too long (at most 7)"},
        {WORDS, "[\"c\"]", "f:3: box.words: \"c\": expected \"a\" or \"b\"", NULL},
        {WORDS, "[1]", "f:3: box.words: expected an array, got an integer",
         "--box: expected an array of strings, found integer"},
        {WHOLE, "0", "f:3: box.whole = 0 is out of range: at least 1, or -1", NULL},
        {BYTES, "\"1k\"", "f:3: box.bytes = \"1k\": expected bytes with a unit, such as \"16GiB\"",
         "--box: '1k' is not bytes with a unit, such as \"16GiB\""},
        {BYTES, "1023", "f:3: box.bytes = 1023 is out of range: from 1KiB to 1MiB", "--box: not between 1KiB and 1MiB"},
        {NARROW, "10", "f:3: box.narrow = 10 is out of range: from 2 to 9", "--box: 10 is not between 2 and 9"},
        {WORD, "\"three\"", "f:3: box.word = \"three\": expected \"zero\", \"one\" or \"two\"",
         "--box: 'three' is not one of zero, one, two"},
        {REAL, "0", "f:3: box.real = 0 is out of range: above 0 to 1", NULL},
        {REAL, "nan", "f:3: box.real = nan is out of range: above 0 to 1", NULL},
        {ON, "\"yes\"", "f:3: box.on = \"yes\": expected true or false, not text",
         "--box: expected true or false, found string"},
        {REALS, "[1, 2, 3, 4]", "f:3: box.reals: more than 3 numbers", NULL},
        {REALS, "[11]", "f:3: box.reals = 11 is out of range: from 0 to 10", NULL},
    };
    for (size_t i = 0; i < 2 * ARRAY_SIZE(cases); i++) {
        const char *const message = i % 2 ? cases[i / 2].daemon : cases[i / 2].run_file;
        struct box b, before;
        struct titan_error err = {0};
        memset(&b, 0xff, sizeof(b));
        before = b;
        if (!message)
            continue;
        assert_int_equal(set(&b, cases[i / 2].row, cases[i / 2].toml, i % 2, &err), TITAN_EINVAL);
        assert_string_equal(err.msg, message);
        assert_memory_equal(&b, &before, sizeof(b)); /* untouched */
    }
}

static void test_names(void **state)
{
    (void)state;
    char word[SETTING_WORD];
    assert_ptr_equal(setting_near(rows, ARRAY_SIZE(rows), "box", "narow"), &rows[NARROW]);
    assert_ptr_equal(setting_near(rows, ARRAY_SIZE(rows), "case", "narrow"), &rows[NARROW]); /* of another section */
    assert_null(setting_near(rows, ARRAY_SIZE(rows), "box", "entirely_other"));
    assert_int_equal(setting_choice("zero|ONE", "one", true, word), 1);
    assert_string_equal(word, "ONE");
    assert_int_equal(setting_choice("zero|ONE", "one", false, word), -1);
    assert_true(setting_admits("*", "anything") && !setting_admits(NULL, "anything") && !setting_admits("a|b", "a|b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stored_and_printed), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
