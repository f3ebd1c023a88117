/* SPDX-License-Identifier: Apache-2.0 */
/* Flavors against published sizes, and memory. */
#include <math.h>
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

static struct recipe model(const char *family, const char *flavor)
{
    struct recipe r;
    recipe_init(&r);
    snprintf(r.model.name, sizeof(r.model.name), "%s", family);
    snprintf(r.model.flavor, sizeof(r.model.flavor), "%s", flavor);
    return r;
}

/* Parameters as published: TorchTitan's Llama 3, the safetensors headers of the released Qwen3 and DeepSeek models
 * (without the second copy of tied heads, DeepSeek V3 without its router biases), transformers' class of gpt-oss. */
static void test_params(void **state)
{
    (void)state;
    static const struct {
        const char *family, *flavor;
        int64_t params;
    } cases[] = {
        {"llama3", "debugmodel", 6163712},
        {"llama3", "demo", 6426880},
        {"llama3", "1B", INT64_C(1235814400)},
        {"llama3", "3B", INT64_C(3212749824)},
        {"llama3", "8B", INT64_C(8030261248)},
        {"llama3", "70B", INT64_C(70553706496)},
        {"llama3", "405B", INT64_C(405853388800)},
        {"qwen3", "0.6B", 596049920},
        {"qwen3", "1.7B", INT64_C(1720574976)},
        {"qwen3", "4B", INT64_C(4022468096)},
        {"qwen3", "8B", INT64_C(8190735360)},
        {"qwen3", "14B", INT64_C(14768307200)},
        {"qwen3", "32B", INT64_C(32762123264)},
        {"qwen3", "30B-A3B", INT64_C(30532122624)},
        {"qwen3", "235B-A22B", INT64_C(235093634560)},
        {"deepseek_v3", "16B", INT64_C(15706484224)},
        {"deepseek_v3", "671B", INT64_C(671026404352)},
        {"gpt_oss", "20B", INT64_C(20914757184)},
        {"gpt_oss", "120B", INT64_C(116829156672)},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r = model(cases[i].family, cases[i].flavor);
        struct titan_error err = {0};
        if (recipe_resolve(&r, &err) != TITAN_OK)
            fail_msg("%s", err.msg);
        if (recipe_params(&r) != cases[i].params)
            fail_msg("%s %s: %lld", cases[i].family, cases[i].flavor, (long long)recipe_params(&r));
    }
}

/* FLOPs a token as published for TorchTitan's Llama 3, and by its rule for experts and for latent attention. */
static void test_flops(void **state)
{
    (void)state;
    static const struct {
        const char *family, *flavor;
        int64_t seq_len;
        double flops;
    } cases[] = {
        {"llama3", "debugmodel", 2048, 7.159e7},
        {"llama3", "demo", 256, 4.4460e7},
        {"llama3", "1B", 8192, 1.0636e10},
        {"llama3", "3B", 8192, 2.7732e10},
        {"llama3", "8B", 8192, 5.7914e10},
        {"llama3", "70B", 8192, 4.8144e11},
        {"llama3", "405B", 8192, 2.6254e12},
        /* 16B: 64 experts of which a token passes 6: 6 * (15706484224 - 209715200 - 58 * 26 * 3 * 2048 * 1408)
         * + 6 * 27 * 16 * (192 + 128) * 4096 */
        {"deepseek_v3", "16B", 4096,
         6 * (15706484224.0 - 209715200 - 58.0 * 26 * 3 * 2048 * 1408) + 6.0 * 27 * 16 * 320 * 4096},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r = model(cases[i].family, cases[i].flavor);
        r.training.seq_len = cases[i].seq_len;
        assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
        if (!(fabs(recipe_flops_per_token(&r) / cases[i].flops - 1) < 1e-4))
            fail_msg("%s %s: %g", cases[i].family, cases[i].flavor, recipe_flops_per_token(&r));
    }
}

