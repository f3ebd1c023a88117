/* What follows from a recipe: dimensions, sizes, and whether it can run. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/recipe.h"
#include "base/recipe_keys.h"
#include "base/units.h"

#define GLOBAL_BATCH_MAX (INT64_C(1) << 28) /* as in the table of keys */

static void mark_given(struct recipe *r, int index)
{
    r->set_mask[index / 64] |= UINT64_C(1) << (index % 64);
}

/* Dimensions that were not given, from the flavor. */
static titan_status apply_flavor(struct recipe *r, struct titan_error *err)
{
    const struct recipe_flavor *flavor = NULL;
    for (int i = 0; i < recipe_flavors_count; i++)
        if (strcmp(recipe_flavors[i].name, r->model.flavor) == 0)
            flavor = &recipe_flavors[i];
    if (!flavor)
        return titan_fail(err, TITAN_EINVAL, "model.flavor = \"%s\" is unknown", r->model.flavor);
    struct recipe from = {.model.dims = flavor->dims};
    for (int i = 0; i < recipe_keys_count && recipe_keys[i].support == KEY_SUPPORTED; i++) {
        const struct recipe_key *k = &recipe_keys[i];
        if (!(k->flags & KEY_FLAVOR) || recipe_key_given(r, k->section, k->name))
            continue;
        memcpy((char *)r + k->offset, (const char *)&from + k->offset, k->size);
        mark_given(r, i);
    }
    return TITAN_OK;
}

static titan_status check_dims(const struct recipe *r, struct titan_error *err)
{
    const struct model_dims *d = &r->model.dims;
    if (d->dim % d->n_heads != 0 || d->dim / d->n_heads % 2 != 0)
        return titan_fail(err, TITAN_EINVAL,
                          "model.n_heads = %lld does not fit model.dim = %lld: dim / n_heads must be an even number",
                          (long long)d->n_heads, (long long)d->dim);
    if (d->n_heads % d->n_kv_heads != 0)
        return titan_fail(err, TITAN_EINVAL, "model.n_kv_heads = %lld does not divide model.n_heads = %lld",
                          (long long)d->n_kv_heads, (long long)d->n_heads);
    if (strcmp(r->model.tokenizer, "bytes") == 0 && d->vocab_size < 256)
        return titan_fail(err, TITAN_EINVAL,
                          "model.vocab_size = %lld is too small: model.tokenizer = \"bytes\" needs at least 256",
                          (long long)d->vocab_size);
    return TITAN_OK;
}

static titan_status resolve_workers(struct recipe *r, struct titan_error *err)
{
    int64_t degree = r->parallelism.data_parallel_shard_degree;
    if (degree > 0) {
        /* A fixed degree fixes the number of workers; [elastic] may say the same or nothing. */
        if (!recipe_key_given(r, "elastic", "max_workers"))
            r->elastic.max_workers = degree;
        if (!recipe_key_given(r, "elastic", "min_workers"))
            r->elastic.min_workers = degree;
        if (r->elastic.max_workers != degree || r->elastic.min_workers != degree)
            return titan_fail(err, TITAN_EINVAL,
                              "parallelism.data_parallel_shard_degree = %lld does not fit elastic.min_workers = %lld "
                              "and max_workers = %lld: use -1 for a run that may change its size",
                              (long long)degree, (long long)r->elastic.min_workers, (long long)r->elastic.max_workers);
    }
    /* One bound given alone moves the other along. */
    if (r->elastic.min_workers > r->elastic.max_workers && !recipe_key_given(r, "elastic", "max_workers"))
        r->elastic.max_workers = r->elastic.min_workers;
    if (r->elastic.min_workers > r->elastic.max_workers)
        return titan_fail(err, TITAN_EINVAL, "elastic.min_workers = %lld is more than elastic.max_workers = %lld",
                          (long long)r->elastic.min_workers, (long long)r->elastic.max_workers);
    return TITAN_OK;
}

