/* exec.c - program in, device and communicator calls out. */
#include "worker/exec/exec.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/progress.h"
#include "worker/plan/tree.h"

#define NORM_BLOCK 4096 /* elements summed at a time where the order of sums is free */

struct exec {
    struct exec_options opt;
    const struct program *p;
    const struct device_ops *ops;
    int at[AXIS_COUNT]; /* this rank's place in the mesh */
    int64_t from;       /* first microbatch of its share */
    int64_t tokens;     /* of a microbatch on one cp rank */
    char *arena;
    void **address;        /* of every buffer */
    struct event **events; /* of every action that signals, otherwise NULL */
    struct event *joined[STREAM_COUNT];
    void *tables[TABLE_COUNT];
    int64_t *norms;      /* per unit: where its sums stand in the report */
    double *scratch;     /* device: partial sums of one operation of the compute stream */
    double *host_header; /* counts and orders, out */
    double *reports[2];  /* in: the last step's, and room for the next one's, which may fail on its way */
    int newest;
    bool decided, prepared;
    float *host_loads; /* of the experts, from the report */
    int agree;         /* index of AGREE */
    int meeting;       /* program_meeting */
    struct final *finals;
    int n_finals, next_final;
};

/* A gradient shard: the action that is the last to write to it, and the NORM that reads it. */
struct final {
    int writer, norm;
};

/* --- set-up ------------------------------------------------------------------------------------------------------- */

static titan_status no_memory(struct titan_error *err)
{
    return titan_fail(err, TITAN_ENOMEM, "executor: out of memory");
}

/* Upload a table once; frees the host's copy. */
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

static titan_status upload_rope(struct exec *e, struct titan_error *err)
{
    const struct model *m = e->p->layout->model;
    const size_t n = (size_t)(e->opt.cut.t * (model_rope_dim(m) / 2));
    float *c = malloc(n * sizeof *c), *s = malloc(n * sizeof *s);

    if (c && s)
        model_rope_tables(m, e->opt.cut.t, c, s);
    const titan_status status = upload(e, TABLE_COS, c, n * sizeof *c, err);
    if (status != TITAN_OK) {
        free(s);
        return status;
    }
    return upload(e, TABLE_SIN, s, n * sizeof *s, err);
}

/* Index of the keys of all cp ranks: in rank order, or this rank's first and then against the ring's direction. */
static titan_status upload_keys(struct exec *e, enum table which, struct titan_error *err)
{
    const int cp = e->p->mesh.size[AXIS_CP], me = e->at[AXIS_CP];
    int32_t *index = malloc((size_t)(cp * e->tokens) * sizeof *index);

    for (int i = 0; index && i < cp; i++)
        sequence_index(&e->opt.cut, which == TABLE_KEYS_GATHERED ? i : (me - i + cp) % cp, index + i * e->tokens);
    return upload(e, which, index, (size_t)(cp * e->tokens) * sizeof *index, err);
}

static titan_status open_table(struct exec *e, enum table which, struct titan_error *err)
{
    if (e->tables[which])
        return TITAN_OK;
    return which == TABLE_COS || which == TABLE_SIN ? upload_rope(e, err) : upload_keys(e, which, err);
}

static titan_status bind_buffers(struct exec *e, struct titan_error *err)
{
    const struct program *p = e->p;
    const struct device_handle *d = e->opt.device;

    e->address = calloc((size_t)p->n_buffers + 1, sizeof *e->address);
    if (!e->address)
        return no_memory(err);
    TRY(d->ops->alloc(d->dev, MAX(p->arena_bytes, 1), (void **)&e->arena, err));
    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *b = &p->buffers[i];
        if (b->kind == BUF_TABLE) {
            if (b->first >= 0)
                TRY(open_table(e, (enum table)b->unit, err));
            e->address[i] = e->tables[b->unit];
        } else if (buffer_is_external(b->kind)) {
            e->address[i] = e->opt.bind(e->opt.arg, b);
        } else {
            e->address[i] = e->arena + b->offset;
        }
    }
    return TITAN_OK;
}

static titan_status open_events(struct exec *e, struct titan_error *err)
{
    const struct device_handle *d = e->opt.device;

    e->events = calloc((size_t)e->p->n_actions + 1, sizeof(struct event *));
    if (!e->events)
        return no_memory(err);
    for (int i = 0; i < e->p->n_actions; i++)
        if (e->p->actions[i].signal)
            TRY(d->ops->event_open(d->dev, &e->events[i], err));
    for (int s = 0; s < STREAM_COUNT; s++)
        if (s == STREAM_COMPUTE || e->p->streams >> s & 1)
            TRY(d->ops->event_open(d->dev, &e->joined[s], err));
    return TITAN_OK;
}

