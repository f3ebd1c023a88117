/* SPDX-License-Identifier: Apache-2.0 */
/* recipe.h - a run file: what to train, on what, how.
 *
 * TOML with the section and key names of TorchTitan v0.2.2 where the feature exists; Titan's own sections are
 * [elastic], [fault_tolerance], [numerics], [resources], [device]. One table (recipe_keys.c) holds every key: section,
 * name, type, range, default, one line of documentation; another (recipe_flavors.c) the models. The parser, `--set`,
 * the printed resolved recipe and docs/recipes.md come from them. Unknown keys, wrong types and values outside the
 * range are refused with the line and, for a misspelt key, the nearest one. A TorchTitan key of a feature that is not
 * there is refused by name unless it holds its "off" value.
 *
 * Used by all programs: commands and the daemon check a recipe before anything starts; the worker runs it. */
#ifndef TITAN_BASE_RECIPE_H
#define TITAN_BASE_RECIPE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/error.h"

#define RECIPE_TEXT_MAX (256 * 1024)
#define RECIPE_KEYS_MAX 384

struct args;

/* Model dimensions; a flavor fills them, keys of [model] override single ones. */
struct model_dims {
    int64_t dim, n_layers, n_heads, n_kv_heads, ffn_hidden, vocab_size;
    int64_t head_dim; /* of queries and keys; dim / n_heads unless the flavor says otherwise */
    double rope_theta, norm_eps;
    /* How rotary frequencies are stretched for longer sequences: "none", "llama3", "yarn" (Peng et al. 2023,
     * arXiv:2309.00071), "linear" (positions are divided by rope_factor), "dynamic" (the base grows with the length of
     * sequences), "auto" until it is resolved. 0 in what a rule does not use. */
    char rope_scaling[8];
    double rope_factor;
    int64_t rope_original_length;
    double rope_low_freq_factor, rope_high_freq_factor;                      /* llama3 */
    double rope_beta_fast, rope_beta_slow, rope_mscale, rope_mscale_all_dim; /* yarn */
    bool tied_embeddings; /* the output head is the embedding's matrix */
    bool qk_norm;         /* RMSNorm on each head of queries and keys (Qwen 3) */
    /* Traits that some families have; 0 and false: they do not. */
    bool output_norms;                    /* RMSNorm of what attention and feed-forward layer add (OLMo 2) */
    bool no_input_norms;                  /* none of what they read */
    bool qk_norm_whole;                   /* qk_norm is one over all heads */
    bool norm_offset;                     /* gains of norms are stored less 1 (Gemma) */
    bool gelu;                            /* gates by GELU, in its form with tanh, in place of SiLU */
    bool qkv_bias, output_bias, mlp_bias; /* of attention's products in and out, of the feed-forward layer's */
    int64_t rope_dim;                     /* the first so many columns of a head are rotated; 0: all */
    int64_t no_rope_every;                /* every n-th layer rotates nothing (SmolLM 3) */
    int64_t sliding_window;       /* tokens that one sees, itself among them (Beltagy et al. 2020, arXiv:2004.05150) */
    int64_t full_attention_every; /* every n-th layer has no window */
    double rope_local_theta; /* layers with a window rotate by it, without rope_scaling (Gemma 3); 0: as the others */
    /* Granite's: of the embedding, of what a half layer adds, of scores in place of 1/sqrt(head_dim); logits are
     * divided by the last one. */
    double embedding_multiplier, residual_multiplier, attention_multiplier, logits_scaling;
    double attention_softcap, logits_softcap; /* scores or logits x become cap tanh(x / cap) (Gemma 2) */
    /* Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434); kv_lora_rank 0: ordinary attention. */
    int64_t q_lora_rank; /* 0: queries straight from the input */
    int64_t kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
    double latent_norm_eps; /* of the norms of latent vectors; 0: norm_eps */
    /* Mixture of experts; n_experts 0: dense. */
    int64_t n_experts, top_k, n_shared_experts, moe_hidden;
    int64_t n_dense_layers; /* the first ones have an ordinary feed-forward layer */
    /* A token's experts are among those of n_limited_groups of n_expert_groups equal groups, the ones with the largest
     * sum of their best group_top_k scores (arXiv:2412.19437, section 2.1.2). n_expert_groups 0: no groups. */
    int64_t n_expert_groups, n_limited_groups, group_top_k;
    bool sigmoid_scores;   /* router scores: sigmoid, otherwise softmax */
    bool normalize_scores; /* the chosen experts' scores are divided by their sum */
    double route_scale;    /* multiplies them */
    double balance_rate;   /* per-step change of an expert's bias (arXiv:2408.15664); 0 = none */
    double balance_loss;   /* coefficient of the router's balance loss (worker/device/device.h); 0: none */
    bool expert_bias;      /* experts have such biases, also where none changes */
};

