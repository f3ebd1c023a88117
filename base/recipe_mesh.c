/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh of a recipe, and legal numbers of workers. */
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/optimizers.h"
#include "base/recipe.h"
#include "base/recipe_conflicts.h"
#include "base/recipe_keys.h"
#include "base/schedule.h"

/* Limits microbatches of one rank, and their product with stages: a schedule has a cell for each, and a submit builds
 * schedules for all legal worlds. */
#define PIPELINE_MICROBATCHES_MAX 4096
#define PIPELINE_CELLS_MAX (1 << 20)

int64_t recipe_mesh_unit(const struct recipe *r)
{
    return r->parallelism.pipeline_parallel_degree * r->parallelism.context_parallel_degree *
           r->parallelism.tensor_parallel_degree;
}

void recipe_degrees(const struct recipe *r, bool all, char out[RECIPE_DEGREES_TEXT])
{
    const struct {
        const char *name;
        int64_t degree;
        bool unit;
    } degrees[] = {
        {"pipeline_parallel_degree", r->parallelism.pipeline_parallel_degree, true},
        {"data_parallel_replicate_degree", r->parallelism.data_parallel_replicate_degree, false},
        {"data_parallel_shard_degree", r->parallelism.data_parallel_shard_degree, false},
        {"context_parallel_degree", r->parallelism.context_parallel_degree, true},
        {"tensor_parallel_degree", r->parallelism.tensor_parallel_degree, true},
    };
    char names[160] = "", values[128] = ""; /* five names with " * " between them; five numbers */
    int n = 0, m = 0;
    for (size_t i = 0; i < ARRAY_SIZE(degrees); i++) {
        if (degrees[i].degree <= 1 || (!all && !degrees[i].unit))
            continue;
        n += snprintf(names + n, sizeof(names) - (size_t)n, "%s%s", n ? " * " : "", degrees[i].name);
        m += snprintf(values + m, sizeof(values) - (size_t)m, "%s%lld", m ? " * " : "", (long long)degrees[i].degree);
    }
    if (n == 0)
        (void)snprintf(out, RECIPE_DEGREES_TEXT, "parallelism.data_parallel_shard_degree = %lld",
                       (long long)r->parallelism.data_parallel_shard_degree);
    else
        (void)snprintf(out, RECIPE_DEGREES_TEXT, "parallelism.%s = %s", names, values);
}

bool recipe_keeps_copies(const struct recipe *r, int world, int replicas)
{
    const char *how = r->fault_tolerance.redundancy;
    if (optimizer_keeps_residual(r)) /* a copy would need the residual of each replica */
        return false;
    return world > 1 && (strcmp(how, "buddy") == 0 || (strcmp(how, "auto") == 0 && replicas == 1));
}

int64_t recipe_microbatch_rows(const struct recipe *r)
{
    return r->parallelism.pipeline_parallel_degree > 1 ? r->parallelism.pipeline_parallel_microbatch_size
                                                       : r->training.local_batch_size;
}

int64_t recipe_validation_rows(const struct recipe *r)
{
    return r->parallelism.pipeline_parallel_degree > 1 ? r->parallelism.pipeline_parallel_microbatch_size
                                                       : r->validation.local_batch_size;
}

int64_t recipe_validation_batch(const struct recipe *r)
{
    titan_assert(r->elastic.max_workers >= 1);
    return r->validation.local_batch_size * (r->elastic.max_workers / recipe_mesh_unit(r));
}

/* Follows TorchTitan's rule. */
bool recipe_validates(const struct recipe *r, uint64_t step)
{
    return r->validation.enable && (step == 1 || (step > 0 && step % (uint64_t)r->validation.freq == 0));
}

/* Number of replicas for `ranks` data-parallel ranks: the recipe's number if it divides evenly, otherwise fewer. 0: the
 * degrees do not allow `ranks` ranks. */
static int64_t replicas(const struct recipe *r, int64_t ranks)
{
    titan_assert(ranks >= 0);
    int64_t shard = r->parallelism.data_parallel_shard_degree;
    for (int64_t n = MIN(r->parallelism.data_parallel_replicate_degree, ranks); n > 0; n--)
        if (ranks % n == 0 && (shard == -1 || ranks / n <= shard))
            return n;
    return 0;
}

