/* SPDX-License-Identifier: Apache-2.0 */
/* Flavors against TorchTitan v0.2.2's model arguments, key by key, and against the released configurations of what
 * TorchTitan does not have; what follows from them and from the keys beside them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"

static struct recipe resolved(const char *family, const char *flavor, const char *set)
{
    struct recipe r;
    struct titan_error err = {0};
    recipe_init(&r);
    snprintf(r.model.name, sizeof(r.model.name), "%s", family);
    snprintf(r.model.flavor, sizeof(r.model.flavor), "%s", flavor);
    if ((set && recipe_set(&r, set, &err) != TITAN_OK) || recipe_resolve(&r, &err) != TITAN_OK)
        fail_msg("%s %s: %s", family, flavor, err.msg);
    return r;
}

static bool same_bytes(const struct recipe *r, const struct recipe *want, const struct setting *k)
{
    return memcmp((const char *)r + k->offset, (const char *)want + k->offset, k->size) == 0;
}

/* Every key that a flavor gives. */
static void check_flavor(const char *family, const char *flavor, const struct model_dims *dims, bool block_causal,
                         const char *source)
{
    struct recipe r = resolved(family, flavor, NULL), want = r;
    want.model.dims = *dims;
    want.training.block_causal = block_causal;
    for (int i = 0; i < recipe_keys_count && recipe_keys[i].support == KEY_SUPPORTED; i++)
        if ((recipe_keys[i].flags & KEY_FLAVOR) && !same_bytes(&r, &want, &recipe_keys[i]))
            fail_msg("%s %s: %s.%s is not %s's", family, flavor, recipe_keys[i].section, recipe_keys[i].name, source);
}

/* --- TorchTitan's arguments --------------------------------------------------------------------------------------- */

/* llama3/model/args.py:20 RoPEScalingArgs, :28 TransformerModelArgs; __init__.py:30-99 gives rope_theta */
#define LLAMA3                                                                                                         \
    .rope_theta = 500000, .norm_eps = 1e-5, .rope_scaling = "llama3", .rope_factor = 8, .rope_low_freq_factor = 1,     \
    .rope_high_freq_factor = 4, .rope_original_length = 8192
/* llama3/model/model.py:332-336, of 4 dim */
static int64_t llama_ffn(int64_t dim, double multiplier, int64_t multiple)
{
    int64_t hidden = (int64_t)(2.0 * (double)(4 * dim) / 3.0);
    hidden = (int64_t)(multiplier * (double)hidden);
    return multiple * ((hidden + multiple - 1) / multiple);
}

static void test_llama3(void **state)
{
    (void)state;
    static const struct {
        const char *flavor, *source;
        int64_t dim, layers, heads, kv, vocab, multiple;
        double multiplier;
        bool block_causal;
    } rows[] = {
        {"debugmodel", "llama3/__init__.py:30", 256, 6, 16, 16, 2048, 256, 1, false},
        {"debugmodel_flex_attn", "llama3/__init__.py:33", 256, 6, 16, 16, 2048, 256, 1, true},
        {"debugmodel_varlen_attn", "llama3/__init__.py:42", 256, 6, 16, 16, 2048, 256, 1, true},
        {"8B", "llama3/__init__.py:51", 4096, 32, 32, 8, 128256, 1024, 1.3, false}, /* vocabulary: the tokenizer's */
        {"8B_flex", "llama3/__init__.py:60", 4096, 32, 32, 8, 128256, 1024, 1.3, true},
        {"8B_varlen", "llama3/__init__.py:71", 4096, 32, 32, 8, 128256, 1024, 1.3, true},
        {"70B", "llama3/__init__.py:82", 8192, 80, 64, 8, 128256, 4096, 1.3, false},
        {"405B", "llama3/__init__.py:91", 16384, 126, 128, 8, 128256, 4096, 1.2, false},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct model_dims dims = {LLAMA3,
                                        .dim = rows[i].dim,
                                        .n_layers = rows[i].layers,
                                        .n_heads = rows[i].heads,
                                        .n_kv_heads = rows[i].kv,
                                        .head_dim = rows[i].dim / rows[i].heads,
                                        .ffn_hidden = llama_ffn(rows[i].dim, rows[i].multiplier, rows[i].multiple),
                                        .vocab_size = rows[i].vocab};
        check_flavor("llama3", rows[i].flavor, &dims, rows[i].block_causal, rows[i].source);
    }
}

