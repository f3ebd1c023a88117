/* SPDX-License-Identifier: Apache-2.0 */
/* gradients.c - the way of a step's weight gradients: sums within the rank, sums across ranks, norm and update. */
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "worker/device/parts.h"
#include "worker/optim/whole_matrix.h"
#include "worker/plan/builder.h"

/* --- within the rank ---------------------------------------------------------------------------------------------- */

static int64_t padded_of(const struct builder *b, int unit)
{
    return b->layout->units[unit].padded;
}

static int new_gradient(struct builder *b, int unit, int slot)
{
    const int saved_unit = b->e.unit, saved_slot = b->e.microbatch;

    b->e.unit = unit;
    b->e.microbatch = slot;
    const int buffer = emit_buffer(&b->e, BUF_GRAD, "gradient", (size_t)padded_of(b, unit) * sizeof(float));
    b->e.unit = saved_unit;
    b->e.microbatch = saved_slot;
    return buffer;
}

int gradients_buffer(struct builder *b, int unit, int slot, bool *ret_first)
{
    const bool whole_step = b->summing == SUM_STEP;
    int *const grad = &b->units[unit].grad[whole_step ? 0 : slot];

    *ret_first = *grad == NONE;
    if (!*ret_first)
        return *grad;
    *grad = new_gradient(b, unit, whole_step ? NONE : slot);
    for (int part = 1; part < b->units[unit].parts; part++)
        (void)new_gradient(b, unit, slot);
    return *grad;
}

/* The gradient of (unit, slot) as a matrix with a row for each member. It is zeros if this rank has contributed
 * nothing. */
static struct tensor gradient_or_zeros(struct builder *b, int unit, int slot)
{
    bool first;
    const int buffer = gradients_buffer(b, unit, slot, &first);
    const int64_t members = unit_group_size(b, unit);
    const struct tensor t = tensor_at(buffer, 0, DTYPE_F32, members, b->layout->units[unit].shard);

    if (first)
        EMIT(&b->e, zero, t);
    return t;
}

/* Tensors that tp ranks, or ranks with other parts of a layer that rotates, hold whole get a part of their gradient
 * from each rank's tokens or heads. They are summed before the unit's gradient is cut into ranges, because the ranges
 * do not end where these tensors begin. Experts' tensors are not summed here: they are cut over ep, so no rank holds
 * one whole. */
static void sum_whole_tensors(struct builder *b, int unit, struct tensor gradient)
{
    const struct unit_layout *u = &b->layout->units[unit];

    if (u->cut == GROUP_EP || u->whole >= u->numel)
        return;
    emit_all_reduce(&b->e, u->sum,
                    tensor_at(gradient.buffer, (size_t)u->whole * sizeof(float), DTYPE_F32, 1, u->numel - u->whole));
}

/* --- across ranks: sums in the tree ------------------------------------------------------------------------------- */

struct add_list {
    struct tree_sum *sum;
    bool failed;
};

static void note_add(void *arg, int left, int right)
{
    struct add_list *list = arg;
    struct tree_sum *const s = list->sum;

    if (list->failed)
        return;
    list->failed = !VEC_PUSH(s->adds, s->n, s->cap, (struct tree_add){.left = left, .right = right});
}

/* The subtrees that one batch rank adds by itself. */
static struct tree_stack subtrees_of(const struct builder *b, int batch_rank)
{
    struct tree_stack own = {.leaves = b->opt->microbatches};
    int64_t from, to;

    tree_share(own.leaves, mesh_batch_size(&b->layout->mesh), batch_rank, &from, &to);
    for (int64_t i = from; i < to; i++)
        tree_push(&own, (struct tree_node){.level = 0, .index = i}, 0, NULL, NULL);
    titan_assert(own.depth <= TREE_DEPTH_MAX);
    return own;
}

/* How ranks share units of one kind. `together` consecutive ranks send their slices together. A batch rank consists of
 * `tokens` ranks; each holds a part of the batch rank's tokens. */
struct sharing {
    int tokens, together;
};

