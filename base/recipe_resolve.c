/* SPDX-License-Identifier: Apache-2.0 */
/* Values derived from a recipe: dimensions, sizes, and whether it can run. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/optimizers.h"
#include "base/recipe.h"
#include "base/recipe_conflicts.h"
#include "base/recipe_keys.h"

#define GLOBAL_BATCH_MAX (INT64_C(1) << 28) /* the limit in the table of keys */
#define WORKERS_MAX (1 << 20)               /* the limit in the table of keys */
#define WORKERS_OFFERED_MAX 1024            /* the most workers of a job (state/job.h) */
#define LOSS_CHUNKS 8                       /* TorchTitan's number */

void recipe_give_dims(struct recipe *r, const struct model_dims *dims)
{
    r->model.dims = *dims;
    for (int i = 0; recipe_keys[i].support == KEY_SUPPORTED; i++)
        if (recipe_keys[i].flags & KEY_FLAVOR)
            recipe_key_mark(r->set_mask, i, true);
}

bool recipe_lacks_dims(const struct recipe *r)
{
    const struct model_dims *d = &r->model.dims;
    return strcmp(r->model.flavor, RECIPE_FLAVOR_HF) == 0 &&
           (d->dim == 0 || d->n_layers == 0 || d->n_heads == 0 || d->vocab_size == 0 || d->rope_theta == 0 ||
            d->norm_eps == 0);
}

/* Fills unset keys with these flags. */
static void fill(struct recipe *r, const struct recipe *from, unsigned flags)
{
    for (int i = 0; recipe_keys[i].support == KEY_SUPPORTED; i++) {
        const struct setting *k = &recipe_keys[i];
        if ((k->flags & flags) != flags || recipe_key_in(r->set_mask, i))
            continue;
        memcpy((char *)r + k->offset, (const char *)from + k->offset, k->size);
        recipe_key_mark(r->set_mask, i, true);
    }
}

void recipe_fill_dims(struct recipe *r, const struct model_dims *dims)
{
    const struct recipe from = {.model.dims = *dims, .training.block_causal = r->training.block_causal};
    fill(r, &from, KEY_FLAVOR);
}

static void set_unless_given(double *x, double usual)
{
    *x = *x == 0 ? usual : *x;
}

/* Fills unset dimensions from the flavor, resolves "auto", and completes numbers that follow from others. */
static titan_status resolve_model(struct recipe *r, struct titan_error *err)
{
    static const struct recipe_flavor given = {0};
    const struct recipe_flavor *flavor = NULL;
    char have[200] = ""; /* the family's flavors */
    size_t used = 0;
    if (recipe_lacks_dims(r))
        return titan_fail(
            err, TITAN_EINVAL,
            "model.flavor = \"hf\": model.dim and other dimensions are missing; titanctl and titan-worker "
            "take them from checkpoint.initial_load_path");
    if (strcmp(r->model.flavor, RECIPE_FLAVOR_HF) == 0)
        flavor = &given;
    for (int i = 0; i < recipe_flavors_count && !flavor; i++) {
        const struct recipe_flavor *f = &recipe_flavors[i];
        if (strcmp(f->family, r->model.name) != 0)
            continue;
        if (strcmp(f->name, r->model.flavor) == 0)
            flavor = f;
        const int n = snprintf(have + used, sizeof(have) - used, "%s%s", used ? ", " : "", f->name);
        used = MIN(used + (size_t)MAX(n, 0), sizeof(have) - 1);
    }
    if (!flavor)
        return titan_fail(err, TITAN_EINVAL, "model.flavor = \"%s\": model.name = \"%s\" has %s", r->model.flavor,
                          r->model.name, have);
    const struct recipe from = {.model.dims = flavor->dims, .training.block_causal = flavor->block_causal};
    fill(r, &from, KEY_FLAVOR);

    struct model_dims *d = &r->model.dims;
    if (d->head_dim == 0)
        d->head_dim = d->dim % d->n_heads == 0 ? d->dim / d->n_heads : 0; /* 0: check_heads() reports the reason */
    if (d->kv_lora_rank > 0) {
        d->n_kv_heads = d->n_heads;
        d->head_dim = d->qk_nope_head_dim + d->qk_rope_head_dim;
    }
    if (d->n_expert_groups > 0 && d->group_top_k == 0)
        d->group_top_k = MIN(2, MAX(d->n_experts / d->n_expert_groups, 1));
    if (d->n_experts > 0 &&
        d->route_scale == 0) /* a dense flavor sets 0: experts would have no effect and learn nothing */
        d->route_scale = 1;

    /* Numbers that a rule needs and no flavor or key sets get their usual values. */
    if (strcmp(d->rope_scaling, "auto") == 0) {
        bool longer = d->rope_original_length > 0 && r->training.seq_len > d->rope_original_length;
        memset(d->rope_scaling, 0, sizeof(d->rope_scaling));
        memcpy(d->rope_scaling, longer ? "yarn" : "none", sizeof("yarn"));
    }
    if (strcmp(d->rope_scaling, "llama3") == 0) {
        set_unless_given(&d->rope_factor, 8);
        set_unless_given(&d->rope_low_freq_factor, 1);
        set_unless_given(&d->rope_high_freq_factor, 4);
        d->rope_original_length = d->rope_original_length == 0 ? 8192 : d->rope_original_length;
    } else if (strcmp(d->rope_scaling, "yarn") == 0) {
        set_unless_given(&d->rope_beta_fast, 32);
        set_unless_given(&d->rope_beta_slow, 1);
    }
    if (d->swiglu_limit > 0)
        set_unless_given(&d->swiglu_alpha, 1.702);
    return TITAN_OK;
}

