/* SPDX-License-Identifier: Apache-2.0 */
/* exec.c - opens a program, and turns each of its operations into calls of the device and the communicators. */
#include "worker/exec/executor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "worker/tensor/coded.h"
#include "worker/tensor/tree.h"

/* --- set-up ------------------------------------------------------------------------------------------------------- */

static titan_status no_memory(struct titan_error *err)
{
    return titan_fail(err, TITAN_ENOMEM, "executor: out of memory");
}

/* Uploads a table once and frees the host's copy. */
static titan_status upload(struct exec *e, enum table which, void *host, size_t bytes, struct titan_error *err)
{
    const struct device_handle *d = e->opt.device;
    struct stream *const s = e->opt.streams[STREAM_COMPUTE];
    _cleanup_free_ void *owned = host;

    if (!host)
        return no_memory(err);
    TRY(d->ops->alloc(d->dev, bytes, &e->tables[which], err));
    TRY(d->ops->copy(s, e->tables[which], host, bytes));
    return d->ops->stream_sync(s, err);
}

/* Uploads a table of the rotation's angles, or the index of the keys of all cp ranks. */
static titan_status upload_table(struct exec *e, enum table which, struct titan_error *err)
{
    const bool local = which == TABLE_COS_LOCAL || which == TABLE_SIN_LOCAL;

    if (local || which == TABLE_COS || which == TABLE_SIN) { /* both tables of the pair */
        const struct model *m = e->p->layout->model;
        const size_t n = (size_t)(e->opt.cut.t * (model_rope_dim(m) / 2));
        float *c = malloc(n * sizeof *c), *s = malloc(n * sizeof *s);
        if (c && s)
            model_rope_tables(m, local, e->opt.cut.t, c, s);
        const titan_status status = upload(e, local ? TABLE_COS_LOCAL : TABLE_COS, c, n * sizeof *c, err);
        if (status == TITAN_OK)
            return upload(e, local ? TABLE_SIN_LOCAL : TABLE_SIN, s, n * sizeof *s, err);
        free(s);
        return status;
    }

    if (which == TABLE_POWERS) {
        float *powers = malloc(POWERS * sizeof *powers);
        for (int i = 0; powers && i < POWERS; i++)
            powers[i] = ldexpf(1, i - POWERS_ZERO);
        return upload(e, which, powers, POWERS * sizeof *powers, err);
    }

    /* TABLE_KEYS_GATHERED is in rank order. The other table, for the ring, starts with this rank's keys and goes on
     * against the ring's direction. */
    const int cp = e->p->mesh.size[AXIS_CP], me = e->at[AXIS_CP];
    int32_t *index = malloc((size_t)(cp * e->tokens) * sizeof *index);
    for (int i = 0; index && i < cp; i++)
        sequence_index(&e->opt.cut, which == TABLE_KEYS_GATHERED ? i : (me - i + cp) % cp, index + i * e->tokens);
    return upload(e, which, index, (size_t)(cp * e->tokens) * sizeof *index, err);
}

void *exec_window(const struct exec *e, size_t *ret_bytes)
{
    *ret_bytes = e->is_window ? e->arena_bytes : 0;
    return e->is_window ? e->arena : NULL;
}

static titan_status bind_buffers(struct exec *e, struct titan_error *err)
{
    const struct program *p = e->p;
    const struct device_handle *const d = e->opt.device;
    const struct comm_ops *const comm = e->opt.comm_ops;

    e->address = calloc((size_t)p->n_buffers + 1, sizeof *e->address);
    if (!e->address)
        return no_memory(err);
    e->arena_bytes = MAX(MAX(p->arena_bytes, e->opt.arena_least), 1);
    titan_assert(!e->opt.lender || e->arena_bytes <= e->opt.lender->arena_bytes);
    if (!e->opt.lender && e->opt.window_arena && comm && comm->memory_alloc)
        e->is_window = comm->memory_alloc(d->dev, e->arena_bytes, (void **)&e->arena, NULL) == TITAN_OK;
    if (e->opt.lender)
        e->arena = e->opt.lender->arena;
    else if (!e->is_window)
        TRY(d->ops->alloc(d->dev, e->arena_bytes, (void **)&e->arena, err));

    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *b = &p->buffers[i];
        if (b->kind == BUF_TABLE) {
            const enum table which = (enum table)b->unit;
            if (b->first >= 0 && !e->tables[which])
                TRY(upload_table(e, which, err));
            e->address[i] = e->tables[which];
        } else if (buffer_is_external(b->kind)) {
            e->address[i] = e->opt.bind(e->opt.arg, b);
        } else {
            e->address[i] = e->arena + b->offset;
        }
    }
    return TITAN_OK;
}