/* Sources of training data that are mixed by weight. */
#define RECIPE_SOURCES_MAX 16
struct recipe_source {
    char path[1024], dataset[32]; /* dataset empty: training.dataset */
    double weight;                /* 0 in all: in proportion to their sizes */
};
struct recipe_mixture {
    int64_t n; /* 0: none, training.dataset_path is the data */
    struct recipe_source source[RECIPE_SOURCES_MAX];
};

struct recipe {
    struct {
        char description[128], dump_folder[512];
        int64_t priority;
        bool follow_links, as_user;
        char owner[320]; /* folder_user_print; "": no coordinator has it */
    } job;
    struct {
        char name[32], flavor[32], tokenizer[512];
        char tokenizer_pattern[1024]; /* of a tokenizer that is a file of ranks; "": it is known by its content */
        bool float8, mxfp8;           /* products of linear layers in float8, in MXFP8: one at most */
        struct model_dims dims;       /* resolved */
    } model;
    struct {
        char recipe_name[32], filter_fqns[1024]; /* "wk,wv": parts of the names of layers that are left out */
        bool enable_fsdp_float8_all_gather;      /* weights travel as codes */
    } float8;
    struct {
        char recipe_name[32], filter_fqns[1024]; /* as in float8 */
    } mx;
    struct {
        char name[32];
        double lr, beta1, beta2, eps, weight_decay;
        char state_dtype[16];    /* of the moments: "float32", "bfloat16" */
        char state_rounding[16]; /* of bf16 moments: "nearest", "stochastic" */
    } optimizer;
    struct {
        int64_t warmup_steps;
        int64_t total_steps; /* -1 = training.steps */
        double decay_ratio;  /* -1 = unset: decay from the end of warm-up to the last step */
        char decay_type[16];
        double min_lr_factor;
    } lr_scheduler;
    struct {
        int64_t local_batch_size;  /* sequences of one microbatch; see recipe_microbatch_rows */
        int64_t global_batch_size; /* sequences of one step, a multiple of it; -1 = local_batch_size * data-parallel
                                      degree at max_workers */
        int64_t seq_len, steps;
        double max_norm; /* 0 = no clipping */
        char dataset[64], dataset_path[1024];
        char chat_template[16]; /* of data of kind "sft" */
        char packing[16];       /* "none", "first_fit" */
        struct recipe_mixture mixture;
        char dtype[16];                 /* of master weights, gradients and moments: "float32", "bfloat16" */
        char mixed_precision_param[16]; /* "bfloat16", "float32", "auto" */
        bool block_causal;              /* attention within documents only, positions from each document's start */
        bool enable_cpu_offload;        /* optimizer state and masters in host memory */
        int64_t loss_chunks;            /* pieces of a microbatch the head runs in, so that full logits never exist */
        int64_t seed;
    } training;
    struct {
        int64_t data_parallel_replicate_degree, data_parallel_shard_degree; /* -1 = the rest of the workers */
        char fsdp_reshard_after_forward[16];
        int64_t fsdp_prefetch;   /* units gathered ahead of their use */
        char fsdp_reduce[16];    /* when gradients are reduced: "default", "microbatch", "step" */
        char fsdp_bucketing[16]; /* "block" or "off" (a unit is a bucket), "greedy" (against the cost model) */
        bool fsdp_reorder;       /* gathers are issued ahead of the compute they can hide under */
        int64_t tensor_parallel_degree, pipeline_parallel_degree, context_parallel_degree, expert_parallel_degree;
        int64_t expert_tensor_parallel_degree;
        double expert_parallel_room; /* rows of a rank's experts, in even shares; 0 = for the worst case */
        bool enable_async_tensor_parallel;
        char pipeline_parallel_schedule[32];      /* as schedule_names() */
        char pipeline_parallel_schedule_csv[512]; /* path; empty = none */
        int64_t pipeline_parallel_microbatch_size;
        int64_t pipeline_parallel_layers_per_stage; /* -1 = from the number of stages */
        int64_t pipeline_parallel_first_stage_less_layers, pipeline_parallel_last_stage_less_layers;
        char pipeline_parallel_split_points[1024]; /* explicit: "layers.2,layers.4", first unit of stages 1, 2, ... */
        char context_parallel_rotate_method[16];   /* "allgather", "ring" ("alltoall" is read as ring) */
        bool context_parallel_load_balance;        /* head-tail chunks */
    } parallelism;
    struct {
        bool enable;
        char dataset[64], dataset_path[1024];
        int64_t local_batch_size, seq_len, freq;
        int64_t steps; /* of an evaluation; -1 = as many as the data has */
    } validation;
    struct {
        bool enable;
        char folder[512];
        int64_t interval, keep_latest_k;
        char async_mode[32];
        char initial_load_path[1024];                    /* where the folder has none */
        char folder_owner[320], initial_load_owner[320]; /* folder_found_print, when the coordinator admitted them */
        char shared_with[1024];                          /* "user:bob,group:ml" */
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
        double memory_budget;         /* 0: recompute all, 1: nothing */
    } activation_checkpoint;
    struct {
        bool fuse;           /* neighbouring operations run as one where the bits are the same */
        bool graph_segments; /* what computes between transfers is launched as one, in pieces */
    } compile;
    struct {
        int64_t log_freq;
        bool log_layers;  /* norms of units and tokens of experts */
        bool log_samples; /* every worker writes which samples it reads */
        bool enable_tensorboard;
        char save_tb_folder[128]; /* below the run's folder */
    } metrics;
    struct { /* traces of what ran */
        bool enable_profiling;
        char save_traces_folder[128]; /* below the run's folder */
        int64_t profile_freq, profiler_active, profiler_warmup;
        char ranks[128]; /* "0,4-7"; "": all */
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
        bool deterministic; /* canonical implies it */
    } numerics;
    struct {
        char overflow[16];
        double capacity_factor; /* with overflow = "drop" */
    } moe;
    struct {
        bool moe_force_load_balance;
    } debug;
    struct {
        bool windows;        /* memory of a step is registered with its communicators */
        char cta_policy[16]; /* "default", "efficiency", "zero" */
        int64_t max_ctas;    /* of communicators beside products; 0 = as many as NCCL takes */
    } nccl;
    struct {            /* of each worker, as titand limits it */
        int64_t memory; /* bytes of the host; 0 = none asked for */
        double cpus;    /* -1 = none asked for */
    } resources;
    struct {
        char name[16]; /* "auto", "cpu", "cuda" */
        int64_t threads;
        double memory; /* GiB; 0: all that the device has */
    } device;
    int64_t workers_there;                    /* recipe_offer(); 0 = unknown */
    uint64_t set_mask[RECIPE_KEYS_MAX / 64];  /* which keys of the table were given */
    uint64_t idle_mask[RECIPE_KEYS_MAX / 64]; /* given, ask for something, have no effect: recipe_warnings() */
};