static titan_status open_report(struct exec *e, struct titan_error *err)
{
    const struct device_handle *d = e->opt.device;
    const struct layout *l = e->p->layout;
    const struct report *r = &e->p->report;
    int64_t at = r->norms, most = 1;

    e->norms = calloc((size_t)l->model->n_units, sizeof *e->norms);
    if (!e->norms)
        return no_memory(err);
    for (int u = 0; u < l->model->n_units; u++) {
        e->norms[u] = at;
        at += report_norms(r, l, u);
        most = MAX(most, l->units[u].shard / NORM_BLOCK + 1);
    }
    TRY(d->ops->alloc(d->dev, (size_t)most * sizeof(double), (void **)&e->scratch, err));
    TRY(d->ops->alloc_host(d->dev, (size_t)(e->p->share + REPORT_ORDERS) * sizeof(double), (void **)&e->host_header,
                           err));
    for (int i = 0; i < 2; i++)
        TRY(d->ops->alloc_host(d->dev, (size_t)r->size * sizeof(double), (void **)&e->reports[i], err));
    const size_t loads = (size_t)(r->size - r->loads);
    return loads > 0 ? d->ops->alloc_host(d->dev, loads * sizeof(float), (void **)&e->host_loads, err) : TITAN_OK;
}

/* What follows AGREE needs no peer: that is what makes a prepared step one that can be finished. */
static titan_status find_agree(struct exec *e, struct titan_error *err)
{
    e->agree = e->p->n_actions;
    for (int i = 0; i < e->p->n_actions; i++) {
        if (e->p->actions[i].op == OP_AGREE)
            e->agree = i;
        else if (i > e->agree && op_is_transfer((enum op)e->p->actions[i].op))
            return titan_fail(err, TITAN_EBUG, "action %d (%s) needs a peer after the agreement", i,
                              op_name((enum op)e->p->actions[i].op));
    }
    return TITAN_OK;
}

static int by_writer(const void *a, const void *b)
{
    const struct final *x = a, *y = b;
    return x->writer != y->writer ? (x->writer > y->writer) - (x->writer < y->writer)
                                  : (x->norm > y->norm) - (x->norm < y->norm);
}

/* In the order in which they become final. */
static titan_status find_finals(const struct program *p, struct final **ret, int *ret_n, struct titan_error *err)
{
    struct final *const finals = calloc((size_t)p->layout->model->n_units + 1, sizeof *finals);
    _cleanup_free_ int *writer = calloc((size_t)p->n_buffers + 1, sizeof *writer);
    int n = 0;

    if (!finals || !writer) {
        free(finals);
        return no_memory(err);
    }
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        const struct operand *o = action_operands(p, a);
        if (a->op == OP_NORM)
            finals[n++] = (struct final){.writer = writer[o[1].buffer], .norm = i};
        for (int k = 0; k < a->n_operands; k++)
            if (o[k].access & ACCESS_WRITE)
                writer[o[k].buffer] = i;
    }
    qsort(finals, (size_t)n, sizeof *finals, by_writer);
    *ret = finals;
    *ret_n = n;
    return TITAN_OK;
}

titan_status exec_reduced_order(const struct program *program, int **ret, int *ret_n, struct titan_error *err)
{
    _cleanup_free_ struct final *finals = NULL;
    int n;

    TRY(find_finals(program, &finals, &n, err));
    *ret = calloc((size_t)n + 1, sizeof **ret);
    if (!*ret)
        return no_memory(err);
    for (int i = 0; i < n; i++)
        (*ret)[i] = program->actions[finals[i].norm].unit;
    *ret_n = n;
    return TITAN_OK;
}

static titan_status open_parts(struct exec *e, struct titan_error *err)
{
    TRY(find_agree(e, err));
    e->meeting = program_meeting(e->p);
    TRY(find_finals(e->p, &e->finals, &e->n_finals, err));
    TRY(bind_buffers(e, err));
    TRY(open_events(e, err));
    return open_report(e, err);
}

titan_status exec_open(const struct exec_options *options, struct exec **ret, struct titan_error *err)
{
    const struct program *p = options->program;
    int64_t to;

    struct exec *e = calloc(1, sizeof *e);
    if (!e)
        return no_memory(err);
    e->opt = *options;
    e->p = p;
    e->ops = options->device->ops;
    mesh_coords(&p->mesh, options->rank, e->at);
    tree_share(p->report.microbatches, mesh_batch_size(&p->mesh), mesh_batch_rank(&p->mesh, options->rank), &e->from,
               &to);
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

    for (int i = 0; i < TABLE_COUNT; i++)
        if (e->tables[i])
            e->ops->release(dev, e->tables[i]);
    if (e->arena)
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
        if (e->reports[i])
            e->ops->release_host(dev, e->reports[i]);
    if (e->host_loads)
        e->ops->release_host(dev, e->host_loads);
    free(e->norms);
    free(e->finals);
    free(e->address);
    free(e->events);
    free(e);
}