int64_t recipe_rope_pairs(const struct model_dims *d)
{
    return (d->kv_lora_rank > 0 ? d->qk_rope_head_dim : d->rope_dim > 0 ? d->rope_dim : d->head_dim) / 2;
}

static titan_status check_heads(const struct model_dims *d, struct titan_error *err)
{
    /* Latent attention rotates only qk_rope_head_dim columns of a head; the rest may have any width. */
    if (d->kv_lora_rank > 0 &&
        (d->qk_rope_head_dim < 2 || d->qk_rope_head_dim % 2 != 0 || d->v_head_dim < 1 || d->qk_nope_head_dim < 1))
        return titan_fail(
            err, TITAN_EINVAL,
            "model.kv_lora_rank = %lld (latent attention) needs an even model.qk_rope_head_dim above 0, and "
            "model.qk_nope_head_dim and model.v_head_dim above 0; they are %lld, %lld and %lld",
            (long long)d->kv_lora_rank, (long long)d->qk_rope_head_dim, (long long)d->qk_nope_head_dim,
            (long long)d->v_head_dim);
    if (d->kv_lora_rank > 0)
        return TITAN_OK;
    if (d->head_dim == 0 || (d->head_dim % 2 != 0 && d->head_dim * d->n_heads == d->dim))
        return titan_fail(err, TITAN_EINVAL,
                          "model.n_heads = %lld does not fit model.dim = %lld: dim / n_heads must be an even number",
                          (long long)d->n_heads, (long long)d->dim);
    if (d->head_dim % 2 != 0)
        return titan_fail(err, TITAN_EINVAL, "model.head_dim = %lld is not even; nearest: %lld", (long long)d->head_dim,
                          (long long)d->head_dim + 1);
    if (d->n_heads % d->n_kv_heads != 0)
        return titan_fail(err, TITAN_EINVAL, "model.n_kv_heads = %lld does not divide model.n_heads = %lld",
                          (long long)d->n_kv_heads, (long long)d->n_heads);
    return TITAN_OK;
}

