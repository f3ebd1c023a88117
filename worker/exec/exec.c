/* exec.c - program in, device and communicator calls out. */
#include "worker/exec/exec.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

struct exec {
    struct exec_options opt;
    struct layer_ctx ctx;
    const struct program *p;
    char *arena;
    void **address;        /* of every buffer */
    struct event **events; /* of every action that signals, otherwise NULL */
    struct event *step_end;
    int32_t *positions;
    float *cos, *sin;
    double *host_header, *host_reports; /* counts and orders out, reports in */
};

/* --- set-up
 * --------------------------------------------------------------------------------------------------------------- */

static titan_status bind_buffers(struct exec *e, struct titan_error *err)
{
    const struct program *p = e->p;
    const struct train_state *st = e->opt.state;

    e->address = calloc((size_t)p->n_buffers + 1, sizeof *e->address);
    if (!e->address)
        return titan_fail(err, TITAN_ENOMEM, "executor: out of memory");
    TRY(e->opt.device->ops->alloc(e->opt.device->dev, MAX(p->arena_bytes, 1), (void **)&e->arena, err));
    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *b = &p->buffers[i];
        if (b->kind == BUF_SHARD)
            e->address[i] = (char *)st->shadow + (size_t)st->layout->offset[b->unit] * dtype_bytes(st->dt);
        else if (!b->external)
            e->address[i] = e->arena + b->offset;
    }
    return TITAN_OK;
}

static titan_status open_events(struct exec *e, struct titan_error *err)
{
    const struct device_handle *d = e->opt.device;

    e->events = calloc((size_t)e->p->n_actions + 1, sizeof(struct event *));
    if (!e->events)
        return titan_fail(err, TITAN_ENOMEM, "executor: out of memory");
    for (int i = 0; i < e->p->n_actions; i++)
        if (e->p->actions[i].signal)
            TRY(d->ops->event_open(d->dev, &e->events[i], err));
    return d->ops->event_open(d->dev, &e->step_end, err);
}

/* Positions of a microbatch and the rotary tables. */
static titan_status upload_tables(struct exec *e, struct titan_error *err)
{
    const struct device_handle *d = e->opt.device;
    struct stream *const s = e->opt.streams[STREAM_COMPUTE];
    const int64_t n = e->ctx.b * e->ctx.t, half = e->ctx.model->head_dim / 2;
    const size_t bytes = (size_t)(e->ctx.t * half) * sizeof(float);
    _cleanup_free_ int32_t *positions = malloc((size_t)n * sizeof *positions);
    _cleanup_free_ float *c = malloc(bytes);
    _cleanup_free_ float *si = malloc(bytes);

    if (!positions || !c || !si)
        return titan_fail(err, TITAN_ENOMEM, "executor: out of memory");
    for (int64_t i = 0; i < n; i++)
        positions[i] = (int32_t)(i % e->ctx.t);
    model_rope_tables(e->ctx.model, e->ctx.t, c, si);
    TRY(d->ops->alloc(d->dev, (size_t)n * sizeof *positions, (void **)&e->positions, err));
    TRY(d->ops->alloc(d->dev, bytes, (void **)&e->cos, err));
    TRY(d->ops->alloc(d->dev, bytes, (void **)&e->sin, err));
    TRY(d->ops->copy(s, e->positions, positions, (size_t)n * sizeof *positions));
    TRY(d->ops->copy(s, e->cos, c, bytes));
    TRY(d->ops->copy(s, e->sin, si, bytes));
    e->ctx.positions = e->positions;
    e->ctx.cos = e->cos;
    e->ctx.sin = e->sin;
    return d->ops->stream_sync(s, err);
}

static titan_status open_parts(struct exec *e, struct titan_error *err)
{
    const struct device_handle *d = e->opt.device;
    const size_t report = (size_t)report_size(e->p) * sizeof(double);

    TRY(bind_buffers(e, err));
    TRY(open_events(e, err));
    TRY(d->ops->alloc_host(d->dev, report, (void **)&e->host_header, err));
    TRY(d->ops->alloc_host(d->dev, report * (size_t)e->p->world, (void **)&e->host_reports, err));
    return upload_tables(e, err);
}

