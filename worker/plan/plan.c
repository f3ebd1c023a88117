/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - recipe in, programs out. */
#include "worker/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "worker/optim/update.h"
#include "worker/plan/budget.h"
#include "worker/plan/check.h"
#include "worker/plan/fuse.h"
#include "worker/plan/passes.h"
#include "worker/plan/scales.h"
#include "worker/tensor/held_scales.h"

/* --- policies ----------------------------------------------------------------------------------------------------- */

static int kept_products(const struct recipe *r)
{
    const char *option = r->activation_checkpoint.selective_ac_option;
    return strncmp(option, "op:", 3) == 0 ? atoi(option + 3) : 2;
}

/* Estimates scratch without a device, in the order of magnitude that the plug-ins ask for. In any order, scratch has
 * the fp32 sum of dQ. In an order that repeats the same bits in bf16, it has scores' gradients of a part of the heads
 * or sequences. */
static size_t estimate_work(const struct attention_shape *s, bool own)
{
    const size_t scores = (size_t)(s->tq * s->tk) * 2, group = (size_t)(s->h / s->kv) * scores;
    const size_t repeatable = MAX(MIN((size_t)(s->b * s->h) * scores, (size_t)ATTENTION_PART_BYTES), group);

    return (size_t)(s->b * s->tq * s->h) * sizeof(float) +
           (size_t)(s->b * s->tk * s->kv * (s->d + s->dv)) * sizeof(float) +
           (s->order == ATTENTION_ANY ? (size_t)(s->b * s->tq * s->h * s->d) * sizeof(float) : 0) +
           (s->order == ATTENTION_REPEATABLE && s->dt == DTYPE_BF16 && !own &&
                    group <= ATTENTION_GROUP_PARTS * ATTENTION_PART_BYTES
                ? repeatable
                : 0);
}

static size_t estimated_work(struct device *dev, const struct attention_shape *s)
{
    (void)dev;
    return estimate_work(s, false);
}
/* For devices where our own attention repeats on tensor cores. */
static size_t estimated_own_work(struct device *dev, const struct attention_shape *s)
{
    (void)dev;
    return estimate_work(s, true);
}

/* Scratch of a byte for each element, and of scales. */
static size_t estimated_float8(struct device *dev, enum dtype dt, bool blocks, int64_t m, int64_t n, int64_t k)
{
    const size_t scales =
        blocks ? (size_t)((m + n) * ((k + MX_BLOCK - 1) / MX_BLOCK)) : (size_t)(m + n) * sizeof(float);
    (void)dev;
    (void)dt;
    return (size_t)(m * k + n * k) + scales;
}

/* The same, with sums in int32. */
static size_t estimated_int8(struct device *dev, enum dtype dt, int64_t m, int64_t n, int64_t k)
{
    return estimated_float8(dev, dt, false, m, n, k) + MIN((size_t)(m * n) * sizeof(int32_t), (size_t)64 << 20);
}

static const struct device_ops sizes_only = {.attention_work_bytes = estimated_work,
                                             .matmul_f8_work_bytes = estimated_float8,
                                             .matmul_i8_work_bytes = estimated_int8};
static const struct device_ops sizes_own_attention = {.attention_work_bytes = estimated_own_work,
                                                      .matmul_f8_work_bytes = estimated_float8,
                                                      .matmul_i8_work_bytes = estimated_int8};

/* --- what a run plans with ---------------------------------------------------------------------------------------- */

enum dtype plan_compute_type(const struct recipe *recipe, bool bf16_fast)
{
    const char *name = recipe->training.mixed_precision_param;

    if (strcmp(name, "float32") == 0)
        return DTYPE_F32;
    return strcmp(name, "bfloat16") == 0 || bf16_fast ? DTYPE_BF16 : DTYPE_F32;
}

struct plan_options plan_options_of_device(const struct recipe *recipe, const struct model *model,
                                           const struct device_handle *device)
{
    const struct device_info *info = &device->info;
    const struct machine *machine = cost_machine_of(info->name);
    const uint64_t free_bytes = info->memory_free ? info->memory_free : info->memory_bytes;
    const uint64_t given = (uint64_t)(recipe->device.memory * 0x1p30);

    titan_assert(device->ops && device->dev);
    return (struct plan_options){.recipe = recipe,
                                 .model = model,
                                 .dt = plan_compute_type(recipe, info->bf16_fast),
                                 .ops = device->ops,
                                 .dev = device->dev,
                                 .machine = machine,
                                 .memory_bytes = given     ? given
                                                 : machine ? machine->memory_bytes
                                                           : info->memory_bytes,
                                 .memory_free = given ? MIN(free_bytes, given) : free_bytes,
                                 .no_float8 = !info->float8,
                                 .no_mxfp8 = !info->mxfp8};
}

