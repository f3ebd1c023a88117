/* SPDX-License-Identifier: Apache-2.0 */
/* recipe.h - a run file: what to train, on which data, and how.
 *
 * TOML with the section and key names of TorchTitan v0.2.2 for features that TorchTitan has; Titan's own sections are
 * [elastic], [fault_tolerance], [numerics], [resources], [device]. One table (recipe_keys.c) has every key: section,
 * name, type, range, default, one line of documentation; another (recipe_flavors.c) has the models. The parser,
 * `--set`, the printed resolved recipe and docs/recipes.md use these tables. Unknown keys, wrong types and values out
 * of range are refused; the message has the line and the nearest key to a misspelt one. A TorchTitan key of a missing
 * feature is refused by name unless it has its "off" value.
 *
 * All programs use recipes: commands and the daemon check a recipe before anything starts; the worker runs it. */
#ifndef TITAN_BASE_RECIPE_H
#define TITAN_BASE_RECIPE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/codecs.h"
#include "base/buf.h"
#include "base/error.h"

#define RECIPE_TEXT_MAX (256 * 1024)
#define RECIPE_KEYS_MAX 384

struct args;

/* A list of numbers; unused values are 0. */
#define RECIPE_REALS_MAX 128
struct recipe_reals {
    int64_t n;
    double value[RECIPE_REALS_MAX];
};

/* Model dimensions. A flavor fills them; single keys of [model] override them. */
struct model_dims {
    int64_t dim, n_layers, n_heads, n_kv_heads, ffn_hidden, vocab_size;
    int64_t head_dim; /* size of a head of queries or keys; dim / n_heads by default */
    double rope_theta, norm_eps;
    /* Scaling of rotary frequencies for longer sequences: "none", "llama3", "yarn" (Peng et al. 2023,
     * arXiv:2309.00071), "linear" (positions are divided by rope_factor), "dynamic" (the base grows with the length of
     * sequences), "longrope" (each pair has its own divisor; Ding et al. 2024, arXiv:2402.13753), "auto" until
     * resolved. Fields that a rule does not use are 0. */
    char rope_scaling[16];
    double rope_factor;
    int64_t rope_original_length;
    double rope_low_freq_factor, rope_high_freq_factor;                      /* llama3 */
    double rope_beta_fast, rope_beta_slow, rope_mscale, rope_mscale_all_dim; /* yarn */
    bool rope_between_pairs; /* yarn: its bounds are not rounded to whole pairs */
    /* longrope: divisors of the frequencies, for sequences up to rope_original_length and for longer ones. */
    struct recipe_reals rope_short_factor, rope_long_factor;
    double rope_attention_factor; /* longrope: multiplies the rotated columns; 0: from rope_factor */
    bool tied_embeddings;         /* the output head shares the embedding's matrix */
    bool qk_norm;                 /* RMSNorm on each head of queries and keys (Qwen 3) */
    /* Traits of some families; 0 and false: absent. */
    bool output_norms;   /* RMSNorm on the outputs of attention and feed-forward layer (OLMo 2) */
    bool no_input_norms; /* no RMSNorm on the inputs of attention and feed-forward layer */
    bool qk_norm_whole;  /* qk_norm is one norm over all heads */
    bool norm_offset;    /* gains of norms are stored less 1 (Gemma) */
    bool gelu;           /* gates use GELU (tanh form) instead of SiLU */
    bool qkv_bias, output_bias,
        mlp_bias;         /* biases of attention's input and output products, and of the feed-forward layer */
    bool attention_sinks; /* a logit of each head in the softmax's denominator (Xiao et al. 2023, arXiv:2309.17453) */
    /* Above 0: SwiGLU of bounded inputs, g sigmoid(swiglu_alpha g) (u + 1) (gpt-oss, OpenAI 2025, arXiv:2508.10925). */
    double swiglu_limit, swiglu_alpha;
    int64_t rope_dim;      /* rotated columns of a head: so many from its first; 0: all */
    int64_t no_rope_every; /* every n-th layer has no rotation (SmolLM 3) */
    /* number of tokens that a token attends to, with itself (Beltagy et al. 2020, arXiv:2004.05150) */
    int64_t sliding_window;
    int64_t full_attention_every; /* every n-th layer has no window */
    double rope_local_theta; /* rotary base of layers with a window, without rope_scaling (Gemma 3); 0: rope_theta */
    /* Granite's factors on the embedding, on a half layer's output, and on scores (instead of 1/sqrt(head_dim)).
     * logits_scaling divides the logits. */
    double embedding_multiplier, residual_multiplier, attention_multiplier, logits_scaling;
    double attention_softcap, logits_softcap; /* scores or logits x become cap tanh(x / cap) (Gemma 2) */
    /* Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434); kv_lora_rank 0: ordinary attention. */
    int64_t q_lora_rank; /* 0: queries straight from the input */
    int64_t kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
    double latent_norm_eps; /* epsilon for the norms of latent vectors; 0: norm_eps */
    /* Mixture of experts; n_experts 0: dense. */
    int64_t n_experts, top_k, n_shared_experts, moe_hidden;
    int64_t n_dense_layers; /* number of first layers with an ordinary feed-forward layer */
    /* Experts in n_expert_groups equal groups. A token's experts come from n_limited_groups groups. These groups have
     * the largest sum of their best group_top_k scores (arXiv:2412.19437, section 2.1.2). n_expert_groups 0: no
     * groups. */
    int64_t n_expert_groups, n_limited_groups, group_top_k;
    bool sigmoid_scores;   /* router scores are sigmoids; false: softmax */
    bool normalize_scores; /* the chosen experts' scores are divided by their sum */
    double route_scale;    /* factor on the chosen experts' scores */
    double balance_rate;   /* change of an expert's bias per step (arXiv:2408.15664); 0 = none */
    double balance_loss;   /* coefficient of the router's balance loss (worker/device/device.h); 0: none */
    bool expert_bias;      /* experts have biases for their choice, even if balance_rate is 0 */
    bool router_bias;      /* the router's product has a bias, a trained parameter */
    /* Multi-token prediction (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2): modules behind the layers, and the
     * factor on the mean of their losses. */
    int64_t mtp_layers;
    double mtp_loss_scale; /* 0: RECIPE_MTP_LOSS_SCALE */
};
#define RECIPE_MTP_LOSS_SCALE 0.3

