/* build.c - the FSDP step as a list of actions. */
#include "worker/plan/build.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/plan/tree.h"

#define NONE (-1)

/* One use of a unit's parameters: forward or backward of a unit in one microbatch slot. */
struct visit {
    int64_t slot;
    int unit;
    bool backward;
    bool needs_params, gather, release;
    int source; /* visit whose gather brings the parameters; that visit's full is the buffer */
    int full;
};

struct builder {
    const struct build_options *opt;
    const struct model *model;
    struct program *p;
    int n_visits;
    struct visit *visits;
    int *full;           /* per unit: buffer with its parameters now, NONE */
    int *shard, *state;  /* per unit: external buffers */
    int *grad;           /* [local microbatch][unit]: gradient buffers */
    int *received;       /* per unit: slices of all subtrees (canonical) */
    int *grad_shard;     /* per unit: what the optimizer reads */
    int *x, *saved, *dx; /* of the microbatch at hand, per layer (x, dx: one more) */
    int tokens, head, report, reports;
    struct tree_stack leaves; /* gradients of this rank's microbatches so far */
    int *merges;              /* pairs (left, right) of the last push */
    int n_merges;
    titan_status status; /* sticky: first failure */
};

/* --- appending
 * ---------------------------------------------------------------------------------------------------------- */

static bool grow(void *array, int *cap, int need, size_t elem)
{
    if (need <= *cap)
        return true;
    const int more = MAX(64, *cap * 2);
    void *larger = realloc(*(void **)array, (size_t)more * elem);
    if (!larger)
        return false;
    *(void **)array = larger;
    *cap = more;
    return true;
}

static int add_buffer(struct builder *b, enum buffer_kind kind, int unit, int64_t microbatch, size_t bytes)
{
    static const bool external[] = {
#define X(name, is_external) is_external,
        BUFFER_KINDS(X)
#undef X
    };
    struct program *p = b->p;

    if (b->status != TITAN_OK || !grow(&p->buffers, &p->cap_buffers, p->n_buffers + 1, sizeof *p->buffers)) {
        b->status = TITAN_ENOMEM;
        return 0;
    }
    p->buffers[p->n_buffers] = (struct buffer){.kind = kind,
                                               .external = external[kind],
                                               .unit = unit,
                                               .microbatch = microbatch,
                                               .bytes = bytes,
                                               .first = NONE,
                                               .last = NONE};
    return p->n_buffers++;
}

/* The last action appended; operands are added to it. */
static void emit(struct builder *b, enum action_kind kind, enum stream_id stream, int unit, int64_t microbatch)
{
    struct program *p = b->p;

    if (b->status != TITAN_OK || !grow(&p->actions, &p->cap_actions, p->n_actions + 1, sizeof *p->actions)) {
        b->status = TITAN_ENOMEM;
        return;
    }
    p->actions[p->n_actions++] =
        (struct action){.kind = kind, .stream = stream, .unit = unit, .microbatch = microbatch, .wait = NONE};
}

static struct action *last_action(struct builder *b)
{
    return &b->p->actions[b->p->n_actions - 1];
}

static void reads(struct builder *b, int buffer)
{
    if (b->status != TITAN_OK)
        return;
    struct action *a = last_action(b);
    titan_assert(a->n_in < ACTION_IN_MAX);
    a->in[a->n_in++] = buffer;
}

static void writes(struct builder *b, int buffer)
{
    if (b->status != TITAN_OK)
        return;
    struct action *a = last_action(b);
    titan_assert(a->n_out < ACTION_OUT_MAX);
    a->out[a->n_out++] = buffer;
}

static void sends(struct builder *b, size_t bytes)
{
    if (b->status == TITAN_OK)
        last_action(b)->bytes = bytes;
}

static size_t padded_bytes(const struct builder *b, int unit, size_t elem)
{
    return (size_t)layout_padded(b->opt->layout, unit) * elem;
}

static size_t shard_bytes(const struct builder *b, int unit, size_t elem)
{
    return (size_t)b->opt->layout->shard[unit] * elem;
}

/* --- visits
 * ------------------------------------------------------------------------------------------------------------- */

/* Both visits use the unit's parameters and nothing comes between. */
static bool adjoin(const struct visit *a, const struct visit *b)
{
    return a->unit == b->unit && a->needs_params && b->needs_params;
}