/* Query q of a sequence sees q keys, (seq + 1) / 2 on average, and nothing but attention is less. */
static void test_causal_flops(void **state)
{
    (void)state;
    static const struct {
        const char *family, *flavor;
        int64_t seq_len;
        double flops;
    } cases[] = {
        {"llama3", "8B", 8192, 6 * (8030261248.0 - 128256 * 4096) + 12.0 * 32 * 32 * 128 * 8193 / 2},
        {"llama3", "8B", 1, 6 * (8030261248.0 - 128256 * 4096) + 12.0 * 32 * 32 * 128},
        {"deepseek_v3", "16B", 4096,
         6 * (15706484224.0 - 209715200 - 58.0 * 26 * 3 * 2048 * 1408) + 6.0 * 27 * 16 * 320 * 4097 / 2},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r = model(cases[i].family, cases[i].flavor);
        r.training.seq_len = cases[i].seq_len;
        assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
        if (!(fabs(recipe_causal_flops_per_token(&r) / cases[i].flops - 1) < 1e-12))
            fail_msg("%s %s: %.17g", cases[i].family, cases[i].flavor, recipe_causal_flops_per_token(&r));
    }
}

/* Experts that keys give to a dense flavor count. */
static void test_experts_of_a_dense_flavor(void **state)
{
    (void)state;
    struct recipe r = model("llama3", "debugmodel");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(recipe_set(&r, "model.n_experts=8", NULL), TITAN_OK);
        assert_int_equal(recipe_set(&r, "model.top_k=2", NULL), TITAN_OK);
        assert_int_equal(recipe_set(&r, "model.moe_hidden=32", NULL), TITAN_OK);
        assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
        assert_true(r.model.dims.route_scale == (i ? 2.5 : 1));
        r = model("llama3", "debugmodel");
        assert_true(r.model.dims.route_scale == 0);
        assert_int_equal(recipe_set(&r, "model.route_scale=2.5", NULL), TITAN_OK);
    }
}

/* A world smaller than the mesh is none: what is told of it is what the mesh needs, its copies too. */
static void test_memory_below_the_mesh(void **state)
{
    (void)state;
    struct recipe r = model("llama3", "debugmodel");
    assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
    r.parallelism.tensor_parallel_degree = 21;
    assert_true(recipe_memory_bytes(&r, 1) == recipe_memory_bytes(&r, 21));
    assert_true(recipe_memory_bytes(&r, 7) == recipe_memory_bytes(&r, 21));
    assert_true(recipe_memory_bytes(&r, 7) > recipe_memory_bytes(&r, 42));
}

static void test_memory(void **state)
{
    (void)state;
    struct recipe r = model("llama3", "8B");
    struct titan_error err = {0};
    assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
    r.training.global_batch_size = 128; /* sixteen microbatches: one worker and eight both add up */
    const uint64_t params = (uint64_t)recipe_params(&r);
    uint64_t one = recipe_memory_bytes(&r, 1), eight = recipe_memory_bytes(&r, 8);
    assert_true(one > 20 * params);
    assert_true(one - eight == params * (12 + 4 + 4) / 8 * 7 - params * 16 / 8); /* eight have a copy each */
    snprintf(r.fault_tolerance.redundancy, sizeof(r.fault_tolerance.redundancy), "checkpoint");
    assert_true(eight - recipe_memory_bytes(&r, 8) == params * 16 / 8);
    snprintf(r.parallelism.fsdp_reduce, sizeof(r.parallelism.fsdp_reduce), "step"); /* a full gradient is kept */
    assert_true(recipe_memory_bytes(&r, 1) - one == 4 * params);
    r.training.global_batch_size = 8; /* but not of one microbatch */
    assert_true(recipe_memory_bytes(&r, 1) == one);
    r.training.global_batch_size = 128; /* sixteen microbatches: five levels */
    r.numerics.canonical = true;
    assert_true(recipe_memory_bytes(&r, 1) - one == 5 * 4 * params);
    r.numerics.canonical = false;
    snprintf(r.activation_checkpoint.mode, sizeof(r.activation_checkpoint.mode), "full");
    assert_true(recipe_memory_bytes(&r, 1) < one);
    snprintf(r.activation_checkpoint.mode, sizeof(r.activation_checkpoint.mode), "none");
    snprintf(r.parallelism.fsdp_reduce, sizeof(r.parallelism.fsdp_reduce), "default");
    snprintf(r.optimizer.state_dtype, sizeof(r.optimizer.state_dtype), "bfloat16");
    const uint64_t moments = recipe_memory_bytes(&r, 1);
    snprintf(r.training.dtype, sizeof(r.training.dtype), "bfloat16");
    assert_true(moments - recipe_memory_bytes(&r, 1) == 2 * params);
    snprintf(r.optimizer.state_dtype, sizeof(r.optimizer.state_dtype), "float32"); /* of bf16 weights they are bf16 */
    assert_true(moments - recipe_memory_bytes(&r, 1) == 2 * params);
    snprintf(r.training.dtype, sizeof(r.training.dtype), "float32");
    assert_true(recipe_memory_bytes(&r, 1) - moments == 4 * params);
    assert_int_equal(recipe_check_memory(&r, 1, 0, &err), TITAN_OK); /* unknown */
    assert_int_equal(recipe_check_memory(&r, 1, one, &err), TITAN_OK);
    assert_int_equal(recipe_check_memory(&r, 1, UINT64_C(24) << 30, &err), TITAN_EUNPLACEABLE);
    assert_non_null(strstr(err.msg, "24.0 GiB"));
    assert_non_null(strstr(err.msg, "8B"));
    assert_true(err.hint[0]);
}