/* --- open --------------------------------------------------------------------------------------------------------- */

static void set_build_options(struct plan *plan)
{
    const struct recipe *r = plan->opt.recipe;
    const struct machine *machine = plan->opt.machine;
    const struct device_ops *sizes = machine && machine->attention_own_tensor ? &sizes_own_attention : &sizes_only;
    const char *reshard = r->parallelism.fsdp_reshard_after_forward, *reduce = r->parallelism.fsdp_reduce;
    const int64_t rows = recipe_microbatch_rows(r);

    plan->cut = (struct sequence_cut){.b = rows,
                                      .t = r->training.seq_len,
                                      .cp = plan->mesh.size[AXIS_CP],
                                      .balanced = r->parallelism.context_parallel_load_balance,
                                      .modules = (int)r->model.dims.mtp_layers};
    plan->build = (struct build_options){.layout = plan->layout,
                                         .dt = plan->opt.dt,
                                         .types = state_types_of_recipe(r, plan->opt.dt),
                                         .tensor_sums = optimizer_needs_sums(r),
                                         .parts = parts_of_recipe(r),
                                         .whole = plan->layout->owners ? r : NULL,
                                         .b = rows,
                                         .t = r->training.seq_len,
                                         .masked = r->training.block_causal || plan->mesh.size[AXIS_CP] > 1,
                                         .ring = strcmp(r->parallelism.context_parallel_rotate_method, "ring") == 0,
                                         .rotate_in_place = strcmp(r->parallelism.rotate, "in_place") == 0,
                                         .order = r->numerics.canonical       ? ATTENTION_FIXED
                                                  : r->numerics.deterministic ? ATTENTION_REPEATABLE
                                                                              : ATTENTION_ANY,
                                         .loss_chunks = (int)r->training.loss_chunks,
                                         .expert_parallel_room = r->parallelism.expert_parallel_room,
                                         .expert_capacity = recipe_expert_capacity(r),
                                         .round_robin = r->debug.moe_force_load_balance,
                                         .gather_codec = weight_codec_find(r->parallelism.fsdp_gather_codec),
                                         .gather_learns = strcmp(r->parallelism.fsdp_gather_levels, "learned") == 0,
                                         .converters = plan->converters,
                                         .ops = plan->opt.ops ? plan->opt.ops : sizes,
                                         .dev = plan->opt.dev,
                                         .microbatches = r->training.global_batch_size / rows,
                                         .reshard = strcmp(reshard, "never") == 0    ? RESHARD_NEVER
                                                    : strcmp(reshard, "always") == 0 ? RESHARD_ALWAYS
                                                                                     : RESHARD_DEFAULT,
                                         .reduce = strcmp(reduce, "step") == 0         ? REDUCE_STEP
                                                   : strcmp(reduce, "microbatch") == 0 ? REDUCE_MICROBATCH
                                                                                       : REDUCE_DEFAULT,
                                         .codec = recipe_reduce_codec(r),
                                         .replicate_codec = recipe_replicate_codec(r),
                                         .stochastic = strcmp(r->parallelism.fsdp_reduce_rounding, "stochastic") == 0,
                                         .buddies = plan_has_buddies(plan),
                                         .tensor_scales = strcmp(r->parallelism.fsdp_reduce_scale, "tensor") == 0,
                                         .error_decay = (float)r->parallelism.error_decay,
                                         .prefetch = (int)r->parallelism.fsdp_prefetch,
                                         .canonical = r->numerics.canonical,
                                         .scales_every = recipe_scales_every(r),
                                         .offload = r->training.enable_cpu_offload,
                                         .checkpointing = plan->checkpointing,
                                         .keep_products = kept_products(r),
                                         .update_together = r->compile.fuse};
    if (!plan->opt.evaluation)
        return;

    /* In an evaluation all data-parallel ranks get equally many microbatches; the last ones may hold nothing that
     * counts. */
    const int64_t own_rows = recipe_validation_rows(r), t = r->validation.seq_len;
    const int64_t ranks = mesh_batch_size(&plan->mesh), each = ranks * own_rows;
    const int64_t tokens = MAX(own_rows * t / plan->mesh.size[AXIS_CP], 1);
    titan_assert(own_rows > 0 && t > 0);
    plan->cut.b = plan->build.b = own_rows;
    plan->cut.t = plan->build.t = t;
    plan->build.microbatches = (recipe_validation_batch(r) + each - 1) / each * ranks;
    plan->build.loss_chunks = (int)MIN(r->training.loss_chunks, tokens);
    plan->build.forward_only = true;
}