/* qwen3/model/args.py:23 Qwen3ModelArgs; qwen3/__init__.py:200: build_optimizers, which moves no bias */
static void test_qwen3(void **state)
{
    (void)state;
    static const struct {
        const char *flavor, *source;
        int64_t dim, layers, heads, kv, ffn, vocab;
        double theta;
        bool tied;
        int64_t experts, moe_hidden;
    } rows[] = {
        {"debugmodel", "qwen3/__init__.py:33", 256, 8, 16, 8, 3072, 2048, 1e6, true, 0, 0},
        {"0.6B", "qwen3/__init__.py:46", 1024, 28, 16, 8, 3072, 151936, 1e6, true, 0, 0},
        {"1.7B", "qwen3/__init__.py:59", 2048, 28, 16, 8, 6144, 151936, 1e6, true, 0, 0},
        {"4B", "qwen3/__init__.py:72", 2560, 36, 32, 8, 9728, 151936, 1e6, true, 0, 0},
        {"8B", "qwen3/__init__.py:85", 4096, 36, 32, 8, 12288, 151936, 1e6, false, 0, 0},
        {"14B", "qwen3/__init__.py:97", 5120, 40, 40, 8, 17408, 151936, 1e6, false, 0, 0},
        {"32B", "qwen3/__init__.py:109", 5120, 64, 64, 8, 25600, 151936, 1e6, false, 0, 0},
        {"debugmodel_moe", "qwen3/__init__.py:122", 256, 8, 16, 8, 3072, 2048, 1e6, false, 64, 768},
        {"30B-A3B", "qwen3/__init__.py:145", 2048, 48, 32, 4, 6144, 151936, 1e6, false, 128, 768},
        {"235B-A22B", "qwen3/__init__.py:168", 4096, 94, 64, 4, 12288, 151936, 5e6, false, 128, 1536},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const bool mixed = rows[i].experts > 0;
        const struct model_dims dims = {.dim = rows[i].dim,
                                        .n_layers = rows[i].layers,
                                        .n_heads = rows[i].heads,
                                        .n_kv_heads = rows[i].kv,
                                        .head_dim = 128,
                                        .ffn_hidden = rows[i].ffn,
                                        .vocab_size = rows[i].vocab,
                                        .rope_theta = rows[i].theta,
                                        .norm_eps = 1e-6,
                                        .rope_scaling = "none",
                                        .tied_embeddings = rows[i].tied,
                                        .qk_norm = true,
                                        .n_experts = rows[i].experts,
                                        .top_k = mixed ? 8 : 0,
                                        .moe_hidden = rows[i].moe_hidden,
                                        .normalize_scores = mixed,
                                        .route_scale = mixed ? 1 : 0};
        check_flavor("qwen3", rows[i].flavor, &dims, false, rows[i].source);
    }
}

/* deepseek_v3/model/args.py:23 DeepSeekV3ModelArgs, models/moe/moe.py:22 MoEArgs (load_balance_coeff 1e-3); groups of
 * experts are chosen by the sum of the best two scores: moe.py:279 */