static titan_status open_statistics(struct exec *e, struct titan_error *err)
{
    const struct device_handle *d = e->opt.device;
    const struct layout *l = e->p->layout;
    const struct step_statistics *r = &e->p->statistics;
    int64_t at = r->norms, most = 1;

    e->norms = calloc((size_t)l->model->n_units, sizeof *e->norms);
    if (!e->norms)
        return no_memory(err);
    for (int u = 0; u < l->model->n_units; u++) {
        e->norms[u] = at;
        at += statistics_norms(r, l, u);
        most = MAX(most, l->units[u].shard / NORM_BLOCK + 1);
    }
    TRY(d->ops->alloc(d->dev, (size_t)most * sizeof(double), (void **)&e->scratch, err));
    TRY(d->ops->alloc_host(d->dev, (size_t)(e->p->share + STATISTICS_COMMANDS + STATISTICS_SAID) * sizeof(double),
                           (void **)&e->host_header, err));
    for (int i = 0; i < 2; i++)
        TRY(d->ops->alloc_host(d->dev, (size_t)statistics_all(r) * sizeof(double), (void **)&e->statistics[i], err));
    if (r->size > r->scales)
        TRY(d->ops->alloc_host(d->dev, (size_t)(r->size - r->scales) * sizeof(float), (void **)&e->host_scales, err));
    const size_t expert_tokens = (size_t)(r->scales - r->expert_tokens);
    return expert_tokens > 0
               ? d->ops->alloc_host(d->dev, expert_tokens * sizeof(float), (void **)&e->host_expert_tokens, err)
               : TITAN_OK;
}

static titan_status open_parts(struct exec *e, struct titan_error *err)
{
    const struct device_handle *const d = e->opt.device;
    const struct program *const p = e->p;

    /* Finds AGREE and the commit point: COMMIT, or AGREE without a direction section. Checks that no action after the
     * commit point needs a peer. So any rank that gets the statistics can finish a prepared step. */
    e->agree = e->commit = e->whole = p->n_actions;
    for (int i = 0; i < p->n_actions; i++) {
        const enum op op = (enum op)p->actions[i].op;
        if (op == OP_AGREE)
            e->agree = i;
        if (op == OP_WHOLE)
            e->whole = i;
        if (op == OP_COMMIT || (op == OP_AGREE && p->statistics.sums == 0))
            e->commit = i;
    }
    for (int i = 0; i < p->n_actions; i++) {
        const enum op op = (enum op)p->actions[i].op;
        if (i == e->agree)
            continue;
        if ((i == e->agree + 1) != (op == OP_DECIDE))
            return titan_fail(err, TITAN_EBUG, "action %d (%s): DECIDE follows the agreement, and nothing else", i,
                              op_name(op));
        if (i > e->commit && op_is_transfer(op))
            return titan_fail(err, TITAN_EBUG, "action %d (%s) needs a peer after the commit point", i, op_name(op));
    }
    if (e->agree + 1 == p->n_actions)
        return titan_fail(err, TITAN_EBUG, "no DECIDE follows the agreement");
    e->sync_point = program_sync_point(p);
    TRY(program_finals(p, &e->finals, &e->n_finals, err));
    TRY(bind_buffers(e, err));

    e->events = calloc((size_t)p->n_actions + 1, sizeof(struct event *));
    e->times = calloc((size_t)p->n_actions * TIME_COUNT, sizeof *e->times);
    if (!e->events || !e->times)
        return no_memory(err);
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].signal)
            TRY(d->ops->event_open(d->dev, &e->events[i], err));
    for (int s = 0; s < STREAM_COUNT; s++)
        if (s == STREAM_COMPUTE || p->streams >> s & 1)
            TRY(d->ops->event_open(d->dev, &e->joined[s], err));
    TRY(e->ops->timestamps_open(d->dev, TIME_COUNT * p->n_actions, &e->timestamps, err));

    if (!d->info.host_memory && e->agree < p->n_actions) {
        const size_t tokens =
            (size_t)(MAX(p->share, 1) * batch_rows(e->opt.cut.modules) * e->tokens) * sizeof *e->host_tokens;
        TRY(d->ops->alloc_host(d->dev, tokens, (void **)&e->host_tokens, err));
    }
    TRY(lookahead_open(d, &e->lookahead, err));
    TRY(segments_open(e, err));
    TRY(recorder_open(e, err));
    TRY(open_statistics(e, err));
    if (e->whole < p->n_actions)
        TRY(exec_open_routes(e, err));
    return exec_warm_up(e, err);
}