void *exec_address(const struct exec *e, int buffer)
{
    return e->address[buffer];
}

/* --- actions ------------------------------------------------------------------------------------------------------ */

/* What one action sees. */
struct call {
    struct exec *e;
    const struct action *a;
    const struct operand *o;
    const struct op_params *p;
    const struct device_ops *ops;
    struct stream *s;
    const struct exec_step *step;
    bool *skip;
    struct titan_error *err;
};
typedef titan_status (*run_fn)(const struct call *c);

static void *at(const struct call *c, int i)
{
    const struct operand *o = &c->o[i];
    return (char *)c->e->address[o->buffer] + o->offset;
}

static bool flag(const struct call *c, enum op_flag f)
{
    return c->p->flags & f;
}

#define DT ((enum dtype)c->p->dt)
#define N(i) (c->p->n[i])

static titan_status run_load(const struct call *c)
{
    const int64_t each = 5 * c->e->tokens;
    return c->ops->copy(c->s, at(c, 0), c->step->tokens + c->a->microbatch * each, (size_t)each * sizeof(int32_t));
}

/* First row of the vocabulary on this rank, which has v of them. */
static int64_t first_row(const struct call *c, int64_t v)
{
    return c->e->at[AXIS_TP] * v;
}

static titan_status run_embed(const struct call *c)
{
    return c->ops->embed(c->s, at(c, 0), at(c, 1), at(c, 2), DT, N(0), N(1), N(2), first_row(c, N(2)));
}

static titan_status run_embed_wgrad(const struct call *c)
{
    return c->ops->embed_wgrad(c->s, at(c, 0), at(c, 1), at(c, 2), DT, N(0), N(1), N(2), first_row(c, N(2)));
}

static titan_status run_rmsnorm(const struct call *c)
{
    return c->ops->rmsnorm(c->s, at(c, 0), at(c, 1), at(c, 2), at(c, 3), DT, N(0), N(1), c->p->f[0]);
}

static titan_status run_rmsnorm_dgrad(const struct call *c)
{
    return c->ops->rmsnorm_dgrad(c->s, at(c, 0), flag(c, OP_ADD_TO), at(c, 1), at(c, 2), at(c, 3), at(c, 4), DT, N(0),
                                 N(1));
}

static titan_status run_rmsnorm_dgain(const struct call *c)
{
    return c->ops->rmsnorm_dgain(c->s, at(c, 0), at(c, 1), at(c, 2), at(c, 3), DT, N(0), N(1));
}

static titan_status run_matmul(const struct call *c)
{
    return c->ops->matmul(c->s, at(c, 0), flag(c, OP_F32) ? DTYPE_F32 : DT, N(5), at(c, 1), flag(c, OP_TA), N(3),
                          at(c, 2), flag(c, OP_TB), N(4), DT, N(0), N(1), N(2), flag(c, OP_ADD_TO) ? 1 : 0);
}

static titan_status run_rope(const struct call *c)
{
    return c->ops->rope(c->s, at(c, 0), N(3), at(c, 1), at(c, 2), at(c, 3), DT, N(0), N(1), N(2), flag(c, OP_BACKWARD));
}

/* masks: the first of the three operands. */
static struct attention_shape attention_shape_of(const struct call *c, int masks)
{
    const bool masked = flag(c, OP_MASKED);

    return (struct attention_shape){.dt = DT,
                                    .b = N(0),
                                    .tq = N(1),
                                    .tk = N(2),
                                    .h = N(3),
                                    .kv = N(4),
                                    .d = N(5),
                                    .dv = N(6),
                                    .index = masked ? at(c, masks) : NULL,
                                    .start = masked ? at(c, masks + 1) : NULL,
                                    .key_index = masked ? at(c, masks + 2) : NULL};
}

static titan_status run_attention(const struct call *c)
{
    const struct attention_shape shape = attention_shape_of(c, 5);
    return c->ops->attention(c->s, at(c, 0), N(10), at(c, 1), at(c, 2), N(7), at(c, 3), N(8), at(c, 4), N(9), &shape);
}

static titan_status run_attention_dgrad(const struct call *c)
{
    const struct attention_shape shape = attention_shape_of(c, 10);
    return c->ops->attention_dgrad(c->s, at(c, 0), N(11), at(c, 1), N(12), at(c, 2), N(13), at(c, 3), N(14), at(c, 4),
                                   N(10), at(c, 5), at(c, 6), N(7), at(c, 7), N(8), at(c, 8), N(9), &shape, at(c, 9));
}