static titan_status check_experts(const struct model_dims *d, struct titan_error *err)
{
    if (d->n_experts == 0)
        return d->balance_loss == 0 ? TITAN_OK
                                    : titan_fail(err, TITAN_EINVAL,
                                                 "model.balance_loss = %g is of experts: set "
                                                 "model.n_experts",
                                                 d->balance_loss);
    const int64_t groups = d->n_expert_groups, limited = d->n_limited_groups;
    const bool grouped = groups > 0 && d->n_experts % groups == 0 && limited >= 1 && limited <= groups;
    const int64_t most = grouped ? limited * (d->n_experts / groups) : d->n_experts;
    if (d->top_k < 1 || d->top_k > d->n_experts)
        return titan_fail(err, TITAN_EINVAL, "model.top_k = %lld does not fit model.n_experts = %lld; nearest: %lld",
                          (long long)d->top_k, (long long)d->n_experts, (long long)(d->top_k < 1 ? 1 : most));
    if (d->moe_hidden < 1)
        return titan_fail(err, TITAN_EINVAL, "model.n_experts = %lld needs model.moe_hidden, the width of an expert",
                          (long long)d->n_experts);
    if (d->n_dense_layers > d->n_layers)
        return titan_fail(err, TITAN_EINVAL, "model.n_dense_layers = %lld is more than model.n_layers = %lld",
                          (long long)d->n_dense_layers, (long long)d->n_layers);
    if (groups == 0)
        return TITAN_OK;
    if (d->n_experts % groups != 0)
        return titan_fail(err, TITAN_EINVAL, "model.n_expert_groups = %lld does not divide model.n_experts = %lld",
                          (long long)groups, (long long)d->n_experts);
    if (limited < 1 || limited > groups)
        return titan_fail(err, TITAN_EINVAL,
                          "model.n_limited_groups = %lld does not fit model.n_expert_groups = %lld; nearest: %lld",
                          (long long)limited, (long long)groups, (long long)(limited < 1 ? 1 : groups));
    if (d->group_top_k > d->n_experts / groups)
        return titan_fail(err, TITAN_EINVAL,
                          "model.group_top_k = %lld is more than the %lld experts of a group (model.n_experts / "
                          "model.n_expert_groups)",
                          (long long)d->group_top_k, (long long)(d->n_experts / groups));
    if (d->top_k > most) /* the chosen groups must have room for top-k */
        return titan_fail(err, TITAN_EINVAL,
                          "model.top_k = %lld is more than the %lld experts of model.n_limited_groups = %lld groups",
                          (long long)d->top_k, (long long)most, (long long)limited);
    return TITAN_OK;
}

/* Checks for traits that exclude each other. */
static titan_status check_traits(const struct model_dims *d, struct titan_error *err)
{
    const bool latent = d->kv_lora_rank > 0, experts = d->n_experts > 0;
    if (latent && (d->qkv_bias || d->output_bias || d->rope_dim > 0 || d->no_rope_every > 0 || d->sliding_window > 0 ||
                   d->attention_sinks))
        return titan_fail(err, TITAN_EINVAL, "model.%s does not go with latent attention (model.kv_lora_rank)",
                          d->qkv_bias            ? "qkv_bias"
                          : d->output_bias       ? "output_bias"
                          : d->rope_dim > 0      ? "rope_dim"
                          : d->no_rope_every > 0 ? "no_rope_every"
                          : d->attention_sinks   ? "attention_sinks"
                                                 : "sliding_window");
    if (experts && d->residual_multiplier != 0 && d->residual_multiplier != 1)
        return titan_fail(err, TITAN_EINVAL, "model.residual_multiplier does not go with experts (model.n_experts)");
    if (experts && d->mlp_bias && d->n_shared_experts > 0)
        return titan_fail(err, TITAN_EINVAL, "model.mlp_bias does not go with model.n_shared_experts");
    if (d->swiglu_limit > 0 && d->gelu)
        return titan_fail(err, TITAN_EINVAL, "model.swiglu_limit does not go with model.gelu = true");
    if (d->router_bias && !experts)
        return titan_fail(err, TITAN_EINVAL, "model.router_bias = true needs model.n_experts");
    if ((latent || experts) && d->output_norms)
        return titan_fail(err, TITAN_EINVAL, "model.output_norms goes neither with experts nor with latent attention");
    if (d->no_input_norms && !d->output_norms)
        return titan_fail(err, TITAN_EINVAL, "model.no_input_norms = true needs model.output_norms = true");
    if (d->qk_norm_whole && !d->qk_norm)
        return titan_fail(err, TITAN_EINVAL, "model.qk_norm_whole = true needs model.qk_norm = true");
    if (d->rope_local_theta > 0 && (d->sliding_window == 0 || d->rope_local_theta < 1))
        return titan_fail(err, TITAN_EINVAL,
                          "model.rope_local_theta = %g needs model.sliding_window, and is 1 at least",
                          d->rope_local_theta);
    if (d->rope_dim % 2 != 0 || d->rope_dim > d->head_dim)
        return titan_fail(err, TITAN_EINVAL, "model.rope_dim = %lld is no even number up to model.head_dim = %lld",
                          (long long)d->rope_dim, (long long)d->head_dim);
    return TITAN_OK;
}

