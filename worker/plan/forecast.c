/* SPDX-License-Identifier: Apache-2.0 */
/* forecast.c - programs and their simulation as numbers a person can use. */
#include "worker/plan/forecast.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "worker/device/shared_peak.h"
#include "worker/plan/fitting.h"
#include "worker/plan/footprint.h"

#define GIB 1073741824.0

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static void measure_memory(const struct plan *plan, const struct machine *m, const struct program *p,
                           struct forecast_memory *ret)
{
    struct program copy = *p; /* program_peak() writes the lifetimes again, unchanged */

    titan_assert(p->pp_rank >= 0 && p->pp_rank < p->mesh.size[AXIS_PP]);
    ret->pp_rank = p->pp_rank;
    (void)program_peak(&copy, ret->bytes, NULL);
    size_t sum = 0;
    for (int k = 0; k < MEMORY_COUNT; k++)
        sum += ret->bytes[k];
    ret->bytes[MEMORY_BUFFERS] += p->arena_bytes > sum ? p->arena_bytes - sum : 0; /* lost to placement */
    for (int i = 0; i < p->n_buffers; i++)
        if (buffer_is_external(p->buffers[i].kind))
            ret->bytes[buffer_memory(p->buffers[i].kind)] += p->buffers[i].bytes;
    for (int k = 0; k < MEMORY_COUNT; k++)
        ret->total += k == MEMORY_HOST ? 0 : ret->bytes[k];
    ret->bytes[MEMORY_HOST] += plan_copy_bytes(plan) + plan_snapshot_bytes(plan);
    ret->process = m->memory_fixed;
    ret->peers = footprint_of_peers(m, p, plan_copy_bytes(plan)) + plan_copy_room_bytes(plan);
    ret->predicted = (double)(ret->total + ret->process + ret->peers + (m->host_memory ? ret->bytes[MEMORY_HOST] : 0));
}

/* waits: `crowded` and `network` of the step. */
static void measure_time(const struct simulated_rank *k, const struct cost *cost, double step,
                         struct forecast_time waits, struct forecast_time *ret)
{
    double known = waits.crowded + waits.network + k->buddy;

    titan_assert(step >= k->finish && waits.crowded >= 0 && waits.network >= 0);
    *ret = waits;
    ret->buddy = k->buddy;
    for (int i = 0; i < k->program->n_actions; i++) {
        const struct action *a = &k->program->actions[i];
        if (a->stream != STREAM_COMPUTE)
            continue;
        const double took = k->end[i] - k->start[i], floor = cost_floor(cost, k->program, a);
        if (op_class((enum op)a->op) == OP_CLASS_PRODUCT) {
            ret->matmul += took;
            ret->matmul_floor += floor;
        } else if (op_class((enum op)a->op) == OP_CLASS_ATTENTION) {
            ret->attention += took;
            ret->attention_floor += floor;
        } else {
            ret->memory_bound += took;
            ret->memory_floor += floor;
        }
    }
    for (int c = 0; c < CHANNEL_COUNT; c++) {
        ret->exposed[c] = channel_group((enum channel)c) == GROUP_PP ? 0 : k->exposed[c];
        known += ret->exposed[c];
    }
    known += ret->matmul + ret->attention + ret->memory_bound;
    ret->idle = MAX(0, step - known);
}

static double cost_of(void *arg, const struct program *p, const struct action *a)
{
    return cost_action(arg, p, a);
}

static double to_buddy(void *arg, const struct program *p, double bytes)
{
    return cost_to_buddy(arg, &p->mesh, bytes);
}

static double spread_of(void *arg, const struct program *p, const struct action *a)
{
    return cost_spread(arg, p, a);
}

/* At the time `at`, the number of cores that ranks ask for changes by `cores`. */
struct demand {
    double at, cores;
};

static int by_time(const void *x, const void *y)
{
    const struct demand *a = x, *b = y;
    return (a->at > b->at) - (a->at < b->at);
}

/* The length of a step whose ranks, and their transfers, share the cores of the measured machine. While ranks ask for
 * more cores than the machine has, everything is slower in proportion. Idle cores at one time do not make up for it
 * later. On GPUs each rank has its own device, so the simulation's step counts. */
