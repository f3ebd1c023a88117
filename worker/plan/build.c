/* SPDX-License-Identifier: Apache-2.0 */
/* build.c - a rank's step, walked cell by cell.
 *
 *   program_build
 *     plan_cell       a cell of the rank's line of the schedule -> executions of units
 *     plan_param_uses  when each execution's parameters are gathered and let go
 *     emit_cell       receive, executions, send (pipeline.c)
 *       forward, input_gradient, weight_gradient of one unit (model/block.h)
 *     gradients.c     sums, reductions, update; forward-only, the agreement alone */
#include "worker/plan/builder.h"
#include "worker/model/rotated.h"
#include "worker/plan/recompute.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* Use of one unit's parameters by an execution. */
struct param_use {
    int unit; /* NONE: no use */
    bool needed, gather, release;
    int source; /* number of the use whose gather brings the parameters; `full` of that use is the buffer */
    int full;
    int codes; /* buffer of the codes that become `full` */
};

/* What a cell does with one unit, and with up to two more. The second unit is a layer's experts, or the embedding with
 * the table that a tied head takes. The third is the embedding that a module of multi-token prediction takes. */
#define EXECUTION_UNITS 3
struct execution {
    enum cell_kind kind;
    int stage, slot;
    struct param_use use[EXECUTION_UNITS];
    bool adds[EXECUTION_UNITS];   /* adds to the unit's gradient */
    bool closes[EXECUTION_UNITS]; /* is the last to add in this slot */
    bool ends[EXECUTION_UNITS];   /* is the last to add in the step */
};

struct cell_plan {
    struct cell cell;
    int place;      /* in the rank's line of the schedule */
    int from, to;   /* executions */
    int last_dgrad; /* execution after which the stage's input gradient is there; NONE: it is there already */
};

/* What a layer's backward of one microbatch needs from its forward. */
struct layer_pass {
    struct layer_saved saved;
    struct layer_back back;
    int from, to;                /* actions of the forward */
    int params[EXECUTION_UNITS]; /* parameter buffers that these actions read */
    struct layer_saved *parts;   /* of saved and back, if the layer rotates; owned (free) */
    struct layer_back *part_backs;
    struct mtp_saved mtp; /* of a module; for the model's last norm: out and h */
    struct mtp_back mtp_back;
    struct tensor dh; /* gradient of the layer's output that the head gives back */
};

/* --- program classes ---------------------------------------------------------------------------------------------- */

static void share_of(const struct build_options *o, int batch_rank, int64_t *from, int64_t *count)
{
    int64_t to;

    titan_assert(batch_rank >= 0 && batch_rank < mesh_batch_size(&o->layout->mesh));
    tree_share(o->microbatches, mesh_batch_size(&o->layout->mesh), batch_rank, from, &to);
    *count = to - *from;
}

/* Program classes of a pp rank. A rank's microbatches decide what it adds up in the canonical tree. Without the tree
 * only their number matters. */
static int shares(const struct build_options *o)
{
    const int ranks = mesh_batch_size(&o->layout->mesh);

    if (o->canonical && !o->forward_only)
        return ranks;
    return o->microbatches % ranks == 0 ? 1 : 2;
}

static int pp_rank_of(const struct build_options *o, int rank)
{
    int coords[AXIS_COUNT];

    titan_assert(rank >= 0 && rank < o->layout->mesh.world);
    mesh_coords(&o->layout->mesh, rank, coords);
    return coords[AXIS_PP];
}

int program_class(const struct build_options *options, int rank)
{
    const struct mesh *const mesh = &options->layout->mesh;
    const int batch_rank = mesh_batch_rank(mesh, rank), first = pp_rank_of(options, rank) * shares(options);
    int64_t from, count;

    if (options->canonical && !options->forward_only)
        return first + batch_rank;
    share_of(options, batch_rank, &from, &count);
    return first + (int)(count - options->microbatches / mesh_batch_size(mesh));
}

int program_classes(const struct build_options *options)
{
    return options->layout->mesh.size[AXIS_PP] * shares(options);
}

int program_class_rank(const struct build_options *options, int class)
{
    int rank = 0;

    titan_assert(class >= 0 && class < program_classes(options));
    while (program_class(options, rank) != class)
        rank++;
    return rank;
}

int program_class_leader(const struct build_options *options, int class)
{
    const int n = shares(options), first = class / n * n;
    int64_t from, count, most = 0;
    int leader = first;

    titan_assert(class >= 0 && class < program_classes(options));
    if (!options->canonical || options->forward_only)
        return first + n - 1;
    for (int b = 0; b < n; b++) {
        share_of(options, b, &from, &count);
        if (count > most)
            leader = first + b;
        most = MAX(most, count);
    }
    return leader;
}

/* --- executions --------------------------------------------------------------------------------------------------- */

static enum unit_kind kind_of(const struct builder *b, int unit)
{
    return b->model->units[unit].kind;
}

/* Number of the module that a unit's layer is of. 0: the layer is of no module. */
static int module_of(const struct builder *b, int unit)
{
    return kind_of(b, unit) == UNIT_LAYER ? model_module(b->model, b->model->units[unit].layer) : 0;
}

/* The unit of a module with this number, whose output the next module reads. 0: the model's last norm. */
static int module_unit(const struct builder *b, int module)
{
    const int layer = (int)b->model->dims.n_layers + module;

    titan_assert(module >= 0 && module <= b->model->dims.mtp_layers && b->model->dims.mtp_layers > 0);
    return module == 0 ? model_layer_unit(b->model, layer) - 1 : model_layer_unit(b->model, layer - 1);
}

static void plan_cell(struct builder *b, const struct cell *cell, int place)
{
    const int first = b->layout->first_unit[cell->stage], n = b->layout->first_unit[cell->stage + 1] - first;
    struct cell_plan *plan = &b->cells[b->n_cells++];

    titan_assert(cell->stage >= 0 && cell->stage < b->layout->stages && cell->microbatch < b->share_max);
    *plan = (struct cell_plan){.cell = *cell, .place = place, .from = b->n_executions, .last_dgrad = NONE};
    for (int i = 0; i < n; i++) {
        const int unit = cell->kind == CELL_F ? first + i : first + n - 1 - i, module = module_of(b, unit);
        const enum unit_kind kind = kind_of(b, unit);
        /* The head does everything in its forward. The embedding's only backward is the weight gradient. Experts go
         * with their layer. An evaluation has no modules. */
        if (kind == UNIT_EXPERTS || (kind == UNIT_EMBEDDING && cell->kind == CELL_I) ||
            (kind == UNIT_HEAD && cell->kind != CELL_F) || (b->opt->forward_only && module > 0))
            continue;
        if (kind == UNIT_LAYER)
            plan->last_dgrad = b->n_executions;

        const bool needed = cell->kind == CELL_F || (cell->kind != CELL_W && kind != UNIT_EMBEDDING);
        const bool recomputes = cell->kind == CELL_W && kind == UNIT_LAYER && b->rounds > 1;
        const bool adds = !b->opt->forward_only && (kind == UNIT_HEAD || cell->kind == CELL_W || cell->kind == CELL_B);
        const int units[EXECUTION_UNITS] = {unit,
                                            kind == UNIT_LAYER
                                                ? model_experts_unit(b->model, b->model->units[unit].layer)
                                            : kind == UNIT_HEAD && b->model->dims.tied_embeddings ? 0
                                                                                                  : NONE,
                                            module > 0 ? 0 : NONE};
        struct execution *const x = &b->executions[b->n_executions++];
        *x = (struct execution){.kind = cell->kind, .stage = cell->stage, .slot = cell->microbatch};
        for (int k = 0; k < EXECUTION_UNITS; k++) {
            const bool reads = k == 2 ? cell->kind == CELL_F : needed || (recomputes && k == 1);
            x->use[k] =
                (struct param_use){.unit = units[k], .needed = reads && units[k] != NONE, .source = NONE, .full = NONE};
            x->adds[k] = adds && units[k] != NONE;
        }
    }
    plan->to = b->n_executions;
}