/* Training data mixed by weight from several sources. */
#define RECIPE_SOURCES_MAX 16
struct recipe_source {
    char path[1024], dataset[32]; /* dataset "": training.dataset */
    double weight;                /* 0 in all sources: weights are proportional to the sources' sizes */
};
struct recipe_mixture {
    int64_t n; /* 0: no mixture; training.dataset_path is the data */
    struct recipe_source source[RECIPE_SOURCES_MAX];
};

struct recipe {
    struct {
        char description[128], dump_folder[512];
        int64_t priority;
        bool follow_links, as_user;
        char owner[320]; /* text of folder_user_print(); "": the run has no coordinator */
    } job;
    struct {
        char name[32], flavor[32], tokenizer[512];
        char tokenizer_pattern[1024];   /* for a tokenizer's file of ranks; "": the content identifies the pattern */
        bool float8, mxfp8, switchback; /* linear layers multiply in this type; at most one is true */
        struct model_dims dims;         /* resolved */
    } model;
    struct {
        char recipe_name[32], filter_fqns[1024]; /* "wk,wv": parts of names; matching layers are left out */
        bool enable_fsdp_float8_all_gather;      /* weights are gathered as float8 codes */
        int64_t scalify_refresh;                 /* steps between two looks for weights' static scales */
    } float8;
    struct {
        char recipe_name[32], filter_fqns[1024]; /* as the fields of float8 */
    } mx;
    struct {
        char variant[32], filter_fqns[1024];
        bool mem_efficient; /* inputs are kept for the weights' gradients as codes */
    } switchback;
    struct {
        char name[32], rest[32]; /* rest: for all but the matrices of layers; "same": as name (base/optimizers.h) */
        double lr, beta1, beta2, eps, weight_decay;
        double rest_lr, rest_weight_decay; /* -1: as lr and weight_decay */
        char state_dtype[16];              /* type of the moments: "float32", "bfloat16", "int8" */
        char state_rounding[16];           /* rounding of bf16 moments: "nearest", "stochastic" */
/* the options of each optimizer, by its section */
#define SECTION(name) struct {
#define OPTION(section, key, kind, ...) OPTION_##kind key;
#define END(name)                                                                                                      \
    }                                                                                                                  \
    name;
#define OPTION_REAL double
#define OPTION_INT int64_t
#define OPTION_BOOL bool
#include "base/optimizers.def"
    } optimizer;
    struct {
        int64_t warmup_steps;
        int64_t total_steps; /* -1 = training.steps */
        double decay_ratio;  /* -1 = unset: decay from the end of warm-up to the last step */
        char decay_type[16];
        double min_lr_factor;
    } lr_scheduler;
    struct {
        int64_t local_batch_size; /* sequences of one microbatch; see recipe_microbatch_rows */
        /* sequences of one step, a multiple of local_batch_size; -1 = local_batch_size * data-parallel degree at
         * max_workers */
        int64_t global_batch_size;
        int64_t seq_len, steps;
        double max_norm; /* 0 = no clipping */
        char dataset[64], dataset_path[1024];
        char chat_template[16]; /* for data of kind "sft" */
        char packing[16];       /* "none", "first_fit" */
        struct recipe_mixture mixture;
        char dtype[16];                 /* type of master weights, gradients and moments: "float32", "bfloat16" */
        char mixed_precision_param[16]; /* "bfloat16", "float32", "auto" */
        bool block_causal;              /* attention stays within a document, and positions restart at each document */
        bool enable_cpu_offload;        /* optimizer state and masters in host memory */
        int64_t loss_chunks; /* number of pieces in which the head processes a microbatch, to avoid full logits */
        int64_t seed;
    } training;
    struct {
        int64_t data_parallel_replicate_degree, data_parallel_shard_degree; /* -1 = all remaining workers */
        char fsdp_reshard_after_forward[16];
        int64_t fsdp_prefetch;         /* units gathered before their use */
        char fsdp_reduce[16];          /* when gradients are reduced: "default", "microbatch", "step" */
        char fsdp_reduce_codec[16];    /* codec_names(); recipe_reduce_codec() */
        char fsdp_reduce_rounding[16]; /* of codes: "nearest", "stochastic" */
        char fsdp_reduce_scale[16];    /* what has a scale: "bucket" (base/codecs.h), "tensor" */
        double error_decay;            /* of a codec with errors (base/codecs.h) */
        int64_t error_reset;           /* steps after which errors are zeroed; 0 = never */
        char fsdp_bucketing[16];       /* "block" or "off" (one unit per bucket), "greedy" (by the cost model) */
        char fsdp_gather_codec[8];     /* in what form gathered weights travel: "none", or a codec of weight_codes.h */
        char fsdp_gather_levels[8];    /* of these codes: "uniform", "learned" */
        bool fsdp_reorder;             /* gathers are issued early, so that compute hides them */
        /* What replicas send each other of a step: "all_reduce" the gradients, or parts of their directions ("demo",
         * "random", "striding", "full"), while each keeps the rest in a residual of its own. */
        char replicate_method[16];
        char replicate_codec[16]; /* codec_names(), of sums over replicas; recipe_replicate_codec() */
        int64_t replicate_values; /* of each 64 that are sent */
        double replicate_beta;    /* decay of the residual */
        bool replicate_sign;
        char replicate_dtype[16]; /* of the values that are sent: "float32", "bfloat16" */
        char rotate[16];          /* "off", or how parts of layers go round: "out_of_place", "in_place" */
        int64_t tensor_parallel_degree, pipeline_parallel_degree, context_parallel_degree, expert_parallel_degree;
        int64_t expert_tensor_parallel_degree;
        double expert_parallel_room; /* capacity of a rank for its experts' rows, in even shares; 0 = the worst case */
        bool enable_async_tensor_parallel;
        char pipeline_parallel_schedule[32];      /* as schedule_names() */
        char pipeline_parallel_schedule_csv[512]; /* path; empty = none */
        int64_t pipeline_parallel_microbatch_size;
        int64_t pipeline_parallel_layers_per_stage; /* -1 = from the number of stages */
        int64_t pipeline_parallel_first_stage_less_layers, pipeline_parallel_last_stage_less_layers;
        char pipeline_parallel_split_points[1024]; /* the first unit of stages 1, 2, ...: "layers.2,layers.4" */
        char context_parallel_rotate_method[16];   /* "allgather", "ring" ("alltoall" is treated as ring) */
        bool context_parallel_load_balance;        /* each rank gets one chunk from the head and one from the tail */
    } parallelism;
    struct {
        bool enable;
        char dataset[64], dataset_path[1024];
        int64_t local_batch_size, seq_len, freq;
        int64_t steps; /* steps of an evaluation; -1 = all of the data */
    } validation;
    struct {
        bool enable;
        char folder[512];
        int64_t interval, keep_latest_k;
        char async_mode[32];
        char initial_load_path[1024]; /* used when the folder has no checkpoint */
        char folder_owner[320],
            initial_load_owner[320]; /* text of folder_found_print() when the coordinator admitted the run */
        char shared_with[1024];      /* "user:bob,group:ml" */
        bool initial_load_model_only, initial_load_in_hf;
        int64_t load_step;             /* -1: the newest */
        char exclude_from_loading[64]; /* "optimizer,train_state" */
        char accept_changed[64];       /* "data,tokenizer" */
        bool load_only, enable_first_step_checkpoint, create_seed_checkpoint;
        bool last_save_model_only, last_save_in_hf;
        char export_dtype[16]; /* "float32", "bfloat16", "float16" */
    } checkpoint;
    struct {
        char mode[16];                /* "none", "full", "selective", "memory_budget" */
        char selective_ac_option[16]; /* "op", "op:N" or "N" (recipe_keys.c) */
        double memory_budget;         /* 0: recompute all, 1: recompute nothing */
    } activation_checkpoint;
    struct {
        bool fuse;           /* fuses neighbouring operations if the bits stay the same */
        bool graph_segments; /* each segment of compute between transfers is launched as one graph */
    } compile;
    struct {
        int64_t log_freq;
        bool log_layers;  /* norms of units and token counts of experts */
        bool log_samples; /* every worker records the samples it reads */
        bool enable_tensorboard;
        char save_tb_folder[128]; /* below the run's folder */
    } metrics;
    struct { /* traces of the run */
        bool enable_profiling;
        char save_traces_folder[128]; /* below the run's folder */
        int64_t profile_freq, profiler_active, profiler_warmup;
        char ranks[128]; /* "0,4-7"; "": all ranks */
    } profiling;
    struct {
        int64_t min_workers, max_workers;
    } elastic;
    struct {
        int64_t max_restarts, max_node_losses, max_hangs, max_ooms, restart_window_s, backoff_ms, backoff_max_ms,
            max_skipped_steps, checkpoint_retry_s, checkpoint_stall_s;
        char redundancy[16];
    } fault_tolerance;
    struct {
        bool canonical;
        bool deterministic; /* implied by canonical */
    } numerics;
    struct {
        char overflow[16];
        double capacity_factor; /* with overflow = "drop" */
    } moe;
    struct {
        bool moe_force_load_balance;
    } debug;
    struct {
        bool windows;        /* a step's memory is registered with its communicators */
        char cta_policy[16]; /* "default", "efficiency", "zero" */
        int64_t max_ctas;    /* CTAs of communicators that run beside products; 0 = NCCL's choice */
    } nccl;
    struct {            /* limits of each worker, enforced by titand */
        int64_t memory; /* bytes of host memory; 0 = no request */
        double cpus;    /* -1 = no request */
    } resources;
    struct {
        char name[16]; /* "auto", "cpu", "cuda" */
        int64_t threads;
        double memory; /* GiB; 0: all of the device's memory */
    } device;
    int64_t workers_there;                    /* the number given to recipe_offer(); 0 = unknown */
    uint64_t set_mask[RECIPE_KEYS_MAX / 64];  /* keys of the table that the file sets */
    uint64_t idle_mask[RECIPE_KEYS_MAX / 64]; /* set keys that request something without effect: recipe_warnings() */
};