/* When the parameters of visit i are gathered and let go. */
static void plan_gather(struct builder *b, int i)
{
    struct visit *v = &b->visits[i];

    if (!v->needs_params)
        return;
    if (b->opt->reshard == RESHARD_NEVER) {
        v->gather = v->slot == 0 && !v->backward;
        v->release = v->slot == b->p->share_max - 1 && (v->backward || v->unit == 0);
        v->source = v->unit; /* the first visits are forward in unit order */
        return;
    }
    const bool keep = b->opt->reshard == RESHARD_DEFAULT;
    v->gather = !(keep && i > 0 && adjoin(&b->visits[i - 1], v));
    v->release = !(keep && i + 1 < b->n_visits && adjoin(v, &b->visits[i + 1]));
    v->source = v->gather ? i : b->visits[i - 1].source;
}

static void plan_visits(struct builder *b)
{
    const int units = b->model->n_units;
    int n = 0;

    for (int64_t slot = 0; slot < b->p->share_max; slot++)
        for (int i = 0; i < 2 * units; i++) {
            const bool backward = i >= units;
            const int unit = backward ? 2 * units - 1 - i : i;
            b->visits[n++] = (struct visit){.slot = slot,
                                            .unit = unit,
                                            .backward = backward,
                                            .needs_params = !backward || unit != 0,
                                            .source = NONE,
                                            .full = NONE};
        }
    b->n_visits = n;
    if (b->p->world == 1)
        return;
    for (int i = 0; i < n; i++)
        plan_gather(b, i);
}

static void emit_gather(struct builder *b, struct visit *v)
{
    const size_t elem = dtype_bytes(b->opt->shape->dt);

    emit(b, ACT_GATHER, STREAM_COMM, v->unit, NONE);
    reads(b, b->shard[v->unit]);
    v->full = add_buffer(b, BUF_FULL, v->unit, NONE, padded_bytes(b, v->unit, elem));
    writes(b, v->full);
    sends(b, shard_bytes(b, v->unit, elem));
}

static int params_of(const struct builder *b, const struct visit *v)
{
    return b->p->world == 1 ? b->shard[v->unit] : b->visits[v->source].full;
}

/* --- compute of one visit
 * ------------------------------------------------------------------------------------------------- */

static void emit_layer_forward(struct builder *b, const struct visit *v, int64_t mb, bool recompute)
{
    const int layer = v->unit - 1;

    emit(b, ACT_LAYER_FORWARD, STREAM_COMPUTE, v->unit, mb);
    reads(b, params_of(b, v));
    reads(b, b->x[layer]);
    b->saved[layer] = add_buffer(b, BUF_SAVED, layer, mb, layer_saved_carve(b->opt->shape, NULL, NULL));
    writes(b, b->saved[layer]);
    if (recompute)
        return;
    b->x[layer + 1] = add_buffer(b, BUF_X, layer + 1, mb, residual_bytes(b->opt->shape));
    writes(b, b->x[layer + 1]);
    writes(b, b->report);
}

static void emit_forward(struct builder *b, const struct visit *v, int64_t mb)
{
    const struct layer_ctx *shape = b->opt->shape;
    const size_t n = (size_t)(shape->b * shape->t);
    const int layers = b->model->n_units - 2;

    if (v->unit == 0) {
        emit(b, ACT_LOAD, STREAM_COMPUTE, NONE, mb);
        b->tokens = add_buffer(b, BUF_TOKENS, NONE, mb, 2 * n * sizeof(int32_t));
        writes(b, b->tokens);
        emit(b, ACT_EMBED_FORWARD, STREAM_COMPUTE, 0, mb);
        reads(b, params_of(b, v));
        reads(b, b->tokens);
        b->x[0] = add_buffer(b, BUF_X, 0, mb, residual_bytes(shape));
        writes(b, b->x[0]);
    } else if (v->unit <= layers) {
        emit_layer_forward(b, v, mb, false);
    } else {
        emit(b, ACT_HEAD_FORWARD, STREAM_COMPUTE, v->unit, mb);
        reads(b, params_of(b, v));
        reads(b, b->x[layers]);
        reads(b, b->tokens);
        b->head = add_buffer(b, BUF_HEAD, NONE, mb, head_saved_carve(shape, NULL, NULL));
        writes(b, b->head);
        writes(b, add_buffer(b, BUF_LOSSES, NONE, mb, n * sizeof(float)));
        writes(b, b->report);
    }
}

