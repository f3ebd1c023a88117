/* SPDX-License-Identifier: Apache-2.0 */
#include "base/recipe_keys.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/hf_families.h"
#include "base/optimizers.h"
#include "base/schedule.h"

#define AT(field) .offset = offsetof(struct recipe, field), .size = sizeof(((struct recipe *)0)->field)
/* A key with the name of its field. */
#define KEY(sec, key, kind, ...)                                                                                       \
    {                                                                                                                  \
        .section = #sec, .name = #key, .type = KEY_##kind, AT(sec.key), __VA_ARGS__                                    \
    }
#define DIMS_KEY(key, kind, ...)                                                                                       \
    {                                                                                                                  \
        .section = "model", .name = #key, .type = KEY_##kind, AT(model.dims.key), __VA_ARGS__                          \
    }
#define DIM(key, field, least, most, text)                                                                             \
    {                                                                                                                  \
        .section = "model", .name = key, .type = KEY_INT, AT(model.dims.field),                                        \
        .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .min = (least), .max = (most), .doc = (text)                    \
    }
#define TRAIT(key, kind, field, text)                                                                                  \
    {                                                                                                                  \
        .section = "model", .name = key, .type = (kind), AT(model.dims.field),                                         \
        .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .max = 1e6, .doc = (text)                                       \
    }
#define FACTORS(key, field, text)                                                                                      \
    {                                                                                                                  \
        .section = "model", .name = key, .type = KEY_REALS, AT(model.dims.field),                                      \
        .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .above_min = true, .max = 1e6, .doc = (text)                    \
    }
#define DEGREE(key, field, text)                                                                                       \
    {                                                                                                                  \
        .section = "parallelism", .name = key, .type = KEY_INT, AT(parallelism.field), .min = 1, .max = 1 << 20,       \
        .initial = "1", .doc = (text)                                                                                  \
    }
/* A key of a section within a section. */
#define NESTED(sec, key, kind, ...)                                                                                    \
    {                                                                                                                  \
        .section = #sec, .name = #key, .type = KEY_##kind, AT(sec.key), __VA_ARGS__                                    \
    }
#define OFF(sec, key, kind, off, text)                                                                                 \
    {                                                                                                                  \
        .section = (sec), .name = (key), .type = (kind), .support = KEY_OFF, .initial = (off), .doc = (text)           \
    }
#define NOTE(sec, key, kind, theirs, why)                                                                              \
    {                                                                                                                  \
        .section = (sec), .name = (key), .type = (kind), .support = KEY_NOTE, .initial = (theirs), .doc = (why)        \
    }
#define PART(sec, key, kind, theirs, of)                                                                               \
    {                                                                                                                  \
        .section = (sec), .name = (key), .type = (kind), .support = KEY_PART, .initial = (theirs), .doc = (of)         \
    }

#define FLOAT8_SCALES "Scales of weights that are gathered in float8 always come all at once"
#define FLOAT8_EMULATE "Whether float8 is emulated follows from the device"
#define MX_CASTS "Each way that an operand may lie has one kernel"

