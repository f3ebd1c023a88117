/* check_form.c - every action by itself: numbers in range, operands of the right number, access and size. */
#include <string.h>

#include "base/cleanup.h"
#include "worker/device/device.h"
#include "worker/plan/checker.h"

#define OPERANDS_MAX 16
#define WHOLE SIZE_MAX /* the numbers do not tell: all of the buffer */

/* --- number and access of operands -------------------------------------------------------------------------------- */

/* Operands in order: r, w, u; a: w, or u with OP_ADD_TO. */
struct signature {
    const char *access, *other, *third; /* other possibilities */
    const char *repeat;                 /* what follows, once or more often */
};

/* Without an entry: not known here. */
static const struct signature signatures[OP_COUNT] = {
    [OP_LOAD] = {.access = "w"},
    [OP_EMBED] = {.access = "wrr"},
    [OP_EMBED_WGRAD] = {.access = "urr"},
    [OP_RMSNORM] = {.access = "wwrr"},
    [OP_RMSNORM_DGRAD] = {.access = "arrrr"},
    [OP_RMSNORM_DGAIN] = {.access = "urrr"},
    [OP_MATMUL] = {.access = "arr"},
    [OP_ROPE] = {.access = "urrr"},
    [OP_ATTENTION] = {.access = "wwrrr", .other = "wwrrrrrr"},
    [OP_ATTENTION_DGRAD] = {.access = "wwwrrrrrrw", .other = "wwwrrrrrrwrrr"},
    [OP_ATTENTION_MERGE] = {.access = "uurr"},
    [OP_SWIGLU] = {.access = "wrr"},
    [OP_SWIGLU_DGRAD] = {.access = "wwrrr"},
    [OP_ADD] = {.access = "wrr"},
    [OP_COPY] = {.access = "wr"},
    [OP_COPY_2D] = {.access = "wr"},
    [OP_ADD_2D] = {.access = "ur"},
    [OP_CAST] = {.access = "wr"},
    [OP_ZERO] = {.access = "w"},
    [OP_ACCUMULATE] = {.access = "ur"},
    [OP_LOSS_STATS] = {.access = "wrr"},
    [OP_LOSS_FINISH] = {.access = "wwrrr", .other = "wrrr"},
    [OP_LOSS_SUM] = {.access = "ur"},
    [OP_CHECK] = {.access = "ur"},
    [OP_ROUTE] = {.access = "wwr", .other = "wwrr", .third = "wwrru"},
    [OP_ROUTE_DGRAD] = {.access = "wrrr"},
    [OP_PERMUTE] = {.access = "wwwr"},
    [OP_PERMUTE_RECEIVED] = {.access = "wwwr"},
    [OP_SCATTER_ROWS] = {.access = "wrr", .other = "wrrr"},
    [OP_COMBINE_ROWS] = {.access = "wrr", .other = "wrrr"},
    [OP_COMBINE_DWEIGHTS] = {.access = "wrrr"},
    [OP_MATMUL_GROUPED] = {.access = "arrr"},
    [OP_EXPERT_LOAD] = {.access = "ur"},
    [OP_BALANCE] = {.access = "uw"},
    [OP_ALL_GATHER] = {.access = "", .repeat = "wr"},
    [OP_REDUCE_SCATTER] = {.access = "", .repeat = "wr"},
    [OP_ALL_REDUCE] = {.access = "", .repeat = "u"},
    [OP_ALL_TO_ALL] = {.access = "wr"},
    [OP_ALL_TO_ALL_V] = {.access = "wrrr"},
    [OP_SHIFT] = {.access = "wr"},
    [OP_SEND] = {.access = "r"},
    [OP_RECV] = {.access = "w"},
    [OP_PACK] = {.access = "w", .repeat = "r"},
    [OP_SUM_TREE] = {.access = "wu"},
    [OP_NORM] = {.access = "ur"},
    [OP_AGREE] = {.access = "u"},
    [OP_DECIDE] = {.access = "r"},
    [OP_OPTIMISE] = {.access = "uwr"},
    [OP_RELEASE] = {.access = "r"},
};

