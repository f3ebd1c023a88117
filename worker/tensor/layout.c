/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c - parameters cut by stage, by tensor parallelism and into ranges. */
#include "worker/tensor/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/codecs.h"
#include "base/round.h"
#include "base/schedule.h"

#define BLOCK_MIN 1024
#define BLOCKS_MAX (INT64_C(1) << 22) /* most blocks of a model; a step sums them on the host for its gradient norm */

static bool divides_experts(const struct layout *l, const struct model_unit *u, int64_t block)
{
    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++)
        if (layout_expert_numel(l, i) % block != 0)
            return false;
    return true;
}

/* Units of experts: the largest block that divides each matrix of an expert. Other units: the layout's block. */
static int64_t unit_block(const struct layout *l, const struct model_unit *u)
{
    int64_t block = l->block;

    while (u->kind == UNIT_EXPERTS && !divides_experts(l, u, block))
        block--;
    titan_assert(block > 0);
    return block;
}

/* Places of tensors and ranges are multiples of this. */
static int64_t grain_of(const struct layout *l)
{
    return l->coded ? MOMENT_BLOCK : MODEL_ALIGN;
}

/* Returns the least common multiple of block and the grain. */
static int64_t common_multiple(const struct layout *l, int64_t block)
{
    int64_t a = block, b = grain_of(l);

    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return block / a * grain_of(l);
}

/* --- stages ------------------------------------------------------------------------------------------------------- */

int layout_stage_rank(const struct layout *layout, int stage)
{
    const int pp = layout->mesh.size[AXIS_PP], round = stage / pp, place = stage % pp;

    titan_assert(stage >= 0 && stage < layout->stages);
    return layout->v_order && round % 2 != 0 ? pp - 1 - place : place;
}

bool layout_tied_across_ranks(const struct layout *layout)
{
    return layout->model->dims.tied_embeddings &&
           layout_stage_rank(layout, 0) != layout_stage_rank(layout, layout->stages - 1);
}

bool layout_copies_table(const struct layout *layout, int pp_rank)
{
    return layout_tied_across_ranks(layout) && layout_stage_rank(layout, layout->stages - 1) == pp_rank;
}

bool layout_adds(const struct layout *layout, int unit, int rank)
{
    const int at = mesh_group_rank(&layout->mesh, GROUP_PP, rank);

    return layout->units[unit].pp_rank == at || (unit == 0 && layout_copies_table(layout, at));
}

/* --- tensors ------------------------------------------------------------------------------------------------------ */

static enum group cut_group(const struct layout *l, const struct model_unit *u)
{
    if (u->kind == UNIT_LAYER && l->mesh.rotate)
        return GROUP_ROTATE;
    return u->kind == UNIT_EXPERTS ? GROUP_EP : GROUP_TP;
}

/* Returns the number of parts that each expert of a unit is cut into. */
static int expert_cut(const struct layout *l, const struct model_unit *u)
{
    return u->kind == UNIT_EXPERTS ? mesh_expert_cut(&l->mesh) : 1;
}

int layout_unit_parts(const struct layout *layout, int unit)
{
    titan_assert(unit >= 0 && unit < layout->model->n_units);
    const struct model_unit *u = &layout->model->units[unit];
    return mesh_group_size(&layout->mesh, cut_group(layout, u)) * expert_cut(layout, u);
}

int layout_unit_part(const struct layout *layout, int unit, int rank)
{
    titan_assert(unit >= 0 && unit < layout->model->n_units);
    const struct model_unit *u = &layout->model->units[unit];
    const int cut = expert_cut(layout, u), part = mesh_group_rank(&layout->mesh, cut_group(layout, u), rank);
    return cut == 1 ? part : part * cut + mesh_group_rank(&layout->mesh, GROUP_TP, rank);
}

bool layout_same_buffer(const struct layout *x, int rank_x, const struct layout *y, int rank_y, int unit)
{
    titan_assert(layout_unit_parts(x, unit) == layout_unit_parts(y, unit));
    return layout_unit_part(x, unit, rank_x) == layout_unit_part(y, unit, rank_y);
}

/* Are the tensor's columns cut when experts are cut? True for w2 and for biases. */
static bool cut_by_column(const struct model_tensor *t)
{
    return t->role == ROLE_W2 || model_is_expert_bias(t);
}