static titan_status shared_step(const struct forecast *f, const struct simulation *s, const struct cost *cost,
                                double *ret, struct titan_error *err)
{
    size_t actions = 0;
    double asked = 0, at = 0;

    *ret = s->step;
    if (!cost->table || strcmp(cost->table->host.device, "cpu") != 0)
        return TITAN_OK;
    titan_assert(cost->table->host.cores > 0);
    for (int i = 0; i < f->n; i++)
        actions += (size_t)s->ranks[i].program->n_actions;
    _cleanup_free_ struct demand *demands = calloc(2 * actions + 1, sizeof *demands);
    if (!demands)
        return titan_fail(err, TITAN_ENOMEM, "forecast: out of memory");
    const double ranks = (double)f->plan->opt.world / f->n; /* ranks that each simulated rank stands for */
    size_t n = 0;
    for (int i = 0; i < f->n; i++) {
        const struct simulated_rank *k = &s->ranks[i];
        for (int j = 0; j < k->program->n_actions; j++) {
            const struct action *a = &k->program->actions[j];
            const double took = k->end[j] - k->start[j];
            double seconds, processor = 0;
            if (took <= 0)
                continue;
            if (!cost_measured(cost, k->program, a, &seconds, &processor) && a->stream == STREAM_COMPUTE)
                processor = took * cost->threads;
            demands[n++] = (struct demand){k->start[j], ranks * processor / took};
            demands[n++] = (struct demand){k->end[j], -ranks * processor / took};
        }
    }
    qsort(demands, n, sizeof *demands, by_time);
    for (size_t i = 0; i < n; i++) {
        *ret += (demands[i].at - at) * MAX(0, asked / cost->table->host.cores - 1);
        at = demands[i].at;
        asked += demands[i].cores;
    }
    return TITAN_OK;
}

/* The least length of a step by what leaves a rank for other machines. The simulation gives each transfer the rank's
 * whole share of the network, also where two transfers overlap. */
static double network_step(const struct simulation *s, const struct cost *cost)
{
    double longest = 0;

    for (int i = 0; i < s->n; i++) {
        const struct simulated_rank *k = &s->ranks[i];
        const struct mesh *const mesh = &k->program->mesh;
        double sum = mesh->world > cost->machine->node ? k->buddy_bytes / cost->machine->net_bandwidth : 0;
        for (int j = 0; j < k->program->n_actions; j++) {
            const struct action *a = &k->program->actions[j];
            if (a->channel >= 0 && a->op != OP_RECV &&
                cost_uses_network(cost->machine, mesh, channel_group((enum channel)a->channel)))
                sum += cost_floor(cost, k->program, a);
        }
        longest = MAX(longest, sum);
    }
    return longest;
}