/* Defaults of every key. */
void recipe_init(struct recipe *r);
/* Parse TOML text over the defaults; path is for messages ("<stdin>" when there is none). */
titan_status recipe_parse(struct recipe *r, const char *text, const char *path, struct titan_error *err) TITAN_MUST_USE;
titan_status recipe_load(struct recipe *r, const char *path, struct titan_error *err) TITAN_MUST_USE;
/* The same with the --set options of a command line: what the text gives a key that is overridden is not looked at. */
titan_status recipe_parse_with(struct recipe *r, const char *text, const char *path, const struct args *args,
                               struct titan_error *err) TITAN_MUST_USE;
titan_status recipe_load_with(struct recipe *r, const char *path, const struct args *args,
                              struct titan_error *err) TITAN_MUST_USE;
/* One override, "section.key=value" as given to --set; value in TOML or as a bare word for strings. */
titan_status recipe_set(struct recipe *r, const char *assignment, struct titan_error *err) TITAN_MUST_USE;
/* The flavor of dimensions that are keys of the recipe: those of a config.json (base/hf_config.h). */
#define RECIPE_FLAVOR_HF "hf"
/* It is that one, and the keys have no dimensions: the config.json is still to be read. */
bool recipe_lacks_dims(const struct recipe *r);
/* Dimensions of the model that no key gives; before it is resolved. */
void recipe_fill_dims(struct recipe *r, const struct model_dims *dims);
/* All dimensions of the model, in place of the flavor's; before it is resolved. */
void recipe_give_dims(struct recipe *r, const struct model_dims *dims);
/* One line for each thing that was asked for and has no effect, the keys first: "compile.enable: ...". Resolved or not;
 * empty: nothing. */