/* The buffer a weight gradient of the unit goes to; sets first. Called with the wgrad action last. */
static void writes_gradient(struct builder *b, const struct visit *v, int64_t mb)
{
    int *slot = &b->grad[v->slot * b->model->n_units + v->unit];
    const bool fresh = b->opt->canonical || v->slot == 0;

    *slot = fresh ? add_buffer(b, BUF_GRAD, v->unit, mb, padded_bytes(b, v->unit, sizeof(float)))
                  : b->grad[v->unit]; /* the one of slot 0 */
    writes(b, *slot);
    if (b->status == TITAN_OK)
        last_action(b)->first = fresh;
}

static void emit_backward(struct builder *b, const struct visit *v, int64_t mb)
{
    const struct layer_ctx *shape = b->opt->shape;
    const int layers = b->model->n_units - 2, unit = v->unit, layer = unit - 1;

    if (unit == 0) {
        emit(b, ACT_EMBED_WGRAD, STREAM_COMPUTE, 0, mb);
        reads(b, b->tokens);
        reads(b, b->dx[0]);
        writes_gradient(b, v, mb);
    } else if (unit <= layers) {
        if (b->opt->recompute)
            emit_layer_forward(b, v, mb, true);
        emit(b, ACT_LAYER_DGRAD, STREAM_COMPUTE, unit, mb);
        reads(b, params_of(b, v));
        reads(b, b->x[layer]);
        reads(b, b->saved[layer]);
        reads(b, b->dx[layer + 1]);
        b->dx[layer] = add_buffer(b, BUF_DX, layer, mb, residual_bytes(shape));
        writes(b, b->dx[layer]);
        const int back = add_buffer(b, BUF_BACK, layer, mb, layer_back_carve(shape, NULL, NULL));
        writes(b, back);
        writes(b, add_buffer(b, BUF_WORK, NONE, mb, layer_work_bytes(shape)));
        emit(b, ACT_LAYER_WGRAD, STREAM_COMPUTE, unit, mb);
        reads(b, b->x[layer]);
        reads(b, b->saved[layer]);
        reads(b, back);
        reads(b, b->dx[layer + 1]);
        writes_gradient(b, v, mb);
    } else {
        emit(b, ACT_HEAD_DGRAD, STREAM_COMPUTE, unit, mb);
        reads(b, params_of(b, v));
        reads(b, b->x[layers]);
        reads(b, b->head);
        b->dx[layers] = add_buffer(b, BUF_DX, layers, mb, residual_bytes(shape));
        writes(b, b->dx[layers]);
        const int back = add_buffer(b, BUF_HEAD_BACK, NONE, mb, head_back_carve(shape, NULL, NULL));
        writes(b, back);
        emit(b, ACT_HEAD_WGRAD, STREAM_COMPUTE, unit, mb);
        reads(b, b->x[layers]);
        reads(b, b->head);
        reads(b, back);
        writes_gradient(b, v, mb);
    }
}

/* --- gradients: within the rank, then across ranks
 * -------------------------------------------------------------------------- */

static void note_merge(void *arg, int left, int right)
{
    struct builder *b = arg;
    b->merges[2 * b->n_merges] = left;
    b->merges[2 * b->n_merges + 1] = right;
    b->n_merges++;
}

/* Canonical: after the weight gradient of a unit, add what has become siblings. The tree is the same for all units of a
 * microbatch, so the push happens at the first unit of its backward (the head). */
static void emit_merges(struct builder *b, const struct visit *v)
{
    const int units = b->model->n_units;

    if (!b->opt->canonical)
        return;
    if (v->unit == units - 1) {
        b->n_merges = 0;
        tree_push(&b->leaves, (struct tree_node){.level = 0, .index = b->p->from + v->slot}, (int)v->slot, note_merge,
                  b);
    }
    for (int i = 0; i < b->n_merges; i++) {
        emit(b, ACT_ADD, STREAM_COMPUTE, v->unit, NONE);
        reads(b, b->grad[b->merges[2 * i + 1] * units + v->unit]);
        writes(b, b->grad[b->merges[2 * i] * units + v->unit]);
    }
}