static struct sharing sharing_of(const struct builder *b, bool experts)
{
    const struct mesh *m = &b->layout->mesh;
    if (!experts)
        return (struct sharing){m->size[AXIS_CP], 1};
    return (struct sharing){m->size[AXIS_CP] * m->size[AXIS_TP], b->expert_parts};
}

/* Number of slices of the first n ranks that send together with rank `at`. Ranks are counted through all replicas.
 * Ranks that send together have their slices one behind the other. */
static int slices_before(const struct builder *b, struct sharing s, int at, int n)
{
    const int first = at / s.together * s.together;
    int slices = 0;

    for (int i = first; i < first + n; i++)
        slices += subtrees_of(b, i / s.tokens).depth;
    return slices;
}

/* Slices arrive ordered by replica, then by sender, then by rank, then by subtree. Every part of the tokens has a tree
 * of its own over the ranks of the batch. The trees' sums are added in the parts' order. */
static titan_status plan_sum(const struct builder *b, struct sharing s, struct tree_sum *ret, struct titan_error *err)
{
    const int ranks = mesh_batch_size(&b->layout->mesh);
    struct add_list list = {.sum = ret};

    titan_assert(ranks * s.tokens % s.together == 0);
    for (int at = 0; at < ranks * s.tokens; at += s.together)
        ret->slices = MAX(ret->slices, slices_before(b, s, at, s.together));
    if (ret->slices >= FORMS_MAX)
        return titan_fail(err, TITAN_EINVAL,
                          "canonical sums of experts over ep = %d ranks are of %d parts, %d at most: use a smaller ep, "
                          "or microbatches in powers of two",
                          s.together, ret->slices, FORMS_MAX - 1);
    for (int c = 0; c < s.tokens; c++) {
        struct tree_stack all = {.leaves = b->opt->microbatches};
        for (int r = 0; r < ranks; r++) {
            const struct tree_stack own = subtrees_of(b, r);
            const int at = r * s.tokens + c;
            const int from = at / s.together * ret->slices + slices_before(b, s, at, at % s.together);
            for (int k = 0; k < own.depth; k++)
                tree_push(&all, own.node[k], from + k, note_add, &list);
        }
        titan_assert(all.depth == 1);
        if (c == 0)
            ret->root = all.id[0];
        else
            note_add(&list, ret->root, all.id[0]);
    }
    return list.failed ? titan_fail(err, TITAN_ENOMEM, "program: out of memory") : TITAN_OK;
}

titan_status gradients_plan(struct builder *b, struct titan_error *err)
{
    struct program *const p = b->e.p;

    p->canonical = b->summing == SUM_CANONICAL;
    if (!p->canonical)
        return TITAN_OK;
    TRY(plan_sum(b, sharing_of(b, false), &p->sum, err));
    return b->model->dims.n_experts > 0 ? plan_sum(b, sharing_of(b, true), &p->sum_experts, err) : TITAN_OK;
}

struct merge {
    struct builder *b;
    int unit, part;
};

static void merge_gradients(void *arg, int left, int right)
{
    const struct merge *m = arg;
    struct builder *const b = m->b;
    const int *const grad = b->units[m->unit].grad;
    const int64_t n = padded_of(b, m->unit);

    titan_assert(left < right && right < b->share && grad[left] != NONE && grad[right] != NONE);
    EMIT(&b->e, accumulate, tensor_at(grad[left] + m->part, 0, DTYPE_F32, 1, n),
         tensor_at(grad[right] + m->part, 0, DTYPE_F32, 1, n));
}

/* Puts a microbatch's gradient into the tree, and adds subtrees that have become siblings. A schedule may finish
 * microbatches in any order, but the tree's order of additions is fixed. */
static void push_gradient(struct builder *b, int unit, int slot)
{
    struct unit_state *const u = &b->units[unit];
    struct merge merge = {.b = b, .unit = unit};

    titan_assert(slot < b->share && !u->done[slot]);
    u->done[slot] = true;
    b->e.microbatch = NONE;
    for (; u->next < b->share && u->done[u->next]; u->next++)
        for (merge.part = 0; merge.part < u->parts; merge.part++) {
            int64_t first = b->from, end;
            /* The ranks that share experts belong to one batch rank, or they make up several consecutive batch
             * ranks. */
            const struct sharing s = sharing_of(b, true);
            const int together = s.together / s.tokens;
            if (u->parts > 1 && together > 1) {
                tree_share(b->opt->microbatches, mesh_batch_size(&b->layout->mesh),
                           b->batch_rank / together * together + merge.part / s.tokens, &first, &end);
                titan_assert(end - first == b->share);
            }
            tree_push(&u->trees[merge.part], (struct tree_node){.level = 0, .index = first + u->next}, (int)u->next,
                      merge_gradients, &merge);
        }
}