/* The nearest legal number of data-parallel ranks, searched from `ranks` downwards or upwards within
 * elastic.min_workers to max_workers; 0: none. */
static int64_t nearest_ranks(const struct recipe *r, int64_t ranks, int step)
{
    const int64_t unit = recipe_mesh_unit(r);
    titan_assert(step == 1 || step == -1);
    while (ranks > 0 && ranks * unit >= r->elastic.min_workers && ranks * unit <= r->elastic.max_workers) {
        if (replicas(r, ranks) > 0)
            return ranks;
        ranks += step;
    }
    return 0;
}

titan_status recipe_mesh(const struct recipe *r, int64_t world, struct recipe_mesh *ret, struct titan_error *err)
{
    int64_t unit = recipe_mesh_unit(r), ranks = world / unit, most = ranks;
    char degrees[RECIPE_DEGREES_TEXT], more[32] = "";
    if (world < 1)
        return titan_fail(err, TITAN_EINVAL, "%lld workers: at least 1 is needed", (long long)world);
    if (world % unit != 0) {
        const int64_t below = nearest_ranks(r, ranks, -1), above = nearest_ranks(r, ranks + 1, 1);
        recipe_degrees(r, false, degrees);
        if (below > 0 && above > 0)
            (void)snprintf(more, sizeof(more), " or %ld", (long)(above * unit));
        return titan_fail(err, TITAN_EINVAL, "%s does not divide %lld workers; nearest: %lld%s", degrees,
                          (long long)world,
                          (long long)((below > 0   ? below
                                       : above > 0 ? above
                                                   : MAX(ranks, 1)) *
                                      unit),
                          more);
    }
    int64_t replicate = replicas(r, ranks);
    if (replicate == 0) {
        while (replicas(r, most) == 0)
            most--;
        recipe_degrees(r, true, degrees);
        return titan_fail(err, TITAN_EINVAL,
                          "%s does not fit %lld workers; nearest: %lld, or "
                          "parallelism.data_parallel_shard_degree = -1",
                          degrees, (long long)world, (long long)(most * unit));
    }
    *ret = (struct recipe_mesh){.pp = r->parallelism.pipeline_parallel_degree,
                                .dp_replicate = replicate,
                                .dp_shard = ranks / replicate,
                                .cp = r->parallelism.context_parallel_degree,
                                .tp = r->parallelism.tensor_parallel_degree,
                                .ep = r->parallelism.expert_parallel_degree,
                                .etp = r->parallelism.expert_tensor_parallel_degree,
                                .rotate = strcmp(r->parallelism.rotate, "off") != 0};
    return TITAN_OK;
}

/* --- the model on the mesh ---------------------------------------------------------------------------------------- */

/* The first dimension that this degree of tensor parallelism cannot divide; NULL: none. */
static const char *tensor_obstacle(const struct recipe *r, int64_t tp, int64_t *ret_value)
{
    titan_assert(tp >= 1);
    const struct model_dims *d = &r->model.dims;
    const struct {
        const char *name;
        int64_t value;
        bool there;
    } cut[] = {
        {"model.n_heads", d->n_heads, true},
        {"model.n_kv_heads", d->n_kv_heads, true},
        {"model.vocab_size", d->vocab_size, true},
        {"model.ffn_hidden", d->ffn_hidden, d->n_experts == 0 || d->n_dense_layers > 0},
        {"model.n_shared_experts * moe_hidden", d->n_shared_experts * d->moe_hidden, d->n_shared_experts > 0},
        {"training.seq_len", r->training.seq_len, true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cut); i++) {
        *ret_value = cut[i].value;
        if (cut[i].there && cut[i].value % tp != 0)
            return cut[i].name;
    }
    return NULL;
}

static titan_status check_sequence(const struct recipe *r, const char *key, int64_t seq_len, struct titan_error *err)
{
    int64_t tp = r->parallelism.tensor_parallel_degree, cp = r->parallelism.context_parallel_degree;
    /* The rank's share of a sequence is divided into tp pieces. With context parallelism a sequence has cp chunks, or 2
     * cp when heads are paired with tails. */
    int64_t chunks = cp > 1 ? (r->parallelism.context_parallel_load_balance ? 2 : 1) * cp : 1;
    int64_t divisor = tp * chunks;
    titan_assert(divisor >= 1);
    int64_t rest = seq_len % divisor;
    if (rest == 0)
        return TITAN_OK;
    int64_t below = seq_len - rest;
    return titan_fail(err, TITAN_EINVAL,
                      "%s = %lld is not a multiple of %lld, for parallelism.context_parallel_degree = %lld "
                      "and tensor_parallel_degree = %lld; nearest: %lld",
                      key, (long long)seq_len, (long long)divisor, (long long)cp, (long long)tp,
                      (long long)(below > 0 && 2 * rest < divisor ? below : below + divisor));
}