/* shared: the step's length where ranks share cores. */
static void fill(struct forecast *f, const struct simulation *s, const struct cost *cost, double shared)
{
    static const int kind_of_group[GROUP_COUNT] = {
        [GROUP_WORLD] = TRAFFIC_STATISTICS,
        [GROUP_PP] = AXIS_PP,
        [GROUP_REPLICATE] = AXIS_DP_REPLICATE,
        [GROUP_FSDP] = AXIS_DP_SHARD,
        [GROUP_CP] = AXIS_CP,
        [GROUP_TP] = AXIS_TP,
        [GROUP_EP] = TRAFFIC_EP,
        [GROUP_EXPERT_SHARD] = AXIS_DP_SHARD,
        [GROUP_OWNERS] = AXIS_DP_SHARD,
        [GROUP_ROTATE] = AXIS_DP_SHARD,
    };
    const struct recipe *r = f->plan->opt.recipe;
    const struct machine *m = f->machine;

    titan_assert(s->n == f->n && s->step > 0 && shared >= s->step);
    f->step = MAX(shared, network_step(s, cost));
    const struct forecast_time waits = {.crowded = shared - s->step, .network = f->step - shared};
    for (int i = 0; i < f->n; i++) {
        const struct simulated_rank *k = &s->ranks[i];
        measure_memory(f->plan, m, k->program, &f->memory[i]);
        measure_time(k, cost, f->step, waits, &f->time[i]);
        for (int c = 0; c < CHANNEL_COUNT; c++)
            f->bytes[i][kind_of_group[channel_group((enum channel)c)]] += k->bytes[c];
        f->bytes[i][TRAFFIC_BUDDY] = k->buddy_bytes;
        for (int a = 0; cost->table && a < k->program->n_actions; a++) {
            double seconds, processor;
            if (cost_action(cost, k->program, &k->program->actions[a]) <= 0)
                continue;
            f->costed++;
            f->measured += cost_measured(cost, k->program, &k->program->actions[a], &seconds, &processor);
        }
        f->actions = MAX(f->actions, k->program->n_actions);
        if (k->compute > s->ranks[f->busiest].compute)
            f->busiest = i;
        if (f->memory[i].total > f->memory[f->fullest].total)
            f->fullest = i;
    }
    f->tokens = (double)r->training.global_batch_size * (double)r->training.seq_len;
    f->bubble = s->bubble;
    f->tokens_per_second = f->tokens / f->step / f->plan->opt.world;
    const double modelled = f->plan->opt.dt == DTYPE_F32 ? m->flops_f32 : m->flops_bf16;
    const double peak = cost->device ? peak_each(cost->device, f->plan->opt.dt, f->plan->opt.world) : modelled;
    f->mfu = recipe_flops_per_token(r) * f->tokens_per_second / peak;
}

titan_status forecast_make(const struct plan *plan, struct program *const *programs, const struct cost *cost,
                           struct forecast *ret, struct simulation **ret_simulation, struct titan_error *err)
{
    const int n = plan->mesh.size[AXIS_PP];
    const struct program **by_rank = calloc((size_t)n, sizeof *by_rank);
    struct forecast f = {.plan = plan, .machine = cost->machine, .n = n};
    struct simulation *s = NULL;
    double step = 0;

    titan_assert(cost->machine);
    f.memory = calloc((size_t)n, sizeof *f.memory);
    f.time = calloc((size_t)n, sizeof *f.time);
    f.bytes = calloc((size_t)n, sizeof *f.bytes);
    titan_status status = TITAN_OK;
    if (!by_rank || !f.memory || !f.time || !f.bytes)
        status = titan_fail(err, TITAN_ENOMEM, "forecast: out of memory");
    if (status == TITAN_OK) {
        /* Each pp rank is forecast by its class with the largest share; of several, by the first. */
        for (int k = plan->classes - 1; k >= 0; k--) {
            const int r = programs[k]->pp_rank;
            titan_assert(r >= 0 && r < n);
            if (!by_rank[r] || programs[k]->share >= by_rank[r]->share)
                by_rank[r] = programs[k];
        }
        const struct simulation_options options = {.programs = by_rank,
                                                   .n = n,
                                                   .issue = cost->machine->issue,
                                                   .time = cost_of,
                                                   .spread = cost->table ? spread_of : NULL,
                                                   .to_buddy = plan_has_buddies(plan) ? to_buddy : NULL,
                                                   .arg = (void *)cost};
        status = simulate(&options, &s, err);
    }
    free(by_rank);
    if (status == TITAN_OK)
        status = shared_step(&f, s, cost, &step, err);
    if (status != TITAN_OK) {
        simulation_close(s);
        forecast_clear(&f);
        return status;
    }
    f.hash = plan_hash(plan, programs);
    fill(&f, s, cost, step);
    if (ret_simulation)
        *ret_simulation = s;
    else
        simulation_close(s);
    *ret = f;
    return TITAN_OK;
}

/* The state is in both programs and counts once. Of the two arenas the larger counts. */
void forecast_add_evaluation(struct forecast *f, const struct plan *evaluation, struct program *const *programs)
{
    titan_assert(evaluation->opt.evaluation && evaluation->mesh.size[AXIS_PP] == f->n);
    for (int k = 0; k < evaluation->classes; k++) {
        struct forecast_memory need = {0};
        measure_memory(evaluation, f->machine, programs[k], &need);
        titan_assert(need.pp_rank >= 0 && need.pp_rank < f->n);
        struct forecast_memory *const memory = &f->memory[need.pp_rank];
        if (need.total <= memory->total)
            continue;
        memory->bytes[MEMORY_ACTIVATIONS] += need.total - memory->total;
        memory->total = need.total;
        memory->predicted = need.predicted;
        if (memory->total > f->memory[f->fullest].total)
            f->fullest = need.pp_rank;
    }
}

