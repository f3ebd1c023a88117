/* SPDX-License-Identifier: Apache-2.0 */
/* The models: families and sizes, from TorchTitan's registries and the released configurations. */
#include "base/cleanup.h"
#include "base/recipe_keys.h"

/* Llama 3.1's scaling of rotary frequencies, at every size in TorchTitan; Llama 3.2 uses a factor of 32. */
#define LLAMA_ROPE(factor)                                                                                             \
    .rope_theta = 500000.0, .norm_eps = 1e-5, .rope_scaling = "llama3", .rope_factor = (factor),                       \
    .rope_original_length = 8192, .rope_low_freq_factor = 1.0, .rope_high_freq_factor = 4.0
#define PLAIN_ROPE .rope_theta = 500000.0, .norm_eps = 1e-5, .rope_scaling = "none"
#define LLAMA(d, l, h, k, f, stretch)                                                                                  \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_hidden = (f), .vocab_size = 128256,           \
    LLAMA_ROPE(stretch)

#define QWEN_TRAITS .head_dim = 128, .qk_norm = true, .rope_theta = 1e6, .norm_eps = 1e-6, .rope_scaling = "none"
#define QWEN(d, l, h, k, f)                                                                                            \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_hidden = (f), .vocab_size = 151936, QWEN_TRAITS
/* The biases for the choice of experts never change. */
#define QWEN_EXPERTS(e, m)                                                                                             \
    .n_experts = (e), .top_k = 8, .moe_hidden = (m), .normalize_scores = true, .route_scale = 1.0, .balance_rate = 0.0

/* Router: e experts, k chosen, s shared, of width m. */
#define ROUTED(e, k, s, m)                                                                                             \
    .n_experts = (e), .top_k = (k), .n_shared_experts = (s), .moe_hidden = (m), .balance_rate = 1e-3
/* g groups of experts; a token's experts are in l groups, ranked by the sum of their best two scores. */
#define GROUPS(g, l) .n_expert_groups = (g), .n_limited_groups = (l), .group_top_k = 2
/* DeepSeek V2 and V3: latent attention; m: YaRN's mscale. */
#define LATENT(q, kv, nope, rope, v, m)                                                                                \
    .q_lora_rank = (q), .kv_lora_rank = (kv), .qk_nope_head_dim = (nope), .qk_rope_head_dim = (rope),                  \
    .v_head_dim = (v), .head_dim = (nope) + (rope), .rope_theta = 10000.0, .norm_eps = 1e-5, .rope_scaling = "auto",   \
    .rope_factor = 40.0, .rope_original_length = 4096, .rope_beta_fast = 32.0, .rope_beta_slow = 1.0,                  \
    .rope_mscale = (m), .rope_mscale_all_dim = (m)
#define DEEPSEEK(d, l, h, f, v)                                                                                        \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (h), .ffn_hidden = (f), .vocab_size = (v)

/* gpt-oss: l layers, e experts. The biases for the choice of experts never change, because transformers' class has no
 * place for them. */
#define GPT_OSS(d, l, e, v)                                                                                            \
    .dim = (d), .n_layers = (l), .n_heads = 64, .n_kv_heads = 8, .ffn_hidden = 2880, .vocab_size = (v),                \
    .head_dim = 64, .rope_theta = 150000.0, .norm_eps = 1e-5, .rope_scaling = "yarn", .rope_factor = 32.0,             \
    .rope_original_length = 4096, .rope_beta_fast = 32.0, .rope_beta_slow = 1.0, .rope_between_pairs = true,           \
    .qkv_bias = true, .output_bias = true, .mlp_bias = true, .attention_sinks = true, .swiglu_limit = 7.0,             \
    .swiglu_alpha = 1.702, .sliding_window = 128, .full_attention_every = 2, .n_experts = (e), .top_k = 4,             \
    .moe_hidden = 2880, .normalize_scores = true, .route_scale = 1.0, .router_bias = true

