/* SPDX-License-Identifier: Apache-2.0 */
/* search.c - sorts layouts by a formula and simulates the best ones. */
#include "worker/plan/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "worker/plan/forecast.h"

#define SIMULATED_MAX 24 /* candidates that are built */
#define LISTED_MAX 10
#define OPTIMISM 1.1 /* a simulated step may be shorter than the formula says by up to this factor */
#define GIB 1073741824.0

struct candidate {
    struct recipe recipe;
    struct recipe_mesh mesh;
    double estimate;                                     /* s of a step, by the formula */
    double step, tokens_per_second, mfu, bubble, memory; /* simulated; memory of the fullest rank */
    bool fits;
};

struct search {
    const struct plan_options *options;
    const struct cost *cost; /* for the forecasts */
    const struct recipe *recipe;
    int world;
    const struct machine *machine;
    enum dtype dt;
    int n, cap;
    struct candidate *candidates;
};

/* --- the formula -------------------------------------------------------------------------------------------------- */

static bool checkpoints(const struct recipe *r, const char *mode)
{
    return strcmp(r->activation_checkpoint.mode, mode) == 0;
}

/* The time of a step: products at the efficiency of large products, recomputation, bubble, and the transfers that
 * nothing hides (over tp and cp). */
static double estimate(const struct search *s, const struct candidate *c)
{
    const struct recipe *r = &c->recipe;
    const struct machine *m = s->machine;
    const double peak = s->dt == DTYPE_F32 ? m->flops_f32 : m->flops_bf16;
    const double tokens = (double)r->training.global_batch_size * (double)r->training.seq_len;
    const double share = (double)(c->mesh.dp_replicate * c->mesh.dp_shard * c->mesh.cp);
    const bool selective = checkpoints(r, "selective");
    const double recompute = checkpoints(r, "full") ? 4.0 / 3 /* compute relative to a step without recomputation */
                             : !selective           ? 1
                             : strcmp(r->activation_checkpoint.selective_ac_option, "op:1") == 0 ? 1.02
                                                                                                 : 1.1;
    const double compute = recompute * recipe_flops_per_token(r) * tokens / s->world / (peak * m->matmul_efficiency);
    const double rows = tokens / share, width = (double)r->model.dims.dim * (s->dt == DTYPE_F32 ? 4 : 2);
    const double layers = (double)r->model.dims.n_layers / (double)c->mesh.pp;
    struct mesh mesh = {
        .world = s->world,
        .size = {(int)c->mesh.pp, (int)c->mesh.dp_replicate, (int)c->mesh.dp_shard, (int)c->mesh.cp, (int)c->mesh.tp},
        .ep = (int)c->mesh.ep,
        .cut_experts = c->mesh.etp > 1};
    const double tensor =
        c->mesh.tp == 1 ? 0
                        : layers * 8 * recompute * cost_transfer(m, &mesh, OP_REDUCE_SCATTER, GROUP_TP, rows * width);
    const double micro = (double)r->training.global_batch_size / (double)recipe_microbatch_rows(r) /
                         (double)(c->mesh.dp_replicate * c->mesh.dp_shard);
    const double stages = c->mesh.pp > 1 ? schedule_stages_per_rank(r->parallelism.pipeline_parallel_schedule) : 1;
    const double bubble = (double)(c->mesh.pp - 1) / (stages * micro);
    const double units = (double)recipe_params(r) / (double)(c->mesh.pp * c->mesh.tp) * 2;
    const double gathers = c->mesh.pp > 1 ? 1 : 2 * micro;
    const double sharded = (gathers + 2) * cost_transfer(m, &mesh, OP_REDUCE_SCATTER, GROUP_FSDP, units);

    return MAX((compute + tensor) * (1 + bubble), sharded);
}

/* --- candidates --------------------------------------------------------------------------------------------------- */

/* Adds candidates with the recipe's mesh, each pipeline schedule and each way to recompute, where the combination is
 * legal. */