/* Passes and budget weigh costs. Without a machine they take the host's costs. */
static struct cost cost_of(const struct plan *plan)
{
    return (struct cost){.machine = plan->opt.machine ? plan->opt.machine : cost_machine_find("cpu")};
}

static titan_status open_parts(struct plan *plan, struct titan_error *err)
{
    const struct recipe *r = plan->opt.recipe;
    const char *mode = r->activation_checkpoint.mode, *option = r->activation_checkpoint.selective_ac_option;
    const char *csv = r->parallelism.pipeline_parallel_schedule_csv;
    const int layers = model_all_layers(plan->opt.model);

    TRY(recipe_check_world(r, plan->opt.world, err));
    TRY(mesh_build(r, plan->opt.world, &plan->mesh, err));
    TRY(layout_of_recipe(r, plan->opt.model, &plan->mesh, &plan->layout, err));

    /* Selective: "op" keeps the results of expensive operations in every layer ("op:N": every N-th product), a number N
     * recomputes every N-th layer. */
    plan->checkpointing = calloc((size_t)layers, sizeof *plan->checkpointing);
    if (!plan->checkpointing)
        return titan_fail(err, TITAN_ENOMEM, "plan: out of memory");
    const bool full = strcmp(mode, "full") == 0, selective = strcmp(mode, "selective") == 0;
    const int every = selective && strncmp(option, "op", 2) != 0 ? atoi(option) : 0;
    const enum checkpointing ops = kept_products(r) == 1 ? CHECKPOINT_PRODUCTS : CHECKPOINT_OPS;
    for (int l = 0; l < layers; l++)
        plan->checkpointing[l] = full || (every > 0 && (l + 1) % every == 0) ? CHECKPOINT_FULL
                                 : selective && every == 0                   ? ops
                                                                             : CHECKPOINT_NONE;

    /* Refuses MXFP8 on a device without it: the run would show another format's results. Float8 is not refused, as
     * older cards compute without it. */
    const struct machine *m = plan->opt.machine;
    if (r->model.mxfp8 && (plan->opt.dev ? plan->opt.no_mxfp8 : m && !m->mxfp8)) {
        (void)titan_fail(err, TITAN_EUNSUPPORTED,
                         "model.mxfp8: %s has no products in MXFP8, they need compute capability 10.0 (Blackwell)",
                         m ? m->name : "this GPU");
        titan_error_hint(
            err, "model.converters = [\"float8\"] serves Hopper, CPUs emulate MXFP8, and a plan for Blackwell is one "
                 "with --device b200");
        return TITAN_EUNSUPPORTED;
    }
    if (r->model.mxfp8 || r->model.switchback || !plan->opt.no_float8)
        TRY(converters_open(r, plan->opt.model, &plan->converters, err));
    set_build_options(plan);
    if (recipe_scales_every(r) > 1 && plan->opt.model->n_tensors > HELD_SCALES_MAX)
        return titan_fail(err, TITAN_EINVAL,
                          "float8.scalify_refresh: the model has %d tensors, and %d scales can be held",
                          plan->opt.model->n_tensors, HELD_SCALES_MAX);
    if (plan->converters && plan->converters->powers)
        TRY(scales_choose(&plan->build, r->training.seq_len, plan->converters, err));

    titan_assert(plan->build.microbatches > 0);
    const int ranks = plan->mesh.size[AXIS_PP], stages = plan->layout->stages;
    const int64_t batch_ranks = mesh_batch_size(&plan->mesh);
    const int share = (int)((plan->build.microbatches + batch_ranks - 1) / batch_ranks); /* the largest */
    if (ranks > 1 && plan->opt.evaluation)
        TRY(schedule_forward(ranks, stages, share, plan->layout->v_order, &plan->schedule, err));
    else if (ranks > 1 && csv[0])
        TRY(schedule_load(csv, ranks, stages, share, &plan->schedule, err));
    else if (ranks > 1)
        TRY(schedule_generate(r->parallelism.pipeline_parallel_schedule, ranks, stages, share, &plan->schedule, err));
    plan->build.schedule = plan->schedule;
    plan->classes = program_classes(&plan->build);

    const struct cost cost = cost_of(plan);
    if (strcmp(mode, "memory_budget") == 0 && !plan->opt.evaluation)
        TRY(budget_choose(&plan->build, &cost, r->activation_checkpoint.memory_budget, plan->checkpointing, err));
    return TITAN_OK;
}