/* clang-format off */
const struct recipe_flavor recipe_flavors[] = {
    {"llama3", "debugmodel", {256, 6, 16, 16, 768, 2048, LLAMA_ROPE(8.0)}, .doc = "TorchTitan's debug model"},
    {"llama3", "debugmodel_flex_attn", {256, 6, 16, 16, 768, 2048, LLAMA_ROPE(8.0)}, .doc = "the same, within documents", .block_causal = true},
    {"llama3", "debugmodel_varlen_attn", {256, 6, 16, 16, 768, 2048, LLAMA_ROPE(8.0)}, .doc = "the same, within documents", .block_causal = true},
    {"llama3", "demo", {256, 8, 8, 4, 768, 256, PLAIN_ROPE},
     .doc = "learns text on two cores in minutes"},
    {"llama3", "tiny", {64, 2, 4, 2, 128, 256, PLAIN_ROPE}, .doc = "for tests"},
    {"llama3", "1B", {LLAMA(2048, 16, 32, 8, 8192, 32.0), .tied_embeddings = true}, .doc = "Llama 3.2 1B"},
    {"llama3", "3B", {LLAMA(3072, 28, 24, 8, 8192, 32.0), .tied_embeddings = true}, .doc = "Llama 3.2 3B"},
    {"llama3", "8B", {LLAMA(4096, 32, 32, 8, 14336, 8.0)}, .doc = "Llama 3.1 8B"},
    {"llama3", "8B_flex", {LLAMA(4096, 32, 32, 8, 14336, 8.0)}, .doc = "the same, within documents", .block_causal = true},
    {"llama3", "8B_varlen", {LLAMA(4096, 32, 32, 8, 14336, 8.0)}, .doc = "the same, within documents", .block_causal = true},
    {"llama3", "70B", {LLAMA(8192, 80, 64, 8, 28672, 8.0)}, .doc = "Llama 3.1 70B"},
    {"llama3", "405B", {LLAMA(16384, 126, 128, 8, 53248, 8.0)}, .doc = "Llama 3.1 405B"},

    {"llama3_moe", "debugmodel",
     {256, 6, 16, 16, 768, 2048, LLAMA_ROPE(8.0), ROUTED(8, 2, 1, 256), .n_dense_layers = 1, .normalize_scores = true,
      .route_scale = 1.0}, .doc = "the debug model with experts"},
    {"llama3_moe", "tiny",
     {64, 2, 4, 2, 128, 256, PLAIN_ROPE, ROUTED(4, 2, 1, 64), .n_dense_layers = 1,
      .normalize_scores = true, .route_scale = 1.0}, .doc = "for tests"},

    {"qwen3", "debugmodel", {256, 8, 16, 8, 3072, 2048, QWEN_TRAITS, .tied_embeddings = true},
     .doc = "TorchTitan's debug model"},
    {"qwen3", "tiny",
     {64, 2, 4, 2, 128, 256, .head_dim = 32, .qk_norm = true, .rope_theta = 1e6, .norm_eps = 1e-6,
      .rope_scaling = "none", .tied_embeddings = true}, .doc = "for tests"},
    {"qwen3", "0.6B", {QWEN(1024, 28, 16, 8, 3072), .tied_embeddings = true}, .doc = "Qwen3 0.6B"},
    {"qwen3", "1.7B", {QWEN(2048, 28, 16, 8, 6144), .tied_embeddings = true}, .doc = "Qwen3 1.7B"},
    {"qwen3", "4B", {QWEN(2560, 36, 32, 8, 9728), .tied_embeddings = true}, .doc = "Qwen3 4B"},
    {"qwen3", "8B", {QWEN(4096, 36, 32, 8, 12288)}, .doc = "Qwen3 8B"},
    {"qwen3", "14B", {QWEN(5120, 40, 40, 8, 17408)}, .doc = "Qwen3 14B"},
    {"qwen3", "32B", {QWEN(5120, 64, 64, 8, 25600)}, .doc = "Qwen3 32B"},
    {"qwen3", "debugmodel_moe", {256, 8, 16, 8, 3072, 2048, QWEN_TRAITS, QWEN_EXPERTS(64, 768)},
     .doc = "TorchTitan's debug model with experts"},
    {"qwen3", "30B-A3B", {QWEN(2048, 48, 32, 4, 6144), QWEN_EXPERTS(128, 768)}, .doc = "Qwen3 30B-A3B"},
    {"qwen3", "235B-A22B",
     {.dim = 4096, .n_layers = 94, .n_heads = 64, .n_kv_heads = 4, .ffn_hidden = 12288, .vocab_size = 151936,
      .head_dim = 128, .qk_norm = true, .rope_theta = 5e6, .norm_eps = 1e-6, .rope_scaling = "none",
      QWEN_EXPERTS(128, 1536)}, .doc = "Qwen3 235B-A22B"},

    {"deepseek_v3", "debugmodel",
     {DEEPSEEK(256, 6, 16, 1024, 2048), LATENT(0, 512, 128, 64, 128, 0.7), ROUTED(8, 3, 2, 256), .n_dense_layers = 1,
      .route_scale = 1.0}, .doc = "TorchTitan's debug model"},
    {"deepseek_v3", "debugmodel_flex_attn",
     {DEEPSEEK(256, 6, 16, 1024, 2048), LATENT(0, 512, 128, 64, 128, 0.7), ROUTED(8, 3, 2, 256), .n_dense_layers = 1,
      .route_scale = 1.0}, .doc = "the same, within documents", .block_causal = true},
    {"deepseek_v3", "tiny",
     {DEEPSEEK(64, 2, 4, 128, 256), LATENT(32, 32, 16, 8, 16, 1.0), ROUTED(4, 2, 1, 64), .n_dense_layers = 1,
      .sigmoid_scores = true, .normalize_scores = true, .route_scale = 2.5}, .doc = "for tests"},
    {"deepseek_v3", "16B",
     {DEEPSEEK(2048, 27, 16, 10944, 102400), LATENT(0, 512, 128, 64, 128, 0.7), ROUTED(64, 6, 2, 1408),
      .n_dense_layers = 1, .route_scale = 1.0}, .doc = "DeepSeek V2 Lite", .block_causal = true},
    {"deepseek_v3", "236B",
     {DEEPSEEK(5120, 60, 128, 12288, 102400), LATENT(1536, 512, 128, 64, 128, 1.0), ROUTED(160, 6, 2, 1536),
      GROUPS(8, 3), .n_dense_layers = 1, .route_scale = 16.0}, .doc = "DeepSeek V2", .block_causal = true},
    {"deepseek_v3", "671B",
     {DEEPSEEK(7168, 61, 128, 18432, 129280), LATENT(1536, 512, 128, 64, 128, 1.0), ROUTED(256, 8, 1, 2048),
      GROUPS(8, 4), .n_dense_layers = 3, .sigmoid_scores = true, .normalize_scores = true, .route_scale = 2.5},
     .doc = "DeepSeek V3", .block_causal = true},

    {"gpt_oss", "debugmodel", {GPT_OSS(256, 4, 8, 201088)}, .doc = "TorchTitan's debug model"},
    {"gpt_oss", "20B", {GPT_OSS(2880, 24, 32, 201088)}, .doc = "gpt-oss-20b"},
    {"gpt_oss", "120B", {GPT_OSS(2880, 36, 128, 201088)}, .doc = "gpt-oss-120b"},
};
/* clang-format on */
const int recipe_flavors_count = (int)ARRAY_SIZE(recipe_flavors);