bool forecast_fits(const struct forecast *f)
{
    titan_assert(f->fullest >= 0 && f->fullest < f->n);
    return f->memory[f->fullest].predicted <= (double)f->machine->memory_bytes;
}

void forecast_clear(struct forecast *f)
{
    free(f->memory);
    free(f->time);
    free(f->bytes);
    *f = (struct forecast){0};
}

static const char *traffic_name(int kind)
{
    return kind == TRAFFIC_EP           ? "ep"
           : kind == TRAFFIC_STATISTICS ? "report"
           : kind == TRAFFIC_BUDDY      ? "buddy"
                                        : mesh_axis_name((enum mesh_axis)kind);
}

/* --- for people --------------------------------------------------------------------------------------------------- */

static void print_head(const struct forecast *f, struct buf *out)
{
    const struct recipe *r = f->plan->opt.recipe;
    const struct mesh *m = &f->plan->mesh;
    const char *cross = "";
    char count[UNITS_TEXT];

    buf_printf(out, "%s %s, %s parameters, on %d x %s\n", r->model.name, r->model.flavor,
               format_count((double)recipe_params(r), count), m->world, f->machine->name);
    buf_puts(out, "mesh        ");
    for (int a = 0; a < AXIS_COUNT; a++)
        if (m->size[a] > 1) {
            buf_printf(out, "%s%s %d", cross, mesh_axis_name((enum mesh_axis)a), m->size[a]);
            cross = " x ";
        }
    buf_printf(out, "%s", m->world == 1 ? "one rank" : "");
    if (m->ep > 1)
        buf_printf(out, ", ep %d", m->ep);
    if (mesh_expert_cut(m) > 1)
        buf_printf(out, ", experts cut over tp");
    buf_printf(out,
               "\nbatch       %ld sequences of %ld = %s tokens; %ld microbatch%s of %ld over %d data-parallel rank%s\n",
               (long)r->training.global_batch_size, (long)r->training.seq_len, format_count(f->tokens, count),
               (long)f->plan->build.microbatches, f->plan->build.microbatches == 1 ? "" : "es", (long)f->plan->build.b,
               mesh_batch_size(m), mesh_batch_size(m) == 1 ? "" : "s");
    if (f->plan->schedule)
        buf_printf(out, "pipeline    %s, %d stages on %d ranks, bubble %.1f %%\n", f->plan->schedule->name,
                   f->plan->schedule->stages, m->size[AXIS_PP], 100 * f->bubble);
    buf_printf(out, "program     %d class%s of ranks, up to %ld actions, hash %016lx\n", f->plan->classes,
               f->plan->classes == 1 ? "" : "es", (long)f->actions, (unsigned long)f->hash);
    if (f->table)
        buf_printf(out, "costs       measured for %ld of %ld operations and transfers, %s\n", f->measured, f->costed,
                   f->table);
}