static titan_status run_attention_merge(const struct call *c)
{
    return c->ops->attention_merge(c->s, at(c, 0), at(c, 1), at(c, 2), at(c, 3), N(3), DT, N(0), N(1), N(2));
}

static titan_status run_swiglu(const struct call *c)
{
    return c->ops->swiglu(c->s, at(c, 0), at(c, 1), at(c, 2), N(2), DT, N(0), N(1));
}

static titan_status run_swiglu_dgrad(const struct call *c)
{
    return c->ops->swiglu_dgrad(c->s, at(c, 0), at(c, 1), N(2), at(c, 2), at(c, 3), at(c, 4), N(3), DT, N(0), N(1));
}

static titan_status run_add(const struct call *c)
{
    return c->ops->add(c->s, at(c, 0), at(c, 1), at(c, 2), DT, (size_t)N(0));
}

static titan_status run_copy(const struct call *c)
{
    return c->ops->copy(c->s, at(c, 0), at(c, 1), (size_t)N(0));
}

static titan_status run_copy_2d(const struct call *c)
{
    return c->ops->copy_2d(c->s, at(c, 0), N(2), at(c, 1), N(3), DT, N(0), N(1), MAX(N(4), 1));
}

static titan_status run_add_2d(const struct call *c)
{
    return c->ops->add_2d(c->s, at(c, 0), N(2), at(c, 1), N(3), DT, N(0), N(1), MAX(N(4), 1));
}

static titan_status run_cast(const struct call *c)
{
    return c->ops->cast(c->s, at(c, 0), DT, at(c, 1), (enum dtype)c->p->dt2, (size_t)N(0));
}

static titan_status run_zero(const struct call *c)
{
    return c->ops->zero(c->s, at(c, 0), (size_t)N(0));
}

static titan_status run_accumulate(const struct call *c)
{
    return c->ops->accumulate(c->s, at(c, 0), at(c, 1), (size_t)N(0));
}

/* --- mixture of experts ---------------------------------------------------------------------------------------------
 */

static struct router_shape router_shape_of(const struct call *c)
{
    return (struct router_shape){.dt = DT,
                                 .n = N(0),
                                 .experts = N(1),
                                 .top_k = N(2),
                                 .sigmoid = flag(c, OP_SIGMOID),
                                 .normalize = flag(c, OP_NORMALIZE),
                                 .scale = c->p->f[0]};
}

/* An operand that may be left out, as those behind it are then. */
static void *at_if(const struct call *c, int i)
{
    return i < c->a->n_operands ? at(c, i) : NULL;
}

static titan_status run_route(const struct call *c)
{
    const struct router_shape shape = router_shape_of(c);
    return c->ops->router(c->s, at(c, 0), at(c, 1), at_if(c, 4), at(c, 2), at_if(c, 3), &shape);
}

static titan_status run_route_dgrad(const struct call *c)
{
    const struct router_shape shape = router_shape_of(c);
    return c->ops->router_dgrad(c->s, at(c, 0), at(c, 1), at(c, 2), at(c, 3), &shape);
}

static titan_status run_permute(const struct call *c)
{
    return c->ops->permute(c->s, at(c, 0), at(c, 1), at(c, 2), at(c, 3), N(0), N(1), N(2), N(3));
}

static titan_status run_permute_received(const struct call *c)
{
    return c->ops->permute_received(c->s, at(c, 0), at(c, 1), at(c, 2), at(c, 3), N(0), N(1), N(2));
}

static titan_status run_scatter_rows(const struct call *c)
{
    return c->ops->scatter_rows(c->s, at(c, 0), at(c, 1), at(c, 2), at_if(c, 3), DT, N(0), N(1), N(2));
}

static titan_status run_combine_rows(const struct call *c)
{
    return c->ops->combine_rows(c->s, at(c, 0), at(c, 1), at(c, 2), at_if(c, 3), DT, N(0), N(1), N(2));
}

static titan_status run_combine_dweights(const struct call *c)
{
    return c->ops->combine_dweights(c->s, at(c, 0), at(c, 1), at(c, 2), at(c, 3), DT, N(0), N(1), N(2));
}

static titan_status run_matmul_grouped(const struct call *c)
{
    return c->ops->matmul_grouped(c->s, at(c, 0), flag(c, OP_F32) ? DTYPE_F32 : DT, N(5), at(c, 1), flag(c, OP_TA),
                                  N(3), at(c, 2), flag(c, OP_TB), N(4), DT, at(c, 3), N(6), N(0), N(1), N(2),
                                  flag(c, OP_ADD_TO) ? 1 : 0);
}