titan_status plan_open(const struct plan_options *options, struct plan **ret, struct titan_error *err)
{
    titan_assert(options->recipe && options->model && options->world > 0);
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return titan_fail(err, TITAN_ENOMEM, "plan: out of memory");
    plan->opt = *options;
    const titan_status status = open_parts(plan, err);
    if (status != TITAN_OK) {
        plan_close(plan);
        return status;
    }
    *ret = plan;
    return TITAN_OK;
}

void plan_close(struct plan *plan)
{
    if (!plan)
        return;
    schedule_close(plan->schedule);
    layout_close(plan->layout);
    free(plan->checkpointing);
    free(plan->converters);
    free(plan);
}

/* --- programs ----------------------------------------------------------------------------------------------------- */

/* Device memory without what a process needs besides its program; 0: unknown. It is the same for all program classes,
 * because a leader decides for others. So it does not count what a program's transfers touch of shared segments. */
static uint64_t memory_for_program(const struct plan *plan)
{
    const struct machine *m = plan->opt.machine;
    uint64_t besides = m ? m->memory_fixed + (plan->opt.world > 1 ? m->memory_peers : 0) : 0;

    titan_assert(plan->opt.world > 0);
    if (plan->opt.memory_bytes == 0)
        return 0;
    if (m && m->host_memory)
        besides += plan_copy_bytes(plan) + plan_snapshot_bytes(plan);
    besides += plan_copy_room_bytes(plan);
    return plan->opt.memory_bytes > besides ? plan->opt.memory_bytes - besides : 1;
}

/* Builds a program and applies the passes that no other program class decides. Every program has them, also the program
 * of a leader. */
static titan_status draft_program(const struct plan *plan, int class, struct program **ret, struct titan_error *err)
{
    const struct recipe *r = plan->opt.recipe;
    const struct pass_options options = {.memory_bytes = memory_for_program(plan)};
    struct build_options draft = plan->build;
    struct program *p = NULL;
    titan_status status = TITAN_OK;

    titan_assert(class >= 0 && class < plan->classes);
    draft.draft = true;
    TRY(program_build(&draft, program_class_rank(&draft, class), &p, err));
    if (r->parallelism.enable_async_tensor_parallel && plan->mesh.size[AXIS_TP] > 1)
        status = pass_async_tensor(p, plan->mesh.size[AXIS_TP], err);
    if (status == TITAN_OK && r->compile.fuse)
        status = pass_fuse(p, &options, err);
    if (status != TITAN_OK) {
        program_close(p);
        return status;
    }
    *ret = p;
    return TITAN_OK;
}

titan_status plan_program(const struct plan *plan, int rank, struct program **ret, struct titan_error *err)
{
    const struct recipe *r = plan->opt.recipe;
    const int class = program_class(&plan->build, rank), leader = program_class_leader(&plan->build, class);
    const bool buckets = strcmp(r->parallelism.fsdp_bucketing, "greedy") == 0, reorder = r->parallelism.fsdp_reorder;
    const struct cost cost = cost_of(plan);
    struct pass_options options = {.cost = &cost, .memory_bytes = memory_for_program(plan)};
    struct program *p = NULL;
    titan_status status = TITAN_OK;

    titan_assert(leader >= 0 && leader < plan->classes);
    TRY(draft_program(plan, class, &p, err));
    if (buckets && leader != class)
        status = draft_program(plan, leader, &options.leader, err);
    if (status == TITAN_OK && buckets)
        status = pass_bucket(p, &options, err);
    program_close(options.leader);
    options.leader = NULL;
    if (status == TITAN_OK && (buckets || reorder))
        status = pass_hold(p, &options, err);
    if (status == TITAN_OK && reorder)
        status = pass_reorder(p, &options, err);
    if (status == TITAN_OK)
        status = program_finish(p, err);
    titan_assert(p->layout == plan->layout);
    if (status != TITAN_OK) {
        program_close(p);
        return status;
    }
    *ret = p;
    return TITAN_OK;
}