static bool access_is(const struct operand *o, char want, bool add)
{
    if (want == 'a')
        want = add ? 'u' : 'w';
    return o->access == (want == 'r' ? ACCESS_READ : want == 'w' ? ACCESS_WRITE : ACCESS_UPDATE);
}

static bool fits(const struct operand *o, int n, const char *access, const char *repeat, bool add)
{
    const int fixed = (int)strlen(access), each = repeat ? (int)strlen(repeat) : 0;

    if (each > 0 ? n < fixed + each || (n - fixed) % each != 0 : n != fixed)
        return false;
    for (int k = 0; k < n; k++)
        if (!access_is(&o[k], k < fixed ? access[k] : repeat[(k - fixed) % each], add))
            return false;
    return true;
}

static titan_status check_access(const struct checker *c, const struct action *a)
{
    const struct signature *s = &signatures[a->op];
    const struct operand *o = action_operands(c->p, a);
    const bool add = action_params(c->p, a)->flags & OP_ADD_TO;

    if (!s->access || fits(o, a->n_operands, s->access, s->repeat, add) ||
        (s->other && fits(o, a->n_operands, s->other, NULL, add)) ||
        (s->third && fits(o, a->n_operands, s->third, NULL, add)) ||
        (a->op == OP_PACK && a->n_operands == 1)) /* a rank without a microbatch */
        return TITAN_OK;
    return REFUSE(c, "its %d operands are not what it takes (%s%s%s)", a->n_operands, s->access, s->repeat ? "+" : "",
                  s->repeat ? s->repeat : "");
}

/* --- sizes -------------------------------------------------------------------------------------------------------- */

static size_t span(int64_t rows, int64_t cols, int64_t ld, size_t element)
{
    return rows == 0 || cols == 0 ? 0 : (size_t)((rows - 1) * ld + cols) * element;
}

static void sizes_of_norms(const struct op_params *q, enum op op, size_t *ret)
{
    const size_t x = (size_t)(q->n[0] * q->n[1]) * dtype_bytes((enum dtype)q->dt);
    const size_t gain = (size_t)q->n[1] * dtype_bytes((enum dtype)q->dt), rstd = (size_t)q->n[0] * sizeof(float);

    if (op == OP_RMSNORM)
        memcpy(ret, (size_t[]){x, rstd, x, gain}, 4 * sizeof *ret);
    else if (op == OP_RMSNORM_DGRAD)
        memcpy(ret, (size_t[]){x, x, x, gain, rstd}, 5 * sizeof *ret);
    else
        memcpy(ret, (size_t[]){(size_t)q->n[1] * sizeof(float), x, x, rstd}, 4 * sizeof *ret);
}

static void sizes_of_matmul(const struct op_params *q, size_t *ret)
{
    const size_t e = dtype_bytes((enum dtype)q->dt);
    const int64_t m = q->n[0], n = q->n[1], k = q->n[2];
    const bool ta = q->flags & OP_TA, tb = q->flags & OP_TB;

    ret[0] = span(m, n, q->n[5], q->flags & OP_F32 ? sizeof(float) : e);
    ret[1] = span(ta ? k : m, ta ? m : k, q->n[3], e);
    ret[2] = span(tb ? n : k, tb ? k : n, q->n[4], e);
}