titan_status exec_open(const struct exec_options *options, struct exec **ret, struct titan_error *err)
{
    const struct program *p = options->program;
    int64_t to;

    titan_assert(p && p->n_actions > 0 && options->device && options->bind);
    titan_assert(options->rank >= 0 && options->rank < p->mesh.world);
    titan_assert(p->mesh.world == 1 || options->comm_ops);
    struct exec *e = calloc(1, sizeof *e);
    if (!e)
        return no_memory(err);
    e->opt = *options;
    e->p = p;
    e->ops = options->device->ops;
    mesh_coords(&p->mesh, options->rank, e->at);
    tree_share(p->statistics.microbatches, mesh_batch_size(&p->mesh), mesh_batch_rank(&p->mesh, options->rank),
               &e->from, &to);
    e->tokens = options->cut.b * options->cut.t / p->mesh.size[AXIS_CP];
    const titan_status status = open_parts(e, err);
    if (status != TITAN_OK) {
        exec_close(e);
        return status;
    }
    *ret = e;
    return TITAN_OK;
}

void exec_close(struct exec *e)
{
    if (!e)
        return;
    struct device *const dev = e->opt.device->dev;

    for (int s = 0; s < STREAM_COUNT; s++) /* the compute stream may be done before the streams that it has joined */
        if (e->opt.streams[s])
            (void)e->ops->stream_sync(e->opt.streams[s], NULL);
    for (int i = 0; i < TABLE_COUNT; i++)
        if (e->tables[i])
            e->ops->release(dev, e->tables[i]);
    if (e->arena && e->is_window)
        e->opt.comm_ops->memory_release(dev, e->arena);
    else if (e->arena && !e->opt.lender)
        e->ops->release(dev, e->arena);
    if (e->scratch)
        e->ops->release(dev, e->scratch);
    for (int i = 0; e->events && i < e->p->n_actions; i++)
        if (e->events[i])
            e->ops->event_close(e->events[i]);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (e->joined[s])
            e->ops->event_close(e->joined[s]);
    if (e->host_header)
        e->ops->release_host(dev, e->host_header);
    for (int i = 0; i < 2; i++)
        if (e->statistics[i])
            e->ops->release_host(dev, e->statistics[i]);
    if (e->host_expert_tokens)
        e->ops->release_host(dev, e->host_expert_tokens);
    if (e->host_scales)
        e->ops->release_host(dev, e->host_scales);
    if (e->host_tokens)
        e->ops->release_host(dev, e->host_tokens);
    e->ops->timestamps_close(e->timestamps);
    lookahead_close(e->ops, &e->lookahead);
    segments_close(e);
    exec_close_routes(e);
    free(e->norms);
    free(e->finals);
    free(e->recorded);
    free(e->address);
    free(e->events);
    free(e->times);
    free(e);
}

/* --- actions ------------------------------------------------------------------------------------------------------ */

typedef titan_status (*run_fn)(const struct call *c);

static void *address(const struct call *c, int i)
{
    titan_debug_assert(i >= 0 && i < c->a->n_operands);
    const struct operand *o = &c->o[i];
    return (char *)c->e->address[o->buffer] + o->offset;
}

/* First row of the vocabulary on this rank, which has v rows. */
static int64_t first_row(const struct call *c, int64_t v)
{
    return c->e->at[AXIS_TP] * v;
}

/* First of this rank's n columns. If n == all, the rank has all columns; otherwise it has its part over tp. */
static size_t own_column(const struct call *c, int64_t all, int64_t n)
{
    titan_assert(n > 0 && n <= all);
    return n == all ? 0 : (size_t)first_row(c, n);
}

static titan_status load_tokens(const struct call *c, int32_t *tokens)
{
    const int64_t each = batch_rows(c->e->opt.cut.modules) * c->e->tokens, at = c->a->microbatch * each;
    const size_t bytes = (size_t)each * sizeof *tokens;
    int32_t *const pinned = c->e->host_tokens;

    if (!pinned)
        return c->ops->copy(c->s, tokens, c->e->batch->tokens + at, bytes);
    memcpy(pinned + at, c->e->batch->tokens + at, bytes); /* free: the previous step's copies from `pinned` have run */
    return c->ops->copy(c->s, tokens, pinned + at, bytes);
}

/* Place in the statistics of the token counts of a unit's experts. */
static int64_t expert_tokens_place(const struct call *c)
{
    const struct model *m = c->e->p->layout->model;
    return c->e->p->statistics.expert_tokens + layout_bias_offset(m, m->units[c->a->unit].layer);
}