/* Cuts a tensor in `parts`, and the width of each expert: rows of w1 and w3, columns of w2 and of biases. */
static titan_status cut_tensor(struct layout *l, int tensor, int parts, struct titan_error *err)
{
    const struct model_tensor *t = &l->model->tensors[tensor];
    struct local_tensor *local = &l->tensors[tensor];
    int64_t *cut = t->split == SPLIT_COLS ? &local->cols : &local->rows;
    const int width_cut = t->experts > 0 ? expert_cut(l, &l->model->units[t->unit]) : 1;

    titan_assert(t->ndim == 2 || t->split == SPLIT_NONE || t->split == SPLIT_COLS);
    if (t->experts % parts != 0)
        return titan_fail(err, TITAN_EINVAL,
                          "layout: %d experts of '%s' are not a multiple of the expert-parallel "
                          "degree %d",
                          t->experts, t->name, parts);
    local->rows = t->ndim == 2 ? t->shape[0] : 1;
    local->cols = t->ndim == 2 ? t->shape[1] : t->shape[0];
    if (t->split != SPLIT_NONE) {
        if (*cut % parts != 0)
            return titan_fail(err, TITAN_EINVAL,
                              "layout: %s of '%s' are %ld, not a multiple of the tensor-parallel degree %d",
                              cut == &local->cols ? "columns" : "rows", t->name, (long)*cut, parts);
        *cut /= parts;
    }
    if (width_cut > 1) {
        const int64_t width = cut_by_column(t) ? t->shape[1] : t->shape[0] / t->experts;
        if (width % width_cut != 0)
            return titan_fail(err, TITAN_EINVAL,
                              "layout: the width %ld of '%s' is not a multiple of the tensor-parallel degree %d",
                              (long)width, t->name, width_cut);
        *(cut_by_column(t) ? &local->cols : &local->rows) /= width_cut;
    }
    return TITAN_OK;
}

/* Sets offsets of a unit's tensors from `at` on: with `cut` of its cut tensors, otherwise of its whole tensors. Returns
 * the end of the last one. */
static int64_t place_tensors(struct layout *l, const struct model_unit *u, bool cut, int64_t at)
{
    const int64_t grain = l->canonical && u->kind == UNIT_EXPERTS ? common_multiple(l, unit_block(l, u)) : grain_of(l);

    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++) {
        const struct model_tensor *t = &l->model->tensors[i];
        if ((t->split != SPLIT_NONE) != cut)
            continue;
        l->tensors[i].offset = t->glued ? at : round_up(at, grain);
        at = l->tensors[i].offset + l->tensors[i].rows * l->tensors[i].cols;
    }
    return at;
}