static void test_deepseek_v3(void **state)
{
    (void)state;
    static const struct {
        const char *flavor, *source;
        int64_t dim, layers, dense, heads, ffn, vocab, q_rank, experts, top_k, shared, moe_hidden, groups, limited;
        bool sigmoid, normalize;
        double scale, mscale;
        bool block_causal;
    } rows[] = {
        {"debugmodel",
         "deepseek_v3/__init__.py:30",
         256,
         6,
         1,
         16,
         1024,
         2048,
         0,
         8,
         3,
         2,
         256,
         0,
         0,
         false,
         false,
         1,
         0.7,
         false},
        {"debugmodel_flex_attn",
         "deepseek_v3/__init__.py:53",
         256,
         6,
         1,
         16,
         1024,
         2048,
         0,
         8,
         3,
         2,
         256,
         0,
         0,
         false,
         false,
         1,
         0.7,
         true},
        {"16B", "deepseek_v3/__init__.py:78",
         2048,  27,
         1,     16,
         10944, 102400,
         0,     64,
         6,     2,
         1408,  0,
         0,     false,
         false, 1,
         0.7,   true},
        {"236B", "deepseek_v3/__init__.py:103",
         5120,   60,
         1,      128,
         12288,  102400,
         1536,   160,
         6,      2,
         1536,   8,
         3,      false,
         false,  16,
         1,      true},
        {"671B", "deepseek_v3/__init__.py:130",
         7168,   61,
         3,      128,
         18432,  129280,
         1536,   256,
         8,      1,
         2048,   8,
         4,      true,
         true,   2.5,
         1,      true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct model_dims dims = {.dim = rows[i].dim,
                                        .n_layers = rows[i].layers,
                                        .n_heads = rows[i].heads,
                                        .n_kv_heads = rows[i].heads,
                                        .head_dim = 192,
                                        .ffn_hidden = rows[i].ffn,
                                        .vocab_size = rows[i].vocab,
                                        .rope_theta = 10000,
                                        .norm_eps = 1e-5,
                                        .rope_scaling = "none", /* at the default length of 2048 */
                                        .rope_factor = 40,
                                        .rope_original_length = 4096,
                                        .rope_beta_fast = 32,
                                        .rope_beta_slow = 1,
                                        .rope_mscale = rows[i].mscale,
                                        .rope_mscale_all_dim = rows[i].mscale,
                                        .q_lora_rank = rows[i].q_rank,
                                        .kv_lora_rank = 512,
                                        .qk_nope_head_dim = 128,
                                        .qk_rope_head_dim = 64,
                                        .v_head_dim = 128,
                                        .n_experts = rows[i].experts,
                                        .top_k = rows[i].top_k,
                                        .n_shared_experts = rows[i].shared,
                                        .moe_hidden = rows[i].moe_hidden,
                                        .n_dense_layers = rows[i].dense,
                                        .n_expert_groups = rows[i].groups,
                                        .n_limited_groups = rows[i].limited,
                                        .group_top_k = rows[i].groups > 0 ? 2 : 0,
                                        .sigmoid_scores = rows[i].sigmoid,
                                        .normalize_scores = rows[i].normalize,
                                        .route_scale = rows[i].scale,
                                        .balance_rate = 1e-3};
        check_flavor("deepseek_v3", rows[i].flavor, &dims, rows[i].block_causal, rows[i].source);
    }
}

/* --- what TorchTitan does not have -------------------------------------------------------------------------------- */

/* config.json of Llama 3.2: "rope_scaling": {"factor": 32.0, ...} */
static void test_llama32(void **state)
{
    (void)state;
    static const char *const flavors[] = {"1B", "3B"};
    for (size_t i = 0; i < ARRAY_SIZE(flavors); i++) {
        const struct model_dims d = resolved("llama3", flavors[i], NULL).model.dims;
        assert_string_equal(d.rope_scaling, "llama3");
        assert_true(d.rope_factor == 32 && d.rope_low_freq_factor == 1 && d.rope_high_freq_factor == 4);
        assert_int_equal(d.rope_original_length, 8192);
    }
}

/* --- keys beside a flavor ----------------------------------------------------------------------------------------- */

/* As TorchTitan: deepseek_v3/model/model.py:111, :234. */
static void test_yarn_beyond_the_original_length(void **state)
{
    (void)state;
    assert_string_equal(resolved("deepseek_v3", "16B", "training.seq_len=4096").model.dims.rope_scaling, "none");
    struct recipe r = resolved("deepseek_v3", "16B", "training.seq_len=4097"), again = r;
    assert_string_equal(r.model.dims.rope_scaling, "yarn");
    assert_int_equal(recipe_resolve(&again, NULL), TITAN_OK);
    assert_memory_equal(&r, &again, sizeof(r));
    r = resolved("deepseek_v3", "16B", "model.rope_scaling=yarn");
    assert_string_equal(r.model.dims.rope_scaling, "yarn");
    r = resolved("deepseek_v3", "16B", "training.block_causal=false");
    assert_false(r.training.block_causal);
}

/* A file of an earlier version has a switch. */
static void test_rope_scaling_as_a_switch(void **state)
{
    (void)state;
    struct recipe r = resolved("llama3", "tiny", "model.rope_scaling=true");
    assert_string_equal(r.model.dims.rope_scaling, "llama3");
    assert_true(r.model.dims.rope_factor == 8 && r.model.dims.rope_original_length == 8192);
    r = resolved("llama3", "8B", "model.rope_scaling=false");
    assert_string_equal(r.model.dims.rope_scaling, "none");
    recipe_init(&r);
    assert_int_equal(recipe_parse(&r, "[model]\nrope_scaling = true\n", "f", NULL), TITAN_OK);
    assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
    assert_string_equal(r.model.dims.rope_scaling, "llama3");
}

/* Printed and read again it is the same recipe. */
static void test_printed_and_read(void **state)
{
    (void)state;
    for (int i = 0; i < recipe_flavors_count; i++) {
        struct recipe r = resolved(recipe_flavors[i].family, recipe_flavors[i].name, "training.seq_len=8192"), again;
        _cleanup_(buf_free) struct buf text = BUF_INIT;
        struct titan_error err = {0};
        recipe_print(&r, &text);
        recipe_init(&again);
        if (recipe_parse(&again, text.data, "f", &err) != TITAN_OK || recipe_resolve(&again, &err) != TITAN_OK)
            fail_msg("%s %s: %s", recipe_flavors[i].family, recipe_flavors[i].name, err.msg);
        assert_memory_equal(&r.model.dims, &again.model.dims, sizeof(r.model.dims));
        assert_true(recipe_hash(&r) == recipe_hash(&again));
    }
}

/* A list of numbers is printed, read again to the bit, and part of the model's identity. */
static void test_lists_of_numbers(void **state)
{
    (void)state;
    static const char text[] =
        "[model]\nrope_scaling = \"longrope\"\nrope_dim = 6\nrope_factor = 32\nrope_original_length = 4096\n"
        "rope_short_factor = [1, 1.0499999523162842, 2.5e0]\nrope_long_factor = [1.25, 4.0, %s]\n";
    char one[512], other[512], most[8 * RECIPE_REALS_MAX] = "model.rope_long_factor=[1";
    struct recipe r, again, longer;
    struct titan_error err = {0};
    _cleanup_(buf_free) struct buf printed = BUF_INIT, differences = BUF_INIT;
    (void)snprintf(one, sizeof one, text, "64");
    (void)snprintf(other, sizeof other, text, "64.5");
    recipe_init(&r);
    recipe_init(&again);
    recipe_init(&longer);
    if (recipe_parse(&r, one, "f", &err) != TITAN_OK || recipe_resolve(&r, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    assert_true(r.model.dims.rope_short_factor.n == 3 && r.model.dims.rope_short_factor.value[1] == 1.0499999523162842);
    recipe_print(&r, &printed);
    assert_non_null(strstr(printed.data, "rope_short_factor = [1.0, 1.0499999523162842, 2.5]\n"));
    assert_int_equal(recipe_parse(&again, printed.data, "f", &err), TITAN_OK);
    assert_int_equal(recipe_resolve(&again, &err), TITAN_OK);
    assert_memory_equal(&r.model.dims, &again.model.dims, sizeof r.model.dims);
    assert_true(recipe_hash(&r) == recipe_hash(&again));
    assert_int_equal(recipe_parse(&longer, other, "f", &err), TITAN_OK);
    assert_int_equal(recipe_resolve(&longer, &err), TITAN_OK);
    assert_true(recipe_hash(&r) != recipe_hash(&longer));
    recipe_model_differences(&r, &longer, &differences);
    assert_string_equal(differences.data, "model.rope_long_factor = [1.25, 4.0, 64.0], there [1.25, 4.0, 64.5]");
    for (int i = 1; i < RECIPE_REALS_MAX; i++)
        (void)strcat(most, ",1");
    (void)strcat(most, "]");
    assert_int_equal(recipe_set(&r, most, &err), TITAN_OK);
    assert_int_equal(r.model.dims.rope_long_factor.n, RECIPE_REALS_MAX);
    most[strlen(most) - 1] = '\0';
    (void)strcat(most, ",1]");
    assert_int_equal(recipe_set(&r, most, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, "--set: model.rope_long_factor: more than 128 numbers");
}

static void refused(const char *family, const char *const *sets, const char *message)
{
    struct recipe r;
    struct titan_error err = {0};
    recipe_init(&r);
    snprintf(r.model.name, sizeof(r.model.name), "%s", family);
    for (; *sets; sets++)
        assert_int_equal(recipe_set(&r, *sets, &err), TITAN_OK);
    assert_int_equal(recipe_resolve(&r, &err), TITAN_EINVAL);
    assert_string_equal(err.msg, message);
}
#define REFUSED(family, message, ...) refused(family, (const char *const[]){__VA_ARGS__, NULL}, message)

static void test_refusals(void **state)
{
    (void)state;
    REFUSED("deepseek_v3", "model.n_expert_groups = 3 does not divide model.n_experts = 8", "model.n_expert_groups=3",
            "model.n_limited_groups=1");
    REFUSED("deepseek_v3", "model.n_limited_groups = 0 does not fit model.n_expert_groups = 4; nearest: 1",
            "model.n_expert_groups=4");
    REFUSED("deepseek_v3", "model.n_limited_groups = 5 does not fit model.n_expert_groups = 4; nearest: 4",
            "model.n_expert_groups=4", "model.n_limited_groups=5");
    REFUSED("deepseek_v3",
            "model.group_top_k = 3 is more than the 2 experts of a group (model.n_experts / model.n_expert_groups)",
            "model.n_expert_groups=4", "model.n_limited_groups=2", "model.group_top_k=3");
    REFUSED("deepseek_v3", "model.top_k = 9 does not fit model.n_experts = 8; nearest: 4", "model.n_expert_groups=4",
            "model.n_limited_groups=2", "model.top_k=9");
    REFUSED("deepseek_v3", "model.top_k = 3 is more than the 2 experts of model.n_limited_groups = 1 groups",
            "model.n_expert_groups=4", "model.n_limited_groups=1");
    REFUSED("qwen3",
            "model.rope_scaling = \"yarn\" needs model.rope_factor of at least 1 and model.rope_original_length above "
            "0; they are 0 and 0",
            "model.rope_scaling=yarn");
    REFUSED(
        "llama3",
        "model.rope_scaling = \"longrope\" needs model.rope_factor of at least 1 and model.rope_original_length above "
        "1; they are 0 and 0",
        "model.flavor=8B", "model.rope_factor=0", "model.rope_original_length=0", "model.rope_scaling=longrope");
    REFUSED(
        "llama3",
        "model.rope_scaling = \"longrope\" needs 3 numbers in model.rope_long_factor, one for each rotated pair of a "
        "head; there are 2",
        "model.rope_scaling=longrope", "model.rope_factor=4", "model.rope_original_length=64", "model.rope_dim=6",
        "model.rope_short_factor=[1, 1, 1]", "model.rope_long_factor=[1, 2]");
    REFUSED("deepseek_v3", "model.rope_beta_fast = 1 is not above model.rope_beta_slow = 1", "model.rope_scaling=yarn",
            "model.rope_beta_fast=1");
    REFUSED("llama3", "model.rope_high_freq_factor = 4 is not above model.rope_low_freq_factor = 4",
            "model.rope_low_freq_factor=4");
    REFUSED("deepseek_v3",
            "model.kv_lora_rank = 512 (latent attention) needs an even model.qk_rope_head_dim above 0, and "
            "model.qk_nope_head_dim and model.v_head_dim above 0; they are 5, 128 and 128",
            "model.qk_rope_head_dim=5");
}

/* Only what is rotated comes in pairs. */
static void test_odd_latent_sizes(void **state)
{
    (void)state;
    struct recipe r;
    recipe_init(&r);
    snprintf(r.model.name, sizeof(r.model.name), "deepseek_v3");
    assert_int_equal(recipe_set(&r, "model.qk_nope_head_dim=13", NULL), TITAN_OK);
    assert_int_equal(recipe_set(&r, "model.v_head_dim=7", NULL), TITAN_OK);
    assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
    assert_int_equal(r.model.dims.head_dim, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_deepseek_v3),
        cmocka_unit_test(test_llama32),
        cmocka_unit_test(test_yarn_beyond_the_original_length),
        cmocka_unit_test(test_rope_scaling_as_a_switch),
        cmocka_unit_test(test_lists_of_numbers),
        cmocka_unit_test(test_printed_and_read),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_odd_latent_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