/* Sends the slices of every subtree on this rank, one slice to each member that owns a part. */
static void exchange_subtrees(struct builder *b, int unit)
{
    struct unit_state *const u = &b->units[unit];
    const struct unit_layout *layout = &b->layout->units[unit];
    const int64_t members = unit_group_size(b, unit);
    struct tensor gradients[FORMS_MAX];
    int n = 0;

    b->e.microbatch = NONE;
    if (members == 1 && mesh_group_size(&b->layout->mesh, GROUP_REPLICATE) == 1 && u->parts == 1) {
        titan_assert(u->trees[0].depth == 1);
        u->reduced = tensor_at(u->grad[u->trees[0].id[0]], 0, DTYPE_F32, 1, layout->shard);
        return;
    }

    const int slots = program_tree_sum(b->e.p, unit)->slices;
    const struct tensor packed =
        emit_tensor(&b->e, BUF_EXCHANGE, "slices to send", DTYPE_F32, members * slots, layout->shard);
    for (int part = 0; part < u->parts; part++)
        for (int i = 0; i < u->trees[part].depth; i++) {
            titan_assert(n < slots && n < FORMS_MAX);
            gradients[n++] = tensor_at(u->grad[u->trees[part].id[i]] + part, 0, DTYPE_F32, members, layout->shard);
        }
    emit_pack(&b->e, packed, gradients, n, members);

    u->received = packed;
    if (members > 1) {
        u->received = emit_tensor(&b->e, BUF_EXCHANGE, "slices received", DTYPE_F32, packed.rows, packed.cols);
        emit_all_to_all(&b->e, layout->reduce, u->received, packed);
    }
    u->received = emit_all_gather(&b->e, CHANNEL_REPLICATE, BUF_EXCHANGE, "slices of all replicas", u->received);
}

/* --- across ranks: codes ------------------------------------------------------------------------------------------ */

bool build_forwards(const struct build_options *options, int unit)
{
    const struct layout *const l = options->layout;
    const struct unit_layout *const u = &l->units[unit];
    const int ranks = mesh_group_size(&l->mesh, u->group);
    const bool alone = mesh_group_size(&l->mesh, GROUP_REPLICATE) == 1 &&
                       !owners_have(l->owners, &l->model->units[unit]) && !(unit == 0 && layout_tied_across_ranks(l));

    return options->buddies && options->codec != CODEC_NONE && ranks > 1 && alone &&
           (size_t)ranks * codec_bytes(options->codec, u->shard) < (size_t)u->shard * sizeof(float);
}

/* The gradient has a row for each rank of the group, and so have the codes. All is on the reductions' stream. */
static struct tensor reduce_as_codes(struct builder *b, int unit, struct tensor gradient)
{
    const enum codec codec = b->opt->codec;
    const int64_t bytes = (int64_t)codec_bytes(codec, gradient.cols);
    const int error = b->units[unit].error;
    const struct tensor kept =
        error == NONE ? TENSOR_NONE : tensor_at(error, 0, DTYPE_U8, 1, (int64_t)layout_error_bytes(b->layout, unit));