static titan_status place_unit(struct layout *l, int index, struct titan_error *err)
{
    const struct model_unit *u = &l->model->units[index];
    struct unit_layout *unit = &l->units[index];
    unit->cut = cut_group(l, u);
    unit->block = unit_block(l, u);
    const bool bucketed = l->bucketed && unit->cut != GROUP_EP && mesh_group_size(&l->mesh, unit->cut) > 1;
    const int64_t grain = l->canonical ? common_multiple(l, unit->block)
                          : bucketed   ? common_multiple(l, CODEC_BUCKET)
                                       : grain_of(l);
    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++)
        TRY(cut_tensor(l, i, mesh_group_size(&l->mesh, unit->cut), err));
    const int64_t cut = place_tensors(l, u, true, 0);
    unit->whole = round_up(cut, common_multiple(l, unit->block));
    unit->numel = place_tensors(l, u, false, unit->whole);
    if (unit->numel == unit->whole) /* no tensor is whole */
        unit->numel = cut;
    const bool fsdp = unit->cut == GROUP_TP;
    unit->group = fsdp ? GROUP_FSDP : GROUP_EXPERT_SHARD;
    unit->sum = unit->cut == GROUP_ROTATE ? CHANNEL_ROTATE : CHANNEL_TP;
    unit->gather = fsdp ? CHANNEL_GATHER : CHANNEL_EXPERT_GATHER;
    unit->reduce = fsdp ? CHANNEL_REDUCE : CHANNEL_EXPERT_REDUCE;
    const int64_t n = mesh_group_size(&l->mesh, unit->group);
    /* Of ranges: a part of each cut has whole buckets, or a multiple of four elements. */
    int64_t multiple = bucketed ? grain * l->cuts : grain;
    while (multiple % (4 * (int64_t)l->cuts) != 0)
        multiple += grain;
    unit->shard = round_up(unit->numel, multiple * n) / n;
    unit->padded = unit->shard * n;
    titan_assert(unit->padded >= unit->numel && unit->whole % unit->block == 0);
    titan_assert(!bucketed || (unit->whole % CODEC_BUCKET == 0 && unit->shard % (CODEC_BUCKET * l->cuts) == 0));
    unit->offset = l->total[unit->pp_rank];
    l->total[unit->pp_rank] += unit->shard;

    /* Each kind of state has the same number of elements on all ranks. So ranks of a program class have equal
     * buffers. */
    const int end = u->first_tensor + u->n_tensors;
    for (int i = u->first_tensor; i < end; i++) {
        l->tensors[i].next = unit->numel;
        for (int j = u->first_tensor; j < end; j++)
            if (l->tensors[j].offset > l->tensors[i].offset)
                l->tensors[i].next = MIN(l->tensors[i].next, l->tensors[j].offset);
    }
    unit->kept = l->kept[unit->pp_rank];
    for (int k = 0; k < l->kinds.n; k++) {
        int64_t elements = 0;
        bool all = true;
        for (int i = u->first_tensor; i < end; i++) {
            const bool has = (layout_kinds(l, i) & ~l->kinds.owned) >> k & 1;
            elements += has ? l->tensors[i].next - l->tensors[i].offset : 0;
            all = all && has;
        }
        unit->span[k] = all ? unit->shard : MIN(round_up(elements, grain_of(l)), unit->shard);
        if (l->coded && k + 1 == l->kinds.n)
            unit->span[k] += round_up(layout_unit_kept(l, index), CODED_UNIT) - layout_unit_kept(l, index);
        l->kept[unit->pp_rank] += unit->span[k];
    }
    return TITAN_OK;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static titan_status fill(struct layout *l, const struct layout_options *o, struct titan_error *err)
{
    const struct model *m = o->model;
    int64_t numel = 0;
    int stage = -1;

    l->units = calloc((size_t)m->n_units, sizeof *l->units);
    l->tensors = calloc((size_t)m->n_tensors, sizeof *l->tensors);
    l->first_unit = calloc((size_t)l->stages + 1, sizeof *l->first_unit);
    l->total = calloc((size_t)l->mesh.size[AXIS_PP], sizeof *l->total);
    l->kept = calloc((size_t)l->mesh.size[AXIS_PP], sizeof *l->kept);
    l->specs = calloc((size_t)(1 + l->kinds.n) * (size_t)m->n_tensors, sizeof *l->specs);
    if (!l->units || !l->tensors || !l->first_unit || !l->total || !l->kept || !l->specs)
        return titan_fail(err, TITAN_ENOMEM, "layout: out of memory");
    for (int kind = 0; kind <= l->kinds.n; kind++)
        for (int i = 0; i < m->n_tensors; i++)
            if (kind == 0 || layout_kinds(l, i) >> (kind - 1) & 1)
                l->specs[l->n_specs++] = (struct state_spec){kind, i};
    for (int i = 0; i < m->n_tensors; i++)
        numel += m->tensors[i].numel;
    l->block = BLOCK_MIN;
    while (numel / l->block > BLOCKS_MAX)
        l->block *= 2;

    for (int u = 0; u < m->n_units; u++) {
        const enum unit_kind kind = m->units[u].kind;
        struct unit_layout *unit = &l->units[u];
        unit->stage = kind == UNIT_HEAD || kind == UNIT_NORM ? l->stages - 1 : 0;
        if (kind == UNIT_LAYER || kind == UNIT_EXPERTS)
            while (unit->stage + 1 < l->stages && m->units[u].layer >= o->first_layer[unit->stage + 1])
                unit->stage++;
        unit->pp_rank = layout_stage_rank(l, unit->stage);
        while (stage < unit->stage)
            l->first_unit[++stage] = u;
    }
    while (stage < l->stages)
        l->first_unit[++stage] = m->n_units;
    for (int u = 0; u < m->n_units; u++)
        TRY(place_unit(l, u, err));
    if (l->kinds.owned == 0)
        return TITAN_OK;

    _cleanup_free_ int *ranks = calloc((size_t)m->n_units, sizeof *ranks);
    if (!ranks)
        return titan_fail(err, TITAN_ENOMEM, "layout: out of memory");
    for (int u = 0; u < m->n_units; u++)
        ranks[u] = l->units[u].pp_rank;
    const struct owners_options options = {.model = m, .mesh = &l->mesh, .pp_rank = ranks, .recipe = o->recipe};
    TRY(owners_open(&options, &l->owners, err));
    for (int p = 0; p < l->mesh.size[AXIS_PP]; p++)
        l->kept[p] += l->owners->kept[p];
    return TITAN_OK;
}