static void sizes_of_attention(const struct op_params *q, enum op op, size_t *ret)
{
    const size_t e = dtype_bytes((enum dtype)q->dt);
    const int64_t *n = q->n, tq = n[0] * n[1], tk = n[0] * n[2];
    const size_t query = span(tq, n[3] * n[5], n[7], e), key = span(tk, n[4] * n[5], n[8], e);
    const size_t value = span(tk, n[4] * n[6], n[9], e), out = span(tq, n[3] * n[6], n[10], e);
    const size_t lse = (size_t)(n[3] * tq) * sizeof(float);
    const size_t queries = (size_t)tq * sizeof(int32_t), keys = (size_t)tk * sizeof(int32_t);

    if (op == OP_ATTENTION) {
        memcpy(ret, (size_t[]){out, lse, query, key, value, queries, queries, keys}, 8 * sizeof *ret);
        return;
    }
    const size_t dq = span(tq, n[3] * n[5], n[11], e), dk = span(tk, n[4] * n[5], n[12], e);
    const size_t dv = span(tk, n[4] * n[6], n[13], e), dout = span(tq, n[3] * n[6], n[14], e);
    memcpy(ret, (size_t[]){dq, dk, dv, dout, out, lse, query, key, value, WHOLE, queries, queries, keys},
           13 * sizeof *ret);
}

static void sizes_of_loss(const struct op_params *q, enum op op, size_t *ret)
{
    const size_t logits = (size_t)(q->n[0] * q->n[1]) * dtype_bytes((enum dtype)q->dt);
    const size_t rows = (size_t)q->n[0] * sizeof(float), stats = 3 * rows;

    if (op == OP_LOSS_STATS)
        memcpy(ret, (size_t[]){stats, logits, rows}, 3 * sizeof *ret);
    else if (q->flags & OP_NO_GRADIENT)
        memcpy(ret, (size_t[]){rows, logits, rows, stats * (size_t)q->n[2]}, 4 * sizeof *ret);
    else
        memcpy(ret, (size_t[]){rows, logits, logits, rows, stats * (size_t)q->n[2]}, 5 * sizeof *ret);
}

/* Collectives of equal parts: pair k has n[k] elements a member. */
static void sizes_of_collective(const struct checker *c, const struct action *a, size_t *ret)
{
    const struct op_params *q = action_params(c->p, a);
    const size_t e = dtype_bytes((enum dtype)q->dt);
    const size_t members = (size_t)mesh_group_size(&c->p->mesh, channel_group((enum channel)a->channel));

    for (int k = 0; k < a->n_operands; k++) {
        const size_t part = (size_t)q->n[a->op == OP_ALL_REDUCE ? k : k / 2] * e;
        const bool whole = a->op == OP_ALL_GATHER ? k % 2 == 0 : a->op == OP_REDUCE_SCATTER && k % 2 == 1;
        ret[k] = whole ? part * members : part;
    }
    if (a->op == OP_ALL_TO_ALL)
        ret[0] = ret[1] = (size_t)q->n[0] * members;
}

/* A product whose rows are of several groups; there may be room for more of them than there are. */
static void sizes_of_groups(const struct op_params *q, size_t *ret)
{
    const size_t e = dtype_bytes((enum dtype)q->dt);
    const int64_t m = q->n[0], n = q->n[1], k = q->n[2], groups = q->n[6];
    const bool ta = q->flags & OP_TA, tb = q->flags & OP_TB;

    ret[0] = span(ta ? groups * m : m, n, q->n[5], q->flags & OP_F32 ? sizeof(float) : e);
    ret[1] = span(ta ? k : m, ta ? m : k, q->n[3], e);
    ret[2] = span(ta ? k : groups * (tb ? n : k), tb ? k : n, q->n[4], e);
    ret[3] = (size_t)groups * sizeof(int32_t);
}