    const struct tensor codes = emit_tensor(&b->e, BUF_EXCHANGE, "codes to send", DTYPE_U8, gradient.rows, bytes);
    b->e.stream = STREAM_REDUCE;
    struct tensor largest = TENSOR_NONE;
    if (b->opt->tensor_scales && codec_row(codec)->scaled) {
        const int tensors = b->model->units[unit].n_tensors;
        const struct tensor of_tensor = emit_tensor(&b->e, BUF_WORK, "largest of tensors", DTYPE_F32, 1, tensors);
        largest =
            emit_tensor(&b->e, BUF_WORK, "largest of buckets", DTYPE_F32, gradient.rows, codec_buckets(gradient.cols));
        EMIT(&b->e, bucket_largest, largest, of_tensor, gradient, kept);
    }
    EMIT(&b->e, encode, codes, gradient, kept, largest, .codec = codec, .stochastic = b->opt->stochastic,
         .decay = b->opt->error_decay);
    const struct tensor received = emit_tensor(&b->e, BUF_EXCHANGE, "codes received", DTYPE_U8, gradient.rows, bytes);
    emit_all_to_all(&b->e, b->layout->units[unit].reduce, received, codes);
    const struct tensor sum = emit_tensor(&b->e, BUF_GRAD_SHARD, "gradient shard", DTYPE_F32, 1, gradient.cols);
    EMIT(&b->e, decode_sum, sum, received, .codec = codec);
    if (unit_is_mine(b, unit) && build_forwards(b->opt, unit))
        b->units[unit].codes = received;
    b->e.stream = STREAM_COMPUTE;
    return sum;
}

/* --- where a unit's gradient is whole ----------------------------------------------------------------------------- */

/* Codes that this rank sends its replicas: a piece for each row of x. Errors of x are the unit's, from byte `error` on.
 */
static struct tensor encode_for_replicas(struct builder *b, int unit, struct tensor x, size_t error)
{
    const enum codec codec = b->opt->replicate_codec;
    const int kept = b->units[unit].replica_error;

    const struct tensor codes =
        emit_tensor(&b->e, BUF_EXCHANGE, "codes for replicas", DTYPE_U8, x.rows, (int64_t)codec_bytes(codec, x.cols));
    b->e.stream = STREAM_REDUCE;
    EMIT(&b->e, encode, codes, x,
         kept == NONE ? TENSOR_NONE : tensor_at(kept, error, DTYPE_U8, 1, x.rows * (int64_t)codec_error_bytes(x.cols)),
         TENSOR_NONE, .codec = codec, .decay = b->opt->error_decay);
    return codes;
}

/* The sum over replicas as codes, in two phases (build.h). All is on the reductions' stream. */
static void sum_replicas_as_codes(struct builder *b, int unit)
{
    const enum codec codec = b->opt->replicate_codec;
    const int64_t replicas = mesh_group_size(&b->layout->mesh, GROUP_REPLICATE);
    struct unit_state *const u = &b->units[unit];
    const int64_t shard = b->layout->units[unit].shard, piece = shard / replicas;

    titan_assert(shard % replicas == 0);
    b->e.microbatch = NONE;
    const struct tensor codes =
        encode_for_replicas(b, unit, tensor_at(u->reduced.buffer, u->reduced.offset, DTYPE_F32, replicas, piece), 0);
    const struct tensor received =
        emit_tensor(&b->e, BUF_EXCHANGE, "codes of replicas", DTYPE_U8, replicas, codes.cols);
    emit_all_to_all(&b->e, CHANNEL_REPLICATE, received, codes);
    const struct tensor sum = emit_tensor(&b->e, BUF_EXCHANGE, "piece of the replicas' sum", DTYPE_F32, 1, piece);
    EMIT(&b->e, decode_sum, sum, received, .codec = codec);
    const struct tensor own = encode_for_replicas(b, unit, sum, (size_t)replicas * codec_error_bytes(piece));
    const struct tensor all =
        emit_all_gather(&b->e, CHANNEL_REPLICATE, BUF_EXCHANGE, "codes of the replicas' sum", own);
    u->reduced = emit_tensor(&b->e, BUF_GRAD_SHARD, "gradient shard", DTYPE_F32, 1, shard);
    EMIT(&b->e, decode, tensor_reshape(u->reduced, replicas, piece), all, .codec = codec);
    b->e.stream = STREAM_COMPUTE;
}

/* Replicas sum a unit's gradient, unless they send each other parts of their directions later. */
static void sum_replicas(struct builder *b, int unit)
{
    if (layout_replicas_differ(b->layout))
        return;
    if (b->opt->replicate_codec != CODEC_NONE && mesh_group_size(&b->layout->mesh, GROUP_REPLICATE) > 1)
        sum_replicas_as_codes(b, unit);
    else
        emit_all_reduce(&b->e, CHANNEL_REPLICATE, b->units[unit].reduced);
}