static titan_status sum_expert_tokens(const struct call *c, double *statistics, const float *expert_tokens,
                                      const float *dropped, int64_t n)
{
    const struct step_statistics *const r = &c->e->p->statistics;
    double *const to = statistics + expert_tokens_place(c);

    if (c->e->p->mesh.cut_experts && c->e->at[AXIS_TP] != 0) /* all tp ranks have routed the same tokens */
        return TITAN_OK;
    TRY(c->ops->block_sums(c->s, to, expert_tokens, (size_t)n, 1, false));
    if (!dropped)
        return TITAN_OK;
    return c->ops->block_sums(c->s, statistics + r->drops + (expert_tokens_place(c) - r->expert_tokens) / n, dropped, 1,
                              1, false);
}

static titan_status sum_rounds(const struct call *c, double *statistics, const float *seen, int64_t n)
{
    const struct exec *e = c->e;
    double *const to = statistics + e->p->statistics.values + e->opt.rank * STATISTICS_VALUES + STATISTICS_SAID;

    titan_assert(n == STATISTICS_VALUES - STATISTICS_SAID);
    return c->ops->block_sums(c->s, to, seen, (size_t)n, 1, false);
}

/* Balances a layer's experts by the statistics, which the host has had since DECIDE. The host does not write to
 * host_expert_tokens again before the next DECIDE. */
static titan_status balance_experts(const struct call *c, float *bias, float *expert_tokens, int64_t n, float rate)
{
    const struct exec *e = c->e;
    const double *from = e->statistics[e->newest] + expert_tokens_place(c);
    float *const to = e->host_expert_tokens + (expert_tokens_place(c) - e->p->statistics.expert_tokens);

    if (!e->update)
        return TITAN_OK;
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)from[i];
    TRY(c->ops->copy(c->s, expert_tokens, to, (size_t)n * sizeof *to));
    return c->ops->router_balance(c->s, bias, expert_tokens, n, rate);
}

/* --- the statistics ----------------------------------------------------------------------------------------------- */

/* Place of a slot's number in an array [cp][microbatches] of the statistics. */
static int64_t microbatch_place(const struct exec *e, int64_t slot)
{
    return e->at[AXIS_CP] * e->p->statistics.microbatches + e->from + slot;
}

static titan_status sum_losses(const struct call *c, double *statistics, const float *losses, int64_t n)
{
    if (c->e->at[AXIS_TP] != 0) /* only tp rank 0 adds, because all tp ranks have the same losses */
        return TITAN_OK;
    return exec_add_sum(c, statistics + c->e->p->statistics.losses + microbatch_place(c->e, c->a->microbatch), losses,
                        n, false);
}

/* Sums the losses of all modules of multi-token prediction. */
static titan_status sum_mtp_losses(const struct call *c, double *statistics, const float *losses, int64_t n)
{
    if (c->e->at[AXIS_TP] != 0)
        return TITAN_OK;
    return exec_add_sum(c, statistics + c->e->p->statistics.mtp + microbatch_place(c->e, c->a->microbatch), losses, n,
                        false);
}

static titan_status sum_balance_losses(const struct call *c, double *statistics, const float *losses, int64_t n)
{
    const struct exec *e = c->e;

    if (e->at[AXIS_TP] != 0 || e->at[AXIS_CP] != 0) /* all tp and cp ranks have the same losses */
        return TITAN_OK;
    return exec_add_sum(c, statistics + e->p->statistics.balance + e->from + c->a->microbatch, losses, n, false);
}

/* Sums the rstd that the norm of a unit's input computes. The sum tells whether the input was finite. The check costs
 * one number per token. */
static titan_status check_input(const struct call *c, double *statistics, const float *rstd, int64_t n)
{
    return exec_add_sum(c, statistics + c->e->p->statistics.checks + c->a->unit, rstd, n, false);
}

static titan_status sum_squares(const struct call *c, double *statistics, const float *gradient)
{
    const struct exec *e = c->e;
    const struct layout *l = e->p->layout;
    const struct unit_layout *u = &l->units[c->a->unit];
    double *out = statistics + e->norms[c->a->unit];
    /* Each replica counts a gradient of its own. */
    const int first = mesh_group_rank(&l->mesh, GROUP_REPLICATE, e->opt.rank) *
                      (l->kinds.each ? mesh_group_stride(&l->mesh, GROUP_REPLICATE) : 0);
    const int64_t n = layout_counted(l, c->a->unit, e->opt.rank - first);

    if (!e->p->canonical)
        return exec_add_sum(c, out, gradient, n, true);
    if (n == 0)
        return TITAN_OK;
    out += layout_unit_part(l, c->a->unit, e->opt.rank) * layout_unit_blocks(l, c->a->unit) +
           u->shard / u->block * mesh_group_rank(&e->p->mesh, u->group, e->opt.rank);
    return c->ops->block_sums(c->s, out, gradient, (size_t)n, (size_t)u->block, true);
}