/* Tables and weights have 4 bytes an element. */
static void sizes_of_experts(const struct checker *c, const struct action *a, size_t *ret)
{
    const struct op_params *q = action_params(c->p, a);
    const int64_t *n = q->n;
    const size_t rows = (size_t)(n[0] * n[2]) * dtype_bytes((enum dtype)q->dt), choices = (size_t)(n[0] * n[1]) * 4;

    switch (a->op) {
    case OP_ROUTE: /* N E top_k: rows and choices have changed places */
        memcpy(ret, (size_t[]){rows, rows, choices, (size_t)n[1] * 4, (size_t)n[1] * 4}, 5 * sizeof *ret);
        break;
    case OP_ROUTE_DGRAD:
        memcpy(ret, (size_t[]){choices, rows, choices, rows}, 4 * sizeof *ret);
        break;
    case OP_PERMUTE:
        memcpy(ret, (size_t[]){choices, (size_t)n[2] * 4, (size_t)n[3] * 4, choices}, 4 * sizeof *ret);
        break;
    case OP_PERMUTE_RECEIVED:
        memcpy(ret, (size_t[]){(size_t)n[2] * 4, (size_t)n[1] * 4, (size_t)n[0] * 4, choices}, 4 * sizeof *ret);
        break;
    case OP_SCATTER_ROWS:
        memcpy(ret, (size_t[]){WHOLE, rows, choices, choices}, 4 * sizeof *ret);
        break;
    case OP_COMBINE_ROWS:
        memcpy(ret, (size_t[]){rows, WHOLE, choices, choices}, 4 * sizeof *ret);
        break;
    case OP_COMBINE_DWEIGHTS:
        memcpy(ret, (size_t[]){choices, rows, WHOLE, choices}, 4 * sizeof *ret);
        break;
    case OP_ALL_TO_ALL_V:
        ret[1] = ret[3] = 4 * (size_t)mesh_group_size(&c->p->mesh, channel_group((enum channel)a->channel));
        break;
    case OP_EXPERT_LOAD:
        memcpy(ret, (size_t[]){(size_t)c->p->report.size * sizeof(double), (size_t)n[0] * 4}, 2 * sizeof *ret);
        break;
    default: /* OP_BALANCE */
        ret[0] = ret[1] = (size_t)n[0] * 4;
        break;
    }
}

/* Of operations on tensors of N rows and of bare elements. */
static void sizes_of_plain(const struct op_params *q, enum op op, size_t *ret)
{
    const size_t e = dtype_bytes((enum dtype)q->dt), n = (size_t)q->n[0];
    const int64_t rows = q->n[0], cols = q->n[1], repeat = MAX(q->n[4], 1);
    const size_t dense = (size_t)(rows * cols) * e;

    switch (op) {
    case OP_LOAD:
        ret[0] = 5 * n * sizeof(int32_t);
        break;
    case OP_EMBED:
        memcpy(ret, (size_t[]){dense, n * sizeof(int32_t), (size_t)(q->n[2] * cols) * e}, 3 * sizeof *ret);
        break;
    case OP_EMBED_WGRAD:
        memcpy(ret, (size_t[]){(size_t)(q->n[2] * cols) * sizeof(float), n * sizeof(int32_t), dense}, 3 * sizeof *ret);
        break;
    case OP_ROPE:
        ret[0] = span(rows, cols * q->n[2], q->n[3], e);
        ret[1] = n * sizeof(int32_t);
        break;
    case OP_ATTENTION_MERGE:
        ret[0] = ret[2] = span(rows, cols * q->n[2], q->n[3], e);
        ret[1] = ret[3] = (size_t)(rows * cols) * sizeof(float);
        break;
    case OP_SWIGLU:
        ret[0] = dense;
        ret[1] = ret[2] = span(rows, cols, q->n[2], e);
        break;
    case OP_SWIGLU_DGRAD:
        ret[0] = ret[1] = span(rows, cols, q->n[2], e);
        ret[2] = dense;
        ret[3] = ret[4] = span(rows, cols, q->n[3], e);
        break;
    case OP_ADD:
    case OP_ACCUMULATE:
        ret[0] = ret[1] = ret[2] = n * e;
        break;
    case OP_COPY_2D:
        ret[0] = span(rows, cols, q->n[2], e);
        ret[1] = span(rows / repeat, cols, q->n[3], e);
        break;
    case OP_ADD_2D:
        ret[0] = span(rows, cols, q->n[2], e);
        ret[1] = span(rows * repeat, cols, q->n[3], e);
        break;
    case OP_CAST:
        ret[0] = n * e;
        ret[1] = n * dtype_bytes((enum dtype)q->dt2);
        break;
    default:
        break;
    }
}