titan_status layout_open(const struct layout_options *options, struct layout **ret, struct titan_error *err)
{
    const struct layout_options *o = options;
    const int64_t layers = o->model->dims.n_layers;
    const int stages = o->stages > 0 ? o->stages : o->mesh.size[AXIS_PP];

    if (stages > 1 && !o->first_layer)
        return titan_fail(err, TITAN_EINVAL, "layout: %d stages, but nothing says which layers they have", stages);
    if (stages % o->mesh.size[AXIS_PP] != 0)
        return titan_fail(err, TITAN_EINVAL, "layout: %d stages are not a multiple of the pipeline degree %d", stages,
                          o->mesh.size[AXIS_PP]);
    for (int s = 0; stages > 1 && s < stages; s++)
        if (o->first_layer[s] > o->first_layer[s + 1])
            return titan_fail(err, TITAN_EINVAL, "layout: stage %d ends at layer %d, before its first, %d", s,
                              o->first_layer[s + 1], o->first_layer[s]);
    if (stages > 1 && (o->first_layer[0] != 0 || o->first_layer[stages] != layers))
        return titan_fail(err, TITAN_EINVAL, "layout: stages have layers %d to %d of %ld", o->first_layer[0],
                          o->first_layer[stages], (long)layers);

    struct layout *l = calloc(1, sizeof *l);
    if (!l)
        return titan_fail(err, TITAN_ENOMEM, "layout: out of memory");
    l->model = o->model;
    l->mesh = o->mesh;
    l->stages = stages;
    l->v_order = o->v_order;
    l->canonical = o->canonical;
    l->coded = o->coded;
    l->cuts = MAX(o->cuts, 1);
    l->bucketed = o->bucketed;
    l->kinds = o->kinds;
    const titan_status status = fill(l, o, err);
    if (status != TITAN_OK) {
        layout_close(l);
        return status;
    }
    *ret = l;
    return TITAN_OK;
}

titan_status layout_of_recipe(const struct recipe *recipe, const struct model *model, const struct mesh *mesh,
                              struct layout **ret, struct titan_error *err)
{
    struct layout_options o = {
        .model = model,
        .mesh = *mesh,
        .canonical = recipe->numerics.canonical,
        .coded = strcmp(recipe->optimizer.state_dtype, "int8") == 0,
        .bucketed = codec_row(recipe_reduce_codec(recipe))->scaled || codec_row(recipe_replicate_codec(recipe))->scaled,
        .cuts = recipe_replicate_codec(recipe) != CODEC_NONE ? mesh_group_size(mesh, GROUP_REPLICATE) : 1,
        .kinds = optimizer_kinds(recipe),
        .recipe = recipe};
    const int pp = mesh->size[AXIS_PP];

    TRY(recipe_stages(recipe, &o.stages, err));
    _cleanup_free_ int *first_layer = calloc((size_t)o.stages + 1, sizeof *first_layer);
    if (!first_layer)
        return titan_fail(err, TITAN_ENOMEM, "layout: out of memory");
    TRY(recipe_split_layers(recipe, o.stages, first_layer, err));
    o.first_layer = first_layer;
    if (o.stages != pp) { /* the schedule decides if stages lie in a V; one stage per rank: both orders are the same */
        const int64_t total = recipe->training.global_batch_size / recipe_microbatch_rows(recipe);
        const int64_t ranks = mesh_batch_size(mesh);
        const int microbatches = (int)MAX((total + ranks - 1) / ranks, 1);
        const char *csv = recipe->parallelism.pipeline_parallel_schedule_csv;
        struct schedule *s = NULL;
        if (csv[0])
            TRY(schedule_load(csv, pp, o.stages, microbatches, &s, err));
        else
            TRY(schedule_generate(recipe->parallelism.pipeline_parallel_schedule, pp, o.stages, microbatches, &s, err));
        o.v_order = s->v_order;
        schedule_close(s);
    }
    TRY(layout_open(&o, ret, err));
    for (int i = 0; i < model->n_tensors && o.coded && optimizer_needs_sums(recipe); i++)
        if ((*ret)->tensors[i].offset % MOMENT_BLOCK != 0) {
            layout_close(*ret);
            *ret = NULL;
            return titan_fail(
                err, TITAN_EINVAL,
                "optimizer.state_dtype = \"int8\": StableAdamW has a rate for each tensor, and '%s' begins "
                "inside of a block of %d elements; use \"bfloat16\"",
                model->tensors[i].name, MOMENT_BLOCK);
        }
    return TITAN_OK;
}

void layout_close(struct layout *layout)
{
    if (!layout)
        return;
    free(layout->first_unit);
    free(layout->units);
    free(layout->tensors);
    free(layout->total);
    free(layout->kept);
    free(layout->specs);
    owners_close(layout->owners);
    free(layout);
}

/* --- what a rank has ---------------------------------------------------------------------------------------------- */

static int pp_rank(const struct layout *l, int rank)
{
    titan_assert(rank >= 0 && rank < l->mesh.world);
    return mesh_group_rank(&l->mesh, GROUP_PP, rank);
}

