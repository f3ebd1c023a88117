/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters, FLOPs and memory of a recipe. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/optimizers.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"
#include "base/units.h"
#include "base/weight_codes.h"

/* --- parameters --------------------------------------------------------------------------------------------------- */

/* Computed in doubles, exact below 2^53: a recipe's dimensions may multiply to more than 64 bits. */
static double attention_params(const struct model_dims *d)
{
    const double c = (double)d->dim, h = (double)d->n_heads, qk = (double)d->head_dim, v = (double)d->v_head_dim;
    const double q_rank = (double)d->q_lora_rank, kv_rank = (double)d->kv_lora_rank;
    if (d->kv_lora_rank == 0)
        return 2 * c * h * qk + 2 * c * (double)d->n_kv_heads * qk +
               (d->qk_norm ? (d->qk_norm_whole ? h + (double)d->n_kv_heads : 2) * qk : 0) +
               (d->qkv_bias ? (h + 2 * (double)d->n_kv_heads) * qk : 0) + (d->output_bias ? c : 0) +
               (d->attention_sinks ? h : 0);
    /* 1: the norm between the two products */
    const double queries = d->q_lora_rank ? q_rank * (c + 1 + h * qk) : c * h * qk;
    return queries + c * (kv_rank + (double)d->qk_rope_head_dim) +
           kv_rank * (1 + h * ((double)d->qk_nope_head_dim + v)) + h * v * c;
}

/* Parameters of all layers, each with `experts` routed experts, and of the modules of multi-token prediction. To count
 * the parameters that one token uses, pass the number of its experts. A module is a layer with a projection and three
 * norms besides. */
static double body_params(const struct model_dims *d, int64_t experts)
{
    const int64_t all = d->n_layers + d->mtp_layers, dense = d->n_experts == 0 ? all : MIN(all, d->n_dense_layers);
    titan_assert(dense >= 0 && dense <= all);
    const double c = (double)d->dim, f = (double)d->ffn_hidden, m = (double)d->moe_hidden;
    /* The router has a column for every expert; its bias is no parameter. */
    const double routed = (c + d->router_bias) * (double)d->n_experts +
                          3 * c * m * (double)(experts + d->n_shared_experts) +
                          (d->mlp_bias ? (2 * m + c) * (double)experts : 0);
    const double norms = (d->no_input_norms ? 0 : 2) + (d->output_norms ? 2 : 0);
    return (double)all * (attention_params(d) + norms * c) +
           (double)dense * (3 * c * f + (d->mlp_bias ? 2 * f + c : 0)) + (double)(all - dense) * routed +
           (double)d->mtp_layers * c * (2 * c + 3);
}

static double head_params(const struct model_dims *d)
{
    return (double)d->dim + (double)d->vocab_size * (double)d->dim;
}

static double all_params(const struct model_dims *d)
{
    const double embedding = d->tied_embeddings ? 0 : (double)d->vocab_size * (double)d->dim;
    return body_params(d, d->n_experts) + head_params(d) + embedding;
}

int64_t recipe_params(const struct recipe *r)
{
    return (int64_t)all_params(&r->model.dims);
}

/* Keys that a query sees, summed over all layers. With a causal mask these are on average half of the keys within
 * reach, otherwise all of them. */
static double all_keys(const struct recipe *r, bool causal)
{
    const struct model_dims *d = &r->model.dims;
    const double t = (double)r->training.seq_len, w = d->sliding_window > 0 ? MIN((double)d->sliding_window, t) : t;
    const int64_t without = d->sliding_window == 0 || d->full_attention_every == 0
                                ? 0
                                : d->n_layers / d->full_attention_every; /* layers without a window */
    const double full = (double)without;
    const double within = causal ? (w * (w + 1) / 2 + (t - w) * w) / t : w, before = causal ? (t + 1) / 2 : t;
    return full * before + ((double)(d->n_layers + d->mtp_layers) - full) * within;
}

static double flops_per_token(const struct recipe *r, double keys)
{
    const struct model_dims *d = &r->model.dims;
    const double heads = 1 + (double)d->mtp_layers, active = body_params(d, d->top_k) + heads * head_params(d);
    int64_t v = d->kv_lora_rank ? d->v_head_dim : d->head_dim;
    return 6.0 * active + 6.0 * (double)d->n_heads * (double)(d->head_dim + v) * keys;
}