/* Of what is sent, reported, reduced and updated. */
static void sizes_of_step(const struct program *p, const struct op_params *q, enum op op, size_t *ret)
{
    const size_t n = (size_t)q->n[0], report = (size_t)p->report.size * sizeof(double);

    switch (op) {
    case OP_COPY:
    case OP_ZERO:
    case OP_SHIFT:
    case OP_SEND:
    case OP_RECV:
        ret[0] = ret[1] = n;
        break;
    case OP_LOSS_SUM:
    case OP_CHECK:
        ret[0] = report;
        ret[1] = n * sizeof(float);
        break;
    case OP_PACK:
        for (int k = 0; k < OPERANDS_MAX; k++)
            ret[k] = (size_t)(q->n[0] * q->n[1]) * sizeof(float);
        ret[0] *= (size_t)q->n[2];
        break;
    case OP_SUM_TREE:
        ret[0] = n * sizeof(float);
        break;
    case OP_NORM:
        ret[0] = report;
        ret[1] = n * sizeof(float);
        break;
    case OP_AGREE:
    case OP_DECIDE:
        ret[0] = report;
        break;
    case OP_OPTIMISE:
        ret[1] = n * dtype_bytes((enum dtype)q->dt);
        ret[2] = n * sizeof(float);
        break;
    default:
        break;
    }
}

static void sizes_of(const struct checker *c, const struct action *a, size_t *ret)
{
    const struct op_params *q = action_params(c->p, a);

    for (int k = 0; k < OPERANDS_MAX; k++)
        ret[k] = WHOLE;
    switch (a->op) {
    case OP_RMSNORM:
    case OP_RMSNORM_DGRAD:
    case OP_RMSNORM_DGAIN:
        sizes_of_norms(q, (enum op)a->op, ret);
        break;
    case OP_MATMUL:
        sizes_of_matmul(q, ret);
        break;
    case OP_ATTENTION:
    case OP_ATTENTION_DGRAD:
        sizes_of_attention(q, (enum op)a->op, ret);
        break;
    case OP_LOSS_STATS:
    case OP_LOSS_FINISH:
        sizes_of_loss(q, (enum op)a->op, ret);
        break;
    case OP_ALL_GATHER:
    case OP_REDUCE_SCATTER:
    case OP_ALL_REDUCE:
    case OP_ALL_TO_ALL:
        if (a->n_operands <= OPERANDS_MAX)
            sizes_of_collective(c, a, ret);
        break;
    case OP_MATMUL_GROUPED:
        sizes_of_groups(q, ret);
        break;
    case OP_ROUTE:
    case OP_ROUTE_DGRAD:
    case OP_PERMUTE:
    case OP_PERMUTE_RECEIVED:
    case OP_SCATTER_ROWS:
    case OP_COMBINE_ROWS:
    case OP_COMBINE_DWEIGHTS:
    case OP_ALL_TO_ALL_V:
    case OP_EXPERT_LOAD:
    case OP_BALANCE:
        sizes_of_experts(c, a, ret);
        break;
    default:
        sizes_of_plain(q, (enum op)a->op, ret);
        sizes_of_step(c->p, q, (enum op)a->op, ret);
        break;
    }
}

static titan_status check_sizes(const struct checker *c, const struct action *a)
{
    const struct operand *o = action_operands(c->p, a);
    size_t want[OPERANDS_MAX];

    if (!signatures[a->op].access)
        return TITAN_OK;
    sizes_of(c, a, want);
    for (int k = 0; k < MIN(a->n_operands, OPERANDS_MAX); k++) {
        const struct buffer *b = &c->p->buffers[o[k].buffer];
        const size_t bytes = want[k] == WHOLE ? b->bytes : want[k];
        if (o[k].bytes != bytes)
            return REFUSE(c, "operand %d (%s #%d) has %zu bytes, its numbers say %zu", k, buffer_kind_name(b->kind),
                          o[k].buffer, o[k].bytes, bytes);
    }
    return TITAN_OK;
}