/* Number of workers over which the tokens of one data-parallel rank are divided when they reach the experts. */
static int64_t token_ranks(const struct recipe_mesh *m)
{
    return m->cp * (m->etp > 1 ? 1 : m->tp);
}

/* Canonical sums require that ranks sharing experts hold whole microbatches, or parts of one. */
static bool sums_canonically(const struct recipe *r, const struct recipe_mesh *m, int64_t ep)
{
    return !r->numerics.canonical || token_ranks(m) % ep == 0 || ep % token_ranks(m) == 0;
}

/* The largest degree, at most the recipe's, that satisfies all rules; degree 1 always does. */
static int64_t nearest_expert_degree(const struct recipe *r, const struct recipe_mesh *m)
{
    const int64_t experts = r->model.dims.n_experts, lenders = m->dp_shard * token_ranks(m);
    int64_t ep = MIN(m->ep, lenders);
    titan_assert(ep >= 1);
    while (experts % ep != 0 || lenders % ep != 0 || !sums_canonically(r, m, ep))
        ep--;
    return ep;
}

static titan_status check_experts(const struct recipe *r, const struct recipe_mesh *m, struct titan_error *err)
{
    const int64_t experts = r->model.dims.n_experts, width = r->model.dims.moe_hidden;
    const int64_t lenders = m->dp_shard * token_ranks(m);
    if (m->etp != 1 && experts == 0)
        return titan_fail(
            err, TITAN_EINVAL,
            "parallelism.expert_tensor_parallel_degree = %lld: model.flavor = \"%s\" of %s has no experts; "
            "nearest: 1",
            (long long)m->etp, r->model.flavor, r->model.name);
    if (m->etp != 1 && width % m->etp != 0)
        return titan_fail(err, TITAN_EINVAL,
                          "parallelism.expert_tensor_parallel_degree = %lld does not divide model.moe_hidden = %lld; "
                          "nearest: 1",
                          (long long)m->etp, (long long)width);

    if (m->ep == 1)
        return TITAN_OK;
    if (experts == 0)
        return titan_fail(
            err, TITAN_EINVAL,
            "parallelism.expert_parallel_degree = %lld: model.flavor = \"%s\" of %s has no experts; nearest: 1",
            (long long)m->ep, r->model.flavor, r->model.name);
    if (experts % m->ep == 0 && lenders % m->ep == 0)
        return TITAN_OK;
    const int64_t nearest = nearest_expert_degree(r, m);
    if (experts % m->ep != 0)
        return titan_fail(
            err, TITAN_EINVAL,
            "parallelism.expert_parallel_degree = %lld does not divide model.n_experts = %lld; nearest: %lld",
            (long long)m->ep, (long long)experts, (long long)nearest);
    if (m->etp > 1)
        return titan_fail(err, TITAN_EINVAL,
                          "parallelism.expert_parallel_degree = %lld does not divide dp_shard * cp = %lld * %lld, over "
                          "which experts are split with expert_tensor_parallel_degree = %lld; nearest: %lld",
                          (long long)m->ep, (long long)m->dp_shard, (long long)m->cp, (long long)m->etp,
                          (long long)nearest);
    return titan_fail(
        err, TITAN_EINVAL,
        "parallelism.expert_parallel_degree = %lld does not divide dp_shard * cp * tp = %lld * %lld * %lld; "
        "nearest: %lld",
        (long long)m->ep, (long long)m->dp_shard, (long long)m->cp, (long long)m->tp, (long long)nearest);
}

/* Experts of another data-parallel rank answer within a microbatch. So all ranks that share experts need equally many
 * microbatches. Canonical sums keep the ranks' rows apart. */