static titan_status resolve_batch(struct recipe *r, struct titan_error *err)
{
    int64_t local = r->training.local_batch_size;
    if (r->training.global_batch_size == -1)
        r->training.global_batch_size = local * r->elastic.max_workers;
    if (r->training.global_batch_size > GLOBAL_BATCH_MAX)
        return titan_fail(err, TITAN_EINVAL,
                          "training.local_batch_size = %lld times elastic.max_workers = %lld is more than %lld",
                          (long long)local, (long long)r->elastic.max_workers, (long long)GLOBAL_BATCH_MAX);
    int64_t global = r->training.global_batch_size, rest = global % local;
    if (rest != 0 && global < local)
        return titan_fail(err, TITAN_EINVAL,
                          "training.global_batch_size = %lld is less than one microbatch "
                          "(training.local_batch_size = %lld)",
                          (long long)global, (long long)local);
    if (rest != 0)
        return titan_fail(err, TITAN_EINVAL,
                          "training.global_batch_size = %lld is not a multiple of training.local_batch_size = %lld; "
                          "nearest: %lld",
                          (long long)global, (long long)local,
                          (long long)(rest * 2 < local ? global - rest : global - rest + local));
    return TITAN_OK;
}

titan_status recipe_resolve(struct recipe *r, struct titan_error *err)
{
    TRY(apply_flavor(r, err));
    TRY(check_dims(r, err));
    TRY(resolve_workers(r, err));
    TRY(resolve_batch(r, err));
    r->lr_scheduler.warmup_steps = MIN(r->lr_scheduler.warmup_steps, r->training.steps);
    if (r->fault_tolerance.backoff_max_ms < r->fault_tolerance.backoff_ms)
        return titan_fail(err, TITAN_EINVAL,
                          "fault_tolerance.backoff_max_ms = %lld is less than fault_tolerance.backoff_ms = %lld",
                          (long long)r->fault_tolerance.backoff_max_ms, (long long)r->fault_tolerance.backoff_ms);
    return TITAN_OK;
}

titan_status recipe_check_world(const struct recipe *r, int64_t world, struct titan_error *err)
{
    int64_t degree = r->parallelism.data_parallel_shard_degree;
    int64_t microbatches = r->training.global_batch_size / r->training.local_batch_size;
    if (world < 1)
        return titan_fail(err, TITAN_EINVAL, "%lld workers: at least 1 is needed", (long long)world);
    if (degree > 0 && degree != world)
        return titan_fail(err, TITAN_EINVAL,
                          "parallelism.data_parallel_shard_degree = %lld does not fit %lld workers; use -1 or %lld",
                          (long long)degree, (long long)world, (long long)world);
    if (world < r->elastic.min_workers || world > r->elastic.max_workers)
        return titan_fail(
            err, TITAN_EINVAL,
            "%lld workers are outside elastic.min_workers = %lld to elastic.max_workers = %lld; "
            "nearest: %lld",
            (long long)world, (long long)r->elastic.min_workers, (long long)r->elastic.max_workers,
            (long long)(world < r->elastic.min_workers ? r->elastic.min_workers : r->elastic.max_workers));
    if (microbatches < world)
        return titan_fail(err, TITAN_EINVAL,
                          "training.global_batch_size = %lld makes %lld microbatches of %lld sequences: too few for "
                          "%lld workers; use at least %lld",
                          (long long)r->training.global_batch_size, (long long)microbatches,
                          (long long)r->training.local_batch_size, (long long)world,
                          (long long)(world * r->training.local_batch_size));
    return TITAN_OK;
}

/* --- sizes ---------------------------------------------------------------------------------------------------------
 */

/* One block: q, k, v and output projections, three matrices of the feed-forward layer, two norms. */
static int64_t layer_params(const struct model_dims *d)
{
    int64_t kv = d->dim / d->n_heads * d->n_kv_heads;
    return 2 * d->dim * d->dim + 2 * d->dim * kv + 3 * d->dim * d->ffn_hidden + 2 * d->dim;
}

int64_t recipe_params(const struct recipe *r)
{
    return recipe_params_no_embed(r) + r->model.dims.vocab_size * r->model.dims.dim;
}

int64_t recipe_params_no_embed(const struct recipe *r)
{
    const struct model_dims *d = &r->model.dims;
    return d->n_layers * layer_params(d) + d->dim /* final norm */ + d->vocab_size * d->dim /* output head */;
}

double recipe_flops_per_token(const struct recipe *r)
{
    const struct model_dims *d = &r->model.dims;
    return 6.0 * (double)recipe_params_no_embed(r) +
           12.0 * (double)d->n_layers * (double)d->dim * (double)r->training.seq_len;
}

/* Activations of one microbatch of n tokens, s bytes an element: what each layer keeps for its backward pass, the
 * residual stream between layers, what the layer at work needs, and the head's logits. The widths are those of
 * worker/model/layers.h. */