/* Where the loads of a unit's experts stand in the report. */
static int64_t loads_place(const struct call *c)
{
    const struct model *m = c->e->p->layout->model;
    return c->e->p->report.loads + layout_bias_offset(m, m->units[c->a->unit].layer);
}

static titan_status run_expert_load(const struct call *c)
{
    double *const report = at(c, 0);
    return c->ops->block_sums(c->s, report + loads_place(c), at(c, 1), (size_t)N(0), 1, false);
}

/* The host has the report since DECIDE, and does not touch it again before the next one. */
static titan_status run_balance(const struct call *c)
{
    const struct exec *e = c->e;
    const double *from = e->reports[e->newest] + loads_place(c);
    float *const to = e->host_loads + (loads_place(c) - e->p->report.loads);

    if (*c->skip)
        return TITAN_OK;
    for (int64_t i = 0; i < N(0); i++)
        to[i] = (float)from[i];
    TRY(c->ops->copy(c->s, at(c, 1), to, (size_t)N(0) * sizeof *to));
    return c->ops->router_balance(c->s, at(c, 0), at(c, 1), N(0), c->p->f[0]);
}

/* --- loss and report ------------------------------------------------------------------------------------------------
 */

static titan_status run_loss_stats(const struct call *c)
{
    return c->ops->loss_stats(c->s, at(c, 0), at(c, 1), at(c, 2), DT, N(0), N(1), first_row(c, N(1)));
}

static titan_status run_loss_finish(const struct call *c)
{
    const bool gradient = !flag(c, OP_NO_GRADIENT);
    const int k = gradient ? 2 : 1; /* logits */
    return c->ops->loss_finish(c->s, at(c, 0), gradient ? at(c, 1) : NULL, at(c, k), at(c, k + 1), at(c, k + 2), N(2),
                               DT, N(0), N(1), first_row(c, N(1)));
}

/* *out += the sum of x (n), or of its squares. */
static titan_status add_sum(const struct call *c, double *out, const float *x, int64_t n, bool square)
{
    if (n == 0)
        return TITAN_OK;
    TRY(c->ops->block_sums(c->s, c->e->scratch, x, (size_t)n, NORM_BLOCK, square));
    return c->ops->sum(c->s, out, true, c->e->scratch, (size_t)((n + NORM_BLOCK - 1) / NORM_BLOCK));
}

/* Where a number of this rank's slot stands: [cp][microbatches]. */
static int64_t microbatch_place(const struct exec *e, int64_t slot)
{
    return e->at[AXIS_CP] * e->p->report.microbatches + e->from + slot;
}

static titan_status run_loss_sum(const struct call *c)
{
    double *const report = at(c, 0);
    if (c->e->at[AXIS_TP] != 0) /* all tp ranks have the same */
        return TITAN_OK;
    return add_sum(c, report + c->e->p->report.losses + microbatch_place(c->e, c->a->microbatch), at(c, 1), N(0),
                   false);
}

/* The norm's rstd of a unit's input tells whether that was finite, at the cost of one number a token. */
static titan_status run_check(const struct call *c)
{
    double *const report = at(c, 0);
    return add_sum(c, report + c->e->p->report.checks + c->a->unit, at(c, 1), N(0), false);
}

static titan_status run_norm(const struct call *c)
{
    const struct exec *e = c->e;
    const struct layout *l = e->p->layout;
    const struct unit_layout *u = &l->units[c->a->unit];
    double *out = (double *)at(c, 0) + e->norms[c->a->unit];
    const int64_t n = layout_counted(l, c->a->unit, e->opt.rank);

    if (!e->p->canonical)
        return add_sum(c, out, at(c, 1), n, true);
    if (n == 0)
        return TITAN_OK;
    out += layout_unit_part(l, c->a->unit, e->opt.rank) * layout_unit_blocks(l, c->a->unit) +
           u->shard / l->block * mesh_group_rank(&e->p->mesh, u->group, e->opt.rank);
    return c->ops->block_sums(c->s, out, at(c, 1), (size_t)n, (size_t)l->block, true);
}

static titan_status run_agree(const struct call *c)
{
    const struct exec *e = c->e;
    const struct report *r = &e->p->report;
    const size_t share = (size_t)e->p->share;
    double *const report = at(c, 0), *const counts = e->host_header, *const orders = e->host_header + share;

    for (size_t i = 0; i < share; i++)
        counts[i] = c->step->counts[i];
    for (int i = 0; i < REPORT_ORDERS; i++)
        orders[i] = c->step->orders >> i & 1;
    if (e->at[AXIS_TP] == 0 && e->at[AXIS_PP] == 0) /* one of those that read the same samples */
        TRY(c->ops->copy(c->s, report + r->counts + microbatch_place(e, 0), counts, share * sizeof(double)));
    TRY(c->ops->copy(c->s, report + r->orders, orders, REPORT_ORDERS * sizeof(double)));
    if (e->p->mesh.world == 1)
        return TITAN_OK;
    return e->opt.comm_ops->all_reduce(e->opt.comms[CHANNEL_WORLD], report, (size_t)r->size, DTYPE_F64, c->s);
}