/* Every axis takes its part of the estimate. */
static void test_memory_of_axes(void **state)
{
    (void)state;
    static const char *const axes[] = {"parallelism.tensor_parallel_degree=4", "parallelism.pipeline_parallel_degree=4",
                                       "parallelism.context_parallel_degree=4"};
    struct recipe plain = model("llama3", "8B");
    assert_int_equal(recipe_set(&plain, "training.global_batch_size=32", NULL), TITAN_OK);
    assert_int_equal(recipe_resolve(&plain, NULL), TITAN_OK);
    for (size_t i = 0; i < ARRAY_SIZE(axes); i++) {
        struct recipe r = model("llama3", "8B");
        assert_int_equal(recipe_set(&r, axes[i], NULL), TITAN_OK);
        assert_int_equal(recipe_set(&r, "training.global_batch_size=32", NULL), TITAN_OK);
        assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
        if (!(recipe_memory_bytes(&r, 4) < recipe_memory_bytes(&plain, 1) * 6 / 10))
            fail_msg("%s: %llu of %llu", axes[i], (unsigned long long)recipe_memory_bytes(&r, 4),
                     (unsigned long long)recipe_memory_bytes(&plain, 1));
    }
}

/* Experts: more ranks to hold them take their part, at equal sharding of the rest. */
static void test_memory_of_experts(void **state)
{
    (void)state;
    uint64_t before = 0;
    static const char *const degrees[] = {"parallelism.expert_parallel_degree=1",
                                          "parallelism.expert_parallel_degree=8",
                                          "parallelism.expert_parallel_degree=64"};
    for (size_t i = 0; i < ARRAY_SIZE(degrees); i++) {
        struct recipe r = model("deepseek_v3", "16B");
        assert_int_equal(recipe_set(&r, degrees[i], NULL), TITAN_OK);
        assert_int_equal(recipe_set(&r, "elastic.max_workers=64", NULL), TITAN_OK);
        assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
        assert_int_equal(recipe_check_world(&r, 64, NULL), TITAN_OK);
        uint64_t now = recipe_memory_bytes(&r, 64);
        assert_true(i == 0 || now < before);
        before = now;
    }
}