static titan_status add_candidates(struct search *s, struct recipe *r, struct titan_error *err)
{
    static const char *const schedules[] = {"1F1B", "Interleaved1F1B", "ZBVZeroBubble"};
    static const struct {
        const char *mode, *option;
    } choices[] = {{"none", "op"}, {"selective", "op:1"}, {"selective", "op"}, {"full", "op"}};
    const size_t n = r->parallelism.pipeline_parallel_degree > 1 ? ARRAY_SIZE(schedules) : 1;

    r->parallelism.pipeline_parallel_schedule_csv[0] = 0;
    r->parallelism.pipeline_parallel_split_points[0] = 0;
    r->parallelism.pipeline_parallel_layers_per_stage = -1;
    for (size_t i = 0; i < n * ARRAY_SIZE(choices); i++) {
        const char *const mode = choices[i % ARRAY_SIZE(choices)].mode;
        (void)snprintf(r->parallelism.pipeline_parallel_schedule, sizeof r->parallelism.pipeline_parallel_schedule,
                       "%s", schedules[i / ARRAY_SIZE(choices)]);
        (void)snprintf(r->activation_checkpoint.mode, sizeof r->activation_checkpoint.mode, "%s", mode);
        (void)snprintf(r->activation_checkpoint.selective_ac_option,
                       sizeof r->activation_checkpoint.selective_ac_option, "%s",
                       choices[i % ARRAY_SIZE(choices)].option);
        struct candidate c = {.recipe = *r};
        if (recipe_check_world(r, s->world, NULL) != TITAN_OK || recipe_mesh(r, s->world, &c.mesh, NULL) != TITAN_OK)
            continue;
        c.estimate = estimate(s, &c);
        if (!VEC_PUSH(s->candidates, s->n, s->cap, c))
            return titan_fail(err, TITAN_ENOMEM, "search: out of memory");
    }
    return TITAN_OK;
}

/* Lists the legal layouts. Degrees are powers of two, tp stays inside a machine, cp is only for long sequences. */
static titan_status enumerate(struct search *s, struct titan_error *err)
{
    const int64_t cp_max = s->recipe->training.seq_len >= 32768 ? 64 : s->recipe->parallelism.context_parallel_degree;

    for (int64_t tp = 1; tp <= s->machine->node && tp <= s->world; tp *= 2)
        for (int64_t pp = 1; pp <= s->recipe->model.dims.n_layers && tp * pp <= s->world; pp *= 2)
            for (int64_t cp = 1; cp <= cp_max && tp * pp * cp <= s->world; cp *= 2) {
                struct recipe r = *s->recipe;
                r.parallelism.tensor_parallel_degree = tp;
                if (r.parallelism.expert_tensor_parallel_degree > 1)
                    r.parallelism.expert_tensor_parallel_degree = tp;
                r.parallelism.pipeline_parallel_degree = pp;
                r.parallelism.context_parallel_degree = cp;
                r.parallelism.data_parallel_shard_degree = -1;
                r.parallelism.data_parallel_replicate_degree = 1;
                TRY(add_candidates(s, &r, err));
            }
    return TITAN_OK;
}

/* --- simulation --------------------------------------------------------------------------------------------------- */

/* Forecast of one candidate with its microbatches cut to `share` on each rank. share 0: the candidate's own number. */
static titan_status forecast_of(const struct search *s, const struct candidate *c, int64_t share, struct forecast *ret,
                                struct titan_error *err)
{
    struct recipe r = c->recipe;
    struct plan_options options = *s->options;
    struct plan *plan = NULL;
    struct program **programs = NULL;

    options.recipe = &r;
    if (share > 0)
        r.training.global_batch_size = share * recipe_microbatch_rows(&r) * c->mesh.dp_replicate * c->mesh.dp_shard;
    titan_status status = plan_open(&options, &plan, err);
    if (status == TITAN_OK)
        status = plan_programs(plan, &programs, err);
    if (status == TITAN_OK)
        status = forecast_make(plan, programs, s->cost, ret, NULL, err);
    if (plan)
        plan_free_programs(plan, programs);
    plan_close(plan);
    return status;
}

