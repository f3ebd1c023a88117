/* SPDX-License-Identifier: Apache-2.0 */
/* The models: families and sizes, from TorchTitan's registries and the released configurations. */
#include "base/cleanup.h"
#include "base/recipe_keys.h"

#define LLAMA_ROPE .rope_theta = 500000.0, .norm_eps = 1e-5, .rope_scaling = true
/* Llama 3 as TorchTitan has it: the same rope scaling at every size. */
#define LLAMA(d, l, h, k, f)                                                                                           \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_hidden = (f), .vocab_size = 128256, LLAMA_ROPE

#define QWEN_TRAITS .head_dim = 128, .qk_norm = true, .rope_theta = 1e6, .norm_eps = 1e-6
#define QWEN(d, l, h, k, f)                                                                                            \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_hidden = (f), .vocab_size = 151936, QWEN_TRAITS
#define QWEN_MOE(d, l, h, k, f, e)                                                                                     \
    QWEN(d, l, h, k, f), .n_experts = 128, .top_k = 8, .moe_hidden = (e), .normalize_scores = true,                    \
                         .route_scale = 1.0, .balance_rate = 1e-3

/* Router: e experts, k chosen, s shared, of width m. */
#define ROUTED(e, k, s, m)                                                                                             \
    .n_experts = (e), .top_k = (k), .n_shared_experts = (s), .moe_hidden = (m), .balance_rate = 1e-3
/* DeepSeek V2 and V3: latent attention, no long-context scaling of the rotary frequencies, choice of experts not
 * limited to groups. */
#define LATENT(q, kv, nope, rope, v)                                                                                   \
    .q_lora_rank = (q), .kv_lora_rank = (kv), .qk_nope_head_dim = (nope), .qk_rope_head_dim = (rope),                  \
    .v_head_dim = (v), .head_dim = (nope) + (rope), .rope_theta = 10000.0, .norm_eps = 1e-6
#define DEEPSEEK(d, l, h, f, v)                                                                                        \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (h), .ffn_hidden = (f), .vocab_size = (v)

/* clang-format off */
const struct recipe_flavor recipe_flavors[] = {
    {"llama3", "debugmodel", {256, 6, 16, 16, 768, 2048, LLAMA_ROPE}, "TorchTitan's debug model"},
    {"llama3", "demo", {256, 8, 8, 4, 768, 256, .rope_theta = 500000.0, .norm_eps = 1e-5},
     "learns text on two cores in minutes"},
    {"llama3", "tiny", {64, 2, 4, 2, 128, 256, .rope_theta = 500000.0, .norm_eps = 1e-5}, "for tests"},
    {"llama3", "1B", {LLAMA(2048, 16, 32, 8, 8192), .tied_embeddings = true}, "Llama 3.2 1B"},
    {"llama3", "3B", {LLAMA(3072, 28, 24, 8, 8192), .tied_embeddings = true}, "Llama 3.2 3B"},
    {"llama3", "8B", {LLAMA(4096, 32, 32, 8, 14336)}, "Llama 3.1 8B"},
    {"llama3", "70B", {LLAMA(8192, 80, 64, 8, 28672)}, "Llama 3.1 70B"},
    {"llama3", "405B", {LLAMA(16384, 126, 128, 8, 53248)}, "Llama 3.1 405B"},

    {"llama3_moe", "debugmodel",
     {256, 6, 16, 16, 768, 2048, LLAMA_ROPE, ROUTED(8, 2, 1, 256), .n_dense_layers = 1, .normalize_scores = true,
      .route_scale = 1.0}, "the debug model with experts"},
    {"llama3_moe", "tiny",
     {64, 2, 4, 2, 128, 256, .rope_theta = 500000.0, .norm_eps = 1e-5, ROUTED(4, 2, 1, 64), .n_dense_layers = 1,
      .normalize_scores = true, .route_scale = 1.0}, "for tests"},

    {"qwen3", "debugmodel", {256, 8, 16, 8, 3072, 2048, QWEN_TRAITS, .tied_embeddings = true},
     "TorchTitan's debug model"},
    {"qwen3", "tiny",
     {64, 2, 4, 2, 128, 256, .head_dim = 32, .qk_norm = true, .rope_theta = 1e6, .norm_eps = 1e-6,
      .tied_embeddings = true}, "for tests"},
    {"qwen3", "0.6B", {QWEN(1024, 28, 16, 8, 3072), .tied_embeddings = true}, "Qwen3 0.6B"},
    {"qwen3", "1.7B", {QWEN(2048, 28, 16, 8, 6144), .tied_embeddings = true}, "Qwen3 1.7B"},
    {"qwen3", "4B", {QWEN(2560, 36, 32, 8, 9728), .tied_embeddings = true}, "Qwen3 4B"},
    {"qwen3", "8B", {QWEN(4096, 36, 32, 8, 12288)}, "Qwen3 8B"},
    {"qwen3", "14B", {QWEN(5120, 40, 40, 8, 17408)}, "Qwen3 14B"},
    {"qwen3", "32B", {QWEN(5120, 64, 64, 8, 25600)}, "Qwen3 32B"},
    {"qwen3", "30B-A3B", {QWEN_MOE(2048, 48, 32, 4, 6144, 768)}, "Qwen3 30B-A3B"},
    {"qwen3", "235B-A22B", {QWEN_MOE(4096, 94, 64, 4, 12288, 1536)}, "Qwen3 235B-A22B"},

    {"deepseek_v3", "debugmodel",
     {DEEPSEEK(256, 6, 16, 1024, 2048), LATENT(0, 512, 128, 64, 128), ROUTED(8, 3, 2, 256), .n_dense_layers = 1,
      .route_scale = 1.0}, "TorchTitan's debug model"},
    {"deepseek_v3", "tiny",
     {DEEPSEEK(64, 2, 4, 128, 256), LATENT(32, 32, 16, 8, 16), ROUTED(4, 2, 1, 64), .n_dense_layers = 1,
      .sigmoid_scores = true, .normalize_scores = true, .route_scale = 2.5}, "for tests"},
    {"deepseek_v3", "16B",
     {DEEPSEEK(2048, 27, 16, 10944, 102400), LATENT(0, 512, 128, 64, 128), ROUTED(64, 6, 2, 1408), .n_dense_layers = 1,
      .route_scale = 1.0}, "DeepSeek V2 Lite"},
    {"deepseek_v3", "236B",
     {DEEPSEEK(5120, 60, 128, 12288, 102400), LATENT(1536, 512, 128, 64, 128), ROUTED(160, 6, 2, 1536),
      .n_dense_layers = 1, .route_scale = 16.0}, "DeepSeek V2"},
    {"deepseek_v3", "671B",
     {DEEPSEEK(7168, 61, 128, 18432, 129280), LATENT(1536, 512, 128, 64, 128), ROUTED(256, 8, 1, 2048),
      .n_dense_layers = 3, .sigmoid_scores = true, .normalize_scores = true, .route_scale = 2.5}, "DeepSeek V3"},
};
/* clang-format on */
const int recipe_flavors_count = (int)ARRAY_SIZE(recipe_flavors);