/* Which executions are the last to add to a unit's gradient, in their slot and in the step. */
static titan_status plan_closings(struct builder *b, struct titan_error *err)
{
    const size_t units = (size_t)b->model->n_units;
    _cleanup_free_ bool *ended = calloc(units, sizeof *ended);
    _cleanup_free_ bool *closed = calloc(units * (size_t)b->share_max, sizeof *closed);

    if (!ended || !closed)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    for (int i = b->n_executions - 1; i >= 0; i--) {
        struct execution *const x = &b->executions[i];
        for (int j = 0; j < EXECUTION_UNITS; j++) {
            if (!x->adds[j])
                continue;
            titan_assert(x->slot < b->share_max && x->use[j].unit != NONE);
            bool *const in_slot = &closed[(size_t)x->slot * units + (size_t)x->use[j].unit];
            x->closes[j] = !*in_slot;
            x->ends[j] = !ended[x->use[j].unit];
            *in_slot = ended[x->use[j].unit] = true;
        }
    }
    return TITAN_OK;
}

static struct param_use *param_use_at(struct builder *b, int number)
{
    titan_assert(number >= 0 && number < b->n_executions * EXECUTION_UNITS);
    return &b->executions[number / EXECUTION_UNITS].use[number % EXECUTION_UNITS];
}