static titan_status check_dims(const struct recipe *r, struct titan_error *err)
{
    const struct model_dims *d = &r->model.dims;
    bool llama = strcmp(d->rope_scaling, "llama3") == 0, yarn = strcmp(d->rope_scaling, "yarn") == 0;
    bool dynamic = strcmp(d->rope_scaling, "dynamic") == 0;
    if (strcmp(d->rope_scaling, "linear") == 0 && d->rope_factor < 1)
        return titan_fail(err, TITAN_EINVAL,
                          "model.rope_scaling = \"linear\" needs model.rope_factor of at least 1; it is %g",
                          d->rope_factor);
    if ((llama || yarn || dynamic) && (d->rope_factor < 1 || d->rope_original_length < 1))
        return titan_fail(err, TITAN_EINVAL,
                          "model.rope_scaling = \"%s\" needs model.rope_factor of at least 1 and "
                          "model.rope_original_length above 0; they are %g and %lld",
                          d->rope_scaling, d->rope_factor, (long long)d->rope_original_length);
    if (llama && d->rope_high_freq_factor <= d->rope_low_freq_factor)
        return titan_fail(err, TITAN_EINVAL,
                          "model.rope_high_freq_factor = %g is not above model.rope_low_freq_factor = %g",
                          d->rope_high_freq_factor, d->rope_low_freq_factor);
    if (yarn && d->rope_beta_fast <= d->rope_beta_slow)
        return titan_fail(err, TITAN_EINVAL, "model.rope_beta_fast = %g is not above model.rope_beta_slow = %g",
                          d->rope_beta_fast, d->rope_beta_slow);
    if (yarn && d->rope_theta <= 1)
        return titan_fail(err, TITAN_EINVAL, "model.rope_scaling = \"yarn\" needs model.rope_theta above 1");
    TRY(check_heads(d, err));
    TRY(check_experts(d, err));
    TRY(check_traits(d, err));

    /* A module has a layer of the model's kind, and the model's embedding and head. */
    const bool scaled = d->logits_scaling != 0 && d->logits_scaling != 1;
    const char *key = d->tied_embeddings      ? "model.tied_embeddings = true"
                      : d->sliding_window > 0 ? "model.sliding_window"
                      : d->no_rope_every > 0  ? "model.no_rope_every"
                      : scaled                ? "model.logits_scaling"
                                              : NULL;
    if (d->mtp_layers == 0 && d->mtp_loss_scale != 0)
        return titan_fail(err, TITAN_EINVAL,
                          "model.mtp_loss_scale = %g is of multi-token prediction: set model.mtp_layers",
                          d->mtp_loss_scale);
    if (d->mtp_layers > 0 && key)
        return titan_fail(err, TITAN_EINVAL, "model.mtp_layers = %lld does not go with %s", (long long)d->mtp_layers,
                          key);

    if (strcmp(d->rope_scaling, "longrope") == 0) {
        const struct {
            const char *key;
            int64_t n;
        } lists[] = {{"rope_short_factor", d->rope_short_factor.n}, {"rope_long_factor", d->rope_long_factor.n}};
        const int64_t pairs = recipe_rope_pairs(d);
        if (d->rope_factor < 1 || d->rope_original_length < 2)
            return titan_fail(err, TITAN_EINVAL,
                              "model.rope_scaling = \"longrope\" needs model.rope_factor of at least 1 and "
                              "model.rope_original_length above 1; they are %g and %lld",
                              d->rope_factor, (long long)d->rope_original_length);
        for (size_t i = 0; i < ARRAY_SIZE(lists); i++)
            if (lists[i].n != pairs)
                return titan_fail(err, TITAN_EINVAL,
                                  "model.rope_scaling = \"longrope\" needs %lld numbers in model.%s, one for each "
                                  "rotated pair of a head; there are %lld",
                                  (long long)pairs, lists[i].key, (long long)lists[i].n);
    }
    if (!r->model.tokenizer[0])
        return titan_fail(err, TITAN_EINVAL, "model.tokenizer is empty: expected \"bytes\" or a path");
    if (strcmp(r->model.tokenizer, "bytes") == 0 && d->vocab_size < 256)
        return titan_fail(err, TITAN_EINVAL,
                          "model.vocab_size = %lld is too small: model.tokenizer = \"bytes\" needs at least 256",
                          (long long)d->vocab_size);
    return TITAN_OK;
}