static void print_memory(const struct forecast *f, struct buf *out)
{
    const bool small = f->memory[f->fullest].predicted < GIB || f->memory[f->fullest].total < GIB / 10;
    const double unit = small ? GIB / 1024 : GIB;
    const char *key = plan_batch_key(f->plan->opt.recipe);

    titan_assert(f->fullest >= 0 && f->fullest < f->n);
    buf_printf(out, "\nmemory, %s   ", small ? "MiB" : "GiB");
    for (int i = 0; i < f->n; i++)
        buf_printf(out, "  pp %-4d", i);
    for (int k = 0; k < MEMORY_COUNT; k++) {
        if (k == MEMORY_HOST && f->memory[0].bytes[k] == 0)
            continue;
        buf_printf(out, "\n  %-12s", memory_kind_name((enum memory_kind)k));
        for (int i = 0; i < f->n; i++)
            buf_printf(out, " %8.2f", (double)f->memory[i].bytes[k] / unit);
    }
    buf_puts(out, "\n  planned     ");
    for (int i = 0; i < f->n; i++)
        buf_printf(out, " %8.2f", (double)f->memory[i].total / unit);
    buf_puts(out, "\n  process     ");
    for (int i = 0; i < f->n; i++)
        buf_printf(out, " %8.2f", (double)f->memory[i].process / unit);
    if (f->plan->mesh.world > 1)
        buf_puts(out, "\n  connections ");
    for (int i = 0; i < f->n && f->plan->mesh.world > 1; i++)
        buf_printf(out, " %8.2f", (double)f->memory[i].peers / unit);
    buf_puts(out, "\n  predicted   ");
    for (int i = 0; i < f->n; i++)
        buf_printf(out, " %8.2f", f->memory[i].predicted / unit);
    buf_printf(out, "\n  of %.0f GiB: ", (double)f->machine->memory_bytes / GIB);
    if (forecast_fits(f))
        buf_puts(out, "fits\n");
    else if (f->fitting_batch > 0)
        buf_printf(out, "DOES NOT FIT; %s = %ld does\n", key, (long)f->fitting_batch);
    else
        buf_printf(out, "DOES NOT FIT, nor does a smaller %s\n", key);
    if (f->fitting_room > 0)
        buf_printf(
            out,
            "  parallelism.expert_parallel_room = %d fits: more rows come in further rounds, with the same result\n",
            f->fitting_room);
}

#define PARTS_BESIDES 7 /* parts that are no waits for a channel */

struct part {
    const char *name;
    double seconds, floor; /* floor 0: the part is a wait */
};

static int by_seconds(const void *x, const void *y)
{
    const struct part *a = x, *b = y;
    return a->seconds < b->seconds ? 1 : a->seconds > b->seconds ? -1 : 0;
}

static int parts_of(const struct forecast_time *t, struct part *ret)
{
    static const char *const waits[CHANNEL_COUNT] = {
        "waiting: end of the step",    "waiting: parameter gather", "waiting: gradient reduction",
        "waiting: replicas",           "waiting: context parallel", "waiting: tensor parallel",
        "waiting: expert exchange",    "waiting: expert gather",    "waiting: expert reduction",
        "waiting: owners of matrices", "waiting: rotation",         "waiting: pipeline",
        "waiting: pipeline",           "waiting: pipeline",         "waiting: pipeline",
    };
    int n = 0;

    ret[n++] = (struct part){"products", t->matmul, t->matmul_floor};
    ret[n++] = (struct part){"attention", t->attention, t->attention_floor};
    ret[n++] = (struct part){"memory-bound operations", t->memory_bound, t->memory_floor};
    ret[n++] = (struct part){"pipeline bubble and ends", t->idle, 0};
    ret[n++] = (struct part){"waiting: a core", t->crowded, 0};
    ret[n++] = (struct part){"waiting: the network", t->network, 0};
    ret[n++] = (struct part){"waiting: buddies", t->buddy, 0};
    for (int c = 0; c < CHANNEL_COUNT; c++)
        if (t->exposed[c] > 0)
            ret[n++] = (struct part){waits[c], t->exposed[c], 0};
    qsort(ret, (size_t)n, sizeof *ret, by_seconds);
    return n;
}