/* The report that has come into the spare room is this step's. */
static titan_status take_report(struct exec *e, const struct exec_step *step, bool *ret_skip, struct titan_error *err)
{
    e->newest = 1 - e->newest;
    e->decided = true;
    e->prepared = false;
    return step->decide(step->arg, e->reports[e->newest], ret_skip, err);
}

/* From here a kernel that hangs and a collective that waits for a peer look alike on a device of its own: with peers it
 * counts as waiting, or every survivor would be taken for the one that hangs. */
static titan_status wait_for_device(const struct exec *e, struct stream *s, struct titan_error *err)
{
    const bool unknown = e->p->mesh.world > 1 && !e->opt.device->info.host_memory;

    if (unknown)
        progress_wait_begin();
    const titan_status status = e->ops->stream_sync(s, err);
    if (unknown)
        progress_wait_end();
    return status;
}

/* The second of the two places where the host waits for the device. */
static titan_status run_decide(const struct call *c)
{
    struct exec *e = c->e;

    TRY(c->ops->copy(c->s, e->reports[1 - e->newest], at(c, 0), (size_t)e->p->report.size * sizeof(double)));
    TRY(wait_for_device(e, c->s, c->err));
    TRY(failpoint("exec.agreed", c->err));
    return take_report(e, c->step, c->skip, c->err);
}

static titan_status run_optimise(const struct call *c)
{
    const bool staged = c->e->p->buffers[c->o[0].buffer].kind != BUF_STATE;

    if (*c->skip)
        return TITAN_OK;
    return c->e->opt.optimise(c->e->opt.arg, c->a->unit, staged ? at(c, 0) : NULL, at(c, 1), at(c, 2), N(0), c->s);
}

/* --- transfers ------------------------------------------------------------------------------------------------------
 */

static struct comm *comm_of(const struct call *c)
{
    return c->e->opt.comms[c->a->channel];
}

static titan_status one_collective(const struct call *c, int i)
{
    const struct comm_ops *comm = c->e->opt.comm_ops;

    switch (c->a->op) {
    case OP_ALL_GATHER:
        return comm->all_gather(comm_of(c), at(c, 2 * i), at(c, 2 * i + 1), (size_t)N(i), DT, c->s);
    case OP_REDUCE_SCATTER:
        return comm->reduce_scatter(comm_of(c), at(c, 2 * i), at(c, 2 * i + 1), (size_t)N(i), DT, c->s);
    default:
        return comm->all_reduce(comm_of(c), at(c, i), (size_t)N(i), DT, c->s);
    }
}

/* One, or a bucket of several as one. */
static titan_status run_collective(const struct call *c)
{
    const struct comm_ops *comm = c->e->opt.comm_ops;
    const int n = c->a->op == OP_ALL_REDUCE ? c->a->n_operands : c->a->n_operands / 2;

    if (n == 1)
        return one_collective(c, 0);
    TRY(comm->group_begin(comm_of(c)));
    for (int i = 0; i < n; i++)
        TRY(one_collective(c, i));
    return comm->group_end(comm_of(c));
}

static titan_status run_all_to_all(const struct call *c)
{
    return c->e->opt.comm_ops->all_to_all(comm_of(c), at(c, 0), at(c, 1), (size_t)N(0), c->s);
}

static titan_status run_all_to_all_v(const struct call *c)
{
    return c->e->opt.comm_ops->all_to_all_v(comm_of(c), at(c, 0), at(c, 1), at(c, 2), at(c, 3), (size_t)N(0), c->s);
}

static titan_status run_shift(const struct call *c)
{
    return c->e->opt.comm_ops->shift(comm_of(c), at(c, 0), at(c, 1), (size_t)N(0), (int)N(1), c->s);
}

/* An edge's two members stand in the order of their pp ranks. */
static int other_end(const struct call *c)
{
    return c->a->peer < c->e->at[AXIS_PP] ? 0 : 1;
}

static titan_status run_send(const struct call *c)
{
    return c->e->opt.comm_ops->send(c->e->opt.comms[c->a->channel], at(c, 0), (size_t)N(0), other_end(c), c->s);
}

static titan_status run_recv(const struct call *c)
{
    return c->e->opt.comm_ops->recv(c->e->opt.inbound[c->a->channel], at(c, 0), (size_t)N(0), other_end(c), c->s);
}