static void emit_exchange(struct builder *b, int unit)
{
    const int units = b->model->n_units;
    const size_t slice = shard_bytes(b, unit, sizeof(float));
    const size_t to_each = slice * (size_t)b->p->subtrees_max;
    const size_t all = to_each * (size_t)b->p->world;

    emit(b, ACT_PACK, STREAM_COMPUTE, unit, NONE);
    for (int i = 0; i < b->leaves.depth; i++)
        reads(b, b->grad[b->leaves.id[i] * units + unit]);
    const int pack = add_buffer(b, BUF_PACK, unit, NONE, all);
    writes(b, pack);
    emit(b, ACT_EXCHANGE, STREAM_COMM, unit, NONE);
    reads(b, pack);
    const int received = add_buffer(b, BUF_RECEIVED, unit, NONE, all);
    writes(b, received);
    sends(b, to_each);
    b->received[unit] = received;
}

static void emit_combine(struct builder *b, int unit)
{
    emit(b, ACT_COMBINE, STREAM_COMPUTE, unit, NONE);
    reads(b, b->received[unit]);
    writes(b, b->received[unit]); /* sums are made in place */
    writes(b, b->grad_shard[unit]);
}

/* After the unit's last weight gradient of the step. */
static void emit_reduction(struct builder *b, int unit)
{
    const int mine = b->grad[unit]; /* of slot 0: where everything of this rank has been added, or NONE */

    if (b->p->world == 1) {
        b->grad_shard[unit] = mine;
        return;
    }
    b->grad_shard[unit] = add_buffer(b, BUF_GRAD_SHARD, unit, NONE, shard_bytes(b, unit, sizeof(float)));
    if (b->opt->canonical) {
        emit_exchange(b, unit);
        return;
    }
    int whole = mine;
    if (whole == NONE) {
        emit(b, ACT_ZERO, STREAM_COMPUTE, unit, NONE);
        whole = add_buffer(b, BUF_GRAD, unit, NONE, padded_bytes(b, unit, sizeof(float)));
        writes(b, whole);
    }
    emit(b, ACT_REDUCE, STREAM_COMM, unit, NONE);
    reads(b, whole);
    writes(b, b->grad_shard[unit]);
    sends(b, padded_bytes(b, unit, sizeof(float)));
}

/* --- the step
 * ------------------------------------------------------------------------------------------------------------- */

static void emit_visit(struct builder *b, const struct visit *v)
{
    const int64_t mb = b->p->from + v->slot;
    const bool mine = mb < b->p->to;

    if (mine && v->backward)
        emit_backward(b, v, mb);
    else if (mine)
        emit_forward(b, v, mb);
    if (v->release) {
        emit(b, ACT_RELEASE, STREAM_COMPUTE, v->unit, NONE);
        reads(b, params_of(b, v));
    }
    if (!v->backward)
        return;
    if (mine)
        emit_merges(b, v);
    if (v->slot == b->p->share_max - 1)
        emit_reduction(b, v->unit);
}

static void emit_update(struct builder *b)
{
    const int units = b->model->n_units;
    const bool alone = b->p->world == 1;

    for (int u = units - 1; u >= 0; u--) { /* in the order the reductions end */
        if (b->received[u] != NONE)
            emit_combine(b, u);
        emit(b, ACT_NORM, STREAM_COMPUTE, u, NONE);
        reads(b, b->grad_shard[u]);
        writes(b, b->report);
    }
    emit(b, ACT_AGREE, alone ? STREAM_COMPUTE : STREAM_COMM, NONE, NONE);
    reads(b, b->report);
    writes(b, b->report); /* counts and orders are filled in */
    writes(b, b->reports);
    sends(b, (size_t)report_size(b->p) * sizeof(double));
    emit(b, ACT_DECIDE, alone ? STREAM_COMPUTE : STREAM_COMM, NONE, NONE);
    reads(b, b->reports);
    for (int u = 0; u < units; u++) {
        emit(b, ACT_OPTIMISE, STREAM_COMPUTE, u, NONE);
        reads(b, b->grad_shard[u]);
        writes(b, b->state[u]);
        writes(b, b->shard[u]);
    }
}

static void emit_step(struct builder *b)
{
    int next_gather = 0;

    for (int i = 0; i < b->n_visits; i++) {
        for (; next_gather < b->n_visits && next_gather <= i + b->opt->prefetch; next_gather++)
            if (b->visits[next_gather].gather)
                emit_gather(b, &b->visits[next_gather]);
        emit_visit(b, &b->visits[i]);
    }
    emit_update(b);
}

/* --- set-up
 * --------------------------------------------------------------------------------------------------------------- */

struct add_list {
    struct program *p;
    bool failed;
    int cap;
};

