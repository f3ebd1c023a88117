/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded fuzzing of the parsers of outside text: TOML, JSON, run files, overrides, schedules. Whatever comes in, the
 * answer is a status with a one-line message, what was accepted can be printed and read back, and nothing leaks or
 * overruns (the sanitizer builds see to that). FUZZ_SEED and FUZZ_ROUNDS repeat or lengthen a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/json.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"
#include "base/schedule.h"
#include "base/toml.h"
#include "base/utf8.h"
#include "tests/support/json_tree.h"
#include "tests/support/seeded.h"
#include "tests/support/sets.h"

static const char *const toml_words[] = {
    "[",        "]",          "[[",   "]]",       "{",     "}",     "=",
    ".",        ",",          "\n",   " ",        "\"",    "'",     "\"\"\"",
    "'''",      "#",          "\\",   "\\u0041",  "\\U",   "true",  "false",
    "inf",      "nan",        "0x1f", "0b1",      "1_000", "-1",    "1e5",
    "1.5",      "1979-05-27", "a",    "b",        "a.b",   "\r\n",  "9223372036854775807",
    "\xc3\xa9", "\xff",       "\x01", "training", "steps", "model", "flavor = \"tiny\"",
    "seq_len",
};
static const char *const json_words[] = {
    "[",
    "]",
    "{",
    "}",
    ":",
    ",",
    "\"",
    "\\",
    "\\u0041",
    "\\ud83d\\ude00",
    "\\ud800",
    "true",
    "false",
    "null",
    "0",
    "-1",
    "1.5",
    "1e5",
    "9223372036854775807",
    "\"a\":",
    "\"b\"",
    " ",
    "\n",
    "\xc3\xa9",
    "\xff",
    "\x01",
};

/* A text of random words and bytes, or a mutation of a given one. */
static void make(struct buf *out, const char *const *words, size_t nwords, const struct buf *corpus)
{
    buf_clear(out);
    if (corpus && corpus->len && seeded_draw(2)) {
        assert_int_equal(buf_append(out, corpus->data, corpus->len), TITAN_OK);
        for (uint32_t i = 0, n = 1 + seeded_draw(4); i < n && out->len; i++) {
            size_t at = seeded_draw((uint32_t)out->len);
            switch (seeded_draw(4)) {
            case 0:
                out->data[at] = (char)seeded_draw(256);
                break;
            case 1: /* cut */
                buf_consume(out, at / 2);
                break;
            case 2: /* a word on top */
            {
                const char *word = words[seeded_draw((uint32_t)nwords)];
                memcpy(out->data + at, word, MIN(strlen(word), out->len - at));
                break;
            }
            default:
                out->len = at;
                out->data[at] = '\0';
            }
        }
        return;
    }
    for (uint32_t i = 0, n = seeded_draw(60); i < n; i++) {
        if (seeded_draw(20) == 0) {
            char byte = (char)seeded_draw(256);
            assert_int_equal(buf_append(out, &byte, 1), TITAN_OK);
        } else {
            const char *word = words[seeded_draw((uint32_t)nwords)];
            assert_int_equal(buf_append(out, word, strlen(word)), TITAN_OK);
        }
    }
}

static void check_error(const struct titan_error *err, titan_status status)
{
    assert_int_equal(err->status, status);
    assert_true(err->msg[0] && !strchr(err->msg, '\n'));
}

static void walk_toml(const struct toml_value *v, int depth)
{
    assert_true(depth < 2000 && v->line >= 1 && v->column >= 1);
    if (v->type == TOML_STRING)
        assert_int_equal(utf8_check(v->string, strlen(v->string)), strlen(v->string));
    if (v->type == TOML_TABLE || v->type == TOML_ARRAY)
        for (const struct toml_value *m = v->first; m; m = m->next) {
            assert_true(v->type == TOML_ARRAY || m->key);
            walk_toml(m, depth + 1);
        }
}

static void fuzz_toml(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT, corpus = BUF_INIT;
    assert_int_equal(file_read(TITAN_SOURCE_DIR "/recipes/demo.toml", 1 << 16, &corpus, NULL), TITAN_OK);
    int accepted = 0, n = (int)seeded_rounds(3750, 30000);
    for (int i = 0; i < n; i++) {
        make(&text, toml_words, ARRAY_SIZE(toml_words), &corpus);
        struct toml_value *root = NULL;
        struct titan_error err = {0};
        titan_status status = toml_parse(text.data ? text.data : "", text.len, "fuzz", &root, &err);
        if (status == TITAN_OK) {
            walk_toml(root, 0);
            toml_free(root);
            accepted++;
        } else {
            check_error(&err, status);
        }
    }
    printf("# toml: %d of %d accepted\n", accepted, n);
    assert_true(accepted > 0 && accepted < n);
}

/* What is accepted is written, read and written again: the two texts agree. */
static void fuzz_json(void **state)
{
    (void)state;
    static const char sample[] = "{\"a\": [1, -2.5e3, \"x\\n\\u00e9\"], \"b\": {\"c\": null, \"d\": [true, false]}}";
    _cleanup_(buf_free) struct buf text = BUF_INIT, corpus = BUF_INIT;
    buf_puts(&corpus, sample);
    int accepted = 0, n = (int)seeded_rounds(7500, 60000);
    for (int i = 0; i < n; i++) {
        make(&text, json_words, ARRAY_SIZE(json_words), &corpus);
        struct json *first = NULL, *second = NULL;
        struct titan_error err = {0};
        titan_status status = json_parse(text.data ? text.data : "", text.len, &first, &err);
        if (status != TITAN_OK) {
            check_error(&err, status);
            continue;
        }
        accepted++;
        _cleanup_(buf_free) struct buf one = BUF_INIT, two = BUF_INIT;
        struct json_writer w = {.out = &one, .pretty = i & 1};
        json_put_tree(&w, first);
        assert_int_equal(json_parse(one.data, one.len, &second, &err), TITAN_OK);
        w = (struct json_writer){.out = &two, .pretty = i & 1};
        json_put_tree(&w, second);
        assert_string_equal(one.data, two.data);
        json_free(first);
        json_free(second);
    }
    printf("# json: %d of %d accepted\n", accepted, n);
    assert_true(accepted > 0 && accepted < n);
}