static titan_status resolve_batch(struct recipe *r, struct titan_error *err)
{
    int64_t local = r->training.local_batch_size, rows = recipe_microbatch_rows(r);
    int64_t ranks = r->elastic.max_workers / recipe_mesh_unit(r);
    const char *key = r->parallelism.pipeline_parallel_degree > 1 ? "parallelism.pipeline_parallel_microbatch_size"
                                                                  : "training.local_batch_size";
    if (r->training.global_batch_size == -1)
        r->training.global_batch_size = local * ranks;
    int64_t global = r->training.global_batch_size, rest = global % rows;
    if (global > GLOBAL_BATCH_MAX)
        return titan_fail(
            err, TITAN_EINVAL,
            "training.local_batch_size = %lld times %lld data-parallel ranks (elastic.max_workers = %lld) "
            "is more than %lld",
            (long long)local, (long long)ranks, (long long)r->elastic.max_workers, (long long)GLOBAL_BATCH_MAX);
    if (rest != 0 && global < rows)
        return titan_fail(err, TITAN_EINVAL,
                          "training.global_batch_size = %lld is less than one microbatch (%s = %lld)",
                          (long long)global, key, (long long)rows);
    if (rest != 0)
        return titan_fail(err, TITAN_EINVAL,
                          "training.global_batch_size = %lld is not a multiple of %s = %lld; nearest: "
                          "%lld",
                          (long long)global, key, (long long)rows,
                          (long long)(rest * 2 < rows ? global - rest : global - rest + rows));
    return TITAN_OK;
}

/* Is exactly this number legal, as the maximum of workers? */
static bool fits(const struct recipe *r, int64_t world)
{
    struct recipe trial = *r;
    trial.elastic.max_workers = world;
    return resolve_batch(&trial, NULL) == TITAN_OK && recipe_check_world(&trial, world, NULL) == TITAN_OK;
}

/* The largest legal number of the available workers; otherwise the smallest. */
static int64_t most_workers(const struct recipe *r, int64_t whole)
{
    titan_assert(whole >= 1);
    int64_t fewest = (MAX(r->elastic.min_workers, 1) + whole - 1) / whole * whole;
    if (r->workers_there == 0)
        return fewest;
    for (int64_t world = r->workers_there / whole * whole; world >= fewest; world -= whole)
        if (fits(r, world))
            return world;
    for (int64_t world = fewest; world <= WORKERS_OFFERED_MAX; world += whole)
        if (fits(r, world))
            return world;
    return fewest;
}

void recipe_offer(struct recipe *r, int64_t workers)
{
    r->workers_there = workers > 0 ? MIN(workers, WORKERS_OFFERED_MAX) : -1;
}