/* [owner][subtree][shard] from the subtrees' whole gradients. */
static titan_status run_pack(const struct call *c)
{
    const int64_t shard = N(0), owners = N(1), subtrees = N(2);
    float *const slices = at(c, 0);

    for (int64_t j = 0; j < owners; j++)
        for (int k = 1; k < c->a->n_operands; k++)
            TRY(c->ops->copy(c->s, slices + (j * subtrees + k - 1) * shard, (float *)at(c, k) + j * shard,
                             (size_t)shard * sizeof(float)));
    return TITAN_OK;
}

static titan_status run_sum_tree(const struct call *c)
{
    const struct program *p = c->e->p;
    const int64_t shard = N(0);
    float *const slices = at(c, 1);

    for (int i = 0; i < p->n_adds; i++)
        TRY(c->ops->accumulate(c->s, slices + p->adds[i].left * shard, slices + p->adds[i].right * shard,
                               (size_t)shard));
    return c->ops->copy(c->s, at(c, 0), slices + p->root_slice * shard, (size_t)shard * sizeof(float));
}

static titan_status run_nothing(const struct call *c)
{
    (void)c;
    return TITAN_OK;
}

static const run_fn run[OP_COUNT] = {
    [OP_LOAD] = run_load,
    [OP_EMBED] = run_embed,
    [OP_EMBED_WGRAD] = run_embed_wgrad,
    [OP_RMSNORM] = run_rmsnorm,
    [OP_RMSNORM_DGRAD] = run_rmsnorm_dgrad,
    [OP_RMSNORM_DGAIN] = run_rmsnorm_dgain,
    [OP_MATMUL] = run_matmul,
    [OP_ROPE] = run_rope,
    [OP_ATTENTION] = run_attention,
    [OP_ATTENTION_DGRAD] = run_attention_dgrad,
    [OP_ATTENTION_MERGE] = run_attention_merge,
    [OP_SWIGLU] = run_swiglu,
    [OP_SWIGLU_DGRAD] = run_swiglu_dgrad,
    [OP_ADD] = run_add,
    [OP_COPY] = run_copy,
    [OP_COPY_2D] = run_copy_2d,
    [OP_ADD_2D] = run_add_2d,
    [OP_CAST] = run_cast,
    [OP_ZERO] = run_zero,
    [OP_ACCUMULATE] = run_accumulate,
    [OP_ROUTE] = run_route,
    [OP_ROUTE_DGRAD] = run_route_dgrad,
    [OP_PERMUTE] = run_permute,
    [OP_PERMUTE_RECEIVED] = run_permute_received,
    [OP_SCATTER_ROWS] = run_scatter_rows,
    [OP_COMBINE_ROWS] = run_combine_rows,
    [OP_COMBINE_DWEIGHTS] = run_combine_dweights,
    [OP_MATMUL_GROUPED] = run_matmul_grouped,
    [OP_EXPERT_LOAD] = run_expert_load,
    [OP_BALANCE] = run_balance,
    [OP_LOSS_STATS] = run_loss_stats,
    [OP_LOSS_FINISH] = run_loss_finish,
    [OP_LOSS_SUM] = run_loss_sum,
    [OP_CHECK] = run_check,
    [OP_ALL_GATHER] = run_collective,
    [OP_REDUCE_SCATTER] = run_collective,
    [OP_ALL_REDUCE] = run_collective,
    [OP_ALL_TO_ALL] = run_all_to_all,
    [OP_ALL_TO_ALL_V] = run_all_to_all_v,
    [OP_SHIFT] = run_shift,
    [OP_SEND] = run_send,
    [OP_RECV] = run_recv,
    [OP_PACK] = run_pack,
    [OP_SUM_TREE] = run_sum_tree,
    [OP_NORM] = run_norm,
    [OP_AGREE] = run_agree,
    [OP_DECIDE] = run_decide,
    [OP_OPTIMISE] = run_optimise,
    [OP_RELEASE] = run_nothing,
};

/* --- the walk -------------------------------------------------------------------------------------------------------
 */

/* done: actions up to here have run, whatever their events say. */
static titan_status issue(const struct call *c, int index, int done)
{
    const struct exec *e = c->e;

    for (int i = 0; i < c->a->n_waits; i++) {
        const int other = e->p->waits[c->a->wait + i];
        if (other > done)
            TRY(c->ops->event_wait(e->events[other], c->s, c->err));
    }
    if (!run[c->a->op])
        return titan_fail(c->err, TITAN_EBUG, "the executor has no operation %s", op_name((enum op)c->a->op));
    TRY(run[c->a->op](c));
    if (index == e->meeting && e->opt.met)
        TRY(c->ops->stream_call(c->s, e->opt.met, e->opt.arg, c->err));
    return c->a->signal ? c->ops->event_record(e->events[index], c->s, c->err) : TITAN_OK;
}