int64_t layout_total(const struct layout *layout, int rank)
{
    return layout->total[pp_rank(layout, rank)];
}

int64_t layout_state(const struct layout *layout, int rank)
{
    return layout->total[pp_rank(layout, rank)] + layout->kept[pp_rank(layout, rank)];
}

size_t layout_error_bytes(const struct layout *layout, int unit)
{
    const struct unit_layout *u = &layout->units[unit];
    const int ranks = mesh_group_size(&layout->mesh, u->group);

    return ranks > 1 ? (size_t)ranks * codec_error_bytes(u->shard) : 0;
}

size_t layout_replica_error_bytes(const struct layout *layout, int unit)
{
    const int replicas = mesh_group_size(&layout->mesh, GROUP_REPLICATE);
    const int64_t part = layout->units[unit].shard / replicas;

    return replicas > 1 ? (size_t)(replicas + 1) * codec_error_bytes(part) : 0;
}

int64_t layout_owned(const struct layout *layout, int rank)
{
    return layout->owners ? layout->owners->kept[pp_rank(layout, rank)] : 0;
}

int64_t layout_owned_span(const struct layout *layout, int rank, int kind)
{
    return layout->kinds.owned >> kind & 1 ? layout->owners->span[pp_rank(layout, rank)][kind] : 0;
}

int64_t layout_unit_kept(const struct layout *layout, int unit)
{
    int64_t n = 0;

    for (int k = 0; k < layout->kinds.n; k++)
        n += layout->units[unit].span[k];
    return n;
}

unsigned layout_kinds(const struct layout *layout, int tensor)
{
    return model_is_layer_matrix(layout->model, tensor) ? layout->kinds.matrices : layout->kinds.rest;
}

int64_t layout_place(const struct layout *layout, int tensor, int rank, int kind)
{
    const struct model_unit *u = &layout->model->units[layout->model->tensors[tensor].unit];
    const struct unit_layout *unit = &layout->units[layout->model->tensors[tensor].unit];
    const int64_t begin = layout_begin(layout, layout->model->tensors[tensor].unit, rank), end = begin + unit->shard;
    int64_t place = 0;

    titan_assert((layout_kinds(layout, tensor) & ~layout->kinds.owned) >> kind & 1);
    if (unit->span[kind] >= unit->shard)
        return MAX(layout->tensors[tensor].offset - begin, 0);
    for (int i = u->first_tensor; i < u->first_tensor + u->n_tensors; i++) {
        const struct local_tensor *t = &layout->tensors[i];
        if (t->offset < layout->tensors[tensor].offset && layout_kinds(layout, i) >> kind & 1)
            place += MAX(MIN(t->next, end) - MAX(t->offset, begin), 0);
    }
    return place;
}

int64_t layout_blocks_end(const struct layout *layout, int tensor)
{
    const struct model_unit *u = &layout->model->units[layout->model->tensors[tensor].unit];
    const struct local_tensor *t = &layout->tensors[tensor];
    int64_t end = t->offset + t->rows * t->cols;

    titan_assert(layout->coded);
    if (t->offset % MOMENT_BLOCK != 0)
        return 0;
    for (int i = tensor + 1; i < u->first_tensor + u->n_tensors && layout->model->tensors[i].glued; i++) {
        t = &layout->tensors[i];
        if (t->offset % MOMENT_BLOCK == 0)
            break;
        titan_assert(t->offset == end && layout_kinds(layout, i) == layout_kinds(layout, tensor));
        end = t->offset + t->rows * t->cols;
    }
    return end;
}

int64_t layout_begin(const struct layout *layout, int unit, int rank)
{
    titan_assert(unit >= 0 && unit < layout->model->n_units);
    const struct unit_layout *u = &layout->units[unit];
    return u->shard * mesh_group_rank(&layout->mesh, u->group, rank);
}

int64_t layout_counted(const struct layout *layout, int unit, int rank)
{
    const struct unit_layout *u = &layout->units[unit];
    const int64_t begin = layout_begin(layout, unit, rank);
    int64_t end = layout->canonical ? layout_unit_blocks(layout, unit) * u->block : u->numel;

    if (pp_rank(layout, rank) != u->pp_rank || mesh_group_rank(&layout->mesh, GROUP_REPLICATE, rank) != 0)
        return 0;
    if (layout_unit_part(layout, unit, rank) != 0)
        end = MIN(end, u->whole);
    return MAX(MIN(begin + u->shard, end) - begin, 0);
}

int64_t layout_unit_blocks(const struct layout *layout, int unit)
{
    const struct unit_layout *u = &layout->units[unit];
    return (u->numel + u->block - 1) / u->block;
}