void gradients_close(struct builder *b, int unit, int slot, bool last)
{
    const struct unit_layout *const layout = &b->layout->units[unit];
    struct unit_state *const u = &b->units[unit];

    titan_assert(unit_adds_here(b, unit) && slot < b->share_max);
    builder_stamp(b, PHASE_REDUCE, unit, layout->stage, b->summing == SUM_STEP ? NONE : slot);
    switch (b->summing) {
    case SUM_STEP:
        if (last) {
            const struct tensor gradient = gradient_or_zeros(b, unit, 0);
            sum_whole_tensors(b, unit, gradient);
            u->reduced = b->opt->codec != CODEC_NONE && gradient.rows > 1
                             ? reduce_as_codes(b, unit, gradient)
                             : emit_reduce_scatter(&b->e, layout->reduce, BUF_GRAD_SHARD, "gradient shard", gradient);
            sum_replicas(b, unit);
        }
        break;
    case SUM_MICROBATCH: {
        const struct tensor gradient = gradient_or_zeros(b, unit, slot);
        sum_whole_tensors(b, unit, gradient);
        if (!tensor_exists(u->reduced)) {
            b->e.microbatch = NONE;
            u->reduced = emit_reduce_scatter(&b->e, layout->reduce, BUF_GRAD_SHARD, "gradient shard", gradient);
        } else {
            /* The shards are added on the reductions' stream, so that the compute stream need not wait for them. */
            const struct tensor part =
                emit_reduce_scatter(&b->e, layout->reduce, BUF_EXCHANGE, "gradient shard of a microbatch", gradient);
            b->e.stream = STREAM_REDUCE;
            EMIT(&b->e, accumulate, u->reduced, part);
            b->e.stream = STREAM_COMPUTE;
        }
        if (last)
            sum_replicas(b, unit);
        break;
    }
    case SUM_CANONICAL:
        if (slot < b->share) {
            /* this sum comes before the tree's additions, so that a microbatch's gradient is the same on whatever rank
             * it is computed */
            sum_whole_tensors(b, unit, tensor_at(u->grad[slot], 0, DTYPE_F32, 1, padded_of(b, unit)));
            push_gradient(b, unit, slot);
        }
        if (last)
            exchange_subtrees(b, unit);
        break;
    }
    titan_assert(b->n_reduced < b->model->n_units);
    if (last)
        b->reduced[b->n_reduced++] = unit;
}

/* --- the end of the step ------------------------------------------------------------------------------------------ */

/* A unit's state as bytes. */
static struct tensor state_of(const struct builder *b, int unit, int buffer)
{
    return tensor_at(buffer, 0, DTYPE_U8, 1, (int64_t)builder_state_bytes(b, unit));
}

/* Units that one action updates. */
struct updates {
    int n;
    struct tensor of[OP_PARTS][UPDATE_OPERANDS];
};

static void emit_updates(struct builder *b, struct updates *updates)
{
    if (updates->n > 0)
        emit_optimise(&b->e, updates->of, updates->n);
    updates->n = 0;
}

/* Adds a unit to the next launch. All updates wait for the same decision, and the next step waits for all updates, so a
 * common launch delays nothing. State in host memory is instead updated unit by unit, as it arrives. */
static void add_update(struct builder *b, struct updates *updates, int unit, int state)
{
    const struct unit_state *u = &b->units[unit];
    const int most = b->opt->update_together && !b->opt->offload ? OP_PARTS : 1;

    if (updates->n == 0)
        builder_stamp(b, PHASE_UPDATE, unit, NONE, NONE);
    struct tensor *const to = updates->of[updates->n++];
    to[OPERAND_OF(optimise, state)] = state_of(b, unit, state);
    to[OPERAND_OF(optimise, shard)] = tensor_at(u->shard, 0, b->opt->dt, 1, b->layout->units[unit].shard);
    to[OPERAND_OF(optimise, gradient)] = u->reduced;
    if (updates->n == most)
        emit_updates(b, updates);
}