static int by_estimate(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    return a->estimate < b->estimate ? -1 : a->estimate > b->estimate;
}

/* Candidates that fit come first, the fastest first. Then come the others, the smallest first. */
static int by_result(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    if (a->fits != b->fits)
        return a->fits ? -1 : 1;
    if (a->fits)
        return a->step < b->step ? -1 : a->step > b->step;
    return a->memory < b->memory ? -1 : a->memory > b->memory;
}

/* Measures candidates, the best by formula first, and skips candidates that are far too large. Afterwards *ret_n
 * measured candidates stand at the front. */
static titan_status measure_best(struct search *s, int *ret_n, struct titan_error *err)
{
    int n = 0;

    titan_assert(s->n > 0);
    qsort(s->candidates, (size_t)s->n, sizeof *s->candidates, by_estimate);
    for (int i = 0; i < s->n && n < SIMULATED_MAX; i++) {
        struct candidate *c = &s->candidates[i];
        int better = 0;
        for (int k = 0; k < n; k++)
            better += s->candidates[k].fits && s->candidates[k].step * OPTIMISM < c->estimate;
        if (better >= LISTED_MAX) /* neither this candidate nor any after it can still enter the list */
            break;
        if ((double)recipe_memory_bytes(&c->recipe, s->world) > 1.5 * (double)s->machine->memory_bytes)
            continue;

        /* Once a pipeline is full, each further microbatch takes the same time. So long steps are extrapolated from two
         * short ones. */
        const int64_t rows = recipe_microbatch_rows(&c->recipe) * (c->mesh.dp_replicate * c->mesh.dp_shard);
        const int64_t share = c->recipe.training.global_batch_size / rows;
        const int64_t fewer = 2 * c->mesh.pp + 2, more = 3 * c->mesh.pp + 4;
        const bool cut = share > more;
        _cleanup_(forecast_clear) struct forecast f = {0}, g = {0};
        TRY(forecast_of(s, c, cut ? more : 0, &f, err));
        if (cut)
            TRY(forecast_of(s, c, fewer, &g, err));
        titan_assert(f.step > 0);
        const double tokens = (double)c->recipe.training.global_batch_size * (double)c->recipe.training.seq_len;
        const double each = cut ? (f.step - g.step) / (double)(more - fewer) : 0;
        c->step = f.step + each * (double)(share - more) * cut;
        c->tokens_per_second = tokens / c->step / s->world;
        c->mfu = f.mfu * c->tokens_per_second / f.tokens_per_second;
        c->bubble = cut ? f.bubble * f.step / c->step : f.bubble;
        c->memory = f.memory[f.fullest].predicted;
        c->fits = c->memory <= (double)s->machine->memory_bytes;

        const struct candidate swap = s->candidates[n];
        s->candidates[n] = *c;
        s->candidates[i] = swap;
        n++;
    }
    qsort(s->candidates, (size_t)n, sizeof *s->candidates, by_result);
    *ret_n = n;
    return TITAN_OK;
}

/* --- output ------------------------------------------------------------------------------------------------------- */