/* Sets the default of every key. */
void recipe_init(struct recipe *r);
/* Parses TOML text over the defaults; path is for messages ("<stdin>" when there is none). */
titan_status recipe_parse(struct recipe *r, const char *text, const char *path, struct titan_error *err) TITAN_MUST_USE;
titan_status recipe_load(struct recipe *r, const char *path, struct titan_error *err) TITAN_MUST_USE;
/* recipe_parse() with the --set options of a command line. If an option sets a key, the text's value of the key is
 * ignored. */
titan_status recipe_parse_with(struct recipe *r, const char *text, const char *path, const struct args *args,
                               struct titan_error *err) TITAN_MUST_USE;
titan_status recipe_load_with(struct recipe *r, const char *path, const struct args *args,
                              struct titan_error *err) TITAN_MUST_USE;
/* Applies one override, "section.key=value" as given to --set; the value is TOML, or a bare word for strings. */
titan_status recipe_set(struct recipe *r, const char *assignment, struct titan_error *err) TITAN_MUST_USE;
/* The flavor whose dimensions come from config.json; they then become keys of the recipe (base/hf_config.h). */
#define RECIPE_FLAVOR_HF "hf"
/* Is the flavor "hf" without dimensions? Then config.json must still be read. */
bool recipe_lacks_dims(const struct recipe *r);
/* Sets the model dimensions that no key sets; call before recipe_resolve(). */
void recipe_fill_dims(struct recipe *r, const struct model_dims *dims);
/* Number of column pairs that rotary embedding turns in a head. */
int64_t recipe_rope_pairs(const struct model_dims *dims);
/* Sets all model dimensions, replacing the flavor's; call before recipe_resolve(). */
void recipe_give_dims(struct recipe *r, const struct model_dims *dims);
/* Appends one line per request without effect, keys first: "compile.enable: ...". Works before and after
 * recipe_resolve(); no output if every request has an effect. */