int64_t layout_expert_numel(const struct layout *layout, int tensor)
{
    const struct model_tensor *t = &layout->model->tensors[tensor];

    titan_assert(tensor >= 0 && tensor < layout->model->n_tensors);
    return t->numel / MAX(t->experts, 1);
}

int64_t layout_stretch(const struct layout *layout, int tensor)
{
    const struct model_tensor *t = &layout->model->tensors[tensor];
    const struct local_tensor *local = &layout->tensors[tensor];
    const int cut = expert_cut(layout, &layout->model->units[t->unit]);

    titan_assert(tensor >= 0 && tensor < layout->model->n_tensors);
    return cut == 1 || t->experts == 0 || cut_by_column(t) ? local->rows : t->shape[0] / t->experts / cut;
}

void layout_origin(const struct layout *layout, int tensor, int rank, int64_t from, int64_t *ret_row, int64_t *ret_col)
{
    const struct model_tensor *t = &layout->model->tensors[tensor];
    const struct local_tensor *local = &layout->tensors[tensor];

    titan_assert(tensor >= 0 && tensor < layout->model->n_tensors && from >= 0);
    if (t->experts == 0 || expert_cut(layout, &layout->model->units[t->unit]) == 1) {
        const int part = t->split == SPLIT_NONE ? 0 : layout_unit_part(layout, t->unit, rank);
        titan_assert(from == 0);
        *ret_row = t->split == SPLIT_COLS ? 0 : part * local->rows;
        *ret_col = t->split == SPLIT_COLS ? part * local->cols : 0;
        return;
    }

    /* Experts are cut; `from` is the first row of a stretch. */
    const struct mesh *m = &layout->mesh;
    const int64_t expert = t->experts / mesh_group_size(m, GROUP_EP) * mesh_group_rank(m, GROUP_EP, rank);
    const int64_t rows = t->shape[0] / t->experts; /* rows of one expert */
    const int part = mesh_group_rank(m, GROUP_TP, rank);
    *ret_col = cut_by_column(t) ? part * local->cols : 0;
    if (cut_by_column(t)) {
        *ret_row = expert * rows + from;
        return;
    }
    const int64_t stretch = layout_stretch(layout, tensor);
    titan_assert(from % stretch == 0);
    *ret_row = (expert + from / stretch) * rows + part * stretch;
}

/* --- expert biases ------------------------------------------------------------------------------------------------ */

static int mixture_layers(const struct model *model)
{
    const struct model_dims *d = &model->dims;
    return d->n_experts > 0 ? (int)MAX(model_all_layers(model) - d->n_dense_layers, 0) : 0;
}

static int balanced_layers(const struct model *model)
{
    return model->dims.balance_rate > 0 || model->dims.expert_bias ? mixture_layers(model) : 0;
}

int64_t layout_biases(const struct model *model)
{
    return balanced_layers(model) * model->dims.n_experts;
}

int64_t layout_all_experts(const struct model *model)
{
    return mixture_layers(model) * model->dims.n_experts;
}

int64_t layout_bias_offset(const struct model *model, int layer)
{
    titan_assert(layer >= model->dims.n_dense_layers && layer < model_all_layers(model));
    return (layer - model->dims.n_dense_layers) * model->dims.n_experts;
}

/* --- slices ------------------------------------------------------------------------------------------------------- */

static void tensor_spec(struct tensor_spec *s, const char *kind, const struct model_tensor *t)
{
    (void)snprintf(s->name, sizeof s->name, "%s%s%s%.72s", kind ? "optim." : "", kind ? kind : "", kind ? "." : "",
                   t->name);
    s->ndim = model_tensor_shape(t, s->shape);
    s->numel = t->numel;
}

static void bias_specs(struct tensor_spec *ret, const struct model *model)
{
    for (int i = 0; i < balanced_layers(model); i++) {
        struct tensor_spec *s = &ret[i];
        (void)snprintf(s->name, sizeof s->name, "layers.%d.moe.expert_bias", (int)model->dims.n_dense_layers + i);
        s->ndim = 1;
        s->shape[0] = s->numel = model->dims.n_experts;
    }
}