static titan_status resolve_workers(struct recipe *r, struct titan_error *err)
{
    const int64_t unit = recipe_mesh_unit(r), shard = r->parallelism.data_parallel_shard_degree;
    /* Workers of the largest mesh if its degrees define that number. Otherwise `whole` becomes a divisor of the
     * number. */
    const int64_t degrees[] = {r->parallelism.pipeline_parallel_degree, r->parallelism.context_parallel_degree,
                               r->parallelism.tensor_parallel_degree, r->parallelism.data_parallel_replicate_degree,
                               MAX(shard, 1)};
    int64_t whole = 1, *least = &r->elastic.min_workers, *most = &r->elastic.max_workers;
    for (size_t i = 0; i < ARRAY_SIZE(degrees); i++) {
        whole *= degrees[i];
        if (whole > WORKERS_MAX)
            return titan_fail(err, TITAN_EINVAL, "the degrees of parallelism multiply to more than %d workers",
                              WORKERS_MAX);
    }
    titan_assert(unit >= 1 && whole % unit == 0);
    *least = (*least + unit - 1) / unit * unit;
    if (*most == -1 && shard == -1)
        *most = most_workers(r, whole);
    else if (*most == -1)
        *most = whole;
    r->workers_there = 0; /* equal recipes are equal in memory */

    /* The largest number of workers must be whole meshes: data-parallel degrees shrink below it, not at it. */
    if (shard > 0 ? *most != whole : *most % whole != 0) {
        char mesh[RECIPE_DEGREES_TEXT], advice[80];
        recipe_degrees(r, true, mesh);
        if (shard > 0)
            (void)snprintf(advice, sizeof(advice), "use %lld, or parallelism.data_parallel_shard_degree = -1",
                           (long long)whole);
        else if (*most > whole)
            (void)snprintf(advice, sizeof(advice), "use %lld or %lld", (long long)(*most - *most % whole),
                           (long long)(*most - *most % whole + whole));
        else
            (void)snprintf(advice, sizeof(advice), "use %lld", (long long)whole);
        return titan_fail(err, TITAN_EINVAL, "%s takes %s%lld workers; elastic.max_workers = %lld: %s", mesh,
                          shard > 0 ? "" : "a multiple of ", (long long)whole, (long long)*most, advice);
    }
    if (*least > *most)
        return titan_fail(err, TITAN_EINVAL, "elastic.min_workers = %lld is more than elastic.max_workers = %lld",
                          (long long)*least, (long long)*most);
    return TITAN_OK;
}

static titan_status refuse_pair(const char *key, const char *needed, struct titan_error *err)
{
    return titan_fail(err, TITAN_EINVAL, "checkpoint.%s = true needs checkpoint.%s", key, needed);
}

static titan_status check_checkpoint(const struct recipe *r, struct titan_error *err)
{
    static const char *const users[] = {"user:", "uid:", "group:"};
    const bool enable = r->checkpoint.enable;
    if (r->checkpoint.initial_load_in_hf && !r->checkpoint.initial_load_model_only)
        return refuse_pair("initial_load_in_hf", "initial_load_model_only = true: there is no optimizer state", err);
    if (r->checkpoint.initial_load_in_hf && !r->checkpoint.initial_load_path[0])
        return refuse_pair("initial_load_in_hf", "initial_load_path, the folder of the weights", err);
    for (const char *e = r->checkpoint.shared_with; *e; e += strcspn(e, ","), e += *e == ',') {
        const size_t len = strcspn(e, ",");
        bool known = len == 1 && *e == '*';
        for (size_t i = 0; i < ARRAY_SIZE(users); i++)
            known |= strncmp(e, users[i], strlen(users[i])) == 0 && len > strlen(users[i]);
        if (!known)
            return titan_fail(err, TITAN_EINVAL,
                              "checkpoint.shared_with: \"%.*s\" names no user: user:NAME, uid:N, group:NAME or *",
                              (int)len, e);
    }
    uint64_t job;
    TRY(recipe_initial_job(r, &job, err));
    if (job && r->checkpoint.initial_load_in_hf)
        return titan_fail(err, TITAN_EINVAL,
                          "checkpoint.initial_load_in_hf = true: a job's checkpoints are no Hugging Face directory");
    if (enable && r->checkpoint.last_save_in_hf && !r->checkpoint.last_save_model_only)
        return refuse_pair("last_save_in_hf", "last_save_model_only = true", err);
    if (enable && r->checkpoint.last_save_in_hf && strcmp(r->model.name, "llama3_moe") == 0)
        return titan_fail(
            err, TITAN_EUNSUPPORTED,
            "checkpoint.last_save_in_hf = true: transformers has no class for model.name = \"llama3_moe\"");
    if (r->checkpoint.create_seed_checkpoint && !recipe_writes_checkpoints(r))
        return refuse_pair("create_seed_checkpoint", "enable = true, and load_only = false", err);
    return TITAN_OK;
}

