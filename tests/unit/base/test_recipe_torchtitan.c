/* SPDX-License-Identifier: Apache-2.0 */
/* TorchTitan v0.2.2's own run files, byte for byte (tests/interop/torchtitan), and every key of its configuration. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <openssl/evp.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"

#define FOLDER TITAN_SOURCE_DIR "/tests/interop/torchtitan/"

static void read_file(const char *name, struct buf *out)
{
    char path[512];
    struct titan_error err = {0};
    (void)snprintf(path, sizeof(path), FOLDER "%s", name);
    if (file_read(path, 1 << 20, out, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
}

static void test_unmodified(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf list = BUF_INIT;
    read_file("SHA256SUMS", &list);
    int files = 0;
    char *rest = list.data, *line;
    while ((line = strsep(&rest, "\n")) && *line) {
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        unsigned char sum[EVP_MAX_MD_SIZE];
        char hex[65] = "";
        read_file(line + 66, &text); /* 64 digits, two spaces */
        assert_int_equal(EVP_Digest(text.data, text.len, sum, NULL, EVP_sha256(), NULL), 1);
        for (int i = 0; i < 32; i++)
            (void)snprintf(hex + 2 * i, 3, "%02x", sum[i]);
        if (strncmp(hex, line, 64) != 0)
            fail_msg("%s is not TorchTitan's file any more", line + 66);
        files++;
    }
    assert_int_equal(files, 18);
}

static titan_status load(const char *name, int64_t workers, struct recipe *r, struct titan_error *err)
{
    char path[512];
    (void)snprintf(path, sizeof(path), FOLDER "%s.toml", name);
    recipe_init(r);
    TRY(recipe_load(r, path, err));
    recipe_offer(r, workers);
    TRY(recipe_resolve(r, err));
    return recipe_check_world(r, workers, err);
}

static void load_or_fail(const char *name, int64_t workers, struct recipe *r)
{
    struct titan_error err = {0};
    if (load(name, workers, r, &err) != TITAN_OK)
        fail_msg("%s: %s", name, err.msg);
}

/* Each takes all workers there are. */
static void test_files(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t workers;
    } files[] = {
        {"base_config", 8},
        {"llama3/debug_model", 8},
        {"llama3/llama3_8b", 64},
        {"llama3/llama3_70b", 256},
        {"llama3/llama3_405b", 512},
        {"qwen3/qwen3_0.6b", 8},
        {"qwen3/qwen3_1.7b", 8},
        {"qwen3/qwen3_32b", 16},
        {"deepseek_v3/debug_model", 4},
        {"deepseek_v3/deepseek_v3_16b", 16},
        {"deepseek_v3/deepseek_v3_671b", 512},
    };
    for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
        struct recipe r;
        load_or_fail(files[i].name, files[i].workers, &r);
        assert_int_equal(r.elastic.max_workers, files[i].workers);
    }
}

/* What a file says arrives; what it leaves out has TorchTitan's default. */
static void test_values(void **state)
{
    (void)state;
    struct recipe_mesh m;
    struct recipe r;
    load_or_fail("llama3/debug_model", 8, &r);
    assert_string_equal(r.activation_checkpoint.mode, "selective");
    assert_string_equal(r.activation_checkpoint.selective_ac_option, "2");
    assert_string_equal(r.parallelism.pipeline_parallel_schedule, "Interleaved1F1B");
    assert_string_equal(r.training.dataset, "c4_test");
    assert_int_equal(r.training.global_batch_size, 64);
    load_or_fail("llama3/llama3_8b", 64, &r);
    assert_string_equal(r.model.tokenizer, "./assets/hf/Llama-3.1-8B");
    assert_int_equal(r.model.dims.dim, 4096);
    assert_string_equal(r.checkpoint.async_mode, "disabled");
    assert_false(r.model.float8);
    load_or_fail("llama3/llama3_70b", 256, &r);
    assert_int_equal(recipe_mesh(&r, 256, &m, NULL), TITAN_OK);
    assert_int_equal(m.tp, 8);
    assert_int_equal(m.dp_shard, 32);
    assert_int_equal(r.training.global_batch_size, 256);
    load_or_fail("llama3/llama3_405b", 512, &r);
    assert_true(r.model.float8);
    assert_true(r.parallelism.enable_async_tensor_parallel);
    assert_int_equal(r.training.global_batch_size, 128);
    assert_int_equal(recipe_fit_world(&r, 511), 504);
    load_or_fail("deepseek_v3/deepseek_v3_16b", 16, &r);
    assert_int_equal(r.parallelism.expert_parallel_degree, 8);
}