titan_status layout_specs(const struct layout *layout, struct tensor_spec **ret, int *ret_n, struct titan_error *err)
{
    const struct model *m = layout->model;
    const int n = layout->n_specs + balanced_layers(m);
    struct tensor_spec *specs = calloc((size_t)n, sizeof *specs);

    if (!specs)
        return titan_fail(err, TITAN_ENOMEM, "layout: out of memory");
    for (int i = 0; i < layout->n_specs; i++) {
        const struct state_spec *s = &layout->specs[i];
        tensor_spec(&specs[i], s->kind == 0 ? NULL : layout->kinds.name[s->kind - 1], &m->tensors[s->tensor]);
        if (s->kind == 0 || !(layout->kinds.owned >> (s->kind - 1) & 1))
            continue;
        /* All matrices of a tensor have states of one shape. */
        const struct owned_matrix *const x = &layout->owners->matrices[layout->owners->first[s->tensor]];
        specs[i].shape[specs[i].ndim - 2] = x->state[s->kind - 1].rows;
        specs[i].shape[specs[i].ndim - 1] = x->state[s->kind - 1].cols;
        specs[i].numel = specs[i].ndim == 3 ? specs[i].shape[0] : 1;
        specs[i].numel *= x->state[s->kind - 1].rows * x->state[s->kind - 1].cols;
    }
    bias_specs(specs + layout->n_specs, m);
    *ret = specs;
    *ret_n = n;
    return TITAN_OK;
}

titan_status layout_weight_specs(const struct model *model, struct tensor_spec **ret, int *ret_n,
                                 struct titan_error *err)
{
    const int n = model->n_tensors + balanced_layers(model);
    struct tensor_spec *specs = calloc((size_t)n, sizeof *specs);

    if (!specs)
        return titan_fail(err, TITAN_ENOMEM, "layout: out of memory");
    for (int i = 0; i < model->n_tensors; i++)
        tensor_spec(&specs[i], NULL, &model->tensors[i]);
    bias_specs(specs + model->n_tensors, model);
    *ret = specs;
    *ret_n = n;
    return TITAN_OK;
}

bool layout_spec_is_kept(const struct layout *layout, int spec)
{
    return spec < layout->n_specs && layout->specs[spec].kind > 0;
}

bool layout_spec_is_each(const struct layout *layout, int spec)
{
    return layout_spec_is_kept(layout, spec) && layout->kinds.each >> (layout->specs[spec].kind - 1) & 1;
}

int64_t layout_each_begin(const struct layout *layout, int unit)
{
    int64_t n = 0;

    titan_assert(layout->kinds.each);
    for (int k = 0; !(layout->kinds.each >> k & 1); k++)
        n += layout->units[unit].span[k];
    return n;
}

int64_t layout_each_place(const struct layout *layout, const struct shard_slice *slice)
{
    titan_assert(layout_spec_is_each(layout, slice->tensor));
    const int unit = layout->model->tensors[layout->specs[slice->tensor].tensor].unit;
    const struct unit_layout *const u = &layout->units[unit];
    const int64_t in_unit = slice->at - u->offset - u->kept - u->shard - layout_each_begin(layout, unit);

    titan_assert(in_unit >= 0 && in_unit + slice->rows * slice->cols <= u->shard);
    return u->offset + in_unit;
}

bool layout_spec_is_bias(const struct layout *layout, int spec)
{
    return spec >= layout->n_specs;
}

struct collector {
    const struct layout *layout;
    int rank;
    float *state;
    bool (*takes)(void *arg, int unit, enum share share);
    void *arg;
    struct shard_slice *slices;
    int n;
};

static bool wanted(const struct collector *c, int unit, enum share share)
{
    return c->layout->units[unit].pp_rank == pp_rank(c->layout, c->rank) &&
           (!c->takes || c->takes(c->arg, unit, share));
}

/* Adds the state of the matrices of a tensor that the rank owns. */
static void add_owned(struct collector *c, int spec)
{
    const int tensor = c->layout->specs[spec].tensor, kind = c->layout->specs[spec].kind;
    const struct layout *l = c->layout;
    const int me = mesh_group_rank(&l->mesh, GROUP_OWNERS, c->rank);

    for (int i = l->owners->first[tensor]; i < l->owners->first[tensor + 1]; i++) {
        const struct owned_matrix *const x = &l->owners->matrices[i];
        const int64_t rows = x->state[kind - 1].rows;
        const int64_t at = layout_state(l, c->rank) - layout_owned(l, c->rank) + x->state[kind - 1].at;
        if (x->owner == me)
            c->slices[c->n++] = (struct shard_slice){.tensor = spec,
                                                     .row = (i - l->owners->first[tensor]) * rows,
                                                     .rows = rows,
                                                     .cols = x->state[kind - 1].cols,
                                                     .at = at,
                                                     .data = c->state ? c->state + at : NULL};
    }
}