static titan_status sum_statistics(const struct call *c, double *statistics)
{
    const struct exec *e = c->e;
    const struct step_statistics *r = &e->p->statistics;
    const size_t share = (size_t)e->p->share;
    double *const counts = e->host_header, *const commands = counts + share,
                  *const values = commands + STATISTICS_COMMANDS;

    for (size_t i = 0; i < share; i++)
        counts[i] = e->batch->counts[i];
    for (int i = 0; i < STATISTICS_COMMANDS; i++)
        commands[i] = e->batch->commands >> i & 1;
    if (e->at[AXIS_TP] == 0 && e->at[AXIS_PP] == 0) /* one rank of each group that reads the same samples */
        TRY(c->ops->copy(c->s, statistics + r->counts + microbatch_place(e, 0), counts, share * sizeof(double)));
    TRY(c->ops->copy(c->s, statistics + r->commands, commands, STATISTICS_COMMANDS * sizeof(double)));
    if (e->batch->values) {
        memcpy(values, e->batch->values, STATISTICS_SAID * sizeof(double));
        TRY(c->ops->copy(c->s, statistics + r->values + e->opt.rank * STATISTICS_VALUES, values,
                         STATISTICS_SAID * sizeof(double)));
    }
    const struct layout *l = e->p->layout;
    for (int u = 0; e->batch->masters && u < l->model->n_units; u++)
        TRY(exec_add_sum(c, statistics + r->masters + u, e->batch->masters[u], layout_counted(l, u, e->opt.rank),
                         true));
    if (e->p->mesh.world == 1)
        return TITAN_OK;
    return e->opt.comm_ops->all_reduce(e->opt.comms[CHANNEL_WORLD], statistics, (size_t)r->size, DTYPE_F64, c->s);
}

/* Copies the statistics to the host. The host waits here for the device, as it does at the end of exec_gradients. */
static titan_status take_decision(const struct call *c, const double *statistics)
{
    const struct exec *e = c->e;

    TRY(c->ops->copy(c->s, e->statistics[1 - e->newest], statistics, (size_t)e->p->statistics.size * sizeof(double)));
    TRY(e->ops->stream_sync(c->s, c->err));
    return failpoint("exec.agreed", c->err);
}

static titan_status sum_tensors(const struct call *c, double *sums, void *state, const float *gradient)
{
    const struct program *p = c->e->p;
    const struct update_range range = {.layout = p->layout,
                                       .unit = p->buffers[c->o[OPERAND_OF(tensor_sums, state)].buffer].unit,
                                       .rank = c->e->opt.rank,
                                       .values = state,
                                       .grad = gradient,
                                       .n = c->p->tensor_sums.n};

    return c->e->update ? update_sums(c->e->update, &range, sums, c->ops, c->s) : TITAN_OK;
}

static titan_status commit_sums(const struct call *c, double *sums, int64_t n)
{
    const struct exec *e = c->e;
    static const double not_finite = (double)INFINITY;
    double *const to = e->statistics[1 - e->newest] + e->p->statistics.size;

    if (failpoint("exec.sums", NULL) != TITAN_OK) /* in tests: a tensor's sum overflows on this rank */
        TRY(c->ops->copy(c->s, sums, &not_finite, sizeof not_finite));
    if (e->p->mesh.world > 1)
        TRY(e->opt.comm_ops->all_reduce(e->opt.comms[CHANNEL_WORLD], sums, (size_t)n, DTYPE_F64, c->s));
    TRY(c->ops->copy(c->s, to, sums, (size_t)n * sizeof *to));
    TRY(e->ops->stream_sync(c->s, c->err));
    return failpoint("exec.committed", c->err);
}