static titan_status plan_param_uses(struct builder *b, struct titan_error *err)
{
    _cleanup_free_ int *before = malloc((size_t)b->model->n_units * sizeof *before);

    if (!before)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    for (int u = 0; u < b->model->n_units; u++)
        before[u] = NONE;
    for (int i = 0; i < b->n_executions * EXECUTION_UNITS; i++) {
        struct param_use *const use = param_use_at(b, i);
        if (!use->needed)
            continue;
        const int last = before[use->unit];
        /* May the execution take over the parameters that the unit's use before it has gathered? */
        const bool keeps =
            b->opt->reshard == RESHARD_NEVER ||
            (b->opt->reshard == RESHARD_DEFAULT && (b->pp > 1 || last / EXECUTION_UNITS == i / EXECUTION_UNITS - 1));
        use->gather = last == NONE || !keeps;
        use->release = true; /* until a later use takes it over */
        use->source = use->gather ? i : param_use_at(b, last)->source;
        if (!use->gather)
            param_use_at(b, last)->release = false;
        before[use->unit] = i;
    }
    return TITAN_OK;
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

static struct tensor shard_of(const struct builder *b, int unit)
{
    return tensor_at(b->units[unit].shard, 0, b->opt->dt, 1, b->layout->units[unit].shard);
}

static int scaled_weights(const struct builder *b, int unit)
{
    return unit_is_mine(b, unit) ? __builtin_popcountll(b->units[unit].scaled) : 0;
}

/* Finds the scales of all weights that are gathered as codes, or with static scales of all that are in float8. Scales
 * hold for the step, so one transfer brings all maxima. Static scales are of whole weights, which tensor parallelism
 * cuts. */
static void find_scales(struct builder *b)
{
    const bool given = b->opt->converters && b->opt->converters->powers;
    int64_t total = 0, at = 0;

    for (int u = 0; u < b->model->n_units; u++)
        total += scaled_weights(b, u);
    if (total == 0)
        return;
    builder_stamp(b, PHASE_FORWARD, NONE, NONE, NONE);
    const struct tensor own = emit_tensor(&b->e, BUF_EXCHANGE, "float8 maxima", DTYPE_F32, 1, total);
    for (int u = 0; u < b->model->n_units; u++) {
        const int n = scaled_weights(b, u);
        if (n == 0)
            continue;
        builder_stamp(b, PHASE_FORWARD, u, b->layout->units[u].stage, NONE);
        EMIT(&b->e, float8_largest, tensor_cols(own, at, n), shard_of(b, u), .coded = (int64_t)b->units[u].scaled);
        at += n;
    }
    builder_stamp(b, PHASE_FORWARD, NONE, NONE, NONE);
    struct tensor all = emit_all_gather(&b->e, CHANNEL_GATHER, BUF_EXCHANGE, "float8 maxima of all ranks", own);
    if (given)
        all = emit_all_gather(&b->e, CHANNEL_TP, BUF_EXCHANGE, "float8 maxima of all parts", all);
    at = 0;
    for (int u = 0; u < b->model->n_units; u++) {
        struct unit_state *const unit = &b->units[u];
        const int n = scaled_weights(b, u);
        if (n == 0)
            continue;
        builder_stamp(b, PHASE_FORWARD, u, b->layout->units[u].stage, NONE);
        unit->scales = emit_tensor(&b->e, BUF_WORK, "float8 scales", DTYPE_F32, 1, n);
        if (b->e.p->scales_every > 1)
            EMIT(&b->e, held_scales, b->statistics, unit->scales, tensor_cols(all, at, n));
        else
            EMIT(&b->e, float8_scales, unit->scales, tensor_cols(all, at, n), .flags = given ? OP_F8_POWER : 0);
        at += n;
    }
}

/* Experts, which ranks share in other groups, and a table that goes to another stage keep even levels. */
static bool learns_levels(const struct builder *b, int unit)
{
    return unit_is_mine(b, unit) && b->opt->gather_learns && b->units[unit].gather.codec != WEIGHTS_WHOLE &&
           kind_of(b, unit) != UNIT_EXPERTS && !(unit == 0 && b->model->dims.tied_embeddings);
}

/* Learns the levels of weights that are gathered in few bits. They hold for the step: one transfer brings all ranks'
 * counts. */
static void learn_levels(struct builder *b)
{
    int64_t total = 0, at = 0;

    for (int u = 0; u < b->model->n_units; u++)
        total += learns_levels(b, u) ? WEIGHT_BINS : 0;
    if (total == 0)
        return;
    builder_stamp(b, PHASE_FORWARD, NONE, NONE, NONE);
    const struct tensor own = emit_tensor(&b->e, BUF_EXCHANGE, "weights in bins", DTYPE_I32, 1, total);
    for (int u = 0; u < b->model->n_units; u++) {
        if (!learns_levels(b, u))
            continue;
        builder_stamp(b, PHASE_FORWARD, u, b->layout->units[u].stage, NONE);
        EMIT(&b->e, weight_count, tensor_cols(own, at, WEIGHT_BINS), shard_of(b, u),
             .codec = (int64_t)b->units[u].gather.codec);
        at += WEIGHT_BINS;
    }
    builder_stamp(b, PHASE_FORWARD, NONE, NONE, NONE);
    const struct tensor all = emit_all_gather(&b->e, CHANNEL_GATHER, BUF_EXCHANGE, "weights of all ranks in bins", own);
    at = 0;
    for (int u = 0; u < b->model->n_units; u++) {
        struct unit_state *const unit = &b->units[u];
        if (!learns_levels(b, u))
            continue;
        builder_stamp(b, PHASE_FORWARD, u, b->layout->units[u].stage, NONE);
        unit->levels = emit_tensor(&b->e, BUF_WORK, "levels", DTYPE_F32, 1, 2 << weight_bits(unit->gather.codec));
        EMIT(&b->e, weight_learn, unit->levels, tensor_cols(all, at, WEIGHT_BINS),
             .codec = (int64_t)unit->gather.codec);
        at += WEIGHT_BINS;
    }
}

/* Puts together, before the first use of parameters, the elements without codes: they have come in parts. */
static void join_runs(struct builder *b, const struct execution *x)
{
    for (int j = 0; j < EXECUTION_UNITS; j++) {
        const struct param_use *const use = &x->use[j];
        const struct coded *const c = use->gather ? &b->units[use->unit].coded : NULL;
        for (int i = 0; c && i < c->n_runs; i++) {
            const struct coded_run *const run = &c->runs[i];
            size_t to = c->codes_bytes + (size_t)run->at * c->elem;
            builder_stamp(b, x->kind == CELL_F ? PHASE_FORWARD : PHASE_DGRAD, use->unit, x->stage, NONE);
            for (int64_t m = run->from / c->shard; run->together && m * c->shard < run->to; m++) {
                const int64_t from = MAX(run->from, m * c->shard);
                const int64_t n = MIN(run->to, (m + 1) * c->shard) - from;
                emit_copy(&b->e, tensor_at(use->full, to, b->opt->dt, 1, n),
                          tensor_at(use->full, coded_sent(c, (int)m, from), b->opt->dt, 1, n));
                to += (size_t)n * c->elem;
            }
        }
    }
}

/* Makes, before the first use of parameters, the parameters of the codes that have been gathered. */
static void decode_gathered(struct builder *b, const struct execution *x, struct param_use *use)
{
    const struct weight_gather *const g = &b->units[use->unit].gather;
    const int64_t members = g->coded.members;

    builder_stamp(b, x->kind == CELL_F ? PHASE_FORWARD : PHASE_DGRAD, use->unit, x->stage, NONE);
    const struct tensor full = emit_tensor(&b->e, BUF_FULL, "parameters", b->opt->dt, 1, g->coded.padded);
    use->full = full.buffer;
    const struct tensor codes = tensor_at(use->codes, 0, DTYPE_U8, 1, members * g->codes_bytes);
    const struct tensor others =
        tensor_at(use->codes, (size_t)(members * g->codes_bytes), b->opt->dt, 1, members * g->others);
    const struct tensor levels = b->units[use->unit].levels;
    if (tensor_exists(levels))
        EMIT(&b->e, weight_decode_by, full, codes, others, levels, .codec = (int64_t)g->codec);
    else
        EMIT(&b->e, weight_decode, full, codes, others, .codec = (int64_t)g->codec);
}

/* Emits what a rank sends of its range, and the transfer, if the group has peers. A gather waits for no product. */
static void gather_in_few_bits(struct builder *b, struct param_use *use, struct tensor shard)
{
    const struct weight_gather *const g = &b->units[use->unit].gather;
    const int64_t members = g->coded.members;

    use->codes = emit_buffer(&b->e, BUF_FULL, "parameters in few bits", g->bytes);
    const struct tensor codes = tensor_at(use->codes, g->own_codes, DTYPE_U8, 1, g->codes_bytes);
    const struct tensor others = tensor_at(use->codes, g->own_others, b->opt->dt, 1, g->others);
    b->e.stream = members > 1 ? STREAM_GATHER : STREAM_COMPUTE;
    const struct tensor levels = b->units[use->unit].levels;
    if (tensor_exists(levels))
        EMIT(&b->e, weight_encode_by, codes, others, shard, levels, .codec = (int64_t)g->codec);
    else
        EMIT(&b->e, weight_encode, codes, others, shard, .codec = (int64_t)g->codec);
    b->e.stream = STREAM_COMPUTE;
    if (members > 1)
        emit_all_gather_both(
            &b->e, b->layout->units[use->unit].gather, tensor_at(use->codes, 0, DTYPE_U8, members, g->codes_bytes),
            codes, tensor_at(use->codes, (size_t)(members * g->codes_bytes), b->opt->dt, members, g->others), others);
}

/* Emits the gathers of an execution. In a group of one the shard is the whole unit. */
static void emit_gathers(struct builder *b, struct execution *x)
{
    for (int j = 0; j < EXECUTION_UNITS; j++) {
        struct param_use *const use = &x->use[j];
        if (!use->gather)
            continue;
        const struct coded *const c = &b->units[use->unit].coded;
        const enum channel channel = b->layout->units[use->unit].gather;
        const struct tensor shard = shard_of(b, use->unit);
        builder_stamp(b, x->kind == CELL_F ? PHASE_FORWARD : PHASE_DGRAD, use->unit, x->stage, NONE);
        if (b->units[use->unit].gather.codec != WEIGHTS_WHOLE) {
            gather_in_few_bits(b, use, shard);
            continue;
        }
        if (c->n == 0) {
            use->full = emit_all_gather(&b->e, channel, BUF_FULL, "parameters", shard).buffer;
            continue;
        }

        /* One transfer brings the codes of this rank's range, and the elements without codes. */
        use->full = emit_buffer(&b->e, BUF_FULL, "parameters", c->bytes);
        const struct tensor codes = tensor_at(use->full, c->own_codes, DTYPE_U8, 1, c->shard);
        const struct tensor others = tensor_at(use->full, c->own_others, b->opt->dt, 1, c->others);
        b->e.stream = STREAM_GATHER; /* a gather waits for no product, with codes or without */
        EMIT(&b->e, float8_pack, codes, others, shard, b->units[use->unit].scales, .coded = (int64_t)c->tensors);
        b->e.stream = STREAM_COMPUTE;
        emit_all_gather_both(&b->e, channel, tensor_at(use->full, 0, DTYPE_U8, c->members, c->shard), codes,
                             tensor_at(use->full, c->codes_bytes, b->opt->dt, c->members, c->others), others);
    }
}

static int params_of(struct builder *b, const struct param_use *use)
{
    titan_assert(!use->needed || use->source != NONE);
    return use->needed ? param_use_at(b, use->source)->full : NONE;
}

/* --- compute of one execution ------------------------------------------------------------------------------------- */

/* Number of turns of a unit that rotates; 0: it does not rotate. */
static int turns_of(const struct builder *b, int unit)
{
    const struct unit_layout *const u = &b->layout->units[unit];
    return u->cut == GROUP_ROTATE ? mesh_group_size(&b->layout->mesh, GROUP_ROTATE) : 0;
}

static struct layer_pass *layer_pass(const struct builder *b, int unit, int slot)
{
    titan_assert(b->local[unit] != NONE && slot < b->share_max);
    return &b->layers[(int64_t)b->local[unit] * b->share_max + slot];
}

/* A slot's tokens are loaded at the first use on this rank. They are there until the last use. */
static const struct block_tokens *tokens_of(struct builder *b, int slot)
{
    struct block_tokens *const tokens = &b->tokens[slot];
    const int unit = b->e.unit;

    titan_assert(slot >= 0 && slot < b->share);
    if (!tensor_exists(tokens->all)) {
        const size_t rows = (size_t)batch_rows(b->model->dims.mtp_layers);
        const size_t bytes = rows * (size_t)block_tokens_local(&b->k) * sizeof(int32_t);
        b->e.unit = NONE;
        block_tokens_view(&b->k, emit_buffer(&b->e, BUF_TOKENS, "tokens", bytes), tokens);
        EMIT(&b->e, load, tokens->all);
        b->e.unit = unit;
    }
    return tokens;
}

/* The unit's buffers without its gradient. */
static struct unit_buffers parameters_of(struct builder *b, const struct param_use *use)
{
    struct unit_buffers u = {.unit = use->unit, .params = params_of(b, use), .grads = NONE};

    if (u.unit != NONE && b->units[u.unit].coded.n > 0)
        u.coded = &b->units[u.unit].coded;
    if (u.unit != NONE) {
        u.scaled = b->units[u.unit].scaled;
        u.scales = b->units[u.unit].scales;
    }
    return u;
}

static struct unit_buffers buffers_of(struct builder *b, const struct execution *x, int which)
{
    titan_assert(which >= 0 && which < EXECUTION_UNITS);
    struct unit_buffers u = parameters_of(b, &x->use[which]);

    if (x->adds[which])
        u.grads = gradients_buffer(b, u.unit, x->slot, &u.first);
    return u;
}

static void forget(struct tensor *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        t[i] = TENSOR_NONE;
}

static struct tensor forward_layer(struct builder *b, const struct execution *x, const struct unit_buffers *u,
                                   const struct block_tokens *tokens, struct tensor in)
{
    struct layer_pass *const layer = layer_pass(b, x->use[0].unit, x->slot);
    const bool experts = x->use[1].unit != NONE;
    const struct unit_buffers second = experts ? buffers_of(b, x, 1) : (struct unit_buffers){0};
    const struct layer_units units = {.own = u, .experts = experts ? &second : NULL};

    layer->from = b->e.p->n_actions;
    const struct tensor out = layer->parts ? rotated_forward(&b->k, u, tokens, in, b->statistics, &layer->saved)
                                           : layer_forward(&b->k, units, tokens, in, b->statistics, &layer->saved);
    layer->to = b->e.p->n_actions;
    for (int j = 0; j < EXECUTION_UNITS; j++)
        layer->params[j] = params_of(b, &x->use[j]);
    return out;
}

static void forward(struct builder *b, const struct execution *x)
{
    struct stage_pass *const pass = stage_pass(b, x->stage, x->slot);
    const int unit = x->use[0].unit, module = module_of(b, unit);

    titan_assert(x->kind == CELL_F);
    builder_stamp(b, PHASE_FORWARD, unit, x->stage, x->slot);
    const struct block_tokens *tokens = tokens_of(b, x->slot);
    struct unit_buffers u = buffers_of(b, x, 0);
    if (kind_of(b, unit) == UNIT_EMBEDDING) {
        pass->x = embedding_forward(&b->k, &u, tokens);
    } else if (kind_of(b, unit) == UNIT_NORM) {
        struct layer_pass *const norm = layer_pass(b, unit, x->slot);
        pass->x = norm->mtp.h = mtp_norm_forward(&b->k, &u, pass->x, b->statistics, &norm->mtp.out);
    } else if (kind_of(b, unit) == UNIT_HEAD) {
        const bool tied = x->use[1].unit != NONE;
        const struct unit_buffers table = tied ? buffers_of(b, x, 1) : (struct unit_buffers){0};
        pass->dx = head_step(&b->k, (struct head_units){&u, tied ? &table : NULL}, tokens, pass->x, b->statistics,
                             TENSOR_NONE);
        u.first = false;
        for (int i = 1; i <= b->model->dims.mtp_layers && !b->opt->forward_only; i++) {
            const struct block_tokens own = block_tokens_of(tokens, i);
            struct layer_pass *const of = layer_pass(b, module_unit(b, i), x->slot);
            of->dh = head_step(&b->k, (struct head_units){.own = &u}, &own, of->mtp.h, b->statistics, TENSOR_NONE);
        }
    } else if (module > 0) { /* recomputation computes only the layer within the module again */
        const struct block_tokens own = block_tokens_of(tokens, module);
        const struct layer_pass *const before = layer_pass(b, module_unit(b, module - 1), x->slot);
        struct mtp_saved *const saved = &layer_pass(b, unit, x->slot)->mtp;
        const struct unit_buffers table = parameters_of(b, &x->use[2]);
        const struct tensor in = mtp_join(&b->k, &u, &table, &own, before->mtp.h, saved);
        mtp_out(&b->k, &u, forward_layer(b, x, &u, &own, in), saved);
    } else {
        pass->x = forward_layer(b, x, &u, tokens, pass->x);
    }
}

struct kept {
    const struct program *p;
    /* from: first action of the forward; every: each every-th product is kept. 1: all products, also those of experts.
     */
    int from, every;
};

/* Selective recomputation by operation: results of attention, scatters, exchanges and products are kept. A gathered
 * input is tp times as large as its source, so it is gathered again. */
static bool keep_ops(void *arg, const struct action *a, int buffer)
{
    const struct kept *kept = arg;
    int products = 0;

    (void)buffer;
    if (a->op == OP_ATTENTION || a->op == OP_ATTENTION_MERGE || a->op == OP_ATTENTION_SINK ||
        a->op == OP_REDUCE_SCATTER)
        return true;
    /* Rounds in which no rows are expected keep nothing. */
    if (a->op == OP_ALL_TO_ALL_V)
        return action_params(kept->p, a)->all_to_all_v.rows > 0;
    if (a->op != OP_MATMUL)
        return a->op == OP_MATMUL_GROUPED && kept->every == 1 && action_params(kept->p, a)->matmul_grouped.rows > 0;
    for (const struct action *before = kept->p->actions + kept->from; before < a; before++)
        products += before->op == OP_MATMUL;
    return products % kept->every == 0;
}

static bool keep_nothing(void *arg, const struct action *a, int buffer)
{
    (void)arg;
    (void)a;
    (void)buffer;
    return false;
}

static void recompute(struct builder *b, const struct execution *x, struct layer_pass *layer)
{
    const enum checkpointing mode = b->opt->checkpointing[b->model->units[x->use[0].unit].layer];
    const int some = b->opt->keep_products > 0 ? b->opt->keep_products : 2;
    struct kept kept = {.p = b->e.p, .from = layer->from, .every = mode == CHECKPOINT_PRODUCTS ? 1 : some};
    const int from = b->e.p->n_actions;
    const int turns = turns_of(b, x->use[0].unit);
    int n = 0;

    if (mode == CHECKPOINT_NONE)
        return;
    titan_assert(layer->from <= layer->to && layer->to <= from);
    _cleanup_free_ struct tensor **needed = calloc((size_t)(1 + turns) * SAVED_COUNT, sizeof(struct tensor *));
    if (!needed) {
        b->e.status = TITAN_ENOMEM;
        return;
    }
    for (int v = 0; v <= turns; v++)
        for (int i = 0; i < SAVED_COUNT; i++) {
            struct tensor *const t = v == 0 ? &layer->saved.t[i] : &layer->parts[v - 1].t[i];
            if (i != SAVED_X && tensor_exists(*t))
                needed[n++] = t;
        }
    b->e.phase = PHASE_RECOMPUTE;
    recompute_actions(&b->e, (struct action_range){layer->from, layer->to},
                      mode == CHECKPOINT_FULL ? keep_nothing : keep_ops, &kept, needed, n);

    /* The actions written again read the parameters gathered for the backward. These may be in another buffer than the
     * forward's. */
    const struct program *p = b->e.p;
    for (int j = 0; j < EXECUTION_UNITS && b->e.status == TITAN_OK; j++) {
        const int was = layer->params[j], is = params_of(b, &x->use[j]);
        for (int i = from; i < p->n_actions && was != is; i++)
            for (int k = 0; k < p->actions[i].n_operands; k++) {
                struct operand *const o = &p->operands[p->actions[i].operand + k];
                if (o->buffer == was)
                    o->buffer = is;
            }
    }
}

/* Of a layer or of the model's last norm. */
static void input_gradient(struct builder *b, const struct execution *x)
{
    struct stage_pass *const pass = stage_pass(b, x->stage, x->slot);
    struct layer_pass *const layer = layer_pass(b, x->use[0].unit, x->slot);
    const bool experts = x->use[1].unit != NONE;
    struct unit_buffers u[EXECUTION_UNITS];

    titan_assert(x->kind == CELL_I || x->kind == CELL_B);
    for (int j = 0; j < EXECUTION_UNITS; j++)
        u[j] = parameters_of(b, &x->use[j]);
    builder_stamp(b, PHASE_DGRAD, u[0].unit, x->stage, x->slot);
    if (kind_of(b, u[0].unit) == UNIT_NORM) {
        layer->dh = pass->dx;
        pass->dx = mtp_norm_dgrad(&b->k, &u[0], &layer->mtp.out, layer->dh);
        return;
    }
    recompute(b, x, layer);
    b->e.phase = PHASE_DGRAD;
    const struct layer_units units = {.own = &u[0], .experts = experts ? &u[1] : NULL};
    const struct block_tokens *const tokens = tokens_of(b, x->slot);
    const int module = module_of(b, u[0].unit);
    if (layer->parts) {
        pass->dx = rotated_dgrad(&b->k, &u[0], tokens, &layer->saved, pass->dx, &layer->back);
        return;
    }
    if (module == 0) {
        pass->dx = layer_dgrad(&b->k, units, tokens, &layer->saved, pass->dx, &layer->back);
        return;
    }
    /* layer->dh is the gradient of a module's output. For the last module it is the gradient of its own loss alone. For
     * any other module it also holds the gradient from the next module. */
    const struct block_tokens own = block_tokens_of(tokens, module);
    struct layer_pass *const before = layer_pass(b, module_unit(b, module - 1), x->slot);
    const struct tensor dy = mtp_out_dgrad(&b->k, &u[0], &layer->mtp, layer->dh, &layer->mtp_back);
    const struct tensor dx = layer_dgrad(&b->k, units, &own, &layer->saved, dy, &layer->back);
    struct tensor *const dh = module == 1 ? &pass->dx : &before->dh;
    *dh = mtp_join_dgrad(&b->k, &u[0], &layer->mtp, dx, *dh, &layer->mtp_back);
}

static void weight_gradient(struct builder *b, const struct execution *x)
{
    titan_assert(!b->opt->forward_only && x->kind != CELL_F && x->kind != CELL_I);
    builder_stamp(b, PHASE_WGRAD, x->use[0].unit, x->stage, x->slot);
    const struct unit_buffers u = buffers_of(b, x, 0);
    if (kind_of(b, u.unit) == UNIT_EMBEDDING) {
        embedding_wgrad(&b->k, &u, tokens_of(b, x->slot), stage_pass(b, x->stage, x->slot)->dx);
    } else if (kind_of(b, u.unit) == UNIT_NORM) {
        const struct layer_pass *norm = layer_pass(b, u.unit, x->slot);
        mtp_norm_wgrad(&b->k, &u, &norm->mtp.out, norm->dh);
    } else {
        const struct layer_pass *layer = layer_pass(b, u.unit, x->slot);
        const bool experts = x->use[1].unit != NONE;
        const struct unit_buffers second = experts ? buffers_of(b, x, 1) : (struct unit_buffers){0};
        const struct layer_units units = {.own = &u, .experts = experts ? &second : NULL};
        if (layer->parts)
            rotated_wgrad(&b->k, &u, &layer->saved, &layer->back);
        else
            layer_wgrad(&b->k, units, &layer->saved, &layer->back);
        if (x->use[2].unit == NONE)
            return;
        const struct unit_buffers table = buffers_of(b, x, 2);
        const struct block_tokens own = block_tokens_of(tokens_of(b, x->slot), module_of(b, u.unit));
        mtp_wgrad(&b->k, &u, &table, &own, &layer->mtp, &layer->mtp_back);
    }
}

/* --- a cell ------------------------------------------------------------------------------------------------------- */

/* An empty slot computes nothing, but takes part in what its whole group does. */
static void emit_cell(struct builder *b, const struct cell_plan *plan)
{
    const struct cell *c = &plan->cell;
    const bool mine = c->microbatch < b->share;

    titan_assert(plan->from <= plan->to && plan->to <= b->n_executions);
    if (mine)
        pipeline_begin(b, plan->place);
    if (mine && c->kind != CELL_F && plan->last_dgrad == NONE)
        pipeline_send(b, c, plan->place);
    for (int i = plan->from; i < plan->to; i++) {
        struct execution *const x = &b->executions[i];
        const enum unit_kind kind = kind_of(b, x->use[0].unit);
        for (; b->next_gather < b->n_executions && b->next_gather <= i + b->opt->prefetch; b->next_gather++)
            emit_gathers(b, &b->executions[b->next_gather]);
        join_runs(b, x);
        for (int j = 0; j < EXECUTION_UNITS; j++)
            if (x->use[j].gather && b->units[x->use[j].unit].gather.codec != WEIGHTS_WHOLE)
                decode_gathered(b, x, &x->use[j]);
        if (mine && x->kind == CELL_F)
            forward(b, x);
        if (mine && (x->kind == CELL_I || x->kind == CELL_B) && (kind == UNIT_LAYER || kind == UNIT_NORM))
            input_gradient(b, x);
        if (mine && x->kind != CELL_F && i == plan->last_dgrad) /* at once: the partner waits for it */
            pipeline_send(b, c, plan->place);
        if (mine && (x->kind == CELL_W || x->kind == CELL_B))
            weight_gradient(b, x);

        for (int j = 0; j < EXECUTION_UNITS; j++) {
            const struct param_use *use = &x->use[j];
            if (!use->release ||
                (unit_group_size(b, use->unit) == 1 && b->units[use->unit].gather.codec == WEIGHTS_WHOLE))
                continue;
            titan_assert(use->needed && use->source != NONE);
            const struct coded *const coded = &b->units[use->unit].coded;
            const int64_t bytes = coded->n > 0 ? (int64_t)coded->bytes
                                               : b->layout->units[use->unit].padded * (int64_t)dtype_bytes(b->opt->dt);
            builder_stamp(b, x->kind == CELL_F ? PHASE_FORWARD : PHASE_DGRAD, use->unit, x->stage, NONE);
            EMIT(&b->e, release, tensor_at(params_of(b, use), 0, DTYPE_U8, 1, bytes));
        }
        for (int j = 0; j < EXECUTION_UNITS; j++)
            if (x->closes[j])
                gradients_close(b, x->use[j].unit, x->slot, x->ends[j]);
    }
    if (mine && c->kind == CELL_F)
        pipeline_send(b, c, plan->place);
}

/* --- set-up ------------------------------------------------------------------------------------------------------- */

/* An evaluation drops no rows. Otherwise its loss would depend on how ranks share the tokens. */
static double capacity_of(const struct build_options *o)
{
    return o->forward_only ? 0 : o->expert_capacity;
}

/* Without drops experts can get more rows. An evaluation takes them in rounds of a step's room, not in more memory. */
static double expert_parallel_room_of(const struct build_options *o)
{
    return o->forward_only && o->expert_parallel_room <= 0 ? o->expert_capacity : o->expert_parallel_room;
}

/* Refuses what recipe_check_world() refuses, too: here for callers without a recipe. */
static titan_status refuse(const struct builder *b, struct titan_error *err)
{
    const struct mesh *mesh = &b->layout->mesh;
    const bool experts = b->model->dims.n_experts > 0;

    const int tokens = mesh->size[AXIS_CP] * mesh->size[AXIS_TP] / mesh_expert_cut(mesh);

    if (mesh->rotate && (b->summing == SUM_CANONICAL || b->pp > 1 || mesh->size[AXIS_TP] > 1 || experts))
        return titan_fail(err, TITAN_EINVAL, "layers that rotate have neither canonical sums nor pp, tp or experts");
    const struct model_dims *const dims = &b->model->dims;
    const int parts = mesh_group_size(mesh, GROUP_ROTATE);
    if (dims->n_heads % parts != 0 || dims->n_kv_heads % parts != 0 || dims->ffn_hidden % parts != 0)
        return titan_fail(err, TITAN_EINVAL, "heads and feed-forward columns of a layer cannot be cut in %d parts",
                          parts);
    if (mesh->rotate && b->opt->microbatches % mesh_batch_size(mesh) != 0)
        return titan_fail(err, TITAN_EINVAL,
                          "%ld microbatches for %d data-parallel ranks whose layers rotate: they need equally many",
                          (long)b->opt->microbatches, mesh_batch_size(mesh));
    if (experts && b->summing == SUM_CANONICAL && mesh_expert_cut(mesh) > 1)
        return titan_fail(err, TITAN_EINVAL, "canonical sums are of whole experts, which tp = %d ranks cut",
                          mesh_expert_cut(mesh));
    if (experts && b->summing == SUM_CANONICAL && tokens % mesh->ep != 0 && mesh->ep % tokens != 0)
        return titan_fail(err, TITAN_EINVAL,
                          "canonical sums of experts need ep = %d to divide cp * tp = %d or to be a multiple of it",
                          mesh->ep, tokens);
    if (experts && tokens % mesh->ep != 0 && b->opt->microbatches % mesh_batch_size(mesh) != 0)
        return titan_fail(err, TITAN_EINVAL,
                          "%ld microbatches for %d data-parallel ranks that share experts (ep = %d): they need equally "
                          "many",
                          (long)b->opt->microbatches, mesh_batch_size(mesh), mesh->ep);
    return TITAN_OK;
}

static titan_status alloc_builder(struct builder *b, struct titan_error *err)
{
    const size_t units = (size_t)b->model->n_units, slots = (size_t)b->share_max;
    const size_t passes = (size_t)b->layout->stages * slots;
    const struct schedule *s = b->opt->schedule;
    const int cells = s ? s->n_cells[b->pp_rank] : (int)(2 * b->share_max);
    size_t layers = 0;

    b->executions = calloc((size_t)cells * units, sizeof *b->executions); /* more than there will be */
    b->cells = calloc((size_t)cells + 1, sizeof *b->cells);
    b->units = calloc(units, sizeof *b->units);
    b->local = calloc(units, sizeof *b->local);
    b->reduced = calloc(units, sizeof *b->reduced);
    b->tokens = calloc(slots, sizeof *b->tokens);
    b->stages = calloc(passes, sizeof *b->stages);
    b->bias = calloc(units, sizeof *b->bias);
    b->expert_tokens = calloc(units, sizeof *b->expert_tokens);
    b->dropped = calloc(units, sizeof *b->dropped);
    if (!b->executions || !b->cells || !b->units || !b->local || !b->reduced || !b->tokens || !b->stages || !b->bias ||
        !b->expert_tokens || !b->dropped)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    forget(b->bias, units);
    forget(b->expert_tokens, units);
    forget(b->dropped, units);
    for (size_t i = 0; i < slots; i++)
        b->tokens[i].all = TENSOR_NONE;
    for (size_t i = 0; i < passes; i++)
        b->stages[i] = (struct stage_pass){.x = TENSOR_NONE, .dx = TENSOR_NONE};

    for (int u = 0; u < b->model->n_units; u++) {
        struct unit_state *const unit = &b->units[u];
        *unit = (struct unit_state){.shard = NONE,
                                    .state = NONE,
                                    .error = NONE,
                                    .replica_error = NONE,
                                    .codes = TENSOR_NONE,
                                    .reduced = TENSOR_NONE,
                                    .received = TENSOR_NONE,
                                    .scales = TENSOR_NONE,
                                    .levels = TENSOR_NONE};
        coded_init(b->layout, u, converters_coded(b->opt->converters, b->model, u), dtype_bytes(b->opt->dt),
                   &unit->coded);
        unit->scaled = unit->coded.tensors | converters_scaled(b->opt->converters, b->model, u);
        weight_gather_init(b->layout, u, b->opt->forward_only ? WEIGHTS_WHOLE : b->opt->gather_codec,
                           dtype_bytes(b->opt->dt), &unit->gather);
        unit->parts = kind_of(b, u) == UNIT_EXPERTS ? b->expert_parts : 1;
        b->local[u] = unit_is_mine(b, u) ? (int)layers++ : NONE;
        if (!unit_adds_here(b, u))
            continue;
        unit->grad = malloc(slots * sizeof *unit->grad);
        unit->done = calloc(slots, sizeof *unit->done);
        unit->trees = calloc((size_t)unit->parts, sizeof *unit->trees);
        if (!unit->grad || !unit->done || !unit->trees)
            return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
        for (int i = 0; i < unit->parts; i++)
            unit->trees[i].leaves = b->opt->microbatches;
        for (size_t i = 0; i < slots; i++)
            unit->grad[i] = NONE;
    }
    b->layers = calloc(layers * slots + 1, sizeof *b->layers);
    if (!b->layers)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    b->n_layers = layers * slots;
    for (size_t i = 0; i < layers * slots; i++) {
        forget(b->layers[i].saved.t, SAVED_COUNT);
        forget(b->layers[i].back.t, BACK_COUNT);
    }
    for (int u = 0; u < b->model->n_units; u++)
        for (int slot = 0; b->local[u] != NONE && turns_of(b, u) > 0 && slot < b->share_max; slot++) {
            struct layer_pass *const layer = layer_pass(b, u, slot);
            layer->saved.parts = layer->parts = calloc((size_t)turns_of(b, u), sizeof *layer->parts);
            layer->back.parts = layer->part_backs = calloc((size_t)turns_of(b, u), sizeof *layer->part_backs);
            if (!layer->parts || !layer->part_backs)
                return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
            for (int v = 0; v < turns_of(b, u); v++)
                forget(layer->parts[v].t, SAVED_COUNT);
        }
    return TITAN_OK;
}

static void free_builder(struct builder *b)
{
    for (int u = 0; b->units && u < b->model->n_units; u++) {
        free(b->units[u].grad);
        free(b->units[u].done);
        free(b->units[u].trees);
    }
    free(b->executions);
    free(b->cells);
    free(b->units);
    free(b->local);
    free(b->reduced);
    free(b->bias);
    free(b->expert_tokens);
    free(b->dropped);
    free(b->tokens);
    free(b->stages);
    pipeline_free(b);
    for (size_t i = 0; b->layers && i < b->n_layers; i++) {
        free(b->layers[i].parts);
        free(b->layers[i].part_backs);
    }
    free(b->layers);
}

static void add_table(struct builder *b, enum table table, const char *name, size_t bytes)
{
    builder_stamp(b, PHASE_FORWARD, (int)table, NONE, NONE);
    b->k.table[table] = emit_buffer(&b->e, BUF_TABLE, name, bytes);
}

static void init_block(struct builder *b)
{
    const struct build_options *o = b->opt;
    const int cp = mesh_group_size(&b->layout->mesh, GROUP_CP);
    const size_t angles = (size_t)(o->t * (model_rope_dim(b->model) / 2)) * sizeof(float);
    bool split = o->split_gate_up;

    /* All layers go through the same operations, so a layer that keeps a part of its products decides for all
     * layers. */
    for (int l = 0; l < model_all_layers(b->model) && !o->forward_only; l++)
        split |= o->checkpointing[l] == CHECKPOINT_OPS;

    b->k = (struct block){.e = &b->e,
                          .layout = o->layout,
                          .dt = o->dt,
                          .b = o->b,
                          .t = o->t,
                          .masked = o->masked,
                          .order = o->order,
                          .ring = o->ring,
                          .rotate_in_place = o->rotate_in_place,
                          .split_gate_up = split,
                          .loss_chunks = o->loss_chunks,
                          .expert_parallel_room = expert_parallel_room_of(o),
                          .expert_capacity = capacity_of(o),
                          .by_rank = o->canonical,
                          .round_robin = o->round_robin,
                          .converters = o->converters,
                          .keeps_codes = o->converters && o->converters->keeps_codes && !o->forward_only,
                          .ops = o->ops,
                          .dev = o->dev,
                          .bias = b->bias,
                          .expert_tokens = b->expert_tokens,
                          .dropped = b->dropped,
                          .statistics = &b->statistics,
                          .seen = &b->seen};
    for (int i = 0; i < TABLE_COUNT; i++)
        b->k.table[i] = NONE;
    add_table(b, TABLE_COS, "cos", angles);
    add_table(b, TABLE_SIN, "sin", angles);
    if (b->model->dims.rope_local_theta > 0) {
        add_table(b, TABLE_COS_LOCAL, "cos of windows", angles);
        add_table(b, TABLE_SIN_LOCAL, "sin of windows", angles);
    }
    if (o->converters && o->converters->powers)
        add_table(b, TABLE_POWERS, "powers of two", POWERS * sizeof(float));
    const size_t keys = (size_t)(cp * block_tokens_local(&b->k)) * sizeof(int32_t);
    if (cp > 1 && o->ring)
        add_table(b, TABLE_KEYS_RING, "keys, going round", keys);
    else if (cp > 1)
        add_table(b, TABLE_KEYS_GATHERED, "keys of all ranks", keys);
}

/* Adds the experts' biases where the model has them, and in training the experts' counts of this step. */
static void add_biases(struct builder *b)
{
    const int64_t experts = b->model->dims.n_experts;

    for (int u = 0; u < b->model->n_units; u++) {
        if (!unit_is_mine(b, u) || kind_of(b, u) != UNIT_EXPERTS)
            continue;
        builder_stamp(b, PHASE_FORWARD, u, NONE, NONE);
        if (layout_biases(b->model) > 0)
            b->bias[u] = emit_tensor(&b->e, BUF_BIAS, "expert_bias", DTYPE_F32, 1, experts);
        if (b->opt->forward_only)
            continue;
        b->expert_tokens[u] = emit_tensor(&b->e, BUF_EXPERT_TOKENS, "expert_load", DTYPE_F32, 1, experts);
        EMIT(&b->e, zero, b->expert_tokens[u]);
        if (b->k.expert_capacity <= 0)
            continue;
        b->dropped[u] = emit_tensor(&b->e, BUF_EXPERT_TOKENS, "rows dropped", DTYPE_F32, 1, 1);
        EMIT(&b->e, zero, b->dropped[u]);
    }
    if (b->rounds == 1 || b->opt->forward_only)
        return;
    builder_stamp(b, PHASE_FORWARD, NONE, NONE, NONE);
    b->seen = emit_tensor(&b->e, BUF_EXPERT_TOKENS, "rounds seen", DTYPE_F32, 1, STATISTICS_VALUES - STATISTICS_SAID);
    EMIT(&b->e, zero, b->seen);
}

static titan_status build(struct builder *b, struct titan_error *err)
{
    const struct schedule *s = b->opt->schedule;

    TRY(refuse(b, err));
    TRY(alloc_builder(b, err));
    TRY(gradients_plan(b, err));
    b->e.p->share = b->share;
    b->e.p->share_max = b->share_max;
    b->e.p->rows_even = b->rows_even;
    b->e.p->forward_only = b->opt->forward_only;
    if (s) {
        titan_assert(b->pp_rank < s->ranks);
        for (int i = 0; i < s->n_cells[b->pp_rank]; i++)
            if (s->cells[b->pp_rank][i].microbatch < b->share_max)
                plan_cell(b, &s->cells[b->pp_rank][i], i);
    } else { /* forward and backward of one microbatch after the other */
        titan_assert(b->pp == 1);
        for (int slot = 0; slot < b->share_max; slot++) {
            plan_cell(b, &(struct cell){.kind = CELL_F, .microbatch = slot}, NONE);
            if (!b->opt->forward_only)
                plan_cell(b, &(struct cell){.kind = CELL_B, .microbatch = slot}, NONE);
        }
    }
    TRY(plan_closings(b, err));
    TRY(plan_param_uses(b, err));
    TRY(pipeline_plan(b, err));

    init_block(b);
    /* The external buffers of the training state are also there where the program does not use them. If computation is
     * in the masters' type, the shard is the masters. */
    for (int u = 0; u < b->model->n_units; u++) {
        const int64_t shard = b->layout->units[u].shard;
        if (!unit_is_mine(b, u))
            continue;
        builder_stamp(b, PHASE_UPDATE, u, NONE, NONE);
        b->units[u].state =
            emit_buffer(&b->e, b->opt->offload ? BUF_STATE_HOST : BUF_STATE, "state", builder_state_bytes(b, u));
        b->units[u].shard = emit_buffer(&b->e, BUF_SHARD, "shard", (size_t)shard * dtype_bytes(b->opt->dt));
    }
    for (int u = 0; u < b->model->n_units && !b->opt->forward_only; u++) {
        const size_t error = codec_row(b->opt->codec)->error ? layout_error_bytes(b->layout, u) : 0;
        const size_t of_replicas =
            codec_row(b->opt->replicate_codec)->error ? layout_replica_error_bytes(b->layout, u) : 0;
        if (!unit_adds_here(b, u))
            continue;
        builder_stamp(b, PHASE_REDUCE, u, NONE, NONE);
        if (error > 0)
            b->units[u].error = emit_buffer(&b->e, BUF_ERROR, "error of codes", error);
        if (of_replicas > 0)
            b->units[u].replica_error = emit_buffer(&b->e, BUF_REPLICA_ERROR, "error of replicas' codes", of_replicas);
    }
    if (b->layout->owners && b->layout->owners->kept[b->pp_rank] > 0) {
        const size_t owned = moment_bytes(b->opt->types.moment, b->layout->owners->kept[b->pp_rank]);
        builder_stamp(b, PHASE_UPDATE, NONE, NONE, NONE);
        b->owned = emit_buffer(&b->e, b->opt->offload ? BUF_OWNED_HOST : BUF_OWNED, "owned state", owned);
    }
    b->e.p->scales_every =
        b->opt->converters && b->opt->converters->powers && !b->opt->forward_only ? b->opt->scales_every : 1;
    statistics_init(&b->e.p->statistics, b->layout, b->opt->microbatches, b->opt->canonical, b->e.p->scales_every > 1);
    const bool directs =
        (b->opt->tensor_sums || b->layout->owners || layout_replicas_differ(b->layout)) && !b->opt->forward_only;
    b->e.p->statistics.sums = directs ? b->model->n_tensors : 0;
    builder_stamp(b, PHASE_FORWARD, NONE, NONE, NONE);
    const int64_t numbers = b->e.p->statistics.size;
    b->statistics = tensor_at(emit_buffer(&b->e, BUF_STATISTICS, "statistics", (size_t)numbers * sizeof(double)), 0,
                              DTYPE_F64, 1, numbers);
    EMIT(&b->e, zero, b->statistics);
    add_biases(b);

    find_scales(b);
    learn_levels(b);
    pipeline_share_table(b);
    for (int i = 0; i < b->n_cells; i++)
        emit_cell(b, &b->cells[i]);
    /* The memory of scales is not reused before all cells are over. Prefetched gathers still read it, behind gathers
     * that other ranks come to only later. Compute must not wait for these gathers. */
    for (int u = 0; u < b->model->n_units; u++) {
        if (!tensor_exists(b->units[u].scales))
            continue;
        builder_stamp(b, PHASE_FORWARD, u, b->layout->units[u].stage, NONE);
        EMIT(&b->e, release, b->units[u].scales);
    }
    if (b->opt->forward_only) {
        builder_stamp(b, PHASE_FORWARD, NONE, NONE, NONE);
        EMIT(&b->e, agree, b->statistics);
        EMIT(&b->e, decide, b->statistics);
    } else {
        gradients_update(b);
    }
    titan_assert(b->next_gather == b->n_executions);
    if (b->e.status != TITAN_OK)
        return titan_fail(err, b->e.status, "program: out of memory");
    return b->opt->draft ? TITAN_OK : program_finish(b->e.p, err);
}

titan_status program_build(const struct build_options *options, int rank, struct program **ret, struct titan_error *err)
{
    const struct build_options *const o = options;
    const struct mesh *const mesh = &o->layout->mesh;
    struct builder b = {.opt = o, .layout = o->layout, .model = o->layout->model, .pp = mesh->size[AXIS_PP]};
    const int ranks = mesh_batch_size(mesh);

    titan_assert(o->microbatches > 0 && o->b > 0 && o->t > 0);
    titan_assert(o->forward_only || o->checkpointing);
    titan_assert(!layout_replicas_differ(o->layout) || o->forward_only || (!o->canonical && !o->offload));
    b.pp_rank = pp_rank_of(o, rank);
    b.batch_rank = mesh_batch_rank(mesh, rank);
    share_of(o, b.batch_rank, &b.from, &b.share);
    b.share_max = (o->microbatches + ranks - 1) / ranks;
    titan_assert(b.share <= b.share_max);

    /* Shards of microbatches are worth their collectives only where they take less memory than the whole. */
    const bool sharded = mesh_group_size(mesh, GROUP_FSDP) > 1;
    const bool often = o->codec == CODEC_NONE && (o->reduce == REDUCE_DEFAULT ? b.pp == 1 && o->reshard != RESHARD_NEVER
                                                                              : o->reduce == REDUCE_MICROBATCH);
    b.summing = o->canonical && !o->forward_only     ? SUM_CANONICAL
                : (sharded && often) || mesh->rotate ? SUM_MICROBATCH
                                                     : SUM_STEP;

    const struct block k = {.layout = o->layout,
                            .b = o->b,
                            .t = o->t,
                            .expert_parallel_room = expert_parallel_room_of(o),
                            .expert_capacity = capacity_of(o),
                            .by_rank = o->canonical};
    b.rounds = b.model->dims.n_experts > 0 ? experts_rounds(&k) : 1;
    b.rows_even = b.model->dims.n_experts > 0 ? experts_rows_even(&k) : 0;
    b.expert_parts = experts_parts(&k);
    b.seen = TENSOR_NONE;

    TRY(emit_open(o->layout, b.pp_rank, &b.e, err));
    const titan_status status = build(&b, err);
    free_builder(&b);
    if (status != TITAN_OK) {
        program_close(b.e.p);
        return status;
    }
    *ret = b.e.p;
    return TITAN_OK;
}