static titan_status check_shared_experts(const struct recipe *r, const struct recipe_mesh *m, struct titan_error *err)
{
    int64_t rows = recipe_microbatch_rows(r), microbatches = r->training.global_batch_size / rows;
    int64_t ranks = m->dp_replicate * m->dp_shard, tokens = token_ranks(m);
    if (r->model.dims.n_experts > 0 && !sums_canonically(r, m, m->ep))
        return titan_fail(err, TITAN_EINVAL,
                          "numerics.canonical = true needs parallelism.expert_parallel_degree = %lld to be a divisor "
                          "or a multiple of "
                          "context_parallel_degree x tensor_parallel_degree = %lld; nearest: %lld",
                          (long long)m->ep, (long long)tokens, (long long)nearest_expert_degree(r, m));
    if (tokens % m->ep == 0 || microbatches % ranks == 0)
        return TITAN_OK;
    return titan_fail(err, TITAN_EINVAL,
                      "training.global_batch_size = %lld makes %lld microbatches for %lld data-parallel ranks, which "
                      "share experts (parallelism.expert_parallel_degree = %lld) and need equally many; nearest: %lld",
                      (long long)r->training.global_batch_size, (long long)microbatches, (long long)ranks,
                      (long long)m->ep, (long long)((microbatches + ranks / 2) / ranks * ranks * rows));
}

/* --- the pipeline ------------------------------------------------------------------------------------------------- */

static titan_status check_pipeline(const struct recipe *r, const struct recipe_mesh *m, struct titan_error *err)
{
    const char *csv = r->parallelism.pipeline_parallel_schedule_csv, *name = r->parallelism.pipeline_parallel_schedule;
    const int64_t ranks = m->dp_replicate * m->dp_shard;
    const int64_t microbatches = r->training.global_batch_size / recipe_microbatch_rows(r);
    /* Microbatches of the busiest rank. Other ranks may have fewer and leave their last places empty. */
    const int each = (int)((microbatches + ranks - 1) / ranks);
    int stages = 1, first_layer[RECIPE_STAGES_MAX + 1];
    _cleanup_(schedule_clear) struct schedule *s = NULL;
    if (m->pp == 1)
        return TITAN_OK;
    TRY(recipe_stages(r, &stages, err));
    TRY(recipe_split_layers(r, stages, first_layer, err));
    const int64_t most = MIN(PIPELINE_MICROBATCHES_MAX, PIPELINE_CELLS_MAX / stages);
    if (each > most)
        return titan_fail(
            err, TITAN_EINVAL,
            "training.global_batch_size = %lld makes %d microbatches a rank; a pipeline of %d stages takes at "
            "most %lld; nearest: %lld",
            (long long)r->training.global_batch_size, each, stages, (long long)most,
            (long long)(most * ranks * recipe_microbatch_rows(r)));
    if (*csv) {
        if (schedule_load(csv, (int)m->pp, stages, each, &s, err) != TITAN_OK) {
            titan_error_wrap(err, "parallelism.pipeline_parallel_schedule_csv");
            if (err)
                err->status = TITAN_EINVAL; /* whatever the file error, the recipe is at fault */
            return TITAN_EINVAL;
        }
    } else if (schedule_stages_per_rank(name) == 0) {
        return titan_fail(
            err, TITAN_EINVAL,
            "parallelism.pipeline_parallel_schedule = \"%s\" needs parallelism.pipeline_parallel_schedule_csv", name);
    } else {
        const titan_status status = schedule_generate(name, (int)m->pp, stages, each, &s, err);
        if (status != TITAN_OK) {
            titan_error_wrap(err, "parallelism.pipeline_parallel_schedule");
            return status;
        }
    }
    return schedule_check(s, err);
}

/* --- parts that go round ------------------------------------------------------------------------------------------ */