titan_status exec_open(const struct exec_options *options, struct exec **ret, struct titan_error *err)
{
    struct exec *e = calloc(1, sizeof *e);
    if (!e)
        return titan_fail(err, TITAN_ENOMEM, "executor: out of memory");
    e->opt = *options;
    e->p = options->program;
    e->ctx = *options->shape;
    e->ctx.stream = options->streams[STREAM_COMPUTE];
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
    const struct device_ops *ops = e->opt.device->ops;
    struct device *const dev = e->opt.device->dev;
    void *const memory[] = {e->arena, e->positions, e->cos, e->sin};

    for (size_t i = 0; i < ARRAY_SIZE(memory); i++)
        if (memory[i])
            ops->release(dev, memory[i]);
    for (int i = 0; e->events && i < e->p->n_actions; i++)
        if (e->events[i])
            ops->event_close(e->events[i]);
    if (e->step_end)
        ops->event_close(e->step_end);
    if (e->host_header)
        ops->release_host(dev, e->host_header);
    if (e->host_reports)
        ops->release_host(dev, e->host_reports);
    free(e->address);
    free(e->events);
    free(e);
}

/* --- actions
 * ---------------------------------------------------------------------------------------------------------------- */

/* What one action sees. */
struct call {
    struct exec *e;
    const struct action *a;
    struct stream *s;
    const struct exec_step *step;
    struct exec_decision *decision;
};

static void *in(const struct call *c, int i)
{
    return c->e->address[c->a->in[i]];
}

static void *out(const struct call *c, int i)
{
    return c->e->address[c->a->out[i]];
}

static int64_t shard_of(const struct call *c)
{
    return c->e->opt.state->layout->shard[c->a->unit];
}

static int64_t padded(const struct call *c)
{
    return layout_padded(c->e->opt.state->layout, c->a->unit);
}

static int64_t slot(const struct call *c)
{
    return c->a->microbatch - c->e->p->from;
}

static titan_status run_gather(const struct call *c)
{
    const struct exec *e = c->e;
    return e->opt.comm_ops->all_gather(e->opt.comm, out(c, 0), in(c, 0), (size_t)shard_of(c), e->ctx.dt, c->s);
}

static titan_status run_load(const struct call *c)
{
    const int64_t n2 = 2 * c->e->ctx.b * c->e->ctx.t;
    return c->e->ctx.ops->copy(c->s, out(c, 0), c->step->batch + slot(c) * n2, (size_t)n2 * sizeof(int32_t));
}

static const int32_t *targets_of(const struct call *c, const int32_t *tokens)
{
    return tokens + c->e->ctx.b * c->e->ctx.t;
}

static titan_status run_embed_forward(const struct call *c)
{
    return embedding_forward(&c->e->ctx, out(c, 0), in(c, 0), in(c, 1));
}

static titan_status run_embed_wgrad(const struct call *c)
{
    return embedding_wgrad(&c->e->ctx, out(c, 0), padded(c), c->a->first, in(c, 0), in(c, 1));
}

/* The norm's rstd (N) of a unit's input tells whether that was finite, at the cost of N elements. */
static titan_status check_input(const struct call *c, double *report, const float *rstd)
{
    const size_t n = (size_t)(c->e->ctx.b * c->e->ctx.t);
    return c->e->ctx.ops->block_sums(c->s, report + report_check(c->e->p, slot(c), c->a->unit), rstd, n, n, false);
}

static titan_status run_layer_forward(const struct call *c)
{
    const bool recompute = c->a->n_out == 1;
    struct layer_saved saved;

    (void)layer_saved_carve(&c->e->ctx, out(c, 0), &saved);
    TRY(layer_forward(&c->e->ctx, c->a->unit - 1, recompute ? NULL : out(c, 1), &saved, in(c, 0), in(c, 1)));
    return recompute ? TITAN_OK : check_input(c, out(c, 2), saved.rstd1);
}

static titan_status run_layer_dgrad(const struct call *c)
{
    struct layer_saved saved;
    struct layer_back back;
    (void)layer_saved_carve(&c->e->ctx, in(c, 2), &saved);
    (void)layer_back_carve(&c->e->ctx, out(c, 1), &back);
    return layer_dgrad(&c->e->ctx, c->a->unit - 1, out(c, 0), &back, &saved, in(c, 0), in(c, 1), in(c, 3), out(c, 2));
}

static titan_status run_layer_wgrad(const struct call *c)
{
    struct layer_saved saved;
    struct layer_back back;
    (void)layer_saved_carve(&c->e->ctx, in(c, 1), &saved);
    (void)layer_back_carve(&c->e->ctx, in(c, 2), &back);
    return layer_wgrad(&c->e->ctx, c->a->unit - 1, out(c, 0), padded(c), c->a->first, &saved, &back, in(c, 0),
                       in(c, 3));
}