/* Copies a unit's state from host memory, while the state of the unit before is updated. */
static struct tensor stage_state(struct builder *b, int unit)
{
    const struct tensor state = state_of(b, unit, b->units[unit].state);

    titan_assert(b->opt->offload);
    builder_stamp(b, PHASE_UPDATE, unit, NONE, NONE);
    b->e.stream = STREAM_COPY;
    const struct tensor staged = emit_tensor(&b->e, BUF_WORK, "staged state", DTYPE_U8, state.rows, state.cols);
    emit_copy(&b->e, staged, state);
    b->e.stream = STREAM_COMPUTE;
    return staged;
}

static int next_unit(const struct builder *b, int unit)
{
    do
        unit++;
    while (unit < b->model->n_units && !unit_is_mine(b, unit));
    return unit;
}

/* State of owned matrices, and what it is after the step. */
struct owned {
    struct tensor state, next;
};

/* Gathers each matrix at its owner, makes its direction there, and brings the direction to the ranges of the
 * gradient. */
static struct owned direct_matrices(struct builder *b, struct tensor sums)
{
    const struct owners *const o = b->layout->owners;
    const int64_t room = o->values[b->pp_rank], kept = o->kept[b->pp_rank];
    const int ranks = mesh_group_size(&b->layout->mesh, GROUP_OWNERS);
    const bool cut = b->layout->mesh.size[AXIS_TP] > 1; /* columns of matrices, too */
    _cleanup_free_ double *flops = calloc((size_t)ranks, sizeof *flops);
    double fullest = 0;
    size_t work = 1;

    if (!flops) {
        b->e.status = TITAN_ENOMEM;
        return (struct owned){TENSOR_NONE, TENSOR_NONE};
    }
    for (int i = 0; i < o->n; i++) {
        const struct owned_matrix *const x = &o->matrices[i];
        if (x->pp_rank != b->pp_rank)
            continue;
        flops[x->owner] += whole_flops(b->opt->whole, x->rows, x->cols, x->heads);
        fullest = MAX(fullest, flops[x->owner]);
        work = MAX(work, whole_work_bytes(b->opt->whole, b->opt->dt, x->rows, x->cols, x->heads));
        work = MAX(work, (size_t)(x->rows * x->cols / WHOLE_SUM_BLOCK + 1) * sizeof(double));
    }
    builder_stamp(b, PHASE_UPDATE, NONE, NONE, NONE);
    const struct tensor values = emit_tensor(&b->e, BUF_EXCHANGE, "owned matrices", DTYPE_F32, 1, room);
    const struct tensor cut_parts = emit_tensor(&b->e, BUF_EXCHANGE, "cut parts", DTYPE_F32, 1, cut ? room : 1);
    const struct tensor next = emit_tensor(&b->e, BUF_EXCHANGE, "state after the step", DTYPE_F32, 1, kept);
    const enum dtype moment = b->opt->types.moment;
    struct tensor state =
        tensor_at(b->owned, 0, moment, 1, moment == DTYPE_U8 ? (int64_t)moment_bytes(moment, kept) : kept);
    struct tensor masters = TENSOR_NONE;
    EMIT(&b->e, zero, values);
    if (whole_reads_weights(b->opt->whole)) {
        masters = emit_tensor(&b->e, BUF_EXCHANGE, "masters of owned matrices", DTYPE_F32, 1, room);
        EMIT(&b->e, zero, masters);
    }
    if (b->opt->offload) {
        b->e.stream = STREAM_COPY;
        const struct tensor staged = emit_tensor(&b->e, BUF_WORK, "staged state", state.dt, 1, state.cols);
        emit_copy(&b->e, staged, state);
        b->e.stream = STREAM_COMPUTE;
        state = staged;
    }
    for (int u = next_unit(b, NONE); u < b->model->n_units; u = next_unit(b, u))
        if (owners_have(o, &b->model->units[u])) {
            builder_stamp(b, PHASE_UPDATE, u, NONE, NONE);
            emit_to_owners(&b->e, values, cut_parts, b->units[u].reduced, false);
            if (!tensor_exists(masters))
                continue;
            const struct unit_state *const unit = &b->units[u];
            const bool shared = !b->opt->offload && b->opt->dt == DTYPE_F32; /* the shard is the masters */
            const int from = b->opt->offload ? stage_state(b, u).buffer : shared ? unit->shard : unit->state;
            builder_stamp(b, PHASE_UPDATE, u, NONE, NONE);
            emit_to_owners(&b->e, masters, cut_parts, tensor_at(from, 0, DTYPE_F32, 1, b->layout->units[u].shard),
                           true);
        }
    builder_stamp(b, PHASE_UPDATE, NONE, NONE, NONE);
    const struct tensor scratch = emit_tensor(&b->e, BUF_WORK, "directions", DTYPE_U8, 1, (int64_t)work);
    EMIT(&b->e, whole, sums, values, next, scratch, state, masters, .flops = (int64_t)fullest, .compute = b->opt->dt);
    for (int u = next_unit(b, NONE); u < b->model->n_units; u = next_unit(b, u))
        if (owners_have(o, &b->model->units[u])) {
            builder_stamp(b, PHASE_UPDATE, u, NONE, NONE);
            emit_from_owners(&b->e, b->units[u].reduced, cut_parts, values);
        }
    return (struct owned){state, next};
}