void forecast_print(const struct forecast *f, struct buf *out)
{
    struct part parts[CHANNEL_COUNT + PARTS_BESIDES];
    char text[UNITS_TEXT];
    double floor = 0;

    titan_assert(f->busiest >= 0 && f->busiest < f->n);
    print_head(f, out);
    print_memory(f, out);

    if (f->plan->opt.world > 1)
        buf_puts(out, "\nsent by a rank in a step\n");
    for (int k = 0; k < TRAFFIC_COUNT && f->plan->opt.world > 1; k++) {
        double most = 0;
        for (int i = 0; i < f->n; i++)
            most = MAX(most, f->bytes[i][k]);
        if (most > 0)
            buf_printf(out, "  %-12s %12s\n", traffic_name(k), format_bytes((uint64_t)most, text));
    }

    const int n = parts_of(&f->time[f->busiest], parts), digits = f->step < 0.1 ? 6 : 4;
    buf_printf(out, "\nstep        %.*f s, %.0f tokens/s per device, MFU %.1f %%\n", digits, f->step,
               f->tokens_per_second, 100 * f->mfu);
    buf_printf(out, "where it goes on the busiest rank (pp %d)                  floor\n", f->busiest);
    for (int i = 0; i < n; i++) {
        floor += parts[i].floor;
        if (parts[i].seconds <= 0.001 * f->step)
            continue;
        buf_printf(out, "  %-28s %9.*f s %5.1f %%", parts[i].name, digits, parts[i].seconds,
                   100 * parts[i].seconds / f->step);
        if (parts[i].floor > 0)
            buf_printf(out, " %9.*f s", digits, parts[i].floor);
        buf_puts(out, "\n");
    }
    buf_printf(out, "slowest     %s\n", parts[0].name);
    buf_printf(out,
               "floor       %.*f s, %.1f %% of the step: FLOPs at the peak or bytes at the memory's bandwidth, without "
               "waits\n",
               digits, floor, 100 * floor / f->step);
}

/* The cost of one operation in a step, summed over all its runs. */
struct op_row {
    const struct action *first;
    long count;
    double predicted, floor;
};

static int by_predicted(const void *x, const void *y)
{
    const struct op_row *a = x, *b = y;
    if (a->predicted != b->predicted)
        return a->predicted < b->predicted ? 1 : -1;
    return a->first < b->first ? -1 : 1;
}

/* Operations of the busiest rank, the longest first; the caller frees them. NULL: out of memory. */
static struct op_row *operations_of(const struct forecast *f, const struct simulation *s, const struct cost *cost,
                                    size_t *ret_n)
{
    titan_assert(f->busiest >= 0 && f->busiest < s->n);
    const struct simulated_rank *k = &s->ranks[f->busiest];
    const struct program *p = k->program;
    struct op_row *rows = calloc((size_t)p->n_actions + 1, sizeof *rows);
    size_t n = 0;

    if (!rows)
        return NULL;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        if (op_class((enum op)a->op) == OP_CLASS_NO_TIME)
            continue;
        size_t at = 0;
        while (at < n && (rows[at].first->op != a->op || rows[at].first->params != a->params ||
                          rows[at].first->stream != a->stream))
            at++;
        if (at == n)
            rows[n++].first = a;
        rows[at].count++;
        rows[at].predicted += k->end[i] - k->start[i];
        rows[at].floor += cost_floor(cost, p, a);
    }
    qsort(rows, n, sizeof *rows, by_predicted);
    *ret_n = n;
    return rows;
}

titan_status forecast_print_operations(const struct forecast *f, const struct simulation *s, const struct cost *cost,
                                       struct buf *out, struct titan_error *err)
{
    size_t n;
    struct op_row *rows = operations_of(f, s, cost, &n);

    if (!rows)
        return titan_fail(err, TITAN_ENOMEM, "operations: out of memory");
    buf_printf(out, "\noperations of a step on the busiest rank (pp %d)\n  %9s %9s %6s %6s  operation\n", f->busiest,
               "s", "floor", "share", "times");
    for (size_t i = 0; i < n; i++) {
        buf_printf(out, "  %9.6f %9.6f %5.1f%% %6ld  %s", rows[i].predicted, rows[i].floor,
                   rows[i].predicted > 0 ? 100 * rows[i].floor / rows[i].predicted : 0, rows[i].count,
                   op_name((enum op)rows[i].first->op));
        program_print_params(s->ranks[f->busiest].program, rows[i].first, out);
        if (rows[i].first->stream != STREAM_COMPUTE)
            buf_printf(out, " on %s", program_stream_name((enum stream_id)rows[i].first->stream));
        buf_puts(out, "\n");
    }
    free(rows);
    return TITAN_OK;
}

/* --- for programs ------------------------------------------------------------------------------------------------- */

titan_status forecast_json(const struct forecast *f, const struct simulation *s, const struct cost *cost,
                           struct buf *out, struct titan_error *err)
{
    const struct mesh *m = &f->plan->mesh;