static titan_status update_units(const struct call *c)
{
    const struct program *p = c->e->p;
    const int n = c->a->n_operands / UPDATE_OPERANDS;
    struct update_range ranges[OP_PARTS];

    titan_assert(n <= OP_PARTS && c->a->n_operands == n * UPDATE_OPERANDS);
    if (!c->e->update)
        return TITAN_OK;
    for (int i = 0; i < n; i++) {
        const int state = UPDATE_OPERANDS * i + OPERAND_OF(optimise, state);
        ranges[i] = (struct update_range){.layout = p->layout,
                                          .unit = p->buffers[action_operands(p, c->a)[state].buffer].unit,
                                          .rank = c->e->opt.rank,
                                          .values = address(c, state),
                                          .shard = address(c, state + OPERAND_OF(optimise, shard)),
                                          .grad = address(c, state + OPERAND_OF(optimise, gradient)),
                                          .n = c->p->part[i]};
    }
    return update_apply(c->e->update, ranges, n, c->ops, (enum dtype)c->p->dt, c->s);
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

static struct comm *comm_of(const struct call *c)
{
    return c->e->opt.comms[c->a->channel];
}

static struct comm *inbound_of(const struct call *c)
{
    return c->e->opt.inbound[c->a->channel];
}

/* Starts one collective, or a bucket of several collectives as one. */
static titan_status start_collective(const struct call *c)
{
    const struct comm_ops *comm = c->e->opt.comm_ops;
    const enum dtype dt = (enum dtype)c->p->dt;
    const int n = c->a->op == OP_ALL_REDUCE ? c->a->n_operands : c->a->n_operands / 2;

    if (n > 1)
        TRY(comm->group_begin(comm_of(c)));
    for (int i = 0; i < n; i++) {
        const size_t count = (size_t)c->p->part[i];
        if (c->a->op == OP_ALL_GATHER)
            TRY(comm->all_gather(comm_of(c), address(c, 2 * i), address(c, 2 * i + 1), count, dt, c->s));
        else if (c->a->op == OP_REDUCE_SCATTER)
            TRY(comm->reduce_scatter(comm_of(c), address(c, 2 * i), address(c, 2 * i + 1), count, dt, c->s));
        else
            TRY(comm->all_reduce(comm_of(c), address(c, i), count, dt, c->s));
    }
    return n > 1 ? comm->group_end(comm_of(c)) : TITAN_OK;
}

static titan_status rotate_in_place(const struct call *c, char *data, char *scratch, size_t bytes, size_t piece)
{
    titan_assert(piece > 0);
    for (size_t at = 0; at < bytes; at += piece) {
        const size_t n = MIN(piece, bytes - at);
        TRY(c->e->opt.comm_ops->shift(comm_of(c), scratch, data + at, n, 1, c->s));
        TRY(c->ops->copy(c->s, data + at, scratch, n));
    }
    return TITAN_OK;
}

/* The peer's rank in the edge's communicator, which has its two members in the order of their pp ranks. */
static int other_end(const struct call *c)
{
    return c->a->peer < c->e->at[AXIS_PP] ? 0 : 1;
}

/* Copies the subtrees' whole gradients to slices, in the order [owner][subtree][shard]. */
static titan_status pack_slices(const struct call *c, float *slices, int64_t shard, int64_t owners, int64_t subtrees)
{
    for (int64_t j = 0; j < owners; j++)
        for (int k = 1; k < c->a->n_operands; k++)
            TRY(c->ops->copy(c->s, slices + (j * subtrees + k - 1) * shard, (float *)address(c, k) + j * shard,
                             (size_t)shard * sizeof(float)));
    return TITAN_OK;
}

static titan_status sum_slices(const struct call *c, float *sum, float *slices, int64_t shard)
{
    const struct tree_sum *t = program_tree_sum(c->e->p, c->a->unit);

    for (int i = 0; i < t->n; i++)
        TRY(c->ops->accumulate(c->s, slices + t->adds[i].left * shard, slices + t->adds[i].right * shard,
                               (size_t)shard));
    return c->ops->copy(c->s, sum, slices + t->root * shard, (size_t)shard * sizeof(float));
}

/* --- gradients as codes ------------------------------------------------------------------------------------------- */

/* Each rank rounds each unit's gradient by a random stream of its own. Ranks that hold tensors whole share the stream,
 * as these tensors' codes are to be the same on all of them. */
static titan_status encode_gradient(const struct call *c, uint8_t *codes, const float *x, uint8_t *error,
                                    const float *largest)
{
    const struct op_encode *const q = &c->p->encode;
    struct encode_args args = {.codes = codes,
                               .error = error,
                               .x = x,
                               .largest = largest,
                               .codec = (enum codec)q->codec,
                               .pieces = q->pieces,
                               .n = q->n,
                               .decay = (float)q->decay,
                               .stochastic = q->stochastic != 0};

    if (args.stochastic) {
        char name[96];
        const struct layout *const l = c->e->p->layout;
        const int rank = c->e->opt.rank, tp = mesh_group_rank(&l->mesh, GROUP_TP, rank);
        const int first = rank - tp * mesh_group_stride(&l->mesh, GROUP_TP);
        (void)snprintf(name, sizeof name, "codes of rank %d, %.60s",
                       l->units[c->a->unit].cut == GROUP_TP ? first : rank, l->model->units[c->a->unit].name);
        args.key = rng_key(c->e->opt.seed, name);
        args.step = c->e->batch->step;
    }
    return c->ops->encode(c->s, &args);
}

static titan_status decode_pieces(const struct call *c, float *range, const uint8_t *codes)
{
    const struct op_decode *const q = &c->p->decode;

    for (int64_t p = 0; p < q->pieces; p++)
        TRY(c->ops->decode_sum(c->s, ARGS(decode_sum, .out = range + p * q->n, .codes = codes + p * q->bytes,
                                          .codec = (enum codec)q->codec, .pieces = 1, .n = q->n)));
    return TITAN_OK;
}

static int by_place(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static titan_status find_bucket_largest(const struct call *c, float *largest, float *of_tensor, const float *x,
                                        const uint8_t *error)
{
    const struct op_bucket_largest *const q = &c->p->bucket_largest;
    const struct layout *const l = c->e->p->layout;
    const struct model_unit *const u = &l->model->units[c->a->unit];
    _cleanup_free_ int64_t *begins = calloc((size_t)q->tensors + 1, sizeof *begins);

    titan_assert(q->tensors == u->n_tensors);
    if (!begins)
        return titan_fail(c->err, TITAN_ENOMEM, "codes: out of memory");
    for (int t = 0; t < u->n_tensors; t++)
        begins[t] = l->tensors[u->first_tensor + t].offset;
    qsort(begins, (size_t)q->tensors, sizeof *begins, by_place); /* tensors that tp cuts are first in the buffer */
    begins[q->tensors] = l->units[c->a->unit].numel;
    const struct bucket_largest_args args = {.largest = largest,
                                             .of_tensor = of_tensor,
                                             .x = x,
                                             .error = error,
                                             .pieces = q->pieces,
                                             .n = q->n,
                                             .begins = begins,
                                             .tensors = q->tensors};
    return c->ops->bucket_largest(c->s, &args);
}

/* --- weights as codes --------------------------------------------------------------------------------------------- */

/* Returns the number of a coded weight's elements in this rank's range; 0 = no elements. The elements begin at element
 * *ret_from of the range. */
static int64_t part_of_weight(const struct call *c, int tensor, int64_t shard, int64_t *ret_from)
{
    const struct layout *l = c->e->p->layout;
    const struct local_tensor *t = &l->tensors[l->model->units[c->a->unit].first_tensor + tensor];
    const int64_t begin = layout_begin(l, c->a->unit, c->e->opt.rank);
    const int64_t from = MAX(t->offset, begin), to = MIN(t->offset + t->rows * t->cols, begin + shard);

    *ret_from = from - begin;
    return MAX(to - from, 0);
}

/* The scales that a step holds; NULL: it looks for them. */
static const struct held_scales *held_scales_of(const struct call *c)
{
    return c->e->p->scales_every > 1 && c->e->batch ? c->e->batch->held : NULL;
}

static titan_status hold_scales(const struct call *c, double *statistics, float *scales, const float *largest)
{
    const struct op_held_scales *const q = &c->p->held_scales;
    const struct exec *e = c->e;
    const struct held_scales *const held = held_scales_of(c);
    const int64_t first = e->p->layout->model->units[c->a->unit].first_tensor;
    bool writes = true;

    titan_assert(!held || (held->n == e->p->layout->model->n_tensors && first + q->weights <= held->n));
    if (held) { /* the previous step's copies from host_scales have run */
        for (int64_t i = first; i < first + q->weights; i++)
            e->host_scales[i] = held_scales_value(held, i);
        TRY(c->ops->copy(c->s, scales, e->host_scales + first, (size_t)q->weights * sizeof *scales));
    } else {
        TRY(c->ops->float8_scales(c->s, scales, largest, q->ld, q->ranks, q->weights, true));
    }
    for (int axis = 0; axis < AXIS_COUNT; axis++)
        writes = writes && (axis == AXIS_PP || e->at[axis] == 0);
    return writes ? c->ops->block_sums(c->s, statistics + e->p->statistics.scales + first, scales, (size_t)q->weights,
                                       1, false)
                  : TITAN_OK;
}

static titan_status find_largest(const struct call *c, float *largest, const char *shard)
{
    const struct op_float8_largest *const q = &c->p->float8_largest;
    const enum dtype dt = (enum dtype)c->p->dt;
    int64_t from, count;

    if (held_scales_of(c))
        return TITAN_OK;
    for (int t = 0, at = 0; at < q->weights; t++) {
        if (!((uint64_t)q->coded >> t & 1))
            continue;
        count = part_of_weight(c, t, q->n, &from);
        TRY(c->ops->float8_largest(c->s, largest + at++, count > 0 ? shard + from * (int64_t)dtype_bytes(dt) : shard,
                                   dt, (size_t)count));
    }
    return TITAN_OK;
}

/* Writes the codes of the shard's weights to `codes`, and copies the shard's other elements to `others`. Other
 * elements, and the fill of the last range, have no codes: their places in `codes` become zero. */
static titan_status pack_float8(const struct call *c, uint8_t *codes, char *others, const char *shard,
                                const float *scales)
{
    const struct op_float8_pack *const q = &c->p->float8_pack;
    const struct layout *l = c->e->p->layout;
    const enum dtype dt = (enum dtype)c->p->dt;
    const size_t elem = dtype_bytes(dt);
    const int64_t begin = layout_begin(l, c->a->unit, c->e->opt.rank);
    struct coded_part parts[CODED_MAX + 1];
    struct coded coded;
    int64_t done = 0, from;
    int n;

    coded_init(l, c->a->unit, (uint64_t)q->coded, elem, &coded);
    titan_assert(coded.shard == q->n && coded.others == q->rest && coded.n == q->weights);
    coded_parts(&coded, (int)(begin / q->n), parts, &n);
    for (int i = 0; i < n; i++) {
        from = parts[i].from - begin;
        TRY(c->ops->zero(c->s, codes + from, (size_t)parts[i].count));
        TRY(c->ops->copy(c->s, others + parts[i].at * (int64_t)elem, shard + from * (int64_t)elem,
                         (size_t)parts[i].count * elem));
        done = parts[i].at + parts[i].count;
    }
    const int64_t filled = MIN(MAX(l->units[c->a->unit].numel - begin, 0), q->n);
    TRY(c->ops->zero(c->s, codes + filled, (size_t)(q->n - filled)));
    TRY(c->ops->zero(c->s, others + done * (int64_t)elem, (size_t)(q->rest - done) * elem));

    for (int t = 0, at = 0; at < q->weights; t++) {
        if (!((uint64_t)q->coded >> t & 1))
            continue;
        const int64_t count = part_of_weight(c, t, q->n, &from);
        if (count > 0)
            TRY(c->ops->float8_encode(c->s, codes + from, shard + from * (int64_t)elem, dt, (size_t)count,
                                      scales + at));
        at++;
    }
    return TITAN_OK;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* Defines one function per operation. It makes the call in the operation's row, where numbers, operands and flags are
 * used by name. */
#define UNUSED __attribute__((unused))
#define OP(NAME, name, class, type, flops, numbers, operands, run)                                                     \
    static titan_status run_##name(const struct call *call)                                                            \
    {                                                                                                                  \
        const struct op_##name *const own UNUSED = &call->p->name;                                                     \
        const struct device_ops *const ops UNUSED = call->ops;                                                         \
        const struct comm_ops *const comm UNUSED = call->e->opt.comm_ops;                                              \
        struct stream *const s UNUSED = call->s;                                                                       \
        const enum dtype dt UNUSED = (enum dtype)call->p->dt, dt2 UNUSED = (enum dtype)call->p->dt2;                   \
        const uint32_t flags UNUSED = call->p->flags;                                                                  \
        const bool ta UNUSED = flags & OP_TA, tb UNUSED = flags & OP_TB;                                               \
        int next UNUSED = 0;                                                                                           \
        numbers operands return run;                                                                                   \
    }
#define NUM(name, ...) const int64_t name UNUSED = own->name;
#define GIVEN(name) const int64_t name UNUSED = own->name;
#define REAL(name) const float name UNUSED = (float)own->name;
#define OPERAND(name, access, when, ...) void *const name UNUSED = (when) ? address(call, next++) : NULL;
#define MORE_OPERANDS (next < call->a->n_operands)
#include "worker/program/ops.def"

static const run_fn run[OP_COUNT] = {
#define OP(NAME, name, ...) [OP_##NAME] = run_##name,
#include "worker/program/ops.def"
};

titan_status exec_dispatch(const struct call *c)
{
    titan_debug_assert(c->a->op < OP_COUNT);
    return run[c->a->op](c);
}