/* Folders created by a worker must stay below the run's. */
static titan_status check_folder(const char *key, const char *folder, struct titan_error *err)
{
    if (folder[0] == '\0' || folder[0] == '/' || strchr(folder, '\\') || strstr(folder, ".."))
        return titan_fail(err, TITAN_EINVAL, "%s = \"%s\": a name below the run's folder, without \"..\"", key, folder);
    return TITAN_OK;
}

static titan_status check_outputs(const struct recipe *r, struct titan_error *err)
{
    if (r->metrics.enable_tensorboard)
        TRY(check_folder("metrics.save_tb_folder", r->metrics.save_tb_folder, err));
    if (!r->profiling.enable_profiling)
        return TITAN_OK;
    TRY(check_folder("profiling.save_traces_folder", r->profiling.save_traces_folder, err));
    const char *at = r->profiling.ranks; /* "0,4-7", or empty */
    while (*at) {
        unsigned first = 0, last = 0;
        int end = 0;
        if (!isdigit((unsigned char)*at) || sscanf(at, "%6u%n", &first, &end) != 1)
            break;
        at += end;
        if (*at == '-') {
            if (!isdigit((unsigned char)at[1]) || sscanf(at + 1, "%6u%n", &last, &end) != 1 || last < first)
                break;
            at += 1 + end;
        }
        if (*at == ',' && at[1])
            at++;
        else if (*at)
            break;
    }
    if (*at)
        return titan_fail(err, TITAN_EINVAL,
                          "profiling.ranks = \"%s\": ranks and ranges of them with commas between, such as \"0,4-7\"",
                          r->profiling.ranks);
    if (r->profiling.profiler_warmup + r->profiling.profiler_active > r->profiling.profile_freq)
        return titan_fail(
            err, TITAN_EINVAL,
            "profiling.profiler_warmup = %lld and profiler_active = %lld are more than profile_freq = %lld",
            (long long)r->profiling.profiler_warmup, (long long)r->profiling.profiler_active,
            (long long)r->profiling.profile_freq);
    return TITAN_OK;
}

/* GaLore's rank fits the narrowest matrix of a layer. */
static titan_status check_rank(const struct recipe *r, struct titan_error *err)
{
    const struct model_dims *const d = &r->model.dims;
    const int64_t c = d->dim, queries = d->n_heads * d->head_dim, latent = d->kv_lora_rank;
    const int64_t keys = latent ? 0 : d->n_kv_heads * d->head_dim;
    const int64_t shared = d->n_experts ? d->n_shared_experts * d->moe_hidden : 0;
    const struct {
        const char *name;
        int64_t rows, cols; /* 0: the model has no such matrix */
    } matrices[] = {
        {"attention.wq", d->q_lora_rank ? 0 : queries, c},
        {"attention.wq_a", d->q_lora_rank, c},
        {"attention.wq_b", d->q_lora_rank ? queries : 0, d->q_lora_rank},
        {"attention.wk", keys, c},
        {"attention.wkv_a", latent ? latent + d->qk_rope_head_dim : 0, c},
        {"attention.wkv_b", latent ? d->n_heads * (d->qk_nope_head_dim + d->v_head_dim) : 0, latent},
        {"attention.wo", c, latent ? d->n_heads * d->v_head_dim : queries},
        {"feed_forward.w1", d->n_experts == 0 || d->n_dense_layers > 0 ? d->ffn_hidden : 0, c},
        {"moe.shared_experts.w1", shared, c},
        {"moe.experts.w1", d->n_experts ? d->moe_hidden : 0, c},
    };
    int64_t side = INT64_MAX;
    const char *name = NULL;

    for (size_t i = 0; i < ARRAY_SIZE(matrices); i++)
        if (matrices[i].rows > 0 && MIN(matrices[i].rows, matrices[i].cols) < side) {
            side = MIN(matrices[i].rows, matrices[i].cols);
            name = matrices[i].name;
        }
    if (optimizer_of_matrices(r) != optimizer_find("GaLore2") || r->optimizer.galore.rank <= side)
        return TITAN_OK;
    return titan_fail(err, TITAN_EINVAL,
                      "optimizer.galore.rank = %lld is more than %lld, the smaller side of %s; nearest: %lld",
                      (long long)r->optimizer.galore.rank, (long long)side, name, (long long)side);
}