/* Takes out of a unit's gradient and residual what its replicas get, and gathers theirs. */
static void extract_parts(struct builder *b, int unit, struct tensor sums)
{
    const struct parts_shape *const z = &b->opt->parts;
    struct unit_state *const u = &b->units[unit];

    builder_stamp(b, PHASE_UPDATE, unit, NONE, NONE);
    const struct tensor sent =
        emit_tensor(&b->e, BUF_EXCHANGE, "parts to send", DTYPE_U8, 1, parts_bytes(z, b->layout->units[unit].shard));
    builder_stamp(b, PHASE_UPDATE, NONE, NONE, NONE); /* the sums are of all units */
    EMIT(&b->e, parts_extract, sums, sent, u->reduced, state_of(b, unit, u->state), .method = z->method,
         .kept = z->kept, .values = z->dt);
    builder_stamp(b, PHASE_UPDATE, unit, NONE, NONE);
    u->received = emit_all_gather(&b->e, CHANNEL_REPLICATE, BUF_EXCHANGE, "parts of all replicas", sent);
}

/* The direction section: work between the decision and the update that needs both the decision and peers. It writes
 * scratch memory alone. */
static struct owned direct(struct builder *b)
{
    const struct tensor sums = emit_tensor(&b->e, BUF_WORK, "tensor sums", DTYPE_F64, 1, b->e.p->statistics.sums);
    struct owned owned = {TENSOR_NONE, TENSOR_NONE};

    EMIT(&b->e, zero, sums);
    if (b->layout->owners && b->layout->owners->kept[b->pp_rank] > 0)
        owned = direct_matrices(b, sums);
    for (int u = next_unit(b, NONE); b->opt->tensor_sums && u < b->model->n_units; u = next_unit(b, u)) {
        const struct tensor state = b->opt->offload ? stage_state(b, u) : state_of(b, u, b->units[u].state);
        builder_stamp(b, PHASE_UPDATE, NONE, NONE, NONE); /* the state's buffer names the unit */
        EMIT(&b->e, tensor_sums, sums, state, b->units[u].reduced);
    }
    for (int u = next_unit(b, NONE); layout_replicas_differ(b->layout) && u < b->model->n_units; u = next_unit(b, u))
        extract_parts(b, u, sums);
    builder_stamp(b, PHASE_UPDATE, NONE, NONE, NONE);
    EMIT(&b->e, commit, sums);
    return owned;
}