void recipe_warnings(const struct recipe *r, struct buf *out);
/* recipe_warnings() for people: "note: ...". */
void recipe_print_warnings(const struct recipe *r, FILE *to);
/* Sets the number of available workers; call before recipe_resolve(). With data_parallel_shard_degree = -1 and
 * elastic.max_workers = -1 the degree becomes the largest legal degree for these workers, or the smallest legal degree
 * if they are too few. Without this call the mesh is the smallest. */
void recipe_offer(struct recipe *r, int64_t workers);
/* Resolves the flavor and -1 defaults, and checks keys against each other. Afterwards r->model.dims is complete, and
 * global batch and worker bounds are numbers. Call once, after parse and set. */
titan_status recipe_resolve(struct recipe *r, struct titan_error *err) TITAN_MUST_USE;
/* Can the recipe run on exactly this many workers? The mesh must fit, the batch divide, the schedule be valid.
 * TITAN_EINVAL names the key, the reason and the nearest legal value. */
titan_status recipe_check_world(const struct recipe *r, int64_t world, struct titan_error *err) TITAN_MUST_USE;
/* The largest legal world <= workers, between elastic.min_workers and max_workers; 0: none. Only the data-parallel
 * degrees shrink (shard first, then replicate); tp, pp and cp stay as in the recipe. */