static titan_status run_head_forward(const struct call *c)
{
    const struct layer_ctx *ctx = &c->e->ctx;
    const size_t n = (size_t)(ctx->b * ctx->t);
    struct head_saved head;
    float *const losses = out(c, 1);
    double *const report = out(c, 2);

    (void)head_saved_carve(ctx, out(c, 0), &head);
    TRY(head_forward(ctx, &head, in(c, 0), in(c, 1)));
    TRY(check_input(c, report, head.rstd));
    TRY(head_loss(ctx, &head, losses, targets_of(c, in(c, 2)), true));
    return ctx->ops->block_sums(c->s, report + report_losses() + slot(c), losses, n, n, false);
}

static titan_status run_head_dgrad(const struct call *c)
{
    struct head_saved head;
    struct head_back back;
    (void)head_saved_carve(&c->e->ctx, in(c, 2), &head);
    (void)head_back_carve(&c->e->ctx, out(c, 1), &back);
    return head_dgrad(&c->e->ctx, out(c, 0), &back, &head, in(c, 0), in(c, 1));
}

static titan_status run_head_wgrad(const struct call *c)
{
    struct head_saved head;
    struct head_back back;
    (void)head_saved_carve(&c->e->ctx, in(c, 1), &head);
    (void)head_back_carve(&c->e->ctx, in(c, 2), &back);
    return head_wgrad(&c->e->ctx, out(c, 0), padded(c), c->a->first, &head, &back, in(c, 0));
}

static titan_status run_reduce(const struct call *c)
{
    const struct exec *e = c->e;
    return e->opt.comm_ops->reduce_scatter(e->opt.comm, out(c, 0), in(c, 0), (size_t)shard_of(c), DTYPE_F32, c->s);
}

/* PACK: [owner j][subtree k][shard of j]. */
static titan_status run_pack(const struct call *c)
{
    const struct program *p = c->e->p;
    const int64_t shard = shard_of(c);
    float *const pack = out(c, 0);

    for (int j = 0; j < p->world; j++)
        for (int k = 0; k < c->a->n_in; k++)
            TRY(c->e->ctx.ops->copy(c->s, pack + (j * p->subtrees_max + k) * shard, (float *)in(c, k) + j * shard,
                                    (size_t)shard * sizeof(float)));
    return TITAN_OK;
}

static titan_status run_exchange(const struct call *c)
{
    const struct exec *e = c->e;
    return e->opt.comm_ops->all_to_all(e->opt.comm, out(c, 0), in(c, 0), c->a->bytes, c->s);
}

static titan_status run_combine(const struct call *c)
{
    const struct program *p = c->e->p;
    const struct device_ops *ops = c->e->ctx.ops;
    const int64_t shard = shard_of(c);
    float *const slices = out(c, 0);

    for (int i = 0; i < p->n_adds; i++)
        TRY(ops->accumulate(c->s, slices + p->adds[i].left * shard, slices + p->adds[i].right * shard, (size_t)shard));
    return ops->copy(c->s, out(c, 1), slices + p->root_slice * shard, (size_t)shard * sizeof(float));
}

static titan_status run_norm(const struct call *c)
{
    const struct layout *l = c->e->opt.state->layout;
    double *const report = out(c, 0);
    double *const blocks = report + report_blocks(c->e->p) + l->offset[c->a->unit] / l->block;
    return c->e->ctx.ops->block_sums(c->s, blocks, in(c, 0), (size_t)shard_of(c), (size_t)l->block, true);
}

static titan_status run_agree(const struct call *c)
{
    const struct exec *e = c->e;
    const struct program *p = e->p;
    const int64_t share = p->share_max, mine = p->to - p->from;
    double *const report = in(c, 0);

    for (int64_t i = 0; i < share; i++)
        e->host_header[i] = i < mine ? c->step->counts[i] : 0;
    for (int i = 0; i < REPORT_ORDERS; i++)
        e->host_header[share + i] = c->step->orders >> i & 1;
    TRY(e->ctx.ops->copy(c->s, report + report_counts(p), e->host_header,
                         (size_t)(share + REPORT_ORDERS) * sizeof(double)));
    if (p->world == 1)
        return e->ctx.ops->copy(c->s, out(c, 1), report, c->a->bytes);
    return e->opt.comm_ops->all_gather(e->opt.comm, out(c, 1), report, (size_t)report_size(p), DTYPE_F64, c->s);
}