static double activation_bytes(const struct recipe *r, double n, double s)
{
    const struct model_dims *d = &r->model.dims;
    double c = (double)d->dim, f = (double)d->ffn_hidden, h = (double)d->n_heads, v = (double)d->vocab_size;
    double layers = (double)d->n_layers;
    int64_t head_dim = d->dim / d->n_heads;
    double q = (double)((d->n_heads + 2 * d->n_kv_heads) * head_dim);
    double saved = n * (s * (4 * c + q + 3 * f) + 4 * (h + 2)), back = n * s * (2 * f + 4 * c + q + MAX(f, c));
    bool recompute = strcmp(r->activation_checkpoint.mode, "full") == 0;
    return (recompute ? 1 : layers) * saved + layers * n * s * c + back + n * (s * (c + v) + 16);
}

/* Full fp32 copies of the gradient a worker holds while it goes through m microbatches: none for one, whose units are
 * reduced as they come; one to add up in; with canonical sums one for each level of the tree. */
static int full_gradients(const struct recipe *r, int64_t m)
{
    if (m <= 1)
        return 0;
    return r->numerics.canonical ? 64 - __builtin_clzll((unsigned long long)m) : 1;
}

/* An upper estimate, in bytes, with P parameters, W workers, m microbatches to the busiest of them, and s bytes an
 * element of compute (2 for bfloat16, otherwise 4):
 *
 *   state        (12 + s) P/W   fp32 master weights and two moments, and the compute copy, sharded
 *   gradients    4 P/W          reduced, plus 4 P for every full copy (full_gradients)
 *   units        (s + 4) U + (2 s + 4) L   gathered parameters and gradients at work; U the largest unit (a layer, the
 *                               embedding, or norm and head), L a layer, which is gathered ahead
 *   activations  of one microbatch, see there
 *   snapshot     12 P/W         copy in host memory that a checkpoint is written from; not on a GPU
 *   base         64 MiB, with CUDA 1 GiB: program, libraries, staging buffers */
uint64_t recipe_memory_bytes(const struct recipe *r, int64_t world)
{
    const struct model_dims *d = &r->model.dims;
    const int64_t w = MAX(world, 1), microbatches = r->training.global_batch_size / r->training.local_batch_size;
    const int64_t m = (microbatches + w - 1) / w;
    const bool gpu = strcmp(r->device.name, "cuda") == 0;
    double params = (double)recipe_params(r), shard = params / (double)w;
    double n = (double)r->training.local_batch_size * (double)r->training.seq_len;
    double s = strcmp(r->training.mixed_precision_param, "bfloat16") == 0 ? 2 : 4;
    double layer = (double)layer_params(d), unit = MAX(layer, (double)(d->vocab_size * d->dim + d->dim));
    double gradients = 4 * shard + full_gradients(r, m) * 4 * params;
    double units = (s + 4) * unit + (2 * s + 4) * layer;
    double snapshot = r->checkpoint.enable && !gpu ? 12 * shard : 0;
    double bytes =
        (12 + s) * shard + gradients + units + activation_bytes(r, n, s) + snapshot + (gpu ? 0x1p30 : 0x1p26);
    return bytes >= 0x1p63 ? UINT64_C(1) << 63 : (uint64_t)bytes;
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

titan_status recipe_check_data(const struct recipe *r, const char *base, struct titan_error *err)
{
    const char *path = r->training.dataset_path;
    char full[PATH_MAX];
    if (r->training.dataset_path[0] == '\0') {
        titan_fail(err, TITAN_EINVAL, "training.dataset_path is not given");
        titan_error_hint(err, "name a text file or a folder: --set training.dataset_path=PATH");
        return TITAN_EINVAL;
    }
    bool relative = base && path[0] != '/';
    if ((size_t)snprintf(full, sizeof(full), "%s%s%s", relative ? base : "", relative ? "/" : "", path) >= sizeof(full))
        return titan_fail(err, TITAN_EINVAL, "training.dataset_path: path too long");
    struct stat st;
    if (stat(full, &st) < 0)
        return titan_fail_errno(err, "training.dataset_path = \"%s\"", full);
    bool folder = S_ISDIR(st.st_mode);
    if (!folder && !S_ISREG(st.st_mode))
        return titan_fail(err, TITAN_EINVAL, "training.dataset_path = \"%s\" is neither a file nor a folder", full);
    if (access(full, folder ? R_OK | X_OK : R_OK) < 0)
        return titan_fail_errno(err, "training.dataset_path = \"%s\"", full);
    if (!folder && st.st_size == 0)
        return titan_fail(err, TITAN_EINVAL, "training.dataset_path = \"%s\" is empty", full);
    return TITAN_OK;
}