static void note_add(void *arg, int left, int right)
{
    struct add_list *list = arg;
    if (!grow(&list->p->adds, &list->cap, list->p->n_adds + 1, sizeof *list->p->adds)) {
        list->failed = true;
        return;
    }
    list->p->adds[list->p->n_adds++] = (struct tree_add){.left = left, .right = right};
}

/* Shares and, for the canonical sum, who holds which subtrees and in which order they are added. */
static titan_status plan_shares(struct program *p, struct titan_error *err)
{
    struct tree_stack all = {.leaves = p->microbatches};
    struct add_list list = {.p = p};

    tree_share(p->microbatches, p->world, p->rank, &p->from, &p->to);
    for (int pass = 0; pass < 2; pass++) { /* slice numbers need the largest count first */
        for (int r = 0; r < p->world; r++) {
            struct tree_stack own = {.leaves = p->microbatches};
            int64_t from, to;
            tree_share(p->microbatches, p->world, r, &from, &to);
            p->share_max = MAX(p->share_max, to - from);
            for (int64_t i = from; i < to; i++)
                tree_push(&own, (struct tree_node){.level = 0, .index = i}, 0, NULL, NULL);
            p->subtrees_max = MAX(p->subtrees_max, own.depth);
            if (r == p->rank)
                p->subtrees = own.depth;
            for (int k = 0; pass == 1 && k < own.depth; k++)
                tree_push(&all, own.node[k], r * p->subtrees_max + k, note_add, &list);
        }
    }
    p->root_slice = all.id[0];
    if (list.failed)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    return TITAN_OK;
}

static void free_builder(struct builder *b)
{
    free(b->visits);
    free(b->shard);
    free(b->grad);
    free(b->x);
    free(b->merges);
}

static titan_status alloc_builder(struct builder *b, struct titan_error *err)
{
    const size_t units = (size_t)b->model->n_units, slots = (size_t)b->p->share_max;

    b->visits = calloc(2 * units * slots, sizeof *b->visits);
    b->shard = malloc(units * 4 * sizeof *b->shard);
    b->grad = malloc(units * slots * sizeof *b->grad);
    b->x = malloc(units * 3 * sizeof *b->x);
    b->merges = calloc(2 * TREE_DEPTH_MAX, sizeof *b->merges);
    if (!b->visits || !b->shard || !b->grad || !b->x || !b->merges)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    for (size_t i = 0; i < 4 * units; i++)
        b->shard[i] = NONE;
    for (size_t i = 0; i < units * slots; i++)
        b->grad[i] = NONE;
    b->state = b->shard + units;
    b->grad_shard = b->shard + 2 * units;
    b->received = b->shard + 3 * units;
    b->saved = b->x + units;
    b->dx = b->x + 2 * units;
    return TITAN_OK;
}

static titan_status build(struct builder *b, struct titan_error *err)
{
    struct program *p = b->p;
    const size_t elem = dtype_bytes(b->opt->shape->dt);

    TRY(plan_shares(p, err));
    TRY(alloc_builder(b, err));
    for (int u = 0; u < p->n_units; u++) {
        b->state[u] = add_buffer(b, BUF_STATE, u, NONE, 3 * shard_bytes(b, u, sizeof(float)));
        /* computing in fp32, the masters themselves are the shard */
        b->shard[u] = add_buffer(b, BUF_SHARD, u, NONE, elem == sizeof(float) ? 0 : shard_bytes(b, u, elem));
    }
    const size_t report = (size_t)report_size(p) * sizeof(double);
    b->report = add_buffer(b, BUF_REPORT, NONE, NONE, report);
    b->reports = add_buffer(b, BUF_REPORTS, NONE, NONE, report * (size_t)p->world);
    plan_visits(b);
    emit_step(b);
    if (b->status != TITAN_OK)
        return titan_fail(err, b->status, "program: out of memory");
    return program_finish(p, err);
}

titan_status program_build(const struct build_options *options, int rank, struct program **ret, struct titan_error *err)
{
    struct program *p = calloc(1, sizeof *p);
    struct builder b = {.opt = options, .model = options->layout->model, .p = p};

    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    p->rank = rank;
    p->world = options->layout->world;
    p->microbatches = options->microbatches;
    p->n_units = options->layout->model->n_units;
    p->canonical = options->canonical;
    p->blocks = layout_blocks(options->layout);
    b.leaves.leaves = options->microbatches;

    const titan_status status = build(&b, err);
    free_builder(&b);
    if (status != TITAN_OK) {
        program_close(p);
        return status;
    }
    *ret = p;
    return TITAN_OK;
}