/* The one place where the host waits for the device. */
static titan_status run_decide(const struct call *c, struct titan_error *err)
{
    const struct exec *e = c->e;

    TRY(e->ctx.ops->copy(c->s, e->host_reports, in(c, 0),
                         (size_t)report_size(e->p) * sizeof(double) * (size_t)e->p->world));
    TRY(e->ctx.ops->stream_sync(c->s, err));
    return c->step->decide(c->step->arg, e->host_reports, c->decision, err);
}

static titan_status run_optimise(const struct call *c)
{
    const struct train_state *st = c->e->opt.state;
    const int64_t at = st->layout->offset[c->a->unit];
    uint16_t *const shadow = st->shadow == st->master ? NULL : (uint16_t *)st->shadow + at;

    if (c->decision->skip)
        return TITAN_OK;
    return c->e->ctx.ops->adamw(c->s, st->master + at, st->m + at, st->v + at, in(c, 0), shadow, (size_t)shard_of(c),
                                &c->decision->adamw);
}

static titan_status run_action(const struct call *c, struct titan_error *err)
{
    switch (c->a->kind) {
    case ACT_GATHER:
        return run_gather(c);
    case ACT_RELEASE:
        return TITAN_OK; /* ends a lifetime, which the arena knows */
    case ACT_LOAD:
        return run_load(c);
    case ACT_EMBED_FORWARD:
        return run_embed_forward(c);
    case ACT_LAYER_FORWARD:
        return run_layer_forward(c);
    case ACT_HEAD_FORWARD:
        return run_head_forward(c);
    case ACT_HEAD_DGRAD:
        return run_head_dgrad(c);
    case ACT_HEAD_WGRAD:
        return run_head_wgrad(c);
    case ACT_LAYER_DGRAD:
        return run_layer_dgrad(c);
    case ACT_LAYER_WGRAD:
        return run_layer_wgrad(c);
    case ACT_EMBED_WGRAD:
        return run_embed_wgrad(c);
    case ACT_ZERO:
        return c->e->ctx.ops->zero(c->s, out(c, 0), (size_t)padded(c) * sizeof(float));
    case ACT_ADD:
        return c->e->ctx.ops->accumulate(c->s, out(c, 0), in(c, 0), (size_t)padded(c));
    case ACT_REDUCE:
        return run_reduce(c);
    case ACT_PACK:
        return run_pack(c);
    case ACT_EXCHANGE:
        return run_exchange(c);
    case ACT_COMBINE:
        return run_combine(c);
    case ACT_NORM:
        return run_norm(c);
    case ACT_AGREE:
        return run_agree(c);
    case ACT_DECIDE:
        return run_decide(c, err);
    case ACT_OPTIMISE:
        return run_optimise(c);
    case ACT_COUNT:
        break;
    }
    return TITAN_EBUG;
}

static titan_status issue(const struct call *c, int index, struct titan_error *err)
{
    const struct device_ops *ops = c->e->ctx.ops;

    if (c->a->wait >= 0)
        TRY(ops->event_wait(c->e->events[c->a->wait], c->s, err));
    TRY(run_action(c, err));
    if (c->a->signal)
        TRY(ops->event_record(c->e->events[index], c->s, err));
    return TITAN_OK;
}

titan_status exec_run(struct exec *e, const struct exec_step *step, struct titan_error *err)
{
    struct exec_decision decision = {.skip = true};
    struct titan_error fault = {0};

    for (int i = 0; i < e->p->n_actions; i++) {
        const struct action *a = &e->p->actions[i];
        const struct call c = {.e = e, .a = a, .s = e->opt.streams[a->stream], .step = step, .decision = &decision};
        const titan_status status = issue(&c, i, &fault);
        if (status == TITAN_OK)
            continue;
        if (err && fault.status == status)
            *err = fault;
        else
            (void)titan_fail(err, status, "%s", titan_status_text(status));
        return titan_error_wrap(err, "action %d (%s)", i, action_name(a->kind));
    }
    /* The next step's gathers read what this one's update writes. */
    TRY(e->ctx.ops->event_record(e->step_end, e->opt.streams[STREAM_COMPUTE], err));
    return e->ctx.ops->event_wait(e->step_end, e->opt.streams[STREAM_COMM], err);
}