titan_status plan_programs(const struct plan *plan, struct program ***ret, struct titan_error *err)
{
    struct program **programs = calloc((size_t)plan->classes, sizeof(struct program *));
    titan_status status = TITAN_OK;
    const uint64_t room = plan->opt.memory_free ? plan->opt.memory_free : plan->opt.memory_bytes;

    if (!programs)
        return titan_fail(err, TITAN_ENOMEM, "plan: out of memory");
    for (int k = 0; status == TITAN_OK && k < plan->classes; k++) {
        status = plan_program(plan, program_class_rank(&plan->build, k), &programs[k], err);
        if (status == TITAN_OK)
            status = program_check(programs[k], room, err);
    }
    if (status == TITAN_OK)
        status = programs_check((const struct program *const *)programs, plan->classes, err);
    if (status != TITAN_OK) {
        plan_free_programs(plan, programs);
        return status;
    }
    *ret = programs;
    return TITAN_OK;
}

uint64_t plan_hash(const struct plan *plan, struct program *const *programs)
{
    uint64_t hash = HASH_INIT;

    titan_assert(plan->classes > 0);
    for (int k = 0; k < plan->classes; k++)
        hash = hash_word(hash, program_hash(programs[k]));
    return hash_mix(hash);
}

bool plan_has_buddies(const struct plan *plan)
{
    const int replicas = mesh_group_size(&plan->mesh, GROUP_REPLICATE);
    return recipe_keeps_copies(plan->opt.recipe, plan->mesh.world, replicas);
}

/* The room of a buddy for a gradient that it decodes. */
static size_t decoded_bytes(const struct plan *plan)
{
    size_t most = 0;

    for (int u = 0; u < plan->layout->model->n_units; u++)
        if (build_forwards(&plan->build, u))
            most = MAX(most, (size_t)plan->layout->units[u].shard * sizeof(float));
    return most;
}

size_t plan_copy_bytes(const struct plan *plan)
{
    size_t most = 0;

    if (!plan_has_buddies(plan))
        return 0;
    for (int p = 0; p < plan->mesh.size[AXIS_PP]; p++)
        most = MAX(most, state_types_bytes(plan->build.types, plan->layout->total[p], plan->layout->kept[p]) +
                             (size_t)plan->layout->total[p] * sizeof(float) +
                             (size_t)(plan->layout->owners ? plan->layout->owners->kept[p] : 0) * sizeof(float));
    return most + (plan->opt.machine && plan->opt.machine->host_memory ? decoded_bytes(plan) : 0);
}

size_t plan_copy_room_bytes(const struct plan *plan)
{
    const struct machine *const m = plan->opt.machine;
    const struct layout *const l = plan->layout;
    size_t most = 0;

    if (!plan_has_buddies(plan) || !m || (m->host_memory && !plan->build.offload))
        return 0;
    const size_t decoded = m->host_memory ? 0 : decoded_bytes(plan);
    for (int u = 0; u < l->model->n_units; u++)
        most = MAX(most, (size_t)l->units[u].shard * sizeof(float) +
                             state_types_bytes(plan->build.types, l->units[u].shard, layout_unit_kept(l, u)));
    for (int p = 0; l->owners && p < plan->mesh.size[AXIS_PP]; p++)
        most = MAX(most, (size_t)l->owners->kept[p] * sizeof(float) +
                             moment_bytes(plan->build.types.moment, l->owners->kept[p]));
    return most + decoded;
}

size_t plan_snapshot_bytes(const struct plan *plan)
{
    size_t most = 0;

    titan_assert(plan->mesh.size[AXIS_PP] > 0);
    if (!recipe_writes_checkpoints(plan->opt.recipe))
        return 0;
    for (int p = 0; p < plan->mesh.size[AXIS_PP]; p++)
        most = MAX(most, state_types_bytes(plan->build.types, plan->layout->total[p], plan->layout->kept[p]));
    return most;
}

void plan_free_programs(const struct plan *plan, struct program **programs)
{
    for (int k = 0; programs && k < plan->classes; k++)
        program_close(programs[k]);
    free(programs);
}