/* Adds boxes for the rank's part of a spec. */
static void add_spec(struct collector *c, int spec)
{
    const int tensor = c->layout->specs[spec].tensor, kind = c->layout->specs[spec].kind;
    const struct layout *l = c->layout;
    const struct model_tensor *of = &l->model->tensors[tensor];
    const struct unit_layout *u = &l->units[of->unit];
    const struct local_tensor *t = &l->tensors[tensor];

    const bool owned = kind > 0 && l->kinds.owned >> (kind - 1) & 1; /* one rank of each replica has it */
    if (!wanted(c, of->unit, of->split == SPLIT_NONE && !owned ? SHARE_WHOLE : SHARE_CUT))
        return;
    if (owned) {
        add_owned(c, spec);
        return;
    }
    const int64_t begin = layout_begin(l, of->unit, c->rank), stretch = layout_stretch(l, tensor) * t->cols;
    const int64_t to = MIN(begin + u->shard - t->offset, t->rows * t->cols); /* elements of the local part */
    const int64_t at_first = MAX(begin - t->offset, 0);
    if (at_first >= to)
        return;
    int64_t place = u->offset + u->kept; /* of the part's first element in the state */
    place += kind == 0 ? at_first + t->offset - begin : u->shard + layout_place(l, tensor, c->rank, kind - 1);
    for (int k = 0; k < kind - 1; k++)
        place += u->span[k];
    for (int64_t from = at_first, end; from < to; from = end) {
        const int64_t first = from / stretch * stretch;
        int64_t at = place + from - at_first;
        struct shard_slice slices[SHARD_SLICES_BETWEEN_MAX];
        int64_t row, col;
        end = MIN(to, first + stretch);
        layout_origin(l, tensor, c->rank, first / t->cols, &row, &col);
        const int n = shard_slices_between(t->cols, from - first, end - first, slices);
        for (int i = 0; i < n; i++) {
            struct shard_slice *p = &c->slices[c->n++];
            *p = slices[i];
            p->tensor = spec;
            p->row += row;
            p->col += col;
            p->at = at;
            p->data = c->state ? c->state + at : NULL;
            at += p->rows * p->cols;
        }
    }
}

titan_status layout_slices(const struct layout *layout, int rank, float *state, float *biases,
                           bool (*takes)(void *arg, int unit, enum share share), void *arg, struct shard_slice **ret,
                           int *ret_n, struct titan_error *err)
{
    const struct model *model = layout->model;
    struct collector c = {.layout = layout, .rank = rank, .state = state, .takes = takes, .arg = arg};

    size_t stretches = (size_t)balanced_layers(model);

    titan_assert(rank >= 0 && rank < layout->mesh.world);
    for (int i = 0; i < model->n_tensors; i++) {
        const int64_t stretch = MAX(layout_stretch(layout, i), 1);
        stretches += (size_t)(1 + layout->kinds.n) * (size_t)((layout->tensors[i].rows + stretch - 1) / stretch);
        stretches += layout->owners ? (size_t)(layout->kinds.n * MAX(model->tensors[i].experts, 1)) : 0;
    }
    c.slices = calloc(stretches * SHARD_SLICES_BETWEEN_MAX + 1, sizeof *c.slices);
    if (!c.slices)
        return titan_fail(err, TITAN_ENOMEM, "layout: out of memory");
    for (int spec = 0; spec < layout->n_specs; spec++)
        add_spec(&c, spec);
    for (int i = 0; i < balanced_layers(model); i++) {
        const int layer = (int)model->dims.n_dense_layers + i;
        const int64_t offset = layout_bias_offset(model, layer);
        if (wanted(&c, model_layer_unit(model, layer), SHARE_BIAS))
            c.slices[c.n++] = (struct shard_slice){.tensor = layout->n_specs + i,
                                                   .rows = 1,
                                                   .cols = model->dims.n_experts,
                                                   .at = layout_state(layout, rank) + offset,
                                                   .data = biases ? biases + offset : NULL};
    }
    *ret = c.slices;
    *ret_n = c.n;
    return TITAN_OK;
}

struct owner {
    const struct layout *layout;
    int rank;
};

static bool answers_for(void *arg, int unit, enum share share)
{
    const struct owner *o = arg;
    const struct mesh *mesh = &o->layout->mesh;

    if (share == SHARE_BIAS)
        return o->rank % (mesh->world / mesh->size[AXIS_PP]) == 0;
    return mesh_group_rank(mesh, GROUP_REPLICATE, o->rank) == 0 &&
           (share == SHARE_CUT || layout_unit_part(o->layout, unit, o->rank) == 0);
}

titan_status layout_owned_slices(const struct layout *layout, int rank, float *state, float *biases,
                                 struct shard_slice **ret, int *ret_n, struct titan_error *err)
{
    struct owner o = {layout, rank};
    return layout_slices(layout, rank, state, biases, answers_for, &o, ret, ret_n, err);
}