void recipe_warnings(const struct recipe *r, struct buf *out);
/* The same for people: "note: ...". */
void recipe_print_warnings(const struct recipe *r, FILE *to);
/* Workers that can be had, before recipe_resolve(): data_parallel_shard_degree = -1 with elastic.max_workers = -1 is
 * the largest legal number of them, or the smallest legal one where they are too few. Not offered: the smallest mesh.
 */
void recipe_offer(struct recipe *r, int64_t workers);
/* Resolve flavor and -1 defaults and check keys against each other. After it r->model.dims is complete, global batch
 * and worker bounds are numbers. Called once, after parse and set. */
titan_status recipe_resolve(struct recipe *r, struct titan_error *err) TITAN_MUST_USE;
/* Can it run on exactly this many workers? Mesh fits, batch can be shared out, schedule is sound. TITAN_EINVAL names
 * key, reason and nearest legal value. */
titan_status recipe_check_world(const struct recipe *r, int64_t world, struct titan_error *err) TITAN_MUST_USE;
/* The largest world <= workers it can run on, between elastic.min_workers and max_workers; 0: none. Only the
 * data-parallel degrees give way (shard first, then replicate); tp, pp and cp stay what the recipe says. */
int64_t recipe_fit_world(const struct recipe *r, int64_t workers);
/* The mesh of the recipe on a legal world, outermost first: pp, dp_replicate, dp_shard, cp, tp. */
struct recipe_mesh {
    int64_t pp, dp_replicate, dp_shard, cp, tp, ep, etp;
};
titan_status recipe_mesh(const struct recipe *r, int64_t world, struct recipe_mesh *ret,
                         struct titan_error *err) TITAN_MUST_USE;
/* Does every worker of an epoch with so many replicas keep a copy of another's part of the state? */
bool recipe_keeps_copies(const struct recipe *r, int world, int replicas);
/* Sequences in one microbatch: local_batch_size, or pipeline_parallel_microbatch_size with a pipeline. A step has
 * global_batch_size / this many microbatches, shared out over the data-parallel ranks. */
int64_t recipe_microbatch_rows(const struct recipe *r);
/* Even shares that an expert takes of a worker's tokens; 0: all that there are. */
double recipe_expert_capacity(const struct recipe *r);
/* The same of an evaluation, and the sequences of one step of it, whatever the number of workers. */
int64_t recipe_validation_rows(const struct recipe *r);
int64_t recipe_validation_batch(const struct recipe *r);
/* Is the model evaluated after this step? */
bool recipe_validates(const struct recipe *r, uint64_t step);
/* Layers of each stage: first_layer[s]..first_layer[s+1], for stages+1 entries. The first stage has the embedding
 * besides, the last one the head; both count as the *_less_layers keys say, so either stage may have no layer.
 * TITAN_EINVAL: more stages than all of these. */
titan_status recipe_split_layers(const struct recipe *r, int stages, int *first_layer,
                                 struct titan_error *err) TITAN_MUST_USE;
/* Stages of the pipeline (1 without one). */
titan_status recipe_stages(const struct recipe *r, int *ret, struct titan_error *err) TITAN_MUST_USE;
/* Enough memory? bytes_per_worker 0 = unknown, always passes. TITAN_EUNPLACEABLE with both numbers. */
titan_status recipe_check_memory(const struct recipe *r, int64_t world, uint64_t bytes_per_worker,
                                 struct titan_error *err) TITAN_MUST_USE;