titan_status recipe_resolve(struct recipe *r, struct titan_error *err)
{
    TRY(resolve_model(r, err));
    TRY(check_dims(r, err));
    TRY(resolve_workers(r, err));
    TRY(resolve_batch(r, err));
    if (recipe_validation_batch(r) > GLOBAL_BATCH_MAX)
        return titan_fail(
            err, TITAN_EINVAL,
            "validation.local_batch_size = %lld times %lld data-parallel ranks (elastic.max_workers = %lld) "
            "is more than %lld",
            (long long)r->validation.local_batch_size, (long long)(r->elastic.max_workers / recipe_mesh_unit(r)),
            (long long)r->elastic.max_workers, (long long)GLOBAL_BATCH_MAX);

    /* Each of the head's pieces has at least one token. */
    const int64_t tokens =
        MAX(recipe_microbatch_rows(r) * r->training.seq_len / r->parallelism.context_parallel_degree, 1);
    if (r->training.loss_chunks == -1)
        r->training.loss_chunks = MIN(tokens, LOSS_CHUNKS);
    if (r->training.loss_chunks > tokens)
        return titan_fail(err, TITAN_EINVAL,
                          "training.loss_chunks = %lld is more than the %lld tokens a microbatch has on a worker; "
                          "nearest: %lld",
                          (long long)r->training.loss_chunks, (long long)tokens, (long long)tokens);
    const char *const option = r->activation_checkpoint.selective_ac_option;
    const char *const number = strncmp(option, "op:", 3) == 0 ? option + 3 : option;
    if (strcmp(option, "op") != 0 && (strspn(number, "0123456789") != strlen(number) || atoi(number) <= 0))
        return titan_fail(
            err, TITAN_EINVAL,
            "activation_checkpoint.selective_ac_option = \"%s\": expected \"op\", \"op:N\" or \"N\", N above 0",
            option);
    TRY(recipe_check_conflicts(r, err));
    TRY(check_rank(r, err));
    TRY(check_checkpoint(r, err));
    if (strcmp(r->nccl.cta_policy, "zero") == 0 && !r->nccl.windows)
        return titan_fail(
            err, TITAN_EINVAL,
            "nccl.cta_policy = \"zero\" needs nccl.windows = true: copy engines reach registered memory only");
    TRY(check_outputs(r, err));
    const struct recipe_mixture *mixture = &r->training.mixture;
    const char *kinds = recipe_keys[recipe_key_find("training", "dataset")].choices;
    for (int64_t i = 0; i < mixture->n; i++)
        if (mixture->source[i].dataset[0] && !setting_admits(kinds, mixture->source[i].dataset))
            return titan_fail(err, TITAN_EINVAL,
                              "training.mixture: dataset = \"%s\": expected what training.dataset may be",
                              mixture->source[i].dataset);
    if (mixture->n > 0 && r->training.dataset_path[0])
        return titan_fail(err, TITAN_EINVAL,
                          "training.mixture and training.dataset_path are both given: the data is one or the other");
    if (strcmp(r->parallelism.context_parallel_rotate_method, "alltoall") == 0) {
        memset(r->parallelism.context_parallel_rotate_method, 0, sizeof(r->parallelism.context_parallel_rotate_method));
        memcpy(r->parallelism.context_parallel_rotate_method, "ring", sizeof("ring"));
    }
    r->lr_scheduler.warmup_steps =
        MIN(r->lr_scheduler.warmup_steps,
            r->lr_scheduler.total_steps > 0 ? r->lr_scheduler.total_steps : r->training.steps);
    if (r->fault_tolerance.backoff_max_ms < r->fault_tolerance.backoff_ms)
        return titan_fail(err, TITAN_EINVAL,
                          "fault_tolerance.backoff_max_ms = %lld is less than fault_tolerance.backoff_ms = %lld",
                          (long long)r->fault_tolerance.backoff_max_ms, (long long)r->fault_tolerance.backoff_ms);
    return recipe_check_size(r, err);
}