/* All workers there are, as far as the mesh can have them; too few: what it needs at least. */
static void test_all_workers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t there, takes;
    } cases[] = {
        {"llama3/debug_model", 4, 4},          {"llama3/debug_model", 7, 7},
        {"llama3/debug_model", 0, 1},          {"llama3/llama3_70b", 20, 16},
        {"llama3/llama3_70b", 3, 8},           {"deepseek_v3/deepseek_v3_16b", 4, 8},
        {"llama3/debug_model", 5000, 1024},    {"deepseek_v3/deepseek_v3_16b", 30, 24},
        {"deepseek_v3/deepseek_v3_16b", 0, 8},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r;
        (void)!load(cases[i].name, cases[i].there, &r, NULL);
        if (r.elastic.max_workers != cases[i].takes)
            fail_msg("%s, %lld there: takes %lld", cases[i].name, (long long)cases[i].there,
                     (long long)r.elastic.max_workers);
    }
    struct recipe r;
    recipe_init(&r);
    r.elastic.max_workers = 2; /* a bound of the recipe's own holds */
    recipe_offer(&r, 8);
    assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
    assert_int_equal(r.elastic.max_workers, 2);
}

/* One line that names what this version lacks. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *words;
    } cases[] = {
        {"llama4/debug_model",
         "model.name = \"llama4\" is not supported by this version, which lacks attention within"},
        {"llama4/llama4_17bx16e", "a temperature by position"},
        {"llama4/llama4_17bx128e", "a temperature by position"},
        {"llama3_ft/debug_model", "job.custom_config_module"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r;
        struct titan_error err = {0};
        assert_int_equal(load(cases[i].name, 8, &r, &err), TITAN_EUNSUPPORTED);
        if (!strstr(err.msg, cases[i].words))
            fail_msg("%s: %s", cases[i].name, err.msg);
    }
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

/* Set a key; returns the status, the message, and how many lines of warning there are. */
static titan_status try_key(const char *key, const char *value, struct titan_error *err, int *ret_warnings)
{
    struct recipe r;
    char assignment[256];
    _cleanup_(buf_free) struct buf lines = BUF_INIT;
    recipe_init(&r);
    r.checkpoint.enable = true;
    (void)snprintf(assignment, sizeof(assignment), "%s=%s", key, value);
    titan_status status = recipe_set(&r, assignment, err);
    recipe_warnings(&r, &lines);
    *ret_warnings = 0;
    for (size_t i = 0; i < lines.len; i++)
        *ret_warnings += lines.data[i] == '\n';
    return status;
}

/* Is it a supported key, or another name of one? */
static const struct setting *find(const char *key)
{
    char name[160];
    (void)snprintf(name, sizeof(name), "%s", key);
    for (int i = 0; i < recipe_aliases_count; i++) {
        char alias[160];
        (void)snprintf(alias, sizeof(alias), "%s.%s", recipe_aliases[i].section, recipe_aliases[i].name);
        if (strcmp(alias, key) == 0)
            (void)snprintf(name, sizeof(name), "%s", recipe_aliases[i].target);
    }
    char *dot = strrchr(name, '.');
    *dot = '\0';
    int index = recipe_key_find(name, dot + 1);
    return index < 0 ? NULL : &recipe_keys[index];
}

/* TorchTitan's default of every key passes without a word, and the table has it as it is; another value does something,
 * is warned of, belongs to a key that is, or is refused by name. */
static void test_keys(void **state)
{
    (void)state;
    _cleanup_(buf_free) struct buf list = BUF_INIT, reference = BUF_INIT;
    int keys = 0, warnings;
    read_file("keys.tsv", &list);
    recipe_print_reference(&reference);
    char *rest = list.data, *line;
    while ((line = strsep(&rest, "\n")) && *line) {
        const char *key = strsep(&line, "\t"), *initial = strsep(&line, "\t"), *other = line;
        const struct setting *k = find(key);
        struct titan_error err = {0};
        char row[512];
        keys++;
        if (!k)
            fail_msg("%s is unknown", key);
        if (strcmp(initial, "none") != 0 && strcmp(initial, "\"\"") != 0 &&
            (try_key(key, initial, &err, &warnings) != TITAN_OK || (warnings && !k->theirs)))
            fail_msg("%s = %s: %s, %d warnings", key, initial, err.msg, warnings);
        titan_status status = try_key(key, other, &err, &warnings);
        bool reported = status == TITAN_OK ? warnings == 1 : strstr(err.msg, k->name) != NULL;
        bool silent = status == TITAN_OK && warnings == 0 &&
                      (k->support == KEY_SUPPORTED || k->support == KEY_PART || strcmp(other, k->initial) == 0);
        if (!reported && !silent)
            fail_msg("%s = %s: status %d, %s, %d warnings", key, other, (int)status, err.msg, warnings);
        (void)snprintf(row, sizeof(row), "| `%s` | ", key);
        const char *found = strstr(reference.data, row), *theirs = found ? found + strlen(row) : "";
        theirs += *theirs == '`';
        bool same = strncmp(theirs, initial, strlen(initial)) == 0 ||
                    (strchr("-0123456789", initial[0]) && strtod(theirs, NULL) == strtod(initial, NULL)) ||
                    (strcmp(initial, "none") == 0 && k->support != KEY_SUPPORTED); /* has no value in TOML */
        if (!found || !same)
            fail_msg("the table of TorchTitan's keys has %s = %.20s; its default is %s", key, theirs, initial);
    }
    assert_int_equal(keys, 149);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unmodified),  cmocka_unit_test(test_files),   cmocka_unit_test(test_values),
        cmocka_unit_test(test_all_workers), cmocka_unit_test(test_refused), cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