/* Fewer workers than a mesh has do not exist; more of them never need more each, but for the copies one keeps of
 * another (a single worker keeps none). */
static void check_memory(struct recipe *r)
{
    int64_t unit = recipe_mesh_unit(r);
    assert_true(recipe_params(r) > 0 && recipe_memory_bytes(r, 1) == recipe_memory_bytes(r, unit));
    snprintf(r->fault_tolerance.redundancy, sizeof(r->fault_tolerance.redundancy), "checkpoint");
    assert_true(recipe_memory_bytes(r, unit) >= recipe_memory_bytes(r, 7 * unit));
}

static void fuzz_recipe(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT, corpus = BUF_INIT;
    struct recipe defaults;
    recipe_init(&defaults);
    recipe_print(&defaults, &corpus); /* every key */
    int accepted = 0, n = (int)seeded_rounds(1000, 8000);
    for (int i = 0; i < n; i++) {
        make(&text, toml_words, ARRAY_SIZE(toml_words), &corpus);
        struct recipe r = defaults, back = defaults;
        struct titan_error err = {0};
        titan_status status = recipe_parse(&r, text.data ? text.data : "", "fuzz", &err);
        if (status != TITAN_OK) {
            check_error(&err, status);
            assert_memory_equal(&r, &defaults, sizeof(r));
            continue;
        }
        accepted++;
        _cleanup_(buf_free) struct buf printed = BUF_INIT;
        recipe_print(&r, &printed);
        assert_int_equal(recipe_parse(&back, printed.data, "printed", &err), TITAN_OK);
        memcpy(back.set_mask, r.set_mask, sizeof(r.set_mask));
        assert_memory_equal(&back, &r, sizeof(r));
        if (recipe_resolve(&r, &err) == TITAN_OK) {
            (void)recipe_hash(&r);
            check_memory(&r);
        }
    }
    printf("# recipe: %d of %d accepted\n", accepted, n);
    assert_true(accepted > 0 && accepted < n);
}

static void fuzz_set(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT, corpus = BUF_INIT;
    buf_puts(&corpus, "training.steps=12");
    struct recipe defaults;
    recipe_init(&defaults);
    int n = (int)seeded_rounds(2500, 20000);
    for (int i = 0; i < n; i++) {
        make(&text, toml_words, ARRAY_SIZE(toml_words), &corpus);
        struct recipe r = defaults;
        struct titan_error err = {0};
        titan_status status = recipe_set(&r, text.data ? text.data : "", &err);
        if (status != TITAN_OK)
            check_error(&err, status);
    }
}

static const char *const csv_words[] = {
    "0F0", "1F0", "0B0", "1B0", "0I0", "0W0",  "1I1", "1W1", "0F1", "2F0", "3B1",
    ",",   ",",   "\n",  "\n",  " ",   "\r\n", "F",   "0",   "9",   "-",   "99999999999",
};

/* What is accepted passes the check, ends, and reads back as it was printed. */
static void fuzz_schedule(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf text = BUF_INIT, corpus = BUF_INIT;
    int accepted = 0, n = (int)seeded_rounds(5000, 40000);
    for (int i = 0; i < n; i++) {
        int ranks = 1 + (int)seeded_draw(3), stages = ranks * (1 + (int)seeded_draw(2)),
            microbatches = 1 + (int)seeded_draw(3);
        const char *name = stages == ranks ? "1F1B" : "Interleaved1F1B";
        struct schedule *s = NULL, *back = NULL;
        struct titan_error err = {0};
        assert_int_equal(schedule_generate(name, ranks, stages, microbatches, &s, &err), TITAN_OK);
        buf_clear(&corpus);
        schedule_print(s, &corpus);
        schedule_close(s);
        s = NULL;
        make(&text, csv_words, ARRAY_SIZE(csv_words), &corpus);
        titan_status status = schedule_parse(text.data ? text.data : "", "fuzz",
                                             &(struct schedule_shape){ranks, stages, microbatches}, &s, &err);
        if (status != TITAN_OK) {
            check_error(&err, status);
            continue;
        }
        accepted++;
        _cleanup_(buf_free) struct buf one = BUF_INIT, two = BUF_INIT;
        assert_int_equal(schedule_check(s, &err), TITAN_OK);
        assert_true(schedule_makespan(s, 1, 1, 1, NULL) >= 3 * microbatches);
        schedule_print(s, &one);
        assert_int_equal(
            schedule_parse(one.data, "printed", &(struct schedule_shape){ranks, stages, microbatches}, &back, &err),
            TITAN_OK);
        schedule_print(back, &two);
        assert_string_equal(one.data, two.data);
        schedule_close(back);
        schedule_close(s);
    }
    printf("# schedule: %d of %d accepted\n", accepted, n);
    assert_true(accepted > 0 && accepted < n);
}

static int setup(void **state)
{
    (void)state;
    seeded_open("fuzz", UINT64_C(20261120));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        longer(fuzz_toml), longer(fuzz_json), longer(fuzz_recipe), longer(fuzz_set), longer(fuzz_schedule),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