/* --- one action --------------------------------------------------------------------------------------------------- */

/* May an action of one unit use a buffer of another? A layer's experts are a unit of their own, a tied head takes the
 * embedding's table. */
static bool unit_fits(const struct checker *c, const struct action *a, const struct buffer *b)
{
    const struct model *m = c->model;

    if (a->unit < 0 || b->unit == a->unit || op_is_collective((enum op)a->op)) /* a bucket is of several units */
        return true;
    if (m->units[a->unit].kind == UNIT_HEAD)
        return m->dims.tied_embeddings && b->unit == 0;
    return m->units[a->unit].kind == UNIT_LAYER && b->unit == model_experts_unit(m, m->units[a->unit].layer);
}

/* Buffers that belong to one unit whoever uses them, and to one microbatch. */
static bool of_unit(enum buffer_kind kind)
{
    return kind == BUF_SHARD || kind == BUF_STATE || kind == BUF_STATE_HOST || kind == BUF_FULL || kind == BUF_GRAD ||
           kind == BUF_GRAD_SHARD;
}

static bool of_microbatch(enum buffer_kind kind)
{
    return kind == BUF_TOKENS || kind == BUF_ACTIVATION || kind == BUF_DACTIVATION || kind == BUF_WORK;
}

/* Buffers that a unit's actions write, others may read. */
static bool of_writer(enum buffer_kind kind)
{
    return kind == BUF_ACTIVATION || kind == BUF_DACTIVATION || kind == BUF_WORK;
}

static titan_status check_operand(const struct checker *c, const struct action *a, const struct operand *o, int k)
{
    if (o->buffer < 0 || o->buffer >= c->p->n_buffers)
        return REFUSE(c, "operand %d is buffer %d of %d", k, o->buffer, c->p->n_buffers);
    const struct buffer *b = &c->p->buffers[o->buffer];
    if (o->access < ACCESS_READ || o->access > ACCESS_UPDATE)
        return REFUSE(c, "operand %d is neither read nor written", k);
    if (o->offset > b->bytes || o->bytes > b->bytes - o->offset)
        return REFUSE(c, "operand %d ends at byte %zu of %s #%d, which has %zu", k, o->offset + o->bytes,
                      buffer_kind_name(b->kind), o->buffer, b->bytes);
    if ((of_unit(b->kind) || (of_writer(b->kind) && o->access & ACCESS_WRITE)) && !unit_fits(c, a, b))
        return REFUSE(c, "operand %d (%s #%d) belongs to unit %d", k, buffer_kind_name(b->kind), o->buffer, b->unit);
    if (of_microbatch(b->kind) && a->microbatch >= 0 && b->microbatch >= 0 && b->microbatch != a->microbatch)
        return REFUSE(c, "operand %d (%s #%d) belongs to microbatch %d", k, buffer_kind_name(b->kind), o->buffer,
                      b->microbatch);
    return TITAN_OK;
}

static titan_status check_waits(const struct checker *c, const struct action *a)
{
    for (int k = 0; k < a->n_waits; k++) {
        const int w = c->p->waits[a->wait + k];
        if (w < 0 || w >= c->index)
            return REFUSE(c, "waits for action %d, which does not come before it", w);
        if (c->p->actions[w].stream == a->stream || !c->p->actions[w].signal)
            return REFUSE(c, "waits for action %d, which does not signal to it", w);
    }
    return TITAN_OK;
}