/* The next step begins where all streams of this one have ended: its program knows nothing of this one's last
 * accesses. */
static titan_status join_streams(const struct exec *e, struct titan_error *err)
{
    struct stream *const compute = e->opt.streams[STREAM_COMPUTE];

    for (int s = STREAM_COMPUTE + 1; s < STREAM_COUNT; s++)
        if (e->joined[s]) {
            TRY(e->ops->event_record(e->joined[s], e->opt.streams[s], err));
            TRY(e->ops->event_wait(e->joined[s], compute, err));
        }
    TRY(e->ops->event_record(e->joined[STREAM_COMPUTE], compute, err));
    for (int s = STREAM_COMPUTE + 1; s < STREAM_COUNT; s++)
        if (e->joined[s])
            TRY(e->ops->event_wait(e->joined[STREAM_COMPUTE], e->opt.streams[s], err));
    return TITAN_OK;
}

/* The host knows that all before AGREE has succeeded. */
static titan_status prepare(struct exec *e, struct titan_error *err)
{
    for (int s = 0; s < STREAM_COUNT; s++)
        if (e->joined[s])
            TRY(wait_for_device(e, e->opt.streams[s], err));
    if (e->opt.settle)
        TRY(e->opt.settle(e->opt.arg, err));
    TRY(failpoint("exec.reduced", err));
    e->prepared = true;
    return failpoint("exec.prepared", err);
}

/* The gradient shards that this action was the last to write to. */
static titan_status tell_reduced(struct exec *e, int index, struct titan_error *err)
{
    struct stream *const s = e->opt.streams[e->p->actions[index].stream];

    for (; e->next_final < e->n_finals && e->finals[e->next_final].writer == index; e->next_final++) {
        const struct action *norm = &e->p->actions[e->finals[e->next_final].norm];
        const struct operand *o = &action_operands(e->p, norm)[1];
        const float *grad = (const float *)(const void *)((char *)e->address[o->buffer] + o->offset);
        if (e->opt.reduced)
            TRY(e->opt.reduced(e->opt.arg, norm->unit, grad, action_params(e->p, norm)->n[0], s, err));
    }
    return TITAN_OK;
}

static titan_status run_action(struct exec *e, int index, int done, const struct exec_step *step, bool *skip,
                               struct titan_error *err)
{
    struct titan_error fault = {0};
    const struct action *a = &e->p->actions[index];
    const struct call c = {.e = e,
                           .a = a,
                           .o = action_operands(e->p, a),
                           .p = action_params(e->p, a),
                           .ops = e->ops,
                           .s = e->opt.streams[a->stream],
                           .step = step,
                           .skip = skip,
                           .err = &fault};

    progress_action();
    titan_status status = failpoint("exec.action", &fault);
    if (status == TITAN_OK && a->op == OP_AGREE)
        status = prepare(e, &fault);
    if (status == TITAN_OK)
        status = issue(&c, index, done);
    if (status == TITAN_OK)
        status = tell_reduced(e, index, &fault);
    if (status == TITAN_OK)
        return TITAN_OK;
    if (err && fault.status == status)
        *err = fault;
    else
        (void)titan_fail(err, status, "%s", titan_status_text(status));
    return titan_error_wrap(err, "action %d (%s)", index, op_name((enum op)a->op));
}

titan_status exec_run(struct exec *e, const struct exec_step *step, struct titan_error *err)
{
    bool skip = true;

    e->prepared = false;
    e->next_final = 0;
    for (int i = 0; i < e->p->n_actions; i++) {
        if (i < e->agree && e->opt.revoked && atomic_load(e->opt.revoked))
            return titan_fail(err, TITAN_EREVOKED, "action %d: the epoch was revoked", i);
        TRY(run_action(e, i, -1, step, &skip, err));
    }
    return join_streams(e, err);
}

bool exec_prepared(const struct exec *e)
{
    return e->prepared;
}

titan_status exec_finish(struct exec *e, const struct exec_step *step, const double *report, struct titan_error *err)
{
    bool skip = true;

    if (!e->prepared)
        return titan_fail(err, TITAN_EBUG, "there is no prepared step to finish");
    memcpy(e->reports[1 - e->newest], report, (size_t)e->p->report.size * sizeof *report);
    TRY(take_report(e, step, &skip, err));
    for (int i = e->agree + 1; i < e->p->n_actions; i++)
        if (e->p->actions[i].op != OP_DECIDE)
            TRY(run_action(e, i, e->agree + 1, step, &skip, err));
    return join_streams(e, err);
}

const double *exec_report(const struct exec *e)
{
    return e->decided ? e->reports[e->newest] : NULL;
}