/* checkpoint.initial_load_path = "job:12": the checkpoints of a job, by its number, which its coordinator knows. */
#define RECIPE_JOB_PREFIX "job:"
/* TITAN_OK with the number, 0: it is a path, or none is given. TITAN_EINVAL: "job:" and no number of a job. */
titan_status recipe_initial_job(const struct recipe *r, uint64_t *ret, struct titan_error *err) TITAN_MUST_USE;
/* The paths a run reads that the recipe names, in place; a set of data that TorchTitan knows by name gets the path it
 * is loaded by. Returns how many. */
struct recipe_path {
    const char *key;
    char *path;
    size_t size;
    const char *dataset; /* of data: its kind; NULL of all else */
    int64_t seq_len;     /* the tokens that one sample needs; 0: not known */
};
#define RECIPE_PATHS_MAX (RECIPE_SOURCES_MAX + 5)
int recipe_paths(struct recipe *r, struct recipe_path ret[RECIPE_PATHS_MAX]);
/* A relative one becomes a path below folder. */
titan_status recipe_place_path(const struct recipe_path *p, const char *folder, struct titan_error *err) TITAN_MUST_USE;
/* The paths of recipe_paths() exist and are readable (relative ones against base, a folder; NULL = the current one). */
titan_status recipe_check_data(struct recipe *r, const char *base, struct titan_error *err) TITAN_MUST_USE;
/* The whole recipe as TOML: every key with its value; parse(print(r)) == r. */
void recipe_print(const struct recipe *r, struct buf *out);
/* Hash over what decides the numbers of the run (model, data, optimizer, batch, seed, precision): a checkpoint of one
 * hash continues a run of the same hash only. */
uint64_t recipe_hash(const struct recipe *r);
/* Does the run write checkpoints by itself? */
bool recipe_writes_checkpoints(const struct recipe *r);
/* Does float8.filter_fqns have this word? */
bool recipe_filters_float8(const struct recipe *r, const char *word);
/* Does this rank write traces, in a step that has some? */
bool recipe_traces_rank(const struct recipe *r, int rank);
/* Is a part of the state ("optimizer", "train_state") left out of what the run begins from? */
bool recipe_excludes(const struct recipe *r, const char *part);
/* Where a run keeps its checkpoints: an absolute path without "//" and "/./", alike in all programs. job_dir: for a run
 * that names no other place; out: char[PATH_MAX]. */
titan_status recipe_checkpoint_folder(const struct recipe *r, const char *job_dir, char *out,
                                      struct titan_error *err) TITAN_MUST_USE;
/* May a run of r, a resolved recipe, go on from what the recipe of that hash and text has written? Equal hashes may,
 * and so may recipes that differ in keys that checkpoint.accept_changed names, that follow from the mesh where a part
 * of the state is left out, or that say where data and tokenizer lie: these are compared by their contents. False:
 * *keys (NULL: not wanted) has others, at most three: "optimizer.lr = 0.001, there 0.0008; ...". */
bool recipe_continues(const struct recipe *r, uint64_t hash, const char *text, struct buf *keys);
/* Does checkpoint.accept_changed name it? */
bool recipe_accepts(const struct recipe *r, const char *part);
/* All keys that differ, but for those that say where a run begins and keeps its checkpoints: a line each. Both are
 * resolved. */
void recipe_changes(const struct recipe *r, const struct recipe *other, struct buf *out);
/* The dimensions of the model that differ and change what it computes, at most three: "model.dim = 64, there 32; ...".
 */
void recipe_model_differences(const struct recipe *r, const struct recipe *other, struct buf *out);
/* Parameters of the model. */
int64_t recipe_params(const struct recipe *r);
/* Training FLOPs per token, TorchTitan's rule: 6*P + 12*layers*heads*head_dim*seq, P without the input embedding,
 * causality not discounted, recomputation not counted. */
double recipe_flops_per_token(const struct recipe *r);
/* The same without the products of queries and keys that a causal mask takes out; documents are not looked at. */
double recipe_causal_flops_per_token(const struct recipe *r);
/* Upper estimate of bytes one worker of `world` needs. */
uint64_t recipe_memory_bytes(const struct recipe *r, int64_t world);
/* Bytes of one master weight, and of one of its two moments, as a worker keeps them: 4 or 2. */
int recipe_master_bytes(const struct recipe *r);
int recipe_moment_bytes(const struct recipe *r);
/* docs/recipes.md's table of keys, Markdown. */
void recipe_print_reference(struct buf *out);

#endif