/* Who the other end of a point-to-point channel is. */
static int neighbour(const struct program *p, const struct action *a)
{
    const int pp = p->mesh.size[AXIS_PP];
    const bool next = a->channel == CHANNEL_FORWARD_NEXT || a->channel == CHANNEL_BACKWARD_NEXT;

    return (p->pp_rank + (next == (a->op == OP_SEND) ? 1 : pp - 1)) % pp;
}

static titan_status check_transfer(const struct checker *c, const struct action *a)
{
    const bool pipeline = a->op == OP_SEND || a->op == OP_RECV;

    if (!op_is_transfer((enum op)a->op))
        return a->channel < 0 ? TITAN_OK : REFUSE(c, "is no transfer but has a channel");
    if (a->op == OP_AGREE)
        return (a->channel == CHANNEL_WORLD) == (c->p->mesh.world > 1) ? TITAN_OK : REFUSE(c, "is not on WORLD");
    if (a->channel < 0 || a->channel >= CHANNEL_COUNT || (a->channel >= CHANNEL_FORWARD_NEXT) != pipeline)
        return REFUSE(c, "has no channel that fits (%d)", a->channel);
    if (!pipeline)
        return TITAN_OK;
    if (a->stream != (a->op == OP_SEND ? STREAM_SEND : STREAM_RECV) + a->channel - CHANNEL_FORWARD_NEXT)
        return REFUSE(c, "is on stream %s, not on its channel's", stream_name((enum stream_id)a->stream));
    if (a->peer != neighbour(c->p, a))
        return REFUSE(c, "peer is pp rank %d, on %s it must be %d", a->peer, channel_name((enum channel)a->channel),
                      neighbour(c->p, a));
    return TITAN_OK;
}

static titan_status check_action(const struct checker *c, const struct action *a)
{
    const struct program *p = c->p;

    if (a->op >= OP_COUNT || a->stream >= STREAM_COUNT || a->phase >= PHASE_COUNT)
        return REFUSE(c, "unknown operation, stream or phase");
    if (a->params < 0 || a->params >= p->n_params || a->operand < 0 || a->n_operands < 0 ||
        a->n_operands > p->n_operands - a->operand || a->wait < 0 || a->n_waits < 0 ||
        a->n_waits > p->n_waits - a->wait)
        return REFUSE(c, "its numbers, operands or waits are none of the program's");
    if (a->unit < NONE || a->unit >= c->model->n_units || a->microbatch < NONE || a->microbatch >= p->share_max)
        return REFUSE(c, "there are %d units and %ld microbatches", c->model->n_units, (long)p->share_max);
    if (a->stage < NONE || a->stage >= p->layout->stages || (a->op == OP_RECV && a->stage == NONE))
        return REFUSE(c, "stage %d of %d", a->stage, p->layout->stages);
    for (int k = 0; k < a->n_operands; k++)
        TRY(check_operand(c, a, &action_operands(p, a)[k], k));
    TRY(check_transfer(c, a));
    TRY(check_access(c, a));
    TRY(check_sizes(c, a));
    return check_waits(c, a);
}

/* A channel's operations keep their order only on one stream. */
static titan_status check_channels(struct checker *c)
{
    int stream[CHANNEL_COUNT][2];

    memset(stream, 0xff, sizeof stream);
    for (c->index = 0; c->index < c->p->n_actions; c->index++) {
        const struct action *a = &c->p->actions[c->index];
        if (a->channel < 0)
            continue;
        int *s = &stream[a->channel][a->op == OP_RECV];
        if (*s == NONE)
            *s = a->stream;
        if (*s != a->stream)
            return REFUSE(c, "is on stream %s, others of channel %s on %s", stream_name((enum stream_id)a->stream),
                          channel_name((enum channel)a->channel), stream_name((enum stream_id) * s));
    }
    c->index = NONE;
    return TITAN_OK;
}

titan_status check_form(struct checker *c)
{
    for (c->index = 0; c->index < c->p->n_actions; c->index++)
        TRY(check_action(c, &c->p->actions[c->index]));
    return check_channels(c);
}