void gradients_update(struct builder *b)
{
    const int units = b->model->n_units;

    titan_assert(!b->opt->forward_only);
    for (int i = 0; i < b->n_reduced; i++) { /* in the order in which the reductions end */
        const int unit = b->reduced[i];
        struct unit_state *const u = &b->units[unit];
        builder_stamp(b, PHASE_REDUCE, unit, b->layout->units[unit].stage, NONE);
        if (tensor_exists(u->received)) { /* slices are added only here, so that compute does not wait earlier */
            u->reduced =
                emit_tensor(&b->e, BUF_GRAD_SHARD, "gradient shard", DTYPE_F32, 1, b->layout->units[unit].shard);
            EMIT(&b->e, sum_tree, u->reduced, u->received);
        }
        titan_assert(tensor_exists(u->reduced) || b->e.status != TITAN_OK);
        if (unit == 0)
            pipeline_share_gradient(b);
        if (unit_is_mine(b, unit))
            EMIT(&b->e, norm, b->statistics, u->reduced);
    }

    /* How often each expert was chosen must be summed over all ranks with tokens. So the counts go into the
     * statistics. */
    for (int u = 0; u < units; u++) {
        if (!tensor_exists(b->expert_tokens[u]))
            continue;
        builder_stamp(b, PHASE_REDUCE, u, b->layout->units[u].stage, NONE);
        EMIT(&b->e, expert_load, b->statistics, b->expert_tokens[u], b->dropped[u]);
    }
    if (tensor_exists(b->seen)) {
        builder_stamp(b, PHASE_REDUCE, NONE, NONE, NONE);
        EMIT(&b->e, expert_rounds, b->statistics, b->seen);
    }
    /* Codes stay until buddies have them, which is before AGREE. */
    for (int u = 0; u < units; u++) {
        if (!tensor_exists(b->units[u].codes))
            continue;
        builder_stamp(b, PHASE_REDUCE, u, b->layout->units[u].stage, NONE);
        EMIT(&b->e, release, b->units[u].codes);
    }
    builder_stamp(b, PHASE_UPDATE, NONE, NONE, NONE);
    EMIT(&b->e, agree, b->statistics);
    EMIT(&b->e, decide, b->statistics);
    struct owned owned = {TENSOR_NONE, TENSOR_NONE};
    if (b->e.p->statistics.sums > 0)
        owned = direct(b);

    for (int u = next_unit(b, NONE); layout_replicas_differ(b->layout) && u < units; u = next_unit(b, u)) {
        const struct parts_shape *const z = &b->opt->parts;
        builder_stamp(b, PHASE_UPDATE, u, NONE, NONE);
        EMIT(&b->e, parts_combine, b->units[u].reduced, state_of(b, u, b->units[u].state), b->units[u].received,
             .method = z->method, .kept = z->kept, .values = z->dt);
    }

    struct tensor staged = TENSOR_NONE;
    struct updates updates = {0};
    for (int u = next_unit(b, NONE); u < units; u = next_unit(b, u)) {
        struct tensor ahead = TENSOR_NONE;
        if (b->opt->offload) {
            if (!tensor_exists(staged))
                staged = stage_state(b, u);
            if (next_unit(b, u) < units)
                ahead = stage_state(b, next_unit(b, u));
            add_update(b, &updates, u, staged.buffer);
            b->e.stream = STREAM_COPY;
            emit_copy(&b->e, state_of(b, u, b->units[u].state), staged);
            b->e.stream = STREAM_COMPUTE;
        } else {
            add_update(b, &updates, u, b->units[u].state);
        }
        staged = ahead;
    }
    emit_updates(b, &updates);
    if (tensor_exists(owned.next)) {
        builder_stamp(b, PHASE_UPDATE, NONE, NONE, NONE);
        EMIT(&b->e, adopt, owned.state, owned.next);
        if (b->opt->offload) {
            b->e.stream = STREAM_COPY;
            emit_copy(&b->e, tensor_at(b->owned, 0, owned.state.dt, 1, owned.state.cols), owned.state);
            b->e.stream = STREAM_COMPUTE;
        }
    }

    /* Biases move towards equal loads (Wang et al. 2024, arXiv:2408.15664), on all ranks of a stage alike. */
    for (int u = 0; u < units; u++) {
        if (!tensor_exists(b->bias[u]) || b->model->dims.balance_rate == 0)
            continue;
        builder_stamp(b, PHASE_UPDATE, u, NONE, NONE);
        const struct tensor all = emit_tensor(&b->e, BUF_WORK, "expert_loads", DTYPE_F32, 1, b->expert_tokens[u].cols);
        EMIT(&b->e, balance, b->bias[u], all, .rate = b->model->dims.balance_rate);
    }
}