/* What parts of layers that go round need of the number of workers. */
static titan_status check_rotation(const struct recipe *r, const struct recipe_mesh *m, struct titan_error *err)
{
    const struct model_dims *const d = &r->model.dims;
    const struct {
        const char *name;
        int64_t value;
    } cut[] = {{"model.n_heads", d->n_heads}, {"model.n_kv_heads", d->n_kv_heads}, {"model.ffn_hidden", d->ffn_hidden}};
    if (!m->rotate)
        return TITAN_OK;
    for (size_t i = 0; i < ARRAY_SIZE(cut); i++)
        if (cut[i].value % m->dp_shard != 0)
            return titan_fail(err, TITAN_EINVAL,
                              "parallelism.rotate = \"%s\": %s = %lld cannot be cut in %lld parts, one for each worker "
                              "of data_parallel_shard_degree",
                              r->parallelism.rotate, cut[i].name, (long long)cut[i].value, (long long)m->dp_shard);
    const int64_t rows = recipe_microbatch_rows(r), microbatches = r->training.global_batch_size / rows;
    const int64_t ranks = m->dp_replicate * m->dp_shard;
    if (microbatches % ranks == 0)
        return TITAN_OK;
    return titan_fail(err, TITAN_EINVAL,
                      "parallelism.rotate = \"%s\": training.global_batch_size = %lld makes %lld microbatches for %lld "
                      "data-parallel workers, which need equally many; nearest: %lld",
                      r->parallelism.rotate, (long long)r->training.global_batch_size, (long long)microbatches,
                      (long long)ranks, (long long)((microbatches + ranks - 1) / ranks * ranks * rows));
}

/* --- worlds ------------------------------------------------------------------------------------------------------- */

#define NEAREST_TRIES 64

titan_status recipe_check_world(const struct recipe *r, int64_t world, struct titan_error *err)
{
    struct recipe_mesh m;
    const int64_t least = r->elastic.min_workers, most = r->elastic.max_workers;
    if (world < 1)
        return titan_fail(err, TITAN_EINVAL, "%lld workers: at least 1 is needed", (long long)world);
    /* the message names the nearest legal world, or the end of the range if no near world is legal */
    if (world < least || world > most) {
        const int64_t unit = recipe_mesh_unit(r), step = world < least ? unit : -unit;
        int64_t n = world < least ? (least + unit - 1) / unit * unit : most / unit * unit;
        int tries = NEAREST_TRIES;
        while (n >= least && n <= most && n > 0 && tries > 0 && recipe_check_world(r, n, NULL) != TITAN_OK) {
            n += step;
            tries--;
        }
        if (n < least || n > most || n <= 0 || tries == 0)
            n = world < least ? least : most;
        return titan_fail(err, TITAN_EINVAL,
                          "%lld workers are outside elastic.min_workers = %lld to elastic.max_workers = %lld; "
                          "nearest: %lld",
                          (long long)world, (long long)least, (long long)most, (long long)n);
    }
    TRY(recipe_mesh(r, world, &m, err));
    TRY(recipe_check_conflicts(r, err));

    int64_t value, unused, nearest = m.tp;
    const char *obstacle = tensor_obstacle(r, m.tp, &value);
    while (tensor_obstacle(r, nearest, &unused)) /* ends at 1 */
        nearest--;
    if (obstacle)
        return titan_fail(err, TITAN_EINVAL,
                          "parallelism.tensor_parallel_degree = %lld does not divide %s = %lld; nearest: %lld",
                          (long long)m.tp, obstacle, (long long)value, (long long)nearest);
    TRY(check_sequence(r, "training.seq_len", r->training.seq_len, err));
    if (r->validation.enable)
        TRY(check_sequence(r, "validation.seq_len", r->validation.seq_len, err));
    TRY(check_experts(r, &m, err));

    const int64_t rows = recipe_microbatch_rows(r), ranks = m.dp_replicate * m.dp_shard;
    const int64_t microbatches = r->training.global_batch_size / rows;
    if (microbatches < ranks)
        return titan_fail(
            err, TITAN_EINVAL,
            "training.global_batch_size = %lld makes %lld microbatches of %lld sequences: too few for %lld "
            "data-parallel ranks; use at least %lld",
            (long long)r->training.global_batch_size, (long long)microbatches, (long long)rows, (long long)ranks,
            (long long)(ranks * rows));
    TRY(check_shared_experts(r, &m, err));
    TRY(check_rotation(r, &m, err));
    return check_pipeline(r, &m, err);
}

int64_t recipe_fit_world(const struct recipe *r, int64_t workers)
{
    int64_t unit = recipe_mesh_unit(r), world = MIN(workers, r->elastic.max_workers);
    for (world -= world % unit; world >= r->elastic.min_workers && world > 0; world -= unit)
        if (recipe_check_world(r, world, NULL) == TITAN_OK)
            return world;
    return 0;
}