    buf_printf(out,
               "{\"world\":%d,\"device\":\"%s\",\"program\":\"%016lx\",\"costs\":{\"measured\":%ld,\"of\":%ld},"
               "\"mesh\":{",
               m->world, f->machine->name, (unsigned long)f->hash, f->measured, f->costed);
    for (int a = 0; a < AXIS_COUNT; a++)
        buf_printf(out, "\"%s\":%d,", mesh_axis_name((enum mesh_axis)a), m->size[a]);
    buf_printf(out, "\"ep\":%d},\"tokens\":%.0f,\"microbatches\":%ld,\"kinds\":%d,\"actions\":%ld,", m->ep, f->tokens,
               (long)f->plan->build.microbatches, f->plan->classes, (long)f->actions);
    buf_printf(out, "\"step_seconds\":%.6f,\"tokens_per_second_per_device\":%.3f,\"mfu\":%.5f,\"bubble\":%.5f,",
               f->step, f->tokens_per_second, f->mfu, f->bubble);
    buf_printf(out, "\"memory_bytes\":%lu,\"fits\":%s,", (unsigned long)f->machine->memory_bytes,
               forecast_fits(f) ? "true" : "false");
    if (!forecast_fits(f))
        buf_printf(out, "\"%s\":%ld,",
                   m->size[AXIS_PP] > 1 ? "fitting_pipeline_parallel_microbatch_size" : "fitting_local_batch_size",
                   (long)f->fitting_batch);
    if (f->fitting_room > 0)
        buf_printf(out, "\"fitting_expert_parallel_room\":%d,", f->fitting_room);
    buf_puts(out, "\"ranks\":[");
    for (int i = 0; i < f->n; i++) {
        const struct forecast_memory *of = &f->memory[i];
        const struct forecast_time *t = &f->time[i];
        struct part parts[CHANNEL_COUNT + PARTS_BESIDES];
        const int n = parts_of(t, parts);
        buf_printf(out, "%s{\"pp_rank\":%d,\"memory\":{", i ? "," : "", i);
        for (int k = 0; k < MEMORY_COUNT; k++)
            buf_printf(out, "\"%s\":%zu,", memory_kind_name((enum memory_kind)k), of->bytes[k]);
        buf_printf(out, "\"planned\":%zu,\"process\":%zu,\"connections\":%zu,\"predicted\":%.0f},\"sent_bytes\":{",
                   of->total, of->process, of->peers, of->predicted);
        for (int k = 0; k < TRAFFIC_COUNT; k++)
            buf_printf(out, "%s\"%s\":%.0f", k ? "," : "", traffic_name(k), f->bytes[i][k]);
        buf_puts(out, "},\"seconds\":{");
        for (int k = 0; k < n; k++)
            buf_printf(out, "%s\"%s\":%.6f", k ? "," : "", parts[k].name, parts[k].seconds);
        buf_printf(out, "},\"floor_seconds\":%.6f}", t->matmul_floor + t->attention_floor + t->memory_floor);
    }
    buf_puts(out, "]");
    if (s) {
        size_t n;
        struct op_row *rows = operations_of(f, s, cost, &n);
        if (!rows)
            return titan_fail(err, TITAN_ENOMEM, "operations: out of memory");
        buf_puts(out, ",\"operations\":[");
        for (size_t i = 0; i < n; i++) {
            _cleanup_(buf_free) struct buf parameters = BUF_INIT; /* each parameter in the text begins with a space */
            program_print_params(s->ranks[f->busiest].program, rows[i].first, &parameters);
            buf_printf(out,
                       "%s{\"operation\":\"%s\",\"parameters\":\"%s\",\"stream\":\"%s\",\"seconds\":%.9f,"
                       "\"floor_seconds\":%.9f,\"times\":%ld}",
                       i ? "," : "", op_name((enum op)rows[i].first->op), parameters.len ? parameters.data + 1 : "",
                       program_stream_name((enum stream_id)rows[i].first->stream), rows[i].predicted, rows[i].floor,
                       rows[i].count);
        }
        buf_puts(out, "]");
        free(rows);
    }
    buf_puts(out, "}\n");
    return TITAN_OK;
}