double recipe_flops_per_token(const struct recipe *r)
{
    return flops_per_token(r, all_keys(r, false));
}

double recipe_causal_flops_per_token(const struct recipe *r)
{
    return flops_per_token(r, all_keys(r, true));
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Memory of the fullest rank. The rank has an even share of the layers, rounded up. With a pipeline it also has the
 * embedding or the head. */
struct share {
    double params, state; /* parameters of its stages: all of them, as gathered; the sharded part */
    /* as params, with the gradients of ranks that share experts; these additional gradients in one layer */
    double gradients, apart;
    double unit, layer; /* the largest unit and a layer with its experts, gathered */
    double layers;      /* number of layers of its stages */
    double in_flight;   /* microbatches with stored activations */
};

/* Routed experts are divided over ep, not over tp. Parameters left whole by tp, pp and ep are sharded over the other
 * ranks of dp_shard, cp and tp. */
static struct share share_of(const struct recipe *r, const struct recipe_mesh *m, int64_t microbatches)
{
    titan_assert(m->pp >= 1 && m->tp >= 1 && m->ep >= 1);
    const struct model_dims *d = &r->model.dims;
    const int64_t all_layers = d->n_layers + d->mtp_layers, stage_layers = (all_layers + m->pp - 1) / m->pp;
    double tp = (double)m->tp, layers = (double)stage_layers;
    double routed = body_params(d, d->n_experts) - body_params(d, 0);
    double end = head_params(d), dense = all_params(d) - routed;
    double body = dense - end * (d->tied_embeddings ? 1 : 2) + (d->tied_embeddings ? 0 : (double)d->dim);
    if (m->pp > 1) {
        dense = body / (double)all_layers * layers + end;
        routed = routed / (double)all_layers * layers;
    }
    const double cut = (double)(m->ep * m->etp); /* parts of the experts */
    double experts = routed / layers / cut, ranks = (double)(m->dp_shard * m->cp);
    const double others =
        r->numerics.canonical ? (double)m->ep - 1 : 0; /* ranks whose gradients canonical sums keep apart */
    return (struct share){
        .params = dense / tp + routed / cut,
        .gradients = dense / tp + routed / cut * (1 + others),
        .apart = experts * others,
        .state = dense / tp / ranks + routed / tp / ranks,
        .unit = MAX(MAX(body / (double)all_layers / tp, end / tp), experts),
        .layer = body / (double)all_layers / tp + experts,
        .layers = layers,
        .in_flight = (double)(m->pp == 1 ? 1 : MIN(microbatches, 2 * m->pp)),
    };
}

/* Bytes of activations for n tokens per microbatch and rank, s bytes per element: each layer's values for its backward
 * pass, the residual stream between layers, the working set of one layer, and the head's logits. */
static double activation_bytes(const struct recipe *r, const struct recipe_mesh *m, const struct share *share, double n,
                               double s)
{
    const struct model_dims *d = &r->model.dims;
    double c = (double)d->dim, h = (double)d->n_heads, v = (double)d->vocab_size, tp = (double)m->tp;
    /* Elements that a token stores in a layer: projections of queries, keys and values, and the three projections of
     * the feed-forward layer or of its chosen experts. */
    const int64_t value = d->kv_lora_rank ? d->v_head_dim : d->head_dim;
    const int64_t dense = d->n_experts == 0 || d->n_dense_layers > 0 ? d->ffn_hidden : 0;
    const int64_t chosen = d->n_experts ? (d->top_k + d->n_shared_experts) * d->moe_hidden : 0;
    const double q = (double)(d->n_heads * d->head_dim + d->n_kv_heads * (d->head_dim + value));
    const double f = (double)MAX(dense, chosen);
    double saved = n * (s * (4 * c + q + 3 * f) + 4 * (h + 2)) / tp,
           back = n * s * (2 * f + 4 * c + q + MAX(f, c)) / tp;
    bool recompute = strcmp(r->activation_checkpoint.mode, "full") == 0;
    double gathered = m->tp > 1 ? 2 * n * s * c : 0;
    return share->in_flight * share->layers * ((recompute ? 0 : saved) + n * s * c / tp) + (recompute ? saved : 0) +
           back + gathered + n * (s * (c + v / tp) + 16);
}

/* Full fp32 gradient copies during m microbatches: none if each unit is reduced at once; one for accumulation; with
 * canonical sums one per level of the tree. */
static int full_gradients(const struct recipe *r, int64_t m)
{
    const char *when = r->parallelism.fsdp_reduce;
    bool kept =
        r->parallelism.pipeline_parallel_degree > 1 || strcmp(r->parallelism.fsdp_reshard_after_forward, "never") == 0;
    if (m <= 1 && recipe_reduce_codec(r) == CODEC_NONE)
        return 0;
    if (r->numerics.canonical)
        return 64 - __builtin_clzll((unsigned long long)m);
    return recipe_reduce_codec(r) != CODEC_NONE || strcmp(when, "step") == 0 || (strcmp(when, "default") == 0 && kept);
}

double recipe_expert_capacity(const struct recipe *r)
{
    return strcmp(r->moe.overflow, "drop") == 0 ? r->moe.capacity_factor : 0;
}

enum codec recipe_reduce_codec(const struct recipe *r)
{
    return r->numerics.canonical ? CODEC_NONE : codec_find(r->parallelism.fsdp_reduce_codec);
}

enum codec recipe_replicate_codec(const struct recipe *r)
{
    return r->numerics.canonical ? CODEC_NONE : codec_find(r->parallelism.replicate_codec);
}

/* An upper estimate, in bytes, for the fullest rank. The rank has P parameters in its share. Its state is sharded over
 * W ranks (dp_shard * cp; see share_of). s: bytes per element of compute (2 for bfloat16, otherwise 4). k: bytes of a
 * parameter's master and state (AdamW: 12; 8 or 6.03 with optimizer.state_dtype, 6 with training.dtype = "bfloat16"):
 *
 *   state        (k + s) P/W    master weights and state (on the host with enable_cpu_offload), and the compute
 *                               copy, sharded
 *   gradients    4 P/W          reduced, plus 4 P for every full copy (full_gradients); canonical sums count experts as
 *                               those of all ranks that share them
 *   errors       1.004 P with fsdp_reduce_codec = "loco", of a rank's whole gradient; with replicate_codec = "loco"
 *                1.004 (1 + 1/R) P/W, of its range and of a piece of the sum of R replicas
 *   units        (s + 4) U + (2 s + 4) L   gathered parameters and gradients at work; U the largest unit (a layer, the
 *                               embedding, or norm and head), L a layer, which is gathered ahead; with a pipeline or
 *                               fsdp_reshard_after_forward = "never" all of them; 2 b/8 (U + L) more where they travel
 *                               in b bits; (b/2 + 4) U/W more with replicate_codec
 *   activations  see activation_bytes
 *   snapshot     k P/W          copy in host memory for writing a checkpoint; not on a GPU
 *   copy         (k + 4) P/W    another worker's masters and state, and its gradients (recipe_keeps_copies); in host
 *                               memory, so not on a GPU
 *   base         64 MiB         with CUDA 1 GiB: program, libraries, staging buffers
 *
 * The worker's planner knows each buffer; a submit has only this estimate. */
uint64_t recipe_memory_bytes(const struct recipe *r, int64_t world)
{
    struct recipe_mesh m;
    const int64_t unit = recipe_mesh_unit(r), ranks = MAX(world / unit, 1);
    titan_assert(unit >= 1);
    if (recipe_mesh(r, ranks * unit, &m, NULL) != TITAN_OK)
        m = (struct recipe_mesh){.pp = r->parallelism.pipeline_parallel_degree,
                                 .dp_replicate = 1,
                                 .dp_shard = ranks,
                                 .cp = r->parallelism.context_parallel_degree,
                                 .tp = r->parallelism.tensor_parallel_degree,
                                 .ep = 1,
                                 .etp = 1};
    const int64_t microbatches = (r->training.global_batch_size / recipe_microbatch_rows(r) + ranks - 1) / ranks;
    const bool gpu = strcmp(r->device.name, "cuda") == 0;
    const struct share share = share_of(r, &m, microbatches);
    double shard = share.state;
    double n = (double)recipe_microbatch_rows(r) * (double)r->training.seq_len / (double)m.cp;
    double s = strcmp(r->training.mixed_precision_param, "bfloat16") == 0 ? 2 : 4;
    const struct state_kinds kinds = optimizer_kinds(r);
    const double all = all_params(&r->model.dims), layers = body_params(&r->model.dims, r->model.dims.n_experts);
    const double states =
        (layers * __builtin_popcount(kinds.matrices) + (all - layers) * __builtin_popcount(kinds.rest)) / all;
    const double kept = recipe_master_bytes(r) + states * recipe_moment_bytes(r);
    double gradients = 4 * shard + full_gradients(r, microbatches) * 4 * share.gradients;
    if (codec_row(recipe_reduce_codec(r))->error)
        gradients += share.params * (double)codec_error_bytes(CODEC_BUCKET) / CODEC_BUCKET;
    const enum codec replicas = m.dp_replicate > 1 ? recipe_replicate_codec(r) : CODEC_NONE;
    if (codec_row(replicas)->error)
        gradients +=
            shard * (1 + 1.0 / (double)m.dp_replicate) * (double)codec_error_bytes(CODEC_BUCKET) / CODEC_BUCKET;
    double units = (s + 4) * share.unit + (2 * s + 4) * share.layer + 4 * share.apart;
    if (m.pp > 1 || strcmp(r->parallelism.fsdp_reshard_after_forward, "never") == 0)
        units += s * share.params;
    /* What is gathered and what a rank sends of it, which is no more. */
    units += 2 * weight_bits(weight_codec_find(r->parallelism.fsdp_gather_codec)) / 8.0 * (share.unit + share.layer);
    /* Codes of a range that are sent and that come, twice, and the range decoded. */
    if (replicas != CODEC_NONE)
        units +=
            (4 * (double)codec_bytes(replicas, CODEC_BUCKET) / CODEC_BUCKET + 4) * share.unit * shard / share.params;
    double snapshot = r->checkpoint.enable && !gpu ? kept * shard : 0;
    double copy = recipe_keeps_copies(r, (int)(ranks * unit), (int)m.dp_replicate) && !gpu ? (kept + 4) * shard : 0;
    double state = (r->training.enable_cpu_offload && gpu ? 0 : kept) + s;
    double bytes = state * shard + gradients + units + activation_bytes(r, &m, &share, n, s) + snapshot + copy +
                   (gpu ? 0x1p30 : 0x1p26);
    return bytes >= 0x1p63 ? UINT64_C(1) << 63 : (uint64_t)bytes;
}

/* Limits on the model, and on a worker's bytes: all offsets and sizes of a program stay far within 64 bits. */
#define PARAMS_MAX 0x1p50
#define WORKER_BYTES_MAX 0x1p50

titan_status recipe_check_size(const struct recipe *r, struct titan_error *err)
{
    const double params = all_params(&r->model.dims);
    char have[UNITS_TEXT], most[UNITS_TEXT];
    if (params > PARAMS_MAX)
        return titan_fail(err, TITAN_EINVAL,
                          "model.flavor = \"%s\" with these dimensions has %s parameters; at most %s", r->model.flavor,
                          format_count(params, have), format_count(PARAMS_MAX, most));
    const uint64_t bytes = recipe_memory_bytes(r, r->elastic.min_workers);
    if ((double)bytes <= WORKER_BYTES_MAX)
        return TITAN_OK;
    titan_fail(err, TITAN_EINVAL, "model.flavor = \"%s\" needs %s a worker with %lld workers; at most %s",
               r->model.flavor, format_bytes(bytes, have), (long long)r->elastic.min_workers,
               format_bytes((uint64_t)WORKER_BYTES_MAX, most));
    titan_error_hint(err, "use more workers, or a smaller training.local_batch_size or seq_len");
    return TITAN_EINVAL;
}

titan_status recipe_check_memory(const struct recipe *r, int64_t world, uint64_t bytes_per_worker,
                                 struct titan_error *err)
{
    uint64_t need = recipe_memory_bytes(r, world);
    char needed[UNITS_TEXT], there[UNITS_TEXT];
    if (bytes_per_worker == 0 || need <= bytes_per_worker)
        return TITAN_OK;
    titan_fail(err, TITAN_EUNPLACEABLE, "model.flavor = \"%s\" needs %s a worker with %lld workers; there is %s",
               r->model.flavor, format_bytes(need, needed), (long long)world, format_bytes(bytes_per_worker, there));
    titan_error_hint(err, "use more workers, a smaller training.local_batch_size or seq_len, or a smaller model");
    return TITAN_EUNPLACEABLE;
}