static void print_text(const struct search *s, int n, struct buf *out)
{
    buf_printf(out, "%d legal layouts, the %d best by formula simulated on %d x %s (%.0f GiB)\n\n", s->n, n, s->world,
               s->machine->name, (double)s->machine->memory_bytes / GIB);
    buf_printf(out, "%4s %4s %4s %8s  %-16s %-10s %9s %9s %7s %7s %8s\n", "pp", "cp", "tp", "dp_shard", "schedule",
               "recompute", "step s", "tok/s/dev", "MFU %", "bubble", "GiB");
    for (int i = 0; i < n && i < LISTED_MAX; i++) {
        const struct candidate *c = &s->candidates[i];
        const char *recompute = checkpoints(&c->recipe, "selective")
                                    ? c->recipe.activation_checkpoint.selective_ac_option
                                    : c->recipe.activation_checkpoint.mode;
        buf_printf(out, "%4ld %4ld %4ld %8ld  %-16s %-10s %9.3f %9.0f %7.1f %7.1f %8.1f%s\n", (long)c->mesh.pp,
                   (long)c->mesh.cp, (long)c->mesh.tp, (long)c->mesh.dp_shard,
                   c->mesh.pp > 1 ? c->recipe.parallelism.pipeline_parallel_schedule : "-", recompute, c->step,
                   c->tokens_per_second, 100 * c->mfu, 100 * c->bubble, c->memory / GIB,
                   c->fits ? "" : "  does not fit");
    }
    if (n == 0 || !s->candidates[0].fits) {
        buf_puts(out, "\nnone of them fits\n");
        return;
    }

    /* The best candidate as keys for the run file. */
    const struct candidate *c = &s->candidates[0];
    buf_puts(out, "\n[parallelism]\n");
    buf_printf(out, "pipeline_parallel_degree = %ld\n", (long)c->mesh.pp);
    if (c->mesh.pp > 1)
        buf_printf(out, "pipeline_parallel_schedule = \"%s\"\n", c->recipe.parallelism.pipeline_parallel_schedule);
    buf_printf(out, "context_parallel_degree = %ld\ntensor_parallel_degree = %ld\n", (long)c->mesh.cp,
               (long)c->mesh.tp);
    buf_puts(out, "data_parallel_shard_degree = -1\ndata_parallel_replicate_degree = 1\n");
    buf_printf(out, "\n[activation_checkpoint]\nmode = \"%s\"\n", c->recipe.activation_checkpoint.mode);
    if (checkpoints(&c->recipe, "selective"))
        buf_printf(out, "selective_ac_option = \"%s\"\n", c->recipe.activation_checkpoint.selective_ac_option);
}

titan_status search_layouts(const struct plan_options *options, const struct cost *cost, bool json, struct buf *out,
                            struct titan_error *err)
{
    const struct plan_options *const o = options;
    struct search s = {
        .options = o, .cost = cost, .recipe = o->recipe, .world = o->world, .machine = cost->machine, .dt = o->dt};
    int n = 0;

    titan_assert(s.world > 0 && s.machine && cost->machine);
    titan_status status = enumerate(&s, err);
    if (status == TITAN_OK && s.n == 0)
        status = titan_fail(err, TITAN_EINVAL, "no layout of this model fits %d devices with this batch", s.world);
    if (status == TITAN_OK)
        status = measure_best(&s, &n, err);
    if (status == TITAN_OK && !json)
        print_text(&s, n, out);
    if (status == TITAN_OK && json) {
        buf_printf(out, "{\"legal\":%d,\"simulated\":%d,\"world\":%d,\"device\":\"%s\",\"layouts\":[", s.n, n, s.world,
                   s.machine->name);
        for (int i = 0; i < n; i++) {
            const struct candidate *c = &s.candidates[i];
            buf_printf(out,
                       "%s{\"pipeline_parallel_degree\":%ld,\"context_parallel_degree\":%ld,"
                       "\"tensor_parallel_degree\":%ld,\"data_parallel_shard_degree\":%ld,"
                       "\"pipeline_parallel_schedule\":\"%s\",\"activation_checkpoint\":\"%s\","
                       "\"selective_ac_option\":\"%s\",\"step_seconds\":%.6f,\"tokens_per_second_per_device\":%.2f,"
                       "\"mfu\":%.4f,\"bubble\":%.4f,\"memory_bytes\":%.0f,\"fits\":%s}",
                       i ? "," : "", (long)c->mesh.pp, (long)c->mesh.cp, (long)c->mesh.tp, (long)c->mesh.dp_shard,
                       c->recipe.parallelism.pipeline_parallel_schedule, c->recipe.activation_checkpoint.mode,
                       c->recipe.activation_checkpoint.selective_ac_option, c->step, c->tokens_per_second, c->mfu,
                       c->bubble, c->memory, c->fits ? "true" : "false");
        }
        buf_puts(out, "]}\n");
    }
    free(s.candidates);
    return status;
}