/* clang-format off */
const struct setting recipe_keys[] = {
    KEY(job, description, STRING, .initial = "\"\"", .theirs = "\"default job\"", .doc =
        "What the run is, for lists and messages."),
    KEY(job, dump_folder, STRING, .initial = "\"\"", .theirs = "\"./outputs\"", .doc =
        "Folder that a relative checkpoint.folder lies in; what else the run writes is in the job's own folder. "
        "Empty: that one."),
    KEY(job, priority, INT, .min = -1000, .max = 1000, .initial = "0", .flags = KEY_TITAN, .doc =
        "Jobs of a higher priority come first; running jobs of a lower one give way to them."),
    KEY(job, follow_links, BOOL, .initial = "true", .flags = KEY_TITAN, .doc =
        "Whether workers follow symbolic links on the way to the data, in its folders, and on the way to the folder "
        "of checkpoints. titand sets it to false for users that are no admins, and resolves the links when it checks "
        "the paths."),
    KEY(job, owner, STRING, .initial = "\"\"", .flags = KEY_TITAN, .doc =
        "The user that the run belongs to. titand sets it, whatever a run file has."),
    KEY(job, as_user, BOOL, .initial = "false", .flags = KEY_TITAN, .doc =
        "Whether workers run as that user or not at all (coordinator.jobs_as_users). titand sets it, whatever a run "
        "file has."),

    KEY(model, name, STRING, .choices = "llama3|llama3_moe|qwen3|deepseek_v3", .names = hf_family_names, .later = "*",
        .lacks = "llama4=attention within chunks of the sequence, a temperature by position|flux=diffusion models",
        .initial = "\"llama3\"", .flags = KEY_NUMBERS, .doc = "Family of models."),
    KEY(model, flavor, STRING,
        .choices = "debugmodel|debugmodel_flex_attn|debugmodel_varlen_attn|debugmodel_moe|demo|tiny|"
                   "hf|0.6B|1B|1.7B|3B|4B|8B|8B_flex|8B_varlen|14B|16B|20B|30B-A3B|32B|70B|120B|"
                   "235B-A22B|236B|405B|671B", .initial = "\"debugmodel\"", .flags = KEY_NOCASE | KEY_LATER, .doc =
        "Named set of the family's dimensions; the keys below override single ones. \"hf\": those of config.json in "
        "checkpoint.initial_load_path (initial_load_in_hf)."),
    KEY(model, tokenizer, STRING, .initial = "\"bytes\"", .theirs = "\"./tests/assets/tokenizer\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "How text becomes tokens. \"bytes\": a token is a byte; needs vocab_size >= 256. Otherwise a folder of "
        "Hugging Face's files, or a tokenizer's file. Also read as hf_assets_path and tokenizer_path."),
    KEY(model, tokenizer_pattern, STRING, .initial = "\"\"", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "How text is cut in front of a tokenizer that is a file of ranks (tiktoken): gpt2, cl100k, o200k, llama3, "
        "llama4, qwen, or a regular expression. \"\": the file is a published one, and known by its content."),
    KEY(model, float8, BOOL, .on = "quantize.linear.float8|float8", .nothing = "quantize.grouped_mm.float8",
        .other = "mxfp8|switchback", .later = "*", .initial = "false", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Products of the linear layers of attention and feed-forward layers in float8, see [float8]: emulated on "
        "CPUs, by cuBLASLt on GPUs from Hopper on; on an older GPU they are in mixed_precision_param, with a log line. Also "
        "read as model.converters = [\"float8\"]."),
    KEY(model, mxfp8, BOOL, .on = "quantize.linear.mx|mx", .nothing = "quantize.grouped_mm.mx", .initial = "false",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "The same products in MXFP8, see [mx]: emulated on CPUs, by cuBLASLt on GPUs from Blackwell on (compute "
        "capability 10.0); older GPUs refuse it. Also read as model.converters = [\"mx\"]."),
    KEY(model, switchback, BOOL, .on = "switchback", .initial = "false", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "The same products in int8 but for the weights' gradients, which stay in mixed_precision_param: SwitchBack, see "
        "[switchback]. Also read as model.converters = [\"switchback\"]."),
    DIM("dim", dim, 1, 1 << 20, "Width of the residual stream."),
    DIM("n_layers", n_layers, 1, 4096, "Transformer blocks."),
    DIM("n_heads", n_heads, 1, 4096, "Query heads."),
    DIM("n_kv_heads", n_kv_heads, 1, 4096, "Key and value heads; must divide n_heads."),
    DIM("ffn_hidden", ffn_hidden, 1, 1 << 22, "Width of the feed-forward layer."),
    DIM("vocab_size", vocab_size, 1, 1 << 24, "Rows of the embedding and of the output head."),
    DIM("head_dim", head_dim, 2, 1 << 16, "Width of a head's queries and keys, an even number. Where the flavor has "
        "none: dim / n_heads. Latent attention: qk_nope_head_dim + qk_rope_head_dim, whatever is given."),
    DIMS_KEY(rope_theta, REAL, .min = 1, .max = 1e12, .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .doc =
        "Base of the rotary frequencies."),
    DIMS_KEY(norm_eps, REAL, .above_min = true, .max = 1, .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .doc =
        "Epsilon of RMSNorm."),
    DIMS_KEY(rope_scaling, STRING, .choices = "none|auto|llama3|yarn|linear|dynamic|longrope", .yes_no = "llama3|none",
        .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .doc =
        "Rule that stretches the rotary frequencies for sequences longer than rope_original_length. \"auto\": "
        "\"yarn\" where training.seq_len is longer, otherwise \"none\", as TorchTitan has it for DeepSeek V3. "
        "\"linear\": positions are divided by rope_factor. \"dynamic\": where training.seq_len is longer, the base "
        "is stretched with it, by rope_factor. \"longrope\": frequencies are divided by rope_short_factor, or, where "
        "training.seq_len is longer, by rope_long_factor."),
    TRAIT("rope_factor", KEY_REAL, rope_factor, "How many times longer sequences become. llama3: 8 unless given."),
    DIM("rope_original_length", rope_original_length, 0, 1 << 30, "Length that the frequencies were made for. llama3: "
        "8192 unless given."),
    TRAIT("rope_low_freq_factor", KEY_REAL, rope_low_freq_factor,
          "llama3: wavelengths above rope_original_length / this are stretched by the whole factor. 0: 1."),
    TRAIT("rope_high_freq_factor", KEY_REAL, rope_high_freq_factor,
          "llama3: wavelengths below rope_original_length / this are kept. 0: 4."),
    TRAIT("rope_beta_fast", KEY_REAL, rope_beta_fast,
          "yarn: frequencies that turn more often than this within rope_original_length are kept. 0: 32."),
    TRAIT("rope_beta_slow", KEY_REAL, rope_beta_slow,
          "yarn: frequencies that turn less often than this are stretched by the whole factor. 0: 1."),
    TRAIT("rope_mscale", KEY_REAL, rope_mscale, "yarn: what is rotated is multiplied by m(rope_mscale) / "
          "m(rope_mscale_all_dim), m(x) = 1 + 0.1 x ln(rope_factor), or, where one of them is 0, by m(1)."),
    TRAIT("rope_mscale_all_dim", KEY_REAL, rope_mscale_all_dim,
          "yarn with latent attention: scores are multiplied by m(rope_mscale_all_dim) squared. 0: they are not."),
    TRAIT("rope_between_pairs", KEY_BOOL, rope_between_pairs, "yarn: the bounds by rope_beta_fast and rope_beta_slow "
          "are not rounded to whole pairs (\"truncate\": false of Hugging Face)."),
    FACTORS("rope_short_factor", rope_short_factor, "longrope: divisors of the frequencies, one for each rotated pair of "
            "a head, for sequences up to rope_original_length."),
    FACTORS("rope_long_factor", rope_long_factor, "longrope: the same for longer sequences."),
    TRAIT("rope_attention_factor", KEY_REAL, rope_attention_factor, "longrope: what is rotated is multiplied by it. 0: by "
          "sqrt(1 + ln(rope_factor) / ln(rope_original_length))."),
    TRAIT("tied_embeddings", KEY_BOOL, tied_embeddings, "The output head is the embedding's matrix."),
    TRAIT("qk_norm", KEY_BOOL, qk_norm, "RMSNorm on each head of queries and keys."),
    TRAIT("qk_norm_whole", KEY_BOOL, qk_norm_whole, "With qk_norm: one RMSNorm over all heads."),
    TRAIT("output_norms", KEY_BOOL, output_norms, "RMSNorm of what attention and feed-forward layer add, before they "
          "add it. Not with experts or latent attention."),
    TRAIT("no_input_norms", KEY_BOOL, no_input_norms, "No RMSNorm of what they read. Needs output_norms."),
    TRAIT("norm_offset", KEY_BOOL, norm_offset, "Gains of RMSNorms are stored less 1, as Gemma has them."),
    TRAIT("gelu", KEY_BOOL, gelu, "Feed-forward layers and experts gate by GELU, in its form with tanh, in place of SiLU."),
    TRAIT("qkv_bias", KEY_BOOL, qkv_bias, "Biases of queries, keys and values."),
    TRAIT("output_bias", KEY_BOOL, output_bias, "A bias of attention's output product."),
    TRAIT("mlp_bias", KEY_BOOL, mlp_bias, "Biases of the feed-forward layer and of experts. Not with shared experts."),
    TRAIT("attention_sinks", KEY_BOOL, attention_sinks, "A learned logit of each head in the denominator of attention's "
          "softmax."),
    TRAIT("swiglu_limit", KEY_REAL, swiglu_limit, "Feed-forward layers and experts gate by g sigmoid(swiglu_alpha g) "
          "(u + 1), g = min(gate, swiglu_limit), u = up within +-swiglu_limit, as gpt-oss. 0: by silu(gate) up."),
    TRAIT("swiglu_alpha", KEY_REAL, swiglu_alpha, "See swiglu_limit. 0: 1.702."),
    DIM("rope_dim", rope_dim, 0, 1 << 16, "Columns of a head that are rotated, the first ones, an even number. 0: all."),
    DIM("no_rope_every", no_rope_every, 0, 4096, "Every layer of that many, the last one of them, rotates nothing. 0: "
        "all layers rotate."),
    DIM("sliding_window", sliding_window, 0, 1 << 30, "Tokens that a token sees, itself among them. 0: all that came "
        "before. Layers with a window use attention with masks."),
    DIM("full_attention_every", full_attention_every, 0, 4096, "With sliding_window: every layer of that many, the last "
        "one of them, has none. 0: all have it."),
    TRAIT("rope_local_theta", KEY_REAL, rope_local_theta, "With sliding_window: base of the rotary frequencies in layers "
          "with a window, which rope_scaling leaves as they are. 0: all layers have rope_theta."),
    TRAIT("embedding_multiplier", KEY_REAL, embedding_multiplier, "Factor of the embedding. 0: 1."),
    TRAIT("residual_multiplier", KEY_REAL, residual_multiplier, "Factor of what attention and feed-forward layer add. "
          "0: 1. Not with experts."),
    TRAIT("attention_multiplier", KEY_REAL, attention_multiplier,
          "Factor of products of queries and keys. 0: 1 / sqrt(head_dim)."),
    TRAIT("logits_scaling", KEY_REAL, logits_scaling, "Logits are divided by it. 0: 1."),
    TRAIT("attention_softcap", KEY_REAL, attention_softcap, "Cap c of attention's scores: s becomes c tanh(s / c). 0: none."),
    TRAIT("logits_softcap", KEY_REAL, logits_softcap, "Cap of logits, before the loss. 0: none."),
    DIM("q_lora_rank", q_lora_rank, 0, 1 << 20, "Latent attention: rank of the queries' projection. 0: none."),
    DIM("kv_lora_rank", kv_lora_rank, 0, 1 << 20, "Latent attention: rank of keys and values. 0: ordinary attention."),
    DIM("qk_nope_head_dim", qk_nope_head_dim, 0, 1 << 16, "Latent attention: part of a head without positions."),
    DIM("qk_rope_head_dim", qk_rope_head_dim, 0, 1 << 16, "Latent attention: part of a head that is rotated, an even "
        "number."),
    DIM("v_head_dim", v_head_dim, 0, 1 << 16, "Latent attention: width of a head's values."),
    DIMS_KEY(latent_norm_eps, REAL, .max = 1, .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .doc =
        "Latent attention: epsilon of the norms of latent vectors, 1e-6 in the released models' code. 0: norm_eps."),
    DIM("n_experts", n_experts, 0, 4096, "Routed experts of a layer. 0: an ordinary feed-forward layer."),
    DIM("top_k", top_k, 0, 4096, "Experts a token is sent to."),
    DIM("n_shared_experts", n_shared_experts, 0, 4096, "Experts every token passes besides."),
    DIM("moe_hidden", moe_hidden, 0, 1 << 22, "Width of one expert."),
    DIM("n_dense_layers", n_dense_layers, 0, 4096, "The first layers that have no experts."),
    DIM("n_expert_groups", n_expert_groups, 0, 4096, "Equal groups that the experts form; a token's experts are all in "
        "n_limited_groups of them. 0: no groups."),
    DIM("n_limited_groups", n_limited_groups, 0, 4096, "Groups that a token's experts are in."),
    DIM("group_top_k", group_top_k, 0, 4096, "A group's score is the sum of its best so many experts' scores. 0: 2, as "
        "DeepSeek V3; DeepSeek V2 has 1."),
    TRAIT("sigmoid_scores", KEY_BOOL, sigmoid_scores, "The router's scores: sigmoid, otherwise softmax."),
    TRAIT("normalize_scores", KEY_BOOL, normalize_scores, "Scores of the chosen experts are divided by their sum."),
    TRAIT("route_scale", KEY_REAL, route_scale, "Factor of the scores. 0: 1."),
    TRAIT("balance_rate", KEY_REAL, balance_rate,
          "Change of an expert's bias a step, towards equal loads. 0: none."),
    TRAIT("balance_loss", KEY_REAL, balance_loss,
          "Coefficient of a loss that is added for even loads of experts (DeepSeek V3, arXiv:2412.19437, eq. 17-20; "
          "Switch Transformer, arXiv:2101.03961, eq. 4-6): of each layer and sequence, sum over experts of f * P, "
          "summed over layers, mean over sequences by their counted tokens. f: how often the sequence's tokens chose "
          "the expert, in even shares; P: the mean of their scores, each token's divided by their sum. 1 with even "
          "loads. transformers' router_aux_loss_coef c is about c * top_k / layers with experts here. 0: none."),
    TRAIT("expert_bias", KEY_BOOL, expert_bias, "Experts are chosen by their scores and a bias, as they are with a "
          "balance_rate above 0; with 0 the biases stay what they are in the weights that are loaded."),
    TRAIT("router_bias", KEY_BOOL, router_bias, "The router's product has a bias, which is trained as other parameters "
          "are."),
    DIM("mtp_layers", mtp_layers, 0, 8, "Modules of multi-token prediction (DeepSeek V3, arXiv:2412.19437, section "
        "2.2) behind the layers: the k-th predicts the token k places behind the next one. They are trained, and no "
        "logit has to do with them. Hugging Face: num_nextn_predict_layers."),
    TRAIT("mtp_loss_scale", KEY_REAL, mtp_loss_scale, "Factor of the mean of the modules' losses, which is added to "
          "the loss; each is divided by the tokens that count for the loss itself. 0: 0.3."),

    KEY(float8, recipe_name, STRING, .choices = "tensorwise|rowwise|rowwise_with_gw_hp|scalify", .initial = "\"tensorwise\"",
        .theirs = "none", .flags = KEY_NUMBERS, .doc =
        "Scales, each from the operand at hand. \"tensorwise\": one for an operand; gradients of outputs are e5m2, "
        "the rest e4m3. \"rowwise\": one for each row or column along which is summed, powers of two, all e4m3. "
        "\"rowwise_with_gw_hp\": the same, with a scale for the whole weight in the input gradient, and the weight "
        "gradient in the compute type. \"scalify\": as tensorwise, with static scales, powers of two that follow from "
        "the model (docs/methods.md): no pass looks for the largest magnitudes of activations and gradients; weights' "
        "scales are new in each step."),
    KEY(float8, scalify_refresh, INT, .min = 1, .max = 1000000, .initial = "1", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "recipe_name = \"scalify\": weights' scales are new in every so many steps. In between they stay as they are, "
        "in checkpoints and resizes, too, and what is beyond the largest code becomes that code."),
    KEY(float8, filter_fqns, LIST, .choices = "*", .initial = "[]", .flags = KEY_NUMBERS, .doc =
        "Layers that are left out: those with one of these texts in their names (\"attention.wk\"). "
        "\"auto_filter_small_kn\": those too small to gain. Head, embedding and router always are, and layers with a "
        "side that is no multiple of 16."),

    KEY(float8, enable_fsdp_float8_all_gather, BOOL, .initial = "false", .doc =
        "FSDP gathers weights that compute in float8 as codes of eight bits, half the bytes of bfloat16, to the same "
        "numbers. One scale a weight: recipe_name = \"tensorwise\" or \"scalify\" only."),

    KEY(mx, recipe_name, STRING, .choices = "mxfp8_cublas", .later = "*", .initial = "\"mxfp8_cublas\"",
        .flags = KEY_NUMBERS, .doc =
        "OCP's MXFP8: e4m3, a scale that is a power of two for every 32 elements along the sum, its exponent rounded "
        "down; activations, weights and gradients in all three products."),
    KEY(mx, filter_fqns, LIST, .choices = "*", .initial = "[\"output\"]", .flags = KEY_NUMBERS, .doc =
        "Layers that are left out: those with one of these texts in their names. Head, embedding and router always "
        "are, and layers with a side that is no multiple of 32."),

    KEY(switchback, variant, STRING, .choices = "global|vectorwise", .initial = "\"global\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Scales of int8. Each token has one, for inputs and for gradients of outputs. \"global\": a weight has one. "
        "\"vectorwise\": each of the weight's outputs has one, and in the input gradient each of its inputs."),
    KEY(switchback, mem_efficient, BOOL, .initial = "false", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Inputs that only weights' gradients read again are kept as the products' int8 codes, half the bytes of "
        "bfloat16, and the weights' gradients are of the codes' values. An input that a layer without int8 reads as "
        "well is kept as it is."),
    KEY(switchback, filter_fqns, LIST, .choices = "*", .initial = "[]", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Layers that are left out: those with one of these texts in their names. Head, embedding, router and routed "
        "experts always are, and layers with a side that is no multiple of 16."),

    KEY(optimizer, name, STRING, .names = optimizer_names, .later = "*", .initial = "\"AdamW\"", .flags = KEY_NUMBERS,
        .doc =
        "Optimizer (docs/methods.md). \"Adam\" and \"SGD\": weight_decay is added to the gradient."),
    KEY(optimizer, rest, STRING, .choices = "same", .names = optimizer_names, .initial = "\"same\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Optimizer of embedding, head, norms, biases and routers; name is then the optimizer of the layers' matrices. "
        "\"same\": name is for all; AdamW, if name updates whole matrices."),
    KEY(optimizer, lr, REAL, .max = 1e3, .initial = "8e-4", .flags = KEY_NUMBERS, .doc = "Peak learning rate."),
    KEY(optimizer, rest_lr, REAL, .max = 1e3, .minus_one = true, .initial = "-1", .flags = KEY_TITAN | KEY_NUMBERS,
        .doc = "Peak learning rate of embedding, head, norms, biases and routers; -1: lr."),
    KEY(optimizer, beta1, REAL, .max = 0.999999, .initial = "0.9", .flags = KEY_NUMBERS, .doc =
        "Decay of the first moment."),
    KEY(optimizer, beta2, REAL, .max = 0.999999, .initial = "0.95", .flags = KEY_NUMBERS, .doc =
        "Decay of the second moment. Lion: of its mean; its authors use 0.99."),
    KEY(optimizer, eps, REAL, .above_min = true, .max = 1, .initial = "1e-8", .flags = KEY_NUMBERS, .doc =
        "Added to the root of the second moment."),
    KEY(optimizer, weight_decay, REAL, .max = 10, .initial = "0.1", .flags = KEY_NUMBERS, .doc =
        "Weight decay; decoupled, but with Adam and SGD."),
    KEY(optimizer, rest_weight_decay, REAL, .max = 10, .minus_one = true, .initial = "-1",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Weight decay of embedding, head, norms, biases and routers; -1: weight_decay."),
    KEY(optimizer, state_dtype, STRING, .choices = "float32|bfloat16|int8", .initial = "\"float32\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "\"bfloat16\": the moments are kept in bfloat16, 8 bytes a parameter with the master weights instead of 12; "
        "the update's arithmetic stays float32. With training.dtype = \"bfloat16\" they are, unless this is \"int8\". "
        "\"int8\": in 8 bits, 6.03 bytes: blocks of 256 have one scale."),
    KEY(optimizer, state_rounding, STRING, .choices = "nearest|stochastic", .initial = "\"nearest\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "How moments in bfloat16 are rounded. \"nearest\": ties to even; \"stochastic\": up or down at random, so "
        "that the mean is exact and small changes are not lost. The random numbers follow from training.seed, step "
        "and parameter alone: the same on every device and for every number of workers."),
#define OPTION(sec, key, kind, ...) NESTED(optimizer.sec, key, kind, .flags = KEY_TITAN | KEY_NUMBERS, __VA_ARGS__),
#include "base/optimizers.def"

    KEY(lr_scheduler, warmup_steps, INT, .max = 1e9, .initial = "200", .flags = KEY_NUMBERS, .doc =
        "Steps of linear warm-up; cut to the schedule's when larger."),
    KEY(lr_scheduler, total_steps, INT, .min = 1, .max = 1e9, .minus_one = true, .initial = "-1", .theirs = "none",
        .flags = KEY_NUMBERS, .doc =
        "Steps of the whole schedule, whatever training.steps says; behind them the rate stays at its last value. "
        "-1: training.steps."),
    KEY(lr_scheduler, decay_ratio, REAL, .max = 1, .minus_one = true, .initial = "-1.0", .theirs = "none",
        .flags = KEY_NUMBERS, .doc =
        "Share of the steps spent on decay at the end. -1: decay begins where warm-up ends."),
    KEY(lr_scheduler, decay_type, STRING, .choices = "linear|sqrt|cosine", .initial = "\"linear\"",
        .flags = KEY_NUMBERS, .doc = "Shape of the decay."),
    KEY(lr_scheduler, min_lr_factor, REAL, .max = 1, .initial = "0.0", .flags = KEY_NUMBERS, .doc =
        "Floor of the schedule as a share of optimizer.lr. Also read as lr_min."),

    KEY(training, local_batch_size, INT, .min = 1, .max = 1 << 20, .initial = "8", .flags = KEY_NUMBERS, .doc =
        "Sequences in one microbatch of one data-parallel rank; with a pipeline those of all its microbatches."),
    KEY(training, global_batch_size, INT, .min = 1, .max = 1 << 28, .minus_one = true, .initial = "-1",
        .flags = KEY_NUMBERS, .doc =
        "Sequences in one step, whatever the number of workers: whole microbatches. -1: local_batch_size * the "
        "data-parallel ranks of elastic.max_workers."),
    KEY(training, seq_len, INT, .min = 1, .max = 1 << 24, .initial = "2048", .flags = KEY_NUMBERS, .doc =
        "Tokens in a sequence."),
    KEY(training, steps, INT, .min = 1, .max = 1e9, .initial = "10000", .doc = "Steps to run."),
    KEY(training, max_norm, REAL, .max = 1e9, .initial = "1.0", .flags = KEY_NUMBERS, .doc =
        "Gradients are scaled down to this global L2 norm. 0: never."),
    KEY(training, dataset, STRING, .choices = "text|jsonl|c4|c4_test|c4_validation|sft", .later = "*",
        .initial = "\"text\"", .theirs = "\"c4_test\"", .flags = KEY_NUMBERS, .doc =
        "Kind of data. \"text\": text files, or tokens made of them by `titanctl data build`, Megatron, llm.c or "
        "nanoGPT; \"jsonl\": a document a line; \"c4\", \"c4_test\", \"c4_validation\": C4's files; \"sft\": "
        "conversations of which the answers are trained on (docs/data.md)."),
    KEY(training, chat_template, STRING, .choices = "none|chatml|llama3|gemma", .initial = "\"none\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc = "How messages of data of kind \"sft\" become tokens (docs/data.md)."),
    KEY(training, packing, STRING, .choices = "none|first_fit", .initial = "\"none\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "\"none\": samples are windows of the tokens, across documents. \"first_fit\": samples of whole documents, "
        "padded; longer ones are left out. block_causal keeps them apart."),
    KEY(training, dataset_path, STRING, .initial = "\"\"", .theirs = "none", .several = true, .flags = KEY_NUMBERS,
        .doc =
        "A file, a folder, a pattern (\"DIR/*train*.bin\", \"{a,b}/*.txt\"), or an array of these: all files are "
        "read in path order. This or mixture must be given."),
    KEY(training, mixture, SOURCES, .initial = "[]", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Sources that are mixed: [{path = \"a\", weight = 0.7}, {path = \"b\", weight = 0.3, dataset = \"jsonl\"}]. "
        "Weights are shares of the tokens; without them the sources' sizes are. In place of dataset_path; at most "
        "16."),
    KEY(training, dtype, STRING, .choices = "float32|bfloat16", .initial = "\"float32\"", .flags = KEY_NUMBERS, .doc =
        "\"bfloat16\": master weights and moments are kept in bfloat16, 6 bytes a parameter instead of 12, and the "
        "clipped gradient is rounded to it; sums over microbatches and ranks stay float32, and so does the update's "
        "arithmetic. What is loaded from elsewhere is rounded to nearest. Updates smaller than half a unit in the "
        "last of the 8 bits of a weight are lost."),
    KEY(training, mixed_precision_param, STRING, .choices = "auto|bfloat16|float32", .initial = "\"auto\"",
        .theirs = "\"bfloat16\"", .flags = KEY_NUMBERS, .doc =
        "Type of gathered parameters and activations. \"auto\": bfloat16 where the device is fast at it, otherwise "
        "float32. Master weights: dtype."),
    KEY(training, block_causal, BOOL, .flags = KEY_TITAN | KEY_NUMBERS | KEY_FLAVOR, .doc =
        "A token sees its own document only; positions count from the document's start."),
    KEY(training, enable_cpu_offload, BOOL, .initial = "false", .doc =
        "Optimizer state and master weights in host memory."),
    KEY(training, loss_chunks, INT, .min = 1, .max = 1 << 20, .minus_one = true, .initial = "-1", .flags = KEY_TITAN,
        .doc =
        "Pieces of a microbatch the output head runs in, so that it never has all logits at once; at most its tokens "
        "on one worker. -1: 8, or as many as there are tokens."),
    KEY(training, seed, INT, .initial = "42", .theirs = "none", .flags = KEY_NUMBERS, .doc =
        "Initial weights and order of samples follow from it. Also read as debug.seed."),

    KEY(parallelism, data_parallel_shard_degree, INT, .min = 1, .max = 1 << 20, .minus_one = true, .initial = "-1",
        .doc =
        "Ranks the model state is sharded over, at most: the run goes on with fewer when workers are lost. -1: what "
        "the other degrees leave of all workers there are."),
    DEGREE("data_parallel_replicate_degree", data_parallel_replicate_degree,
           "Replicas of the sharded state, at most; gives way after data_parallel_shard_degree."),
    KEY(parallelism, fsdp_reshard_after_forward, STRING, .choices = "default|always|never", .initial = "\"default\"",
        .doc =
        "When gathered parameters are let go: after each use (\"default\" keeps the head from its forward to its "
        "backward, and with a pipeline everything), or \"never\" within a step, for more memory and less "
        "communication."),
    KEY(parallelism, fsdp_prefetch, INT, .max = 64, .initial = "1", .flags = KEY_TITAN, .doc =
        "Units gathered ahead of their use."),
    KEY(parallelism, fsdp_gather_codec, STRING, .choices = "none|int8|int6|int4", .initial = "\"none\"",
        .flags = KEY_TITAN, .doc =
        "In what form gathered matrices travel: as they are (\"none\"), or in 8.06, 6.06 or 4.06 bits a value, rounded "
        "by one random shift a unit and step. All ranks compute with what the codes stand for; masters, checkpoints and "
        "evaluations are as without codes."),
    KEY(parallelism, fsdp_gather_levels, STRING, .choices = "uniform|learned", .initial = "\"uniform\"",
        .flags = KEY_TITAN, .doc =
        "Which values the codes of \"int6\" and \"int4\" stand for: evenly spaced ones, or \"learned\", in each step and "
        "for each layer: close where many weights are."),
    KEY(parallelism, fsdp_reduce, STRING, .choices = "default|microbatch|step", .initial = "\"default\"",
        .flags = KEY_TITAN, .doc =
        "When gradients are reduced: after each microbatch, for less memory, or once a step, for less communication. "
        "\"default\": microbatch, but step in a pipeline and where parameters stay gathered."),
    KEY(parallelism, fsdp_reduce_codec, STRING, .names = codec_names, .initial = "\"none\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "How a step's gradients travel between the ranks that share out the state. \"none\": in fp32, summed on the "
        "way. Others: coded once, summed in fp32 where they arrive; \"int8\", \"int4\" and \"loco\" with a scale for "
        "1024 values, \"loco\" with what its 4 bits lose kept for the next step, one byte a parameter. Reduced once a "
        "step."),
    KEY(parallelism, fsdp_reduce_rounding, STRING, .choices = "nearest|stochastic", .initial = "\"nearest\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "How codes of \"int8\" and \"int4\" are rounded. \"stochastic\": up or down at random, right on average."),
    KEY(parallelism, fsdp_reduce_scale, STRING, .choices = "bucket|tensor", .initial = "\"bucket\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "What has a scale of its own in codes of 4 and 8 bits: 1024 values, or a whole tensor (a rank's gradient of it)."),
    KEY(parallelism, error_decay, REAL, .max = 0.999999, .initial = "0.8",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Weight of the old error in \"loco\"'s error; 1 - error_decay is that of what this step lost."),
    KEY(parallelism, error_reset, INT, .max = 1 << 30, .initial = "0", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "\"loco\" forgets its errors after so many steps; 0: never."),
    KEY(parallelism, fsdp_bucketing, STRING, .choices = "off|block|greedy", .initial = "\"block\"", .flags = KEY_TITAN,
        .doc =
        "What one launch carries: the parameters of a layer, which lie in one buffer (\"block\"), or of as many "
        "layers as the cost model finds best (\"greedy\"). \"off\" is block: there is nothing smaller to send."),
    KEY(parallelism, fsdp_reorder, BOOL, .initial = "true", .flags = KEY_TITAN, .doc =
        "Gathers are issued ahead of the compute they can hide under; a gradient that is sent keeps its memory until "
        "the next one."),
    KEY(parallelism, replicate_method, STRING, .choices = "all_reduce|demo|random|striding|full",
        .initial = "\"all_reduce\"", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "What replicas send each other in a step: the sums of their gradients (\"all_reduce\"), or parts of each "
        "replica's own, while it keeps the rest in a residual (methods.md): the largest of a discrete cosine transform "
        "(\"demo\", FlexDeMo), or weights at random, in turns (\"striding\") or \"full\"."),
    KEY(parallelism, replicate_codec, STRING, .names = codec_names, .initial = "\"none\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "How replicas sum their gradients. \"none\": in fp32, summed on the way. Others: each replica sends the others "
        "pieces of its gradient as codes, sums its own piece in fp32, and sends the sum as codes. \"loco\" keeps what "
        "both codes lose, a byte a parameter of the range and a replica's part more."),
    KEY(parallelism, replicate_values, INT, .min = 1, .max = 64, .initial = "4", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Values of each 64 that replicas send; \"random\" and \"striding\" want a power of two, \"full\" sends all."),
    KEY(parallelism, replicate_beta, REAL, .max = 1, .initial = "0.999", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Decay of a replica's residual: what it has not sent, times this, is added to its next gradient."),
    KEY(parallelism, replicate_sign, BOOL, .initial = "true", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "The direction is the sign of what the replicas' parts come to, for optimizer.name = \"SGD\". A weight of "
        "which nothing was sent stays where it is, so \"random\" and \"striding\" want 64 / replicate_values times "
        "the rate."),
    KEY(parallelism, replicate_dtype, STRING, .choices = "bfloat16|float32", .initial = "\"bfloat16\"",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Type of the values that are sent. What rounding takes from them stays in the residual."),
    KEY(parallelism, rotate, STRING, .choices = "off|out_of_place|in_place", .initial = "\"off\"", .flags = KEY_TITAN,
        .doc =
        "Layers of dense models are not gathered: each of data_parallel_shard_degree workers keeps some of their heads "
        "and feed-forward columns, and these parts go round (Rotated Tensor Parallelism). \"out_of_place\": the next "
        "part arrives while the last one is used; \"in_place\": behind it, in its memory."),
    DEGREE("tensor_parallel_degree", tensor_parallel_degree, "Workers one layer's matrices are split over."),
    KEY(parallelism, enable_async_tensor_parallel, BOOL, .initial = "false", .doc =
        "Collectives of tensor parallelism in pieces beside the products."),
    DEGREE("pipeline_parallel_degree", pipeline_parallel_degree, "Workers the layers are split over."),
    KEY(parallelism, pipeline_parallel_schedule, STRING,
        .choices = "PipelineScheduleSingle|PipelineScheduleMulti|_PipelineScheduleRuntime", .names = schedule_names,
        .initial = "\"1F1B\"", .flags = KEY_NOCASE, .doc =
        "Order of forward and backward. PipelineScheduleSingle stands for pipeline_parallel_schedule_csv with one "
        "stage a rank, PipelineScheduleMulti and _PipelineScheduleRuntime with several."),
    KEY(parallelism, pipeline_parallel_schedule_csv, STRING, .initial = "\"\"", .doc =
        "A file with the order: one line a rank, cells such as 0F3, 2I1, 2W1, 1B0 (stage, action, microbatch)."),
    KEY(parallelism, pipeline_parallel_microbatch_size, INT, .min = 1, .max = 1 << 20, .initial = "1", .doc =
        "Sequences of one microbatch of the pipeline."),
    KEY(parallelism, pipeline_parallel_layers_per_stage, INT, .min = 1, .max = 4096, .minus_one = true,
        .initial = "-1", .theirs = "none", .doc =
        "Layers of a stage, embedding and head counted in. -1: as many stages as the schedule has."),
    KEY(parallelism, pipeline_parallel_first_stage_less_layers, INT, .max = 4096, .initial = "1", .doc =
        "Layers the embedding counts for when layers are shared out."),
    KEY(parallelism, pipeline_parallel_last_stage_less_layers, INT, .max = 4096, .initial = "1", .doc =
        "Layers the output head counts for."),
    KEY(parallelism, pipeline_parallel_split_points, LIST, .initial = "[]", .doc =
        "First layers of the stages behind the first: [\"layers.2\", \"layers.4\"]. Empty: shared out evenly. Also "
        "read as module_fqns_per_model_part, a list of every stage's modules."),
    DEGREE("context_parallel_degree", context_parallel_degree, "Workers one sequence is split over."),
    KEY(parallelism, context_parallel_rotate_method, STRING, .choices = "allgather|ring|alltoall",
        .initial = "\"allgather\"", .doc =
        "How keys and values get around: gathered at once, or passed round a \"ring\" beside the compute; "
        "\"alltoall\" is read as \"ring\"."),
    KEY(parallelism, context_parallel_load_balance, BOOL, .on = "headtail", .later = "ptrr", .initial = "true",
        .flags = KEY_TITAN, .doc =
        "A rank has one chunk from the head and one from the tail of each sequence, so that causal attention costs "
        "all the same. Also read as context_parallel_load_balancer = \"headtail\"."),
    DEGREE("expert_parallel_degree", expert_parallel_degree,
           "Workers the experts are split over, out of those of dp_shard, cp and tp."),
    DEGREE("expert_tensor_parallel_degree", expert_tensor_parallel_degree,
           "Workers that an expert is cut over: 1, or tensor_parallel_degree. Experts are then split over workers of "
           "dp_shard and cp alone."),
    KEY(parallelism, expert_parallel_room, REAL, .max = 4096, .initial = "0.0", .flags = KEY_TITAN, .doc =
        "Rows that a worker's experts take at a time, in multiples of their even share; more come in further rounds, "
        "with the same result. 0: as many as there can be, all tokens of all workers."),

    KEY(validation, enable, BOOL, .initial = "false", .doc =
        "Evaluate after step 1 and after every freq steps, on the same samples each time. Also read as enabled."),
    KEY(validation, dataset, STRING, .choices = "text|jsonl|c4|c4_test|c4_validation|sft", .later = "*",
        .initial = "\"text\"", .theirs = "\"c4_validation\"", .doc = "Kind of data, as training.dataset."),
    KEY(validation, dataset_path, STRING, .initial = "\"\"", .theirs = "none", .several = true, .doc =
        "As training.dataset_path; of a folder what is held out by its name, where there is any. Must be given where "
        "enable is true."),
    KEY(validation, local_batch_size, INT, .min = 1, .max = 1 << 20, .initial = "8", .doc =
        "Sequences of one evaluation step of one data-parallel rank; times the data-parallel ranks of "
        "elastic.max_workers they are the step's, whatever the number of workers."),
    KEY(validation, seq_len, INT, .min = 1, .max = 1 << 24, .initial = "2048", .doc = "Tokens in a sequence."),
    KEY(validation, freq, INT, .min = 1, .max = 1e9, .initial = "10", .doc =
        "Training steps between two evaluations."),
    KEY(validation, steps, INT, .min = 1, .max = 1e9, .minus_one = true, .initial = "-1", .doc =
        "Steps of an evaluation. -1: all of the data once."),

    KEY(checkpoint, enable, BOOL, .initial = "false", .doc = "Write checkpoints. Also read as enable_checkpoint."),
    KEY(checkpoint, folder, STRING, .initial = "\"checkpoint\"", .doc =
        "Where; relative to job.dump_folder. One run at a time uses a folder. A run of the same recipe goes on from "
        "the newest checkpoint there; another recipe is refused."),
    KEY(checkpoint, folder_owner, STRING, .initial = "\"\"", .flags = KEY_TITAN, .doc =
        "The owner that folder had when the run was admitted, where that is not job.owner. titand sets it."),
    KEY(checkpoint, shared_with, LIST, .choices = "*", .initial = "[]", .flags = KEY_TITAN, .doc =
        "Users that may begin runs from this run's checkpoints: \"user:NAME\", \"uid:N\", \"group:NAME\", or \"*\" "
        "for all. They may not write into its folder."),
    KEY(checkpoint, interval, INT, .min = 1, .max = 1e9, .initial = "500", .doc =
        "Steps between two checkpoints; the last step is always written."),
    KEY(checkpoint, keep_latest_k, INT, .max = 1e6, .initial = "10", .doc = "How many are kept. 0: all."),
    KEY(checkpoint, async_mode, STRING, .choices = "disabled|async|async_with_pinned_mem", .initial = "\"async\"",
        .theirs = "\"disabled\"", .doc =
        "\"disabled\": training waits until it is on disk. Otherwise it waits for the copy in memory only; the two "
        "names do the same."),
    KEY(checkpoint, initial_load_path, STRING, .initial = "\"\"", .theirs = "none", .flags = KEY_NUMBERS, .doc =
        "What a run begins from if its folder has no checkpoint: another run's checkpoint, or a folder of them: the "
        "newest that rank 0 can read. Of a submitted run also \"job:NUMBER\", the newest checkpoint of that job, or "
        "that of load_step. Also where enable is false."),
    KEY(checkpoint, initial_load_owner, STRING, .initial = "\"\"", .flags = KEY_TITAN, .doc =
        "The owner that initial_load_path had when the run was admitted. titand sets it: workers load from a folder "
        "of that owner, or of job.owner."),
    KEY(checkpoint, initial_load_model_only, BOOL, .initial = "true", .flags = KEY_NUMBERS, .doc =
        "Of initial_load_path the weights alone, and step 0. false: optimizer and step as well."),
    KEY(checkpoint, initial_load_in_hf, BOOL, .initial = "false", .flags = KEY_NUMBERS, .doc =
        "initial_load_path is a Hugging Face directory with safetensors, of a model of the same dimensions. Modules of "
        "multi-token prediction are loaded with model.mtp_layers, and left out without."),
    KEY(checkpoint, load_step, INT, .max = 1e9, .minus_one = true, .initial = "-1", .doc =
        "The step that a run begins from if its folder has checkpoints. -1: the newest. Later ones stay until the "
        "run comes to their steps."),
    KEY(checkpoint, exclude_from_loading, LIST, .choices = "optimizer|lr_scheduler|dataloader|train_state",
        .initial = "[]", .doc =
        "What a run begins anew instead of from its checkpoint: \"optimizer\" (moments), \"train_state\" (the step, "
        "and with it learning rate and samples). \"lr_scheduler\" and \"dataloader\" follow from the step: they have "
        "no effect of their own."),
    KEY(checkpoint, accept_changed, LIST, .choices = "data|tokenizer|model|batch|optimizer", .initial = "[]",
        .flags = KEY_TITAN, .doc =
        "What may differ from what the checkpoint was written with, and is refused otherwise: \"data\", "
        "\"tokenizer\", \"model\" (keys that change no shape), \"batch\" (batch and sequence length), \"optimizer\" "
        "(with the learning rate). The run goes on behind the samples it has read."),
    KEY(checkpoint, load_only, BOOL, .initial = "false", .doc = "Begin from what is in the folder, but write none."),
    KEY(checkpoint, enable_first_step_checkpoint, BOOL, .initial = "false", .doc = "Write one after step 1 as well."),
    KEY(checkpoint, create_seed_checkpoint, BOOL, .initial = "false", .doc =
        "Write the weights that the run would begin from as the checkpoint of step 0, and end."),
    KEY(checkpoint, last_save_model_only, BOOL, .initial = "true", .doc =
        "The last step's checkpoint has no optimizer state: a third of the size. A longer run does not go on from "
        "it, but from the one before."),
    KEY(checkpoint, last_save_in_hf, BOOL, .initial = "false", .doc =
        "The last step's checkpoint has a Hugging Face directory as well, its folder hf. Needs last_save_model_only."),
    KEY(checkpoint, export_dtype, STRING, .choices = "float32|bfloat16|float16", .initial = "\"float32\"", .doc =
        "Type of the weights of a last checkpoint without optimizer state. \"float32\" casts nothing: with "
        "training.dtype = \"bfloat16\" they are bfloat16. \"float16\" ends at 65504: with a larger weight that "
        "checkpoint fails."),

    KEY(activation_checkpoint, mode, STRING, .choices = "none|full|selective|memory_budget",
        .initial = "\"selective\"", .doc =
        "Which activations are recomputed in the backward pass. \"full\": all of a layer but its input; "
        "\"selective\": see selective_ac_option; \"memory_budget\": what the planner finds cheapest."),
    KEY(activation_checkpoint, selective_ac_option, STRING, .initial = "\"2\"", .doc =
        "\"op\": attention, what was summed over the network and every other product are kept; \"op:N\": every N-th "
        "product, \"op:1\" all of them, so that norms, SwiGLU and what else reads memory only are computed again; "
        "\"N\", a number: every N-th layer is recomputed, the others keep all."),
    KEY(activation_checkpoint, memory_budget, REAL, .max = 1, .initial = "0.5", .doc =
        "Share of the activations that is kept. 0: recompute all, 1: nothing."),

    KEY(compile, fuse, BOOL, .initial = "true", .flags = KEY_TITAN, .doc =
        "Operations that follow each other run as one where that gives the same bits and touches less memory."),
    KEY(compile, graph_segments, BOOL, .initial = "false", .flags = KEY_TITAN, .doc =
        "GPUs: what computes between transfers is launched in CUDA graphs of some 15 ms at most, to the same bits. "
        "For small models and many tensor-parallel ranks, where the host is what takes the time. Never a whole step: "
        "a lost worker's survivors wait for what is launched. No effect on the CPU."),

    KEY(metrics, log_freq, INT, .min = 1, .max = 1e9, .initial = "10", .doc = "Steps between two progress lines."),
    KEY(metrics, log_layers, BOOL, .initial = "false", .flags = KEY_TITAN, .doc =
        "Rank 0 writes layers.jsonl in the run's folder, at step 1 and every log_freq steps: norms of each unit's "
        "gradient and of its weights before the update, and the tokens of each expert."),
    KEY(metrics, log_samples, BOOL, .initial = "false", .flags = KEY_TITAN, .doc =
        "Each worker writes the samples it reads to samples-PID.csv in the run's folder on its node: step, number in "
        "the step, hash of the tokens."),
    KEY(metrics, enable_tensorboard, BOOL, .initial = "false", .doc =
        "Rank 0 writes TensorBoard's event files, at step 1 and every log_freq steps, under TorchTitan's names."),
    KEY(metrics, save_tb_folder, STRING, .initial = "\"tb\"", .doc =
        "Where: a folder below the run's folder, on the node of rank 0."),

    KEY(profiling, enable_profiling, BOOL, .initial = "false", .doc =
        "Every rank writes traces of what it ran, an event for each action on its stream; ui.perfetto.dev opens "
        "them: iteration_STEP/rankRANK_trace.json."),
    KEY(profiling, save_traces_folder, STRING, .initial = "\"profile_traces\"", .doc =
        "Where: a folder below the run's folder, on each rank's own node."),
    KEY(profiling, profile_freq, INT, .min = 1, .max = 1e9, .initial = "10", .doc =
        "Steps between two traces; a trace ends with a step that is a multiple of it."),
    KEY(profiling, profiler_active, INT, .min = 1, .max = 1000, .initial = "1", .doc = "Steps in a trace."),
    KEY(profiling, profiler_warmup, INT, .max = 1e9, .initial = "3", .doc =
        "Steps before a trace that belong to it in TorchTitan; here none are needed. Together with profiler_active "
        "at most profile_freq."),
    KEY(profiling, ranks, STRING, .initial = "\"\"", .flags = KEY_TITAN, .doc =
        "Ranks that write traces, such as \"0,4-7\". Empty: every rank."),

    KEY(elastic, min_workers, INT, .min = 1, .max = 1 << 20, .initial = "1", .flags = KEY_TITAN, .doc =
        "The run starts and goes on with no fewer workers; rounded up to whole data-parallel ranks (pp * cp * tp)."),
    KEY(elastic, max_workers, INT, .min = 1, .max = 1 << 20, .minus_one = true, .initial = "-1", .flags = KEY_TITAN,
        .doc =
        "It takes up to this many where slots are free. -1: as many as the mesh has; with data_parallel_shard_degree "
        "= -1 all there are (submit: slots of the nodes that take jobs; plan: --world; titan-worker run: -n), as far "
        "as the mesh can have them, at most 1024."),

    KEY(fault_tolerance, max_restarts, INT, .max = 1e6, .initial = "10", .flags = KEY_TITAN, .doc =
        "Crashes of workers that a run survives within restart_window_s; one more fails it. As many again that broke "
        "the protocol."),
    KEY(fault_tolerance, max_node_losses, INT, .max = 1e6, .minus_one = true, .initial = "-1", .flags = KEY_TITAN,
        .doc =
        "The same for workers lost with their nodes. -1: as many as max_restarts."),
    KEY(fault_tolerance, max_hangs, INT, .max = 1e6, .minus_one = true, .initial = "-1", .flags = KEY_TITAN, .doc =
        "The same for workers that hung and were killed. -1: as many as max_restarts."),
    KEY(fault_tolerance, max_ooms, INT, .max = 1e6, .minus_one = true, .initial = "-1", .flags = KEY_TITAN, .doc =
        "The same for workers that were killed for their memory. -1: as many as max_restarts."),
    KEY(fault_tolerance, restart_window_s, INT, .max = 31536000, .initial = "86400", .flags = KEY_TITAN, .doc =
        "Only losses that are younger count. 0: all of the run's count, of whatever cause, against max_restarts."),
    KEY(fault_tolerance, backoff_ms, INT, .max = 86400000, .initial = "200", .flags = KEY_TITAN, .doc =
        "Pause before a lost worker's place is taken again; doubles with each loss until the run makes progress."),
    KEY(fault_tolerance, backoff_max_ms, INT, .max = 86400000, .initial = "30000", .flags = KEY_TITAN, .doc =
        "The longest such pause."),
    KEY(fault_tolerance, max_skipped_steps, INT, .max = 1e6, .initial = "10", .flags = KEY_TITAN, .doc =
        "Steps in a row with a non-finite loss or gradient that are skipped before the run fails."),
    KEY(fault_tolerance, checkpoint_retry_s, INT, .max = 31536000, .initial = "600", .flags = KEY_TITAN, .doc =
        "How long a run tries again to write its last checkpoint, or to read one that exists and cannot be read, "
        "before it fails. Its state stays in memory meanwhile."),
    KEY(fault_tolerance, checkpoint_stall_s, INT, .min = 1, .max = 86400, .initial = "60", .flags = KEY_TITAN, .doc =
        "Reading a checkpoint has stalled when nothing of it arrives for so long. It is tried once more; after the "
        "second time the one before is taken, and the run fails when there is none."),
    KEY(fault_tolerance, redundancy, STRING, .choices = "auto|replica|buddy|checkpoint", .initial = "\"auto\"",
        .flags = KEY_TITAN, .doc =
        "Where a lost worker's state comes from: a replica, a copy that another worker keeps up to date (12 bytes a "
        "parameter of host memory, and 4 for gradients), or the newest checkpoint. `auto`: a replica where the mesh "
        "has some, otherwise a copy."),

    KEY(numerics, canonical, BOOL, .initial = "false", .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Sum gradients over microbatches in one fixed tree: losses are bit-identical for any number of workers, and "
        "for any expert_parallel_degree."),
    KEY(numerics, deterministic, BOOL, .initial = "true", .flags = KEY_TITAN, .doc =
        "The same step on the same data gives the same bits. false: a device may add in any order where that is "
        "faster: on GPUs attention's gradients in bfloat16 are, and products take the fastest of the ways that "
        "cuBLASLt proposes, timed when an epoch begins. Always true on the CPU and with numerics.canonical."),

    KEY(moe, overflow, STRING, .choices = "rounds|drop", .initial = "\"rounds\"", .flags = KEY_TITAN | KEY_NUMBERS,
        .doc =
        "What becomes of rows that experts have no room for. \"rounds\": they come in further rounds "
        "(parallelism.expert_parallel_room), with the same result. \"drop\": an expert takes capacity_factor even "
        "shares of the tokens that a worker has of a microbatch, those of the first tokens; the others pass it by. "
        "Evaluations drop nothing."),
    KEY(moe, capacity_factor, REAL, .above_min = true, .max = 4096, .initial = "1.25",
        .flags = KEY_TITAN | KEY_NUMBERS, .doc =
        "Rows that an expert takes with overflow = \"drop\", in multiples of its even share, at least one: tokens * "
        "top_k / n_experts of each worker and microbatch."),

    KEY(debug, moe_force_load_balance, BOOL, .initial = "false", .flags = KEY_NUMBERS, .doc =
        "Send tokens to experts in turn, whatever their scores: token i of a microbatch to experts i*top_k to "
        "i*top_k + top_k - 1, modulo n_experts. All experts get equally many rows, for benchmarks, and no rounding "
        "sends a token elsewhere."),

    KEY(nccl, windows, BOOL, .initial = "false", .flags = KEY_TITAN, .doc =
        "GPUs: a step's memory is NCCL's, and registered with the communicators of its collectives: GPUs that reach "
        "each other's memory directly then do without copies through NCCL's buffers. Where they do not, the log says "
        "so."),
    KEY(nccl, cta_policy, STRING, .choices = "default|efficiency|zero", .initial = "\"default\"", .flags = KEY_TITAN,
        .doc =
        "GPUs: what collectives that run beside products (FSDP, DDP) take of the multiprocessors. \"efficiency\": "
        "few rather than the shortest time; \"zero\": none where copy engines can do it, which needs nccl.windows."),
    KEY(nccl, max_ctas, INT, .max = 64, .initial = "0", .flags = KEY_TITAN, .doc =
        "GPUs: thread blocks that such a collective has at most, a multiprocessor each; a product beside it is cut "
        "for all of them, and takes as long again for its last part where some are taken. 0: as many as NCCL takes."),

    KEY(resources, memory, BYTES, .min = 1 << 20, .max = 0x1p60, .initial = "\"\"", .flags = KEY_TITAN, .doc =
        "The host memory that each worker may have, such as \"16GiB\"; a number is bytes. One that needs more is "
        "ended, which counts against max_ooms. Empty: what the node gives a worker (`agent.worker_memory`), else no "
        "limit. A node that gives less, or has less, does not start the worker, and the job's reason tells it."),
    KEY(resources, cpus, REAL, .min = 0.01, .max = 16384, .minus_one = true, .initial = "-1.0", .flags = KEY_TITAN,
        .doc =
        "Processors that each worker may use, such as 3.5: it gets no more time than that. -1: what the node gives a "
        "worker (`agent.worker_cpus`), else no limit."),

    KEY(device, name, STRING, .choices = "auto|cpu|cuda", .initial = "\"auto\"", .flags = KEY_TITAN, .doc =
        "Device plug-in. \"auto\": cuda where it works, otherwise cpu."),
    KEY(device, threads, INT, .max = 4096, .initial = "0", .flags = KEY_TITAN, .doc =
        "Compute threads of a worker on the CPU. 0: its share of the machine."),
    KEY(device, memory, REAL, .max = 1e6, .initial = "0.0", .flags = KEY_TITAN, .doc =
        "GiB of the device that a worker may have, process and communicators included; programs are made for it, as "
        "by `plan --memory`. 0: all that it has."),

    /* --- known from TorchTitan, not there ------------------------------------------------------------------------- */
    NOTE("job", "print_args", KEY_BOOL, "false", "A run's folder has its whole recipe"),
    NOTE("job", "print_config", KEY_BOOL, "false", "A run's folder has its whole recipe"),
    NOTE("job", "save_config_file", KEY_STRING, "\"\"", "A run's folder has its whole recipe"),
    OFF("job", "config_file", KEY_STRING, "\"\"", "Another configuration file."),
    OFF("job", "custom_config_module", KEY_STRING, "\"\"", "Python module with more keys."),
    NOTE("job", "use_for_integration_test", KEY_BOOL, "false", "A mark for TorchTitan's own tests"),

    NOTE("profiling", "enable_memory_snapshot", KEY_BOOL, "false", "No snapshots are written: the plan has every buffer"),
    PART("profiling", "save_memory_snapshot_folder", KEY_STRING, "\"memory_snapshot\"",
         "profiling.enable_memory_snapshot"),

    NOTE("metrics", "disable_color_printing", KEY_BOOL, "false", "Output to a file has no colours anyway"),
    NOTE("metrics", "save_for_all_ranks", KEY_BOOL, "false", "Rank 0 alone writes event files: all ranks have the same numbers"),
    NOTE("metrics", "enable_wandb", KEY_BOOL, "false",
         "Nothing is sent, and the format of W&B's offline folders is not documented: its own wandb sync --sync-tensorboard "
         "takes the event files"),

    NOTE("model", "print_after_conversion", KEY_BOOL, "false", "No model is converted"),

    NOTE("optimizer", "implementation", KEY_STRING, "\"fused\"", "There is one implementation"),
    NOTE("optimizer", "early_step_in_backward", KEY_BOOL, "false",
         "The optimizer steps after the backward pass, with clipped gradients"),

    NOTE("training", "compile", KEY_BOOL, "false", "A step is always planned as a whole, and nothing is compiled"),
    OFF("training", "mixed_precision_reduce", KEY_STRING, "\"float32\"", "Type gradients are summed in."),
    NOTE("training", "gc_freq", KEY_INT, "50", "There is no garbage collection"),
    NOTE("training", "gc_debug", KEY_BOOL, "false", "There is no garbage collection"),
    NOTE("training", "deterministic", KEY_BOOL, "false",
         "A run is deterministic without it: on the same mesh it gives the same bits again"),
    NOTE("training.dataloader", "num_workers", KEY_INT, "0", "A worker reads its samples itself"),
    NOTE("training.dataloader", "persistent_workers", KEY_BOOL, "false", "A worker reads its samples itself"),
    NOTE("training.dataloader", "pin_memory", KEY_BOOL, "false", "A worker reads its samples itself"),
    NOTE("training.dataloader", "prefetch_factor", KEY_INT, "2", "A worker reads its samples itself"),

    NOTE("debug", "deterministic", KEY_BOOL, "false",
         "A run is deterministic without it: on the same mesh it gives the same bits again"),
    PART("debug", "deterministic_warn_only", KEY_BOOL, "false", "debug.deterministic"),
    NOTE("debug", "print_config", KEY_BOOL, "false", "A run's folder has its whole recipe"),
    NOTE("debug", "save_config_file", KEY_STRING, "\"\"", "A run's folder has its whole recipe"),

    OFF("parallelism", "enable_compiled_autograd", KEY_BOOL, "false", "Compiled backward pass."),
    NOTE("parallelism", "disable_loss_parallel", KEY_BOOL, "false", "The loss is always parallel with tensor parallelism"),
    NOTE("parallelism", "enable_sequence_parallel", KEY_BOOL, "true", "Tensor parallelism always is over the sequence too"),
    OFF("parallelism", "enable_fsdp_symm_mem", KEY_BOOL, "false", "Symmetric-memory collectives."),
    NOTE("parallelism", "pipeline_parallel_expert_parallel_overlap", KEY_BOOL, "true",
         "The schedule says what runs beside what"),
    NOTE("parallelism", "expert_parallel_comm_backend", KEY_STRING, "\"standard\"", "There is one way that rows travel"),

    OFF("checkpoint", "initial_load_in_hf_quantized", KEY_BOOL, "false", "Quantized Hugging Face weights."),
    NOTE("checkpoint", "enable_ft_dataloader_checkpoints", KEY_BOOL, "true", "There is no loader state"),

    NOTE("activation_checkpoint", "per_op_sac_force_recompute_mm_shapes_by_fqns", KEY_LIST, "[\"moe.router.gate\"]",
         "What is kept follows from activation_checkpoint.selective_ac_option alone"),
    NOTE("activation_checkpoint", "early_stop", KEY_BOOL, "false", "Nothing is recomputed that is not used"),
    NOTE("activation_checkpoint", "visualize_memory_budget_pareto", KEY_BOOL, "false",
         "titanctl plan tells memory and time of one budget"),
    NOTE("activation_checkpoint", "preserve_rng_state", KEY_BOOL, "true", "A step draws no random numbers"),
    NOTE("activation_checkpoint", "determinism_check", KEY_STRING, "\"default\"", "Recomputation is exact"),
    NOTE("activation_checkpoint", "debug", KEY_BOOL, "false", "Recomputation is exact"),

    NOTE("compile", "enable", KEY_BOOL, "false", "A step is always planned as a whole, and nothing is compiled"),
    PART("compile", "components", KEY_LIST, "[\"model\", \"loss\"]", "compile.enable"),
    PART("compile", "backend", KEY_STRING, "\"inductor\"", "compile.enable"),

    NOTE("float8", "precompute_float8_dynamic_scale_for_fsdp", KEY_BOOL, "false", FLOAT8_SCALES),
    NOTE("float8", "force_recompute_fp8_weight_in_bwd", KEY_BOOL, "false", "No weights in float8 are kept"),
    NOTE("float8", "emulate", KEY_BOOL, "false", FLOAT8_EMULATE),
    PART("float8", "moe_fqns_prototype", KEY_LIST, "[]", "model.converters"),
    NOTE("mx", "mxfp8_dim1_cast_kernel_choice", KEY_STRING, "\"triton\"", MX_CASTS),
    PART("mx", "moe_fqns_prototype", KEY_LIST, "[]", "model.converters"),
    NOTE("quantize.linear.float8", "precompute_float8_dynamic_scale_for_fsdp", KEY_BOOL, "false", FLOAT8_SCALES),
    NOTE("quantize.linear.float8", "emulate", KEY_BOOL, "false", FLOAT8_EMULATE),
    NOTE("quantize.linear.mx", "mxfp8_dim1_cast_kernel_choice", KEY_STRING, "\"triton\"", MX_CASTS),
    PART("quantize.grouped_mm.float8", "fqns", KEY_LIST, "[]", "model.converters"),
    PART("quantize.grouped_mm.mx", "recipe_name", KEY_STRING, "\"mxfp8\"", "model.converters"),
    PART("quantize.grouped_mm.mx", "fqns", KEY_LIST, "[]", "model.converters"),

    NOTE("comm", "init_timeout_seconds", KEY_INT, "300", "A lost peer is noticed without a timeout"),
    NOTE("comm", "train_timeout_seconds", KEY_INT, "100", "A lost peer is noticed without a timeout"),
    NOTE("comm", "trace_buf_size", KEY_INT, "20000",
         "The flight recorder of a worker always has its last 1024 records; titanctl flight reads them"),
    PART("comm", "save_traces_folder", KEY_STRING, "\"comm_traces\"", "comm.trace_buf_size"),
    PART("comm", "save_traces_file_prefix", KEY_STRING, "\"rank_\"", "comm.trace_buf_size"),
    OFF("comm", "mode", KEY_STRING, "\"default\"", "Simulated communication."),

    OFF("memory_estimation", "enable", KEY_BOOL, "false", "Estimate memory instead of training; see titanctl plan."),
    OFF("memory_estimation", "enabled", KEY_BOOL, "false", "Estimate memory instead of training; see titanctl plan."),
    PART("memory_estimation", "disable_fake_mode", KEY_BOOL, "false", "memory_estimation.enable"),

    OFF("fault_tolerance", "enable", KEY_BOOL, "false", "torchft; every run survives failures without it."),
    PART("fault_tolerance", "process_group", KEY_STRING, "\"gloo\"", "fault_tolerance.enable"),
    PART("fault_tolerance", "process_group_timeout_ms", KEY_INT, "10000", "fault_tolerance.enable"),
    PART("fault_tolerance", "replica_id", KEY_INT, "0", "fault_tolerance.enable"),
    PART("fault_tolerance", "group_size", KEY_INT, "0", "fault_tolerance.enable"),
    PART("fault_tolerance", "min_replica_size", KEY_INT, "1", "fault_tolerance.enable"),
    OFF("fault_tolerance", "semi_sync_method", KEY_STRING, "\"\"", "Local SGD and DiLoCo."),
    PART("fault_tolerance", "sync_steps", KEY_INT, "5", "fault_tolerance.semi_sync_method"),
    PART("fault_tolerance", "should_quantize", KEY_BOOL, "false", "fault_tolerance.semi_sync_method"),
    PART("fault_tolerance", "fragment_sync_delay", KEY_INT, "0", "fault_tolerance.semi_sync_method"),
    PART("fault_tolerance", "fragment_update_alpha", KEY_REAL, "0.0", "fault_tolerance.semi_sync_method"),
    PART("fault_tolerance", "num_fragments", KEY_INT, "1", "fault_tolerance.semi_sync_method"),
    PART("fault_tolerance", "module_fqns_per_model_fragment", KEY_LIST, "[]", "fault_tolerance.semi_sync_method"),

    OFF("liger_kernel", "enable_fused_linear_cross_entropy", KEY_BOOL, "false", "Liger kernels."),

    OFF("experimental", "custom_import", KEY_STRING, "\"\"", "Python module to import."),
    OFF("experimental", "custom_args_module", KEY_STRING, "\"\"", "Python module with more keys."),

    NOTE("validation.dataloader", "num_workers", KEY_INT, "0", "A worker reads its samples itself"),
    NOTE("validation.dataloader", "persistent_workers", KEY_BOOL, "false", "A worker reads its samples itself"),
    NOTE("validation.dataloader", "pin_memory", KEY_BOOL, "false", "A worker reads its samples itself"),
    NOTE("validation.dataloader", "prefetch_factor", KEY_INT, "2", "A worker reads its samples itself"),
};
/* clang-format on */

const int recipe_keys_count = (int)ARRAY_SIZE(recipe_keys);

/* Newer TorchTitan counts batches in tokens. */
const struct recipe_newer recipe_newer[] = {
    {"training", "num_tokens_per_microbatch_per_dp_rank",
     "here training.local_batch_size = num_tokens_per_microbatch_per_dp_rank / training.seq_len"},
    {"training", "num_tokens_per_train_step",
     "here training.global_batch_size = num_tokens_per_train_step / training.seq_len"},
    {"training", "max_context_length", "here training.seq_len"},
    {"training", "disable_cuda_graphs", "here compile.graph_segments, which is off unless it is set"},
    {"parallelism", "num_pp_microbatches",
     "here training.local_batch_size / parallelism.pipeline_parallel_microbatch_size"},
    {"parallelism", "spmd_backend", "leave it out: the programs of all ranks are planned"},
    {"parallelism", "context_parallel_ptrr_mask_key", "leave it out: it is for attention masks that are not here"},
    {"optimizer", "param_groups", "here optimizer.rest_lr and optimizer.rest_weight_decay"},
    {"optimizer", "optimizer_factory_kwargs_by_name", "here optimizer.name and optimizer.rest"},
    {"debug", "batch_invariant", "here numerics.canonical, the same bits on any number of workers"},
    {"debug", "detect_anomaly", "leave it out: each step is looked at, and the first unit at fault is named"},
    {"debug", "spmd_typechecking", "leave it out: programs are checked before they run"},
    {"debug", "enable_structured_logging", "leave it out: titanctl events and metrics are always there"},
};
const int recipe_newer_count = (int)ARRAY_SIZE(recipe_newer);

const struct recipe_alias recipe_aliases[] = {
    {"lr_scheduler", "lr_min", "lr_scheduler.min_lr_factor", "0.0"},
    {"checkpoint", "enable_checkpoint", "checkpoint.enable", "false"},
    {"validation", "enabled", "validation.enable", "false"},
    {"debug", "seed", "training.seed", "none"},
    {"model", "hf_assets_path", "model.tokenizer", "\"./tests/assets/tokenizer\""},
    {"model", "tokenizer_path", "model.tokenizer", "none"},
    {"model", "converters", "model.float8", "[]"},
    {"quantize.linear.float8", "recipe_name", "float8.recipe_name", "none"},
    {"quantize.linear.float8", "filter_fqns", "float8.filter_fqns", "[]"},
    {"quantize.linear.float8", "enable_fsdp_float8_all_gather", "float8.enable_fsdp_float8_all_gather", "false"},
    {"quantize.linear.mx", "recipe_name", "mx.recipe_name", "\"mxfp8_cublas\""},
    {"quantize.linear.mx", "filter_fqns", "mx.filter_fqns", "[\"output\"]"},
    {"parallelism", "module_fqns_per_model_part", "parallelism.pipeline_parallel_split_points", "none"},
    {"parallelism", "context_parallel_load_balancer", "parallelism.context_parallel_load_balance", "\"headtail\""},
};
const int recipe_aliases_count = (int)ARRAY_SIZE(recipe_aliases);

int recipe_key_find(const char *section, const char *name)
{
    for (int i = 0; i < recipe_keys_count; i++) {
        const struct setting *k = &recipe_keys[i];
        /* Compares the first letter first: this loop runs for every key of every submit. */
        if (k->name[0] == name[0] && strcmp(k->name, name) == 0 && strcmp(k->section, section) == 0)
            return i;
    }
    return -1;
}