int64_t recipe_fit_world(const struct recipe *r, int64_t workers);
/* The recipe's mesh on a legal world, outermost first: pp, dp_replicate, dp_shard, cp, tp. */
struct recipe_mesh {
    int64_t pp, dp_replicate, dp_shard, cp, tp, ep, etp;
    bool rotate; /* parts of layers go round dp_shard */
};
titan_status recipe_mesh(const struct recipe *r, int64_t world, struct recipe_mesh *ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* Does every worker of an epoch with this many replicas keep a copy of another worker's state? */
bool recipe_keeps_copies(const struct recipe *r, int world, int replicas);
/* Sequences in one microbatch: local_batch_size, or pipeline_parallel_microbatch_size with a pipeline. A step has
 * global_batch_size / this many microbatches, divided among the data-parallel ranks. */
int64_t recipe_microbatch_rows(const struct recipe *r);
/* Capacity of an expert, in even shares of a worker's tokens; 0: all tokens. */
double recipe_expert_capacity(const struct recipe *r);
/* Sequences in one microbatch of an evaluation, and sequences of one evaluation step. Both are independent of the
 * number of workers. */
int64_t recipe_validation_rows(const struct recipe *r);
int64_t recipe_validation_batch(const struct recipe *r);
/* Does an evaluation follow this step? */
bool recipe_validates(const struct recipe *r, uint64_t step);
/* Splits layers into stages: stage s has first_layer[s]..first_layer[s+1]; stages+1 entries. The first stage also has
 * the embedding, the last one the head. The embedding and the head count as many layers as the *_less_layers keys say.
 * So the first or the last stage may have no layer. TITAN_EINVAL: the model has fewer layers, with the embedding and
 * the head, than stages. */
titan_status recipe_split_layers(const struct recipe *r, int stages, int *first_layer,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Number of stages of the pipeline; 1 without a pipeline. */
titan_status recipe_stages(const struct recipe *r, int *ret, struct titan_error *err) TITAN_MUST_USE;
/* Is the memory sufficient? bytes_per_worker 0 = unknown, always passes. TITAN_EUNPLACEABLE has both numbers. */
titan_status recipe_check_memory(const struct recipe *r, int64_t world, uint64_t bytes_per_worker,
                                 struct titan_error *err) TITAN_MUST_USE;
/* checkpoint.initial_load_path = "job:12" stands for the checkpoints of job 12; the coordinator knows their folder. */
#define RECIPE_JOB_PREFIX "job:"
/* Returns the number of the job; 0: the key is a path or empty. TITAN_EINVAL: "job:" without a valid number. */
titan_status recipe_initial_job(const struct recipe *r, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;
/* The paths in the recipe that a run reads, modifiable in place. A data set that TorchTitan knows by name gets the path
 * from which TorchTitan loads it. Returns their number. */
struct recipe_path {
    const char *key;
    char *path;
    size_t size;
    const char *dataset; /* kind of data; NULL for other paths */
    int64_t seq_len;     /* tokens per sample; 0: unknown */
};
#define RECIPE_PATHS_MAX (RECIPE_SOURCES_MAX + 5)
int recipe_paths(struct recipe *r, struct recipe_path ret[RECIPE_PATHS_MAX]);
/* Makes a relative path absolute, below folder. */
titan_status recipe_place_path(const struct recipe_path *p, const char *folder, struct titan_error *err) TITAN_MUST_USE;
/* Checks that the paths of recipe_paths() exist and are readable (relative to base, a folder; NULL = the current
 * one). */
titan_status recipe_check_data(struct recipe *r, const char *base, struct titan_error *err) TITAN_MUST_USE;
/* Writes the whole recipe as TOML: every key with its value; parse(print(r)) == r. */
void recipe_print(const struct recipe *r, struct buf *out);
/* Hash of all keys that determine the run's numbers (model, data, optimizer, batch, seed, precision). A checkpoint
 * continues only a run of the same hash. */
uint64_t recipe_hash(const struct recipe *r);
/* Does the run write checkpoints by itself? */
bool recipe_writes_checkpoints(const struct recipe *r);
/* Steps between two looks for the scales of weights that are held meanwhile; 1: no scale is held. */
int64_t recipe_scales_every(const struct recipe *r);
/* Does float8.filter_fqns contain this word? */
bool recipe_filters_float8(const struct recipe *r, const char *word);
/* Does this rank write traces, in a step with traces? */
bool recipe_traces_rank(const struct recipe *r, int rank);
/* Does the run omit a part of the state ("optimizer", "train_state") when it begins? */
bool recipe_excludes(const struct recipe *r, const char *part);
/* The checkpoint folder of a run: an absolute path without "//" and "/./", the same in all programs. job_dir: for a run
 * without a folder of its own; out: char[PATH_MAX]. */
titan_status recipe_checkpoint_folder(const struct recipe *r, const char *job_dir, char *out,
                                      struct titan_error *err) TITAN_MUST_USE;
/* May a run of the resolved recipe r continue from a checkpoint with this hash and recipe text? It may if the hashes
 * are equal. The recipes may also differ in keys that checkpoint.accept_changed names, in keys that follow from the
 * mesh if a part of the state is left out, and in locations of data and tokenizer, which are compared by content.
 * False: *keys (NULL: not wanted) lists at most three other keys: "optimizer.lr = 0.001, there 0.0008; ...". */
bool recipe_continues(const struct recipe *r, uint64_t hash, const char *text, struct buf *keys);
/* Does checkpoint.accept_changed name this part? */
bool recipe_accepts(const struct recipe *r, const char *part);
/* Appends one line per differing key, except keys for where a run begins and keeps its checkpoints. Both recipes are
 * resolved. */
void recipe_changes(const struct recipe *r, const struct recipe *other, struct buf *out);
/* Appends at most three differing model dimensions that change the result: "model.dim = 64, there 32; ...". */
void recipe_model_differences(const struct recipe *r, const struct recipe *other, struct buf *out);
/* Number of model parameters. */
int64_t recipe_params(const struct recipe *r);
/* Training FLOPs per token, TorchTitan's rule: 6*P + 12*layers*heads*head_dim*seq, P without the input embedding,
 * causality not discounted, recomputation not counted. */
double recipe_flops_per_token(const struct recipe *r);
/* recipe_flops_per_token() without the query-key products that a causal mask removes. Document boundaries are
 * ignored. */
double recipe_causal_flops_per_token(const struct recipe *r);
/* Upper estimate of the bytes that one worker of `world` needs. */
uint64_t recipe_memory_bytes(const struct recipe *r, int64_t world);
/* Bytes of one master weight, and of one moment, in a worker: 4 or 2, and for a moment in 8 bits 260/256. */
int recipe_master_bytes(const struct recipe *r);
double recipe_moment_bytes(const struct recipe *r);
/* The codec of gradients. CODEC_NONE with numerics.canonical, whose sums travel in fp32. */
enum codec recipe_reduce_codec(const struct recipe *r);
/* The codec of what replicas sum. CODEC_NONE with numerics.canonical. */
enum codec recipe_replicate_codec(const struct recipe *r);
/* Writes the key table of docs/recipes.md, Markdown. */
void recipe_print_reference(struct buf *out);

#endif