/* Dimensions that are legal one by one may multiply to more than 64 bits: refused, as are batches. */
static void test_sizes(void **state)
{
    (void)state;
    static const char *const largest[] = {"model.dim=1048576",         "model.n_layers=4096",
                                          "model.n_experts=4096",      "model.n_shared_experts=4096",
                                          "model.moe_hidden=4194304",  "model.n_dense_layers=0",
                                          "model.vocab_size=16777216", "model.head_dim=65536"};
    static const char *const batch[] = {"training.seq_len=16777216", "training.local_batch_size=1048576"};
    struct titan_error err = {0};
    struct recipe r = model("qwen3", "30B-A3B"), s = model("llama3", "8B");
    for (size_t i = 0; i < ARRAY_SIZE(largest); i++)
        assert_int_equal(recipe_set(&r, largest[i], NULL), TITAN_OK);
    assert_int_equal(recipe_resolve(&r, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "parameters; at most"));
    for (size_t i = 0; i < ARRAY_SIZE(batch); i++)
        assert_int_equal(recipe_set(&s, batch[i], NULL), TITAN_OK);
    assert_int_equal(recipe_resolve(&s, &err), TITAN_EINVAL);
    assert_non_null(strstr(err.msg, "a worker with 1 workers; at most 1.0 PiB"));
    s = model("llama3", "405B"); /* on one worker: more than any has, and for submit to refuse */
    assert_int_equal(recipe_resolve(&s, &err), TITAN_OK);
}

/* Traits that do not go together are refused by name. */
static void test_traits(void **state)
{
    (void)state;
    static const struct {
        const char *family, *set, *words;
    } cases[] = {
        {"llama3_moe", "model.mlp_bias=true", "model.mlp_bias does not go with model.n_shared_experts"},
        {"llama3_moe", "model.residual_multiplier=2", "model.residual_multiplier does not go with experts"},
        {"llama3", "model.router_bias=true", "model.router_bias = true needs model.n_experts"},
        {"llama3", "model.swiglu_limit=7 model.gelu=true", "model.swiglu_limit does not go with model.gelu"},
        {"deepseek_v3", "model.attention_sinks=true", "model.attention_sinks does not go with latent attention"},
        {"llama3", "model.mtp_loss_scale=0.1",
         "model.mtp_loss_scale = 0.1 is of multi-token prediction: set model.mtp_layers"},
        {"qwen3", "model.mtp_layers=1", "model.mtp_layers = 1 does not go with model.tied_embeddings = true"},
        {"llama3", "model.mtp_layers=2 model.sliding_window=8",
         "model.mtp_layers = 2 does not go with model.sliding_window"},
        {"llama3", "model.mtp_layers=2 model.no_rope_every=2",
         "model.mtp_layers = 2 does not go with model.no_rope_every"},
        {"llama3", "model.mtp_layers=1 model.logits_scaling=8",
         "model.mtp_layers = 1 does not go with model.logits_scaling"},
        {"deepseek_v3", "model.mtp_layers=1 parallelism.pipeline_parallel_degree=2",
         "model.mtp_layers = 1 does not go with parallelism.pipeline_parallel_degree = 2"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct recipe r = model(cases[i].family, "tiny");
        struct titan_error err = {0};
        for (const char *at = cases[i].set; *at; at += strcspn(at, " "), at += strspn(at, " ")) {
            char one[64];
            (void)snprintf(one, sizeof one, "%.*s", (int)strcspn(at, " "), at);
            assert_int_equal(recipe_set(&r, one, &err), TITAN_OK);
        }
        assert_int_equal(recipe_resolve(&r, &err), TITAN_EINVAL);
        if (!strstr(err.msg, cases[i].words))
            fail_msg("%s: %s", cases[i].set, err.msg);
    }
    struct recipe r = model("llama3", "tiny");
    assert_int_equal(recipe_set(&r, "model.swiglu_limit=7", NULL), TITAN_OK);
    assert_int_equal(recipe_resolve(&r, NULL), TITAN_OK);
    assert_true(r.model.dims.swiglu_alpha == 1.702);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params),         cmocka_unit_test(test_flops),
        cmocka_unit_test(test_causal_flops),   cmocka_unit_test(test_experts_of_a_dense_flavor),
        cmocka_unit_test(test_memory),         cmocka_unit_test(test_memory_below_the_mesh),
        cmocka_unit_test(test_memory_of_axes), cmocka_unit_test(test_memory_of_experts),
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_traits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
