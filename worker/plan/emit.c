/* emit.c - writing a program. */
#include "worker/plan/emit.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define NONE (-1)

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

/* Make room for one more entry; the first failure sticks. */
#define ROOM(e, what)                                                                                                  \
    ((e)->status == TITAN_OK &&                                                                                        \
     (grow(&(e)->p->what, &(e)->p->cap_##what, (e)->p->n_##what + 1, sizeof *(e)->p->what) ||                          \
      ((e)->status = TITAN_ENOMEM, false)))

titan_status emit_open(const struct layout *layout, int pp_rank, struct emitter *ret, struct titan_error *err)
{
    struct program *p = calloc(1, sizeof *p);

    if (!p)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    p->pp_rank = pp_rank;
    p->layout = layout;
    p->mesh = layout->mesh;
    *ret = (struct emitter){.p = p, .stream = STREAM_COMPUTE, .unit = NONE, .stage = NONE, .microbatch = NONE};
    return TITAN_OK;
}

/* --- buffers and views -------------------------------------------------------------------------------------------- */

int emit_buffer(struct emitter *e, enum buffer_kind kind, const char *name, size_t bytes)
{
    if (!ROOM(e, buffers))
        return NONE;
    e->p->buffers[e->p->n_buffers] = (struct buffer){.kind = kind,
                                                     .name = name,
                                                     .unit = e->unit,
                                                     .microbatch = e->microbatch,
                                                     .bytes = bytes,
                                                     .first = NONE,
                                                     .last = NONE};
    return e->p->n_buffers++;
}

struct tensor emit_tensor(struct emitter *e, enum buffer_kind kind, const char *name, enum dtype dt, int64_t rows,
                          int64_t cols)
{
    return tensor_at(emit_buffer(e, kind, name, (size_t)(rows * cols) * dtype_bytes(dt)), 0, dt, rows, cols);
}

struct tensor tensor_at(int buffer, size_t offset, enum dtype dt, int64_t rows, int64_t cols)
{
    return (struct tensor){.buffer = buffer, .dt = dt, .rows = rows, .cols = cols, .ld = cols, .offset = offset};
}

struct tensor tensor_rows(struct tensor t, int64_t from, int64_t count)
{
    if (from < 0 || count < 0 || from + count > t.rows)
        titan_bug("rows %ld to %ld of a tensor (%ld,%ld)", (long)from, (long)(from + count), (long)t.rows,
                  (long)t.cols);
    t.offset += (size_t)(from * t.ld) * dtype_bytes(t.dt);
    t.rows = count;
    return t;
}

struct tensor tensor_cols(struct tensor t, int64_t from, int64_t count)
{
    if (from < 0 || count < 0 || from + count > t.cols)
        titan_bug("columns %ld to %ld of a tensor (%ld,%ld)", (long)from, (long)(from + count), (long)t.rows,
                  (long)t.cols);
    t.offset += (size_t)from * dtype_bytes(t.dt);
    t.cols = count;
    return t;
}

static bool is_dense(struct tensor t)
{
    return t.ld == t.cols || t.rows <= 1;
}

struct tensor tensor_reshape(struct tensor t, int64_t rows, int64_t cols)
{
    if (!is_dense(t) || rows * cols != tensor_numel(t))
        titan_bug("a tensor (%ld,%ld) with rows %ld apart cannot be (%ld,%ld)", (long)t.rows, (long)t.cols, (long)t.ld,
                  (long)rows, (long)cols);
    t.rows = rows;
    t.cols = t.ld = cols;
    return t;
}

/* Bytes from the first to the last element. */
static size_t span(struct tensor t)
{
    if (tensor_numel(t) == 0)
        return 0;
    return (size_t)((t.rows - 1) * t.ld + t.cols) * dtype_bytes(t.dt);
}

/* --- shapes ------------------------------------------------------------------------------------------------------- */

static void misfit(const char *op, const char *rule, const char *name_a, struct tensor a, const char *name_b,
                   struct tensor b)
{
    titan_bug("%s: %s (%ld,%ld) ld %ld type %d and %s (%ld,%ld) ld %ld type %d do not fit: %s", op, name_a,
              (long)a.rows, (long)a.cols, (long)a.ld, a.dt, name_b, (long)b.rows, (long)b.cols, (long)b.ld, b.dt, rule);
}

/* cond holds of a and b, or we end here. */
#define FIT(cond, a, b) ((cond) ? (void)0 : misfit(__func__, #cond, #a, a, #b, b))
#define DENSE(t) FIT(is_dense(t), t, t)
#define TYPE(t, type) FIT((t).dt == (type), t, t)
/* Dense, of this type and with as many elements. */
#define VECTOR(t, type, numel, like) FIT(is_dense(t) && (t).dt == (type) && tensor_numel(t) == (numel), t, like)

static bool same_shape(struct tensor a, struct tensor b)
{
    return a.rows == b.rows && a.cols == b.cols && a.dt == b.dt;
}

/* --- parameters, each distinct one once --------------------------------------------------------------------------- */

/* Open addressing; slots hold index + 1. */
struct params_index {
    uint32_t cap; /* a power of two, more than half empty */
    int slot[];
};

static uint64_t hash_params(const struct op_params *q)
{
    uint64_t h = 0xcbf29ce484222325u;
    uint32_t f[2];

    memcpy(f, q->f, sizeof f);
    for (int i = 0; i < OP_N_MAX; i++)
        h = (h ^ (uint64_t)q->n[i]) * 0x9e3779b97f4a7c15u;
    h = (h ^ f[0]) * 0x9e3779b97f4a7c15u;
    h = (h ^ f[1]) * 0x9e3779b97f4a7c15u;
    h = (h ^ q->flags ^ (uint64_t)q->dt << 32 ^ (uint64_t)q->dt2 << 40) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static bool same_params(const struct op_params *a, const struct op_params *b)
{
    return memcmp(a->n, b->n, sizeof a->n) == 0 && a->f[0] == b->f[0] && a->f[1] == b->f[1] && a->flags == b->flags &&
           a->dt == b->dt && a->dt2 == b->dt2;
}

/* Slot where these parameters are, or would be. */
static int *find_params(const struct program *p, struct params_index *index, const struct op_params *q)
{
    for (uint64_t h = hash_params(q);; h++) {
        int *slot = &index->slot[h & (index->cap - 1)];
        if (*slot == 0 || same_params(&p->params[*slot - 1], q))
            return slot;
    }
}

static bool grow_index(struct program *p)
{
    struct params_index *old = p->params_index;
    const uint32_t cap = old ? old->cap * 2 : 256;

    if (old && (uint32_t)p->n_params < old->cap / 2)
        return true;
    struct params_index *index = calloc(1, sizeof *index + cap * sizeof index->slot[0]);
    if (!index)
        return false;
    index->cap = cap;
    for (int i = 0; i < p->n_params; i++)
        *find_params(p, index, &p->params[i]) = i + 1;
    free(old);
    p->params_index = index;
    return true;
}

static int intern_params(struct emitter *e, const struct op_params *q)
{
    struct program *p = e->p;

    if (!ROOM(e, params))
        return 0;
    if (!grow_index(p)) {
        e->status = TITAN_ENOMEM;
        return 0;
    }
    int *slot = find_params(p, p->params_index, q);
    if (*slot == 0) {
        p->params[p->n_params] = *q;
        *slot = ++p->n_params;
    }
    return *slot - 1;
}

/* --- any operation ------------------------------------------------------------------------------------------------ */

static enum stream_id channel_stream(enum channel channel)
{
    switch (channel) {
    case CHANNEL_GATHER:
    case CHANNEL_EXPERT_GATHER:
        return STREAM_GATHER;
    case CHANNEL_CP:
    case CHANNEL_TP:
    case CHANNEL_EP:
        return STREAM_TENSOR;
    default:
        return STREAM_REDUCE;
    }
}

void emit_op(struct emitter *e, enum op op, const struct op_params *params)
{
    static const struct op_params nothing;
    const int at = intern_params(e, params ? params : &nothing);

    if (!ROOM(e, actions))
        return;
    e->p->actions[e->p->n_actions++] = (struct action){.op = (uint16_t)op,
                                                       .stream = (uint8_t)e->stream,
                                                       .phase = (uint8_t)e->phase,
                                                       .channel = NONE,
                                                       .peer = NONE,
                                                       .unit = e->unit,
                                                       .stage = e->stage,
                                                       .microbatch = e->microbatch,
                                                       .params = at,
                                                       .operand = e->p->n_operands};
    if (op == OP_AGREE && e->p->mesh.world > 1) {
        emit_last(e)->channel = CHANNEL_WORLD;
        emit_last(e)->stream = (uint8_t)channel_stream(CHANNEL_WORLD);
    }
}

void emit_operand_like(struct emitter *e, struct operand o)
{
    if (!ROOM(e, operands))
        return;
    e->p->operands[e->p->n_operands++] = o;
    emit_last(e)->n_operands++;
}

void emit_operand(struct emitter *e, struct tensor t, enum access access)
{
    if (!tensor_exists(t) || e->status != TITAN_OK)
        return;
    const struct buffer *b = &e->p->buffers[t.buffer];
    if (t.offset + span(t) > b->bytes)
        titan_bug("%s: (%ld,%ld) ld %ld at byte %zu is not within %s, which has %zu",
                  op_name((enum op)emit_last(e)->op), (long)t.rows, (long)t.cols, (long)t.ld, t.offset, b->name,
                  b->bytes);
    emit_operand_like(e, (struct operand){.buffer = t.buffer, .access = access, .offset = t.offset, .bytes = span(t)});
}

struct action *emit_last(struct emitter *e)
{
    if (e->status != TITAN_OK) /* nothing was written: somewhere to write to */
        return &e->none;
    titan_assert(e->p->n_actions > 0);
    return &e->p->actions[e->p->n_actions - 1];
}

int emit_buffer_like(struct emitter *e, int buffer)
{
    if (!ROOM(e, buffers))
        return NONE;
    e->p->buffers[e->p->n_buffers] = e->p->buffers[buffer];
    return e->p->n_buffers++;
}

struct action *emit_action_like(struct emitter *e, int index)
{
    if (!ROOM(e, actions))
        return NULL;
    struct action *a = &e->p->actions[e->p->n_actions++];
    *a = e->p->actions[index];
    a->operand = e->p->n_operands;
    a->n_operands = 0;
    return a;
}

static void read_all(struct emitter *e, const struct tensor *t, int n)
{
    for (int i = 0; i < n; i++)
        emit_operand(e, t[i], ACCESS_READ);
}
#define READ(e, ...)                                                                                                   \
    read_all(e, (const struct tensor[]){__VA_ARGS__},                                                                  \
             sizeof((const struct tensor[]){__VA_ARGS__}) / sizeof(struct tensor))
#define WRITE(e, t) emit_operand(e, t, ACCESS_WRITE)
#define UPDATE(e, t) emit_operand(e, t, ACCESS_UPDATE)

/* --- embedding, norm, products ------------------------------------------------------------------------------------ */

void emit_load(struct emitter *e, struct tensor tokens)
{
    VECTOR(tokens, DTYPE_I32, 5 * tokens.cols, tokens);
    emit_op(e, OP_LOAD, &(struct op_params){.n = {tokens.cols}});
    WRITE(e, tokens);
}

void emit_embed(struct emitter *e, struct tensor x, struct tensor tokens, struct tensor table)
{
    FIT(is_dense(x) && is_dense(table) && x.cols == table.cols && x.dt == table.dt, x, table);
    VECTOR(tokens, DTYPE_I32, x.rows, x);
    emit_op(e, OP_EMBED, &(struct op_params){.n = {x.rows, x.cols, table.rows}, .dt = (uint8_t)x.dt});
    WRITE(e, x);
    READ(e, tokens, table);
}

void emit_embed_wgrad(struct emitter *e, struct tensor dtable, struct tensor tokens, struct tensor dx)
{
    FIT(is_dense(dx) && is_dense(dtable) && dx.cols == dtable.cols && dtable.dt == DTYPE_F32, dtable, dx);
    VECTOR(tokens, DTYPE_I32, dx.rows, dx);
    emit_op(e, OP_EMBED_WGRAD, &(struct op_params){.n = {dx.rows, dx.cols, dtable.rows}, .dt = (uint8_t)dx.dt});
    UPDATE(e, dtable);
    READ(e, tokens, dx);
}

void emit_rmsnorm(struct emitter *e, struct tensor out, struct tensor rstd, struct tensor x, struct tensor gain,
                  double eps)
{
    FIT(is_dense(out) && is_dense(x) && same_shape(out, x), out, x);
    VECTOR(rstd, DTYPE_F32, x.rows, x);
    VECTOR(gain, x.dt, x.cols, x);
    emit_op(e, OP_RMSNORM, &(struct op_params){.n = {x.rows, x.cols}, .f = {(float)eps}, .dt = (uint8_t)x.dt});
    WRITE(e, out);
    WRITE(e, rstd);
    READ(e, x, gain);
}

void emit_rmsnorm_dgrad(struct emitter *e, struct tensor dx, bool add, struct tensor dout, struct tensor x,
                        struct tensor gain, struct tensor rstd)
{
    FIT(is_dense(dx) && is_dense(x) && same_shape(dx, x), dx, x);
    FIT(is_dense(dout) && same_shape(dout, x), dout, x);
    VECTOR(rstd, DTYPE_F32, x.rows, x);
    VECTOR(gain, x.dt, x.cols, x);
    emit_op(e, OP_RMSNORM_DGRAD,
            &(struct op_params){.n = {x.rows, x.cols}, .flags = add ? OP_ADD_TO : 0, .dt = (uint8_t)x.dt});
    emit_operand(e, dx, add ? ACCESS_UPDATE : ACCESS_WRITE);
    READ(e, dout, x, gain, rstd);
}

void emit_rmsnorm_dgain(struct emitter *e, struct tensor dgain, struct tensor dout, struct tensor x, struct tensor rstd)
{
    FIT(is_dense(dout) && is_dense(x) && same_shape(dout, x), dout, x);
    VECTOR(rstd, DTYPE_F32, x.rows, x);
    VECTOR(dgain, DTYPE_F32, x.cols, x);
    emit_op(e, OP_RMSNORM_DGAIN, &(struct op_params){.n = {x.rows, x.cols}, .dt = (uint8_t)x.dt});
    UPDATE(e, dgain);
    READ(e, dout, x, rstd);
}

void emit_matmul(struct emitter *e, struct tensor c, bool add, struct tensor a, bool ta, struct tensor b, bool tb)
{
    const int64_t k = ta ? a.rows : a.cols;
    const struct op_params params = {.n = {c.rows, c.cols, k, a.ld, b.ld, c.ld},
                                     .flags = (ta ? OP_TA : 0) | (tb ? OP_TB : 0) | (add ? OP_ADD_TO : 0) |
                                              (c.dt == DTYPE_F32 ? OP_F32 : 0),
                                     .dt = (uint8_t)a.dt};

    FIT((ta ? a.cols : a.rows) == c.rows && (c.dt == a.dt || c.dt == DTYPE_F32), a, c);
    FIT((tb ? b.rows : b.cols) == c.cols, b, c);
    FIT((tb ? b.cols : b.rows) == k && a.dt == b.dt, a, b);
    emit_op(e, OP_MATMUL, &params);
    emit_operand(e, c, add ? ACCESS_UPDATE : ACCESS_WRITE);
    READ(e, a, b);
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

void emit_rope(struct emitter *e, struct tensor x, struct tensor positions, struct tensor cos, struct tensor sin,
               int64_t heads, bool backward)
{
    const int64_t d = x.cols / heads;
    const struct op_params params = {
        .n = {x.rows, heads, d, x.ld}, .flags = backward ? OP_BACKWARD : 0, .dt = (uint8_t)x.dt};

    VECTOR(positions, DTYPE_I32, x.rows, x);
    FIT(heads * d == x.cols && is_dense(cos) && cos.cols == d / 2 && cos.dt == DTYPE_F32, x, cos);
    FIT(is_dense(sin) && same_shape(cos, sin), cos, sin);
    emit_op(e, OP_ROPE, &params);
    UPDATE(e, x);
    READ(e, positions, cos, sin);
}

/* What both directions share; queries and outputs have rows of b*tq tokens, keys and values of b*tk. */
static struct op_params attention_params(struct tensor out, struct tensor lse, struct tensor q, struct tensor k,
                                         struct tensor v, const struct attention_heads *h,
                                         const struct attention_mask *mask)
{
    const bool masked = mask && tensor_exists(mask->index);

    FIT(q.rows % h->b == 0 && q.cols == h->h * h->d, q, q);
    FIT(k.rows % h->b == 0 && k.cols == h->kv * h->d && k.dt == q.dt, k, q);
    FIT(v.rows == k.rows && v.cols == h->kv * h->dv && v.dt == q.dt, v, k);
    FIT(out.rows == q.rows && out.cols == h->h * h->dv && out.dt == q.dt, out, q);
    VECTOR(lse, DTYPE_F32, q.rows * h->h, q);
    if (masked) {
        VECTOR(mask->index, DTYPE_I32, q.rows, q);
        VECTOR(mask->start, DTYPE_I32, q.rows, q);
        VECTOR(mask->key_index, DTYPE_I32, k.rows, k);
    } else {
        FIT(q.rows == k.rows, q, k);
    }
    return (struct op_params){
        .n = {h->b, q.rows / h->b, k.rows / h->b, h->h, h->kv, h->d, h->dv, q.ld, k.ld, v.ld, out.ld},
        .flags = masked ? OP_MASKED : 0,
        .dt = (uint8_t)q.dt};
}

static void read_mask(struct emitter *e, const struct attention_mask *mask)
{
    if (mask && tensor_exists(mask->index))
        READ(e, mask->index, mask->start, mask->key_index);
}

void emit_attention(struct emitter *e, struct tensor out, struct tensor lse, struct tensor q, struct tensor k,
                    struct tensor v, const struct attention_heads *heads, const struct attention_mask *mask)
{
    const struct op_params params = attention_params(out, lse, q, k, v, heads, mask);

    emit_op(e, OP_ATTENTION, &params);
    WRITE(e, out);
    WRITE(e, lse);
    READ(e, q, k, v);
    read_mask(e, mask);
}

void emit_attention_dgrad(struct emitter *e, struct tensor dq, struct tensor dk, struct tensor dv, struct tensor dout,
                          struct tensor out, struct tensor lse, struct tensor q, struct tensor k, struct tensor v,
                          struct tensor work, const struct attention_heads *heads, const struct attention_mask *mask)
{
    struct op_params params = attention_params(out, lse, q, k, v, heads, mask);

    FIT(same_shape(dq, q), dq, q);
    FIT(same_shape(dk, k), dk, k);
    FIT(same_shape(dv, v), dv, v);
    FIT(same_shape(dout, out), dout, out);
    params.n[11] = dq.ld;
    params.n[12] = dk.ld;
    params.n[13] = dv.ld;
    params.n[14] = dout.ld;
    emit_op(e, OP_ATTENTION_DGRAD, &params);
    WRITE(e, dq);
    WRITE(e, dk);
    WRITE(e, dv);
    READ(e, dout, out, lse, q, k, v);
    WRITE(e, work);
    read_mask(e, mask);
}

void emit_attention_merge(struct emitter *e, struct tensor out, struct tensor lse, struct tensor other,
                          struct tensor other_lse, int64_t heads)
{
    FIT(same_shape(out, other) && out.ld == other.ld && out.cols % heads == 0, out, other);
    VECTOR(lse, DTYPE_F32, out.rows * heads, out);
    VECTOR(other_lse, DTYPE_F32, out.rows * heads, out);
    emit_op(e, OP_ATTENTION_MERGE,
            &(struct op_params){.n = {out.rows, heads, out.cols / heads, out.ld}, .dt = (uint8_t)out.dt});
    UPDATE(e, out);
    UPDATE(e, lse);
    READ(e, other, other_lse);
}

/* --- feed-forward, residual, movement ----------------------------------------------------------------------------- */

void emit_swiglu(struct emitter *e, struct tensor out, struct tensor gate, struct tensor up)
{
    FIT(same_shape(gate, up) && gate.ld == up.ld, gate, up);
    FIT(is_dense(out) && same_shape(out, gate), out, gate);
    emit_op(e, OP_SWIGLU, &(struct op_params){.n = {out.rows, out.cols, gate.ld}, .dt = (uint8_t)out.dt});
    WRITE(e, out);
    READ(e, gate, up);
}

void emit_swiglu_dgrad(struct emitter *e, struct tensor dgate, struct tensor dup, struct tensor dout,
                       struct tensor gate, struct tensor up)
{
    FIT(same_shape(gate, up) && gate.ld == up.ld, gate, up);
    FIT(same_shape(dgate, dup) && dgate.ld == dup.ld, dgate, dup);
    FIT(same_shape(dgate, gate), dgate, gate);
    FIT(is_dense(dout) && same_shape(dout, gate), dout, gate);
    emit_op(e, OP_SWIGLU_DGRAD,
            &(struct op_params){.n = {dout.rows, dout.cols, dgate.ld, gate.ld}, .dt = (uint8_t)dout.dt});
    WRITE(e, dgate);
    WRITE(e, dup);
    READ(e, dout, gate, up);
}

void emit_add(struct emitter *e, struct tensor out, struct tensor a, struct tensor b)
{
    VECTOR(a, out.dt, tensor_numel(out), out);
    VECTOR(b, out.dt, tensor_numel(out), out);
    DENSE(out);
    emit_op(e, OP_ADD, &(struct op_params){.n = {tensor_numel(out)}, .dt = (uint8_t)out.dt});
    WRITE(e, out);
    READ(e, a, b);
}

void emit_copy(struct emitter *e, struct tensor dst, struct tensor src)
{
    FIT(src.rows > 0 && dst.rows % src.rows == 0 && dst.cols == src.cols && dst.dt == src.dt, dst, src);
    if (is_dense(dst) && is_dense(src) && dst.rows == src.rows)
        emit_op(e, OP_COPY, &(struct op_params){.n = {(int64_t)span(dst)}});
    else
        emit_op(
            e, OP_COPY_2D,
            &(struct op_params){.n = {dst.rows, dst.cols, dst.ld, src.ld, dst.rows / src.rows}, .dt = (uint8_t)dst.dt});
    WRITE(e, dst);
    READ(e, src);
}

void emit_add_to(struct emitter *e, struct tensor dst, struct tensor src)
{
    FIT(dst.rows > 0 && src.rows % dst.rows == 0 && dst.cols == src.cols && dst.dt == src.dt, dst, src);
    emit_op(e, OP_ADD_2D,
            &(struct op_params){.n = {dst.rows, dst.cols, dst.ld, src.ld, src.rows / dst.rows}, .dt = (uint8_t)dst.dt});
    UPDATE(e, dst);
    READ(e, src);
}

void emit_zero(struct emitter *e, struct tensor dst)
{
    DENSE(dst);
    emit_op(e, OP_ZERO, &(struct op_params){.n = {(int64_t)span(dst)}});
    WRITE(e, dst);
}

void emit_accumulate(struct emitter *e, struct tensor dst, struct tensor src)
{
    VECTOR(dst, DTYPE_F32, tensor_numel(src), src);
    VECTOR(src, DTYPE_F32, tensor_numel(dst), dst);
    emit_op(e, OP_ACCUMULATE, &(struct op_params){.n = {tensor_numel(dst)}, .dt = DTYPE_F32});
    UPDATE(e, dst);
    READ(e, src);
}

/* --- loss and report ---------------------------------------------------------------------------------------------- */

void emit_loss_stats(struct emitter *e, struct tensor stats, struct tensor logits, struct tensor targets)
{
    DENSE(logits);
    VECTOR(stats, DTYPE_F32, logits.rows * 3, logits);
    VECTOR(targets, DTYPE_I32, logits.rows, logits);
    emit_op(e, OP_LOSS_STATS, &(struct op_params){.n = {logits.rows, logits.cols}, .dt = (uint8_t)logits.dt});
    WRITE(e, stats);
    READ(e, logits, targets);
}

void emit_loss_finish(struct emitter *e, struct tensor losses, struct tensor dlogits, struct tensor logits,
                      struct tensor targets, struct tensor stats, int64_t parts)
{
    const struct op_params params = {.n = {logits.rows, logits.cols, parts},
                                     .flags = tensor_exists(dlogits) ? 0 : OP_NO_GRADIENT,
                                     .dt = (uint8_t)logits.dt};

    DENSE(logits);
    if (tensor_exists(dlogits))
        FIT(is_dense(dlogits) && same_shape(dlogits, logits), dlogits, logits);
    VECTOR(losses, DTYPE_F32, logits.rows, logits);
    VECTOR(stats, DTYPE_F32, parts * logits.rows * 3, logits);
    VECTOR(targets, DTYPE_I32, logits.rows, logits);
    emit_op(e, OP_LOSS_FINISH, &params);
    WRITE(e, losses);
    WRITE(e, dlogits);
    READ(e, logits, targets, stats);
}

void emit_loss_sum(struct emitter *e, struct tensor report, struct tensor losses)
{
    TYPE(report, DTYPE_F64);
    TYPE(losses, DTYPE_F32);
    emit_op(e, OP_LOSS_SUM, &(struct op_params){.n = {tensor_numel(losses)}, .dt = DTYPE_F32});
    UPDATE(e, report);
    READ(e, losses);
}

void emit_check(struct emitter *e, struct tensor report, struct tensor rstd)
{
    TYPE(report, DTYPE_F64);
    TYPE(rstd, DTYPE_F32);
    emit_op(e, OP_CHECK, &(struct op_params){.n = {tensor_numel(rstd)}, .dt = DTYPE_F32});
    UPDATE(e, report);
    READ(e, rstd);
}

/* --- mixture of experts ------------------------------------------------------------------------------------------- */

static struct op_params routing_params(struct tensor logits, struct tensor chosen, const struct routing *r)
{
    VECTOR(logits, DTYPE_F32, chosen.rows * r->experts, chosen);
    VECTOR(chosen, DTYPE_I32, logits.rows * r->top_k, logits);
    return (struct op_params){.n = {logits.rows, r->experts, r->top_k},
                              .f = {(float)r->scale},
                              .flags = (r->sigmoid ? OP_SIGMOID : 0) | (r->normalize ? OP_NORMALIZE : 0),
                              .dt = DTYPE_F32};
}

void emit_route(struct emitter *e, struct tensor chosen, struct tensor weights, struct tensor logits,
                struct tensor bias, struct tensor load, const struct routing *routing)
{
    const struct op_params params = routing_params(logits, chosen, routing);

    VECTOR(weights, DTYPE_F32, tensor_numel(chosen), chosen);
    if (tensor_exists(bias))
        VECTOR(bias, DTYPE_F32, routing->experts, logits);
    if (tensor_exists(load))
        FIT(is_dense(load) && tensor_numel(load) == routing->experts && tensor_exists(bias), load, bias);
    emit_op(e, OP_ROUTE, &params);
    WRITE(e, chosen);
    WRITE(e, weights);
    READ(e, logits, bias);
    UPDATE(e, load);
}

void emit_route_dgrad(struct emitter *e, struct tensor dlogits, struct tensor dweights, struct tensor logits,
                      struct tensor chosen, const struct routing *routing)
{
    const struct op_params params = routing_params(logits, chosen, routing);

    FIT(is_dense(dlogits) && same_shape(dlogits, logits), dlogits, logits);
    VECTOR(dweights, DTYPE_F32, tensor_numel(chosen), chosen);
    emit_op(e, OP_ROUTE_DGRAD, &params);
    WRITE(e, dlogits);
    READ(e, dweights, logits, chosen);
}

void emit_permute(struct emitter *e, struct tensor place, struct tensor counts, struct tensor rank_counts,
                  struct tensor chosen)
{
    const int64_t experts = tensor_numel(counts), ranks = tensor_numel(rank_counts);

    FIT(is_dense(place) && same_shape(place, chosen) && chosen.dt == DTYPE_I32 && is_dense(chosen), place, chosen);
    VECTOR(counts, DTYPE_I32, experts, chosen);
    VECTOR(rank_counts, DTYPE_I32, ranks, counts);
    FIT(experts % ranks == 0, counts, rank_counts);
    emit_op(e, OP_PERMUTE, &(struct op_params){.n = {chosen.rows, chosen.cols, experts, ranks}});
    WRITE(e, place);
    WRITE(e, counts);
    WRITE(e, rank_counts);
    READ(e, chosen);
}

void emit_permute_received(struct emitter *e, struct tensor place, struct tensor counts, struct tensor rank_counts,
                           struct tensor received)
{
    const int64_t rows = tensor_numel(place);

    VECTOR(received, DTYPE_I32, tensor_numel(rank_counts) * tensor_numel(counts), counts);
    VECTOR(place, DTYPE_I32, rows, place);
    VECTOR(counts, DTYPE_I32, received.cols, received);
    VECTOR(rank_counts, DTYPE_I32, received.rows, received);
    emit_op(e, OP_PERMUTE_RECEIVED, &(struct op_params){.n = {received.rows, received.cols, rows}});
    WRITE(e, place);
    WRITE(e, counts);
    WRITE(e, rank_counts);
    READ(e, received);
}

/* many: rows of the experts; one: rows of tokens. */
static struct op_params rows_params(struct tensor many, struct tensor one, struct tensor place, struct tensor weights)
{
    FIT(is_dense(many) && is_dense(one) && many.cols == one.cols && many.dt == one.dt, many, one);
    VECTOR(place, DTYPE_I32, one.rows * place.cols, one);
    if (tensor_exists(weights))
        VECTOR(weights, DTYPE_F32, tensor_numel(place), place);
    return (struct op_params){.n = {one.rows, place.cols, one.cols}, .dt = (uint8_t)one.dt};
}

void emit_scatter_rows(struct emitter *e, struct tensor dst, struct tensor src, struct tensor place,
                       struct tensor weights)
{
    const struct op_params params = rows_params(dst, src, place, weights);

    emit_op(e, OP_SCATTER_ROWS, &params);
    WRITE(e, dst);
    READ(e, src, place, weights);
}

void emit_combine_rows(struct emitter *e, struct tensor out, struct tensor src, struct tensor place,
                       struct tensor weights)
{
    const struct op_params params = rows_params(src, out, place, weights);

    emit_op(e, OP_COMBINE_ROWS, &params);
    WRITE(e, out);
    READ(e, src, place, weights);
}

void emit_combine_dweights(struct emitter *e, struct tensor dweights, struct tensor dout, struct tensor src,
                           struct tensor place)
{
    const struct op_params params = rows_params(src, dout, place, dweights);

    emit_op(e, OP_COMBINE_DWEIGHTS, &params);
    WRITE(e, dweights);
    READ(e, dout, src, place);
}

void emit_matmul_grouped(struct emitter *e, struct tensor c, bool add, struct tensor a, bool ta, struct tensor b,
                         bool tb, struct tensor counts, int64_t expected)
{
    const int64_t groups = tensor_numel(counts), m = ta ? a.cols : c.rows, k = ta ? a.rows : a.cols;
    const struct op_params params = {.n = {m, c.cols, k, a.ld, b.ld, c.ld, groups, expected},
                                     .flags = (ta ? OP_TA : 0) | (tb ? OP_TB : 0) | (add ? OP_ADD_TO : 0) |
                                              (c.dt == DTYPE_F32 ? OP_F32 : 0),
                                     .dt = (uint8_t)a.dt};

    VECTOR(counts, DTYPE_I32, groups, counts);
    FIT(a.dt == b.dt && (c.dt == a.dt || c.dt == DTYPE_F32), a, c);
    if (ta) {
        FIT(!tb && a.rows == b.rows && b.cols == c.cols, a, b);
        FIT(c.rows == groups * m, c, a);
    } else {
        FIT(a.rows == c.rows, a, c);
        FIT(b.rows == groups * (tb ? c.cols : k) && b.cols == (tb ? k : c.cols), b, c);
    }
    emit_op(e, OP_MATMUL_GROUPED, &params);
    emit_operand(e, c, add ? ACCESS_UPDATE : ACCESS_WRITE);
    READ(e, a, b, counts);
}

void emit_cast(struct emitter *e, struct tensor dst, struct tensor src)
{
    FIT(is_dense(dst) && is_dense(src) && dst.rows == src.rows && dst.cols == src.cols, dst, src);
    emit_op(e, OP_CAST, &(struct op_params){.n = {tensor_numel(dst)}, .dt = (uint8_t)dst.dt, .dt2 = (uint8_t)src.dt});
    WRITE(e, dst);
    READ(e, src);
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

static int group_size(const struct emitter *e, enum channel channel)
{
    return mesh_group_size(&e->p->mesh, channel_group(channel));
}

static void emit_transfer(struct emitter *e, enum op op, enum channel channel, enum stream_id stream,
                          const struct op_params *params)
{
    emit_op(e, op, params);
    struct action *a = emit_last(e);
    a->channel = (int8_t)channel;
    a->stream = (uint8_t)stream;
}

static void emit_collective(struct emitter *e, enum op op, enum channel channel, const struct op_params *params)
{
    emit_transfer(e, op, channel, channel_stream(channel), params);
}

struct tensor emit_all_gather(struct emitter *e, enum channel channel, enum buffer_kind kind, const char *name,
                              struct tensor in)
{
    const int n = group_size(e, channel);

    if (n == 1)
        return in;
    DENSE(in);
    const struct tensor out = emit_tensor(e, kind, name, in.dt, in.rows * n, in.cols);
    emit_collective(e, OP_ALL_GATHER, channel, &(struct op_params){.n = {tensor_numel(in)}, .dt = (uint8_t)in.dt});
    WRITE(e, out);
    READ(e, in);
    return out;
}

struct tensor emit_reduce_scatter(struct emitter *e, enum channel channel, enum buffer_kind kind, const char *name,
                                  struct tensor in)
{
    const int n = group_size(e, channel);

    if (n == 1)
        return in;
    FIT(is_dense(in) && in.rows % n == 0, in, in);
    const struct tensor out = emit_tensor(e, kind, name, in.dt, in.rows / n, in.cols);
    emit_collective(e, OP_REDUCE_SCATTER, channel, &(struct op_params){.n = {tensor_numel(out)}, .dt = (uint8_t)in.dt});
    WRITE(e, out);
    READ(e, in);
    return out;
}

void emit_all_reduce(struct emitter *e, enum channel channel, struct tensor data)
{
    if (group_size(e, channel) == 1)
        return;
    DENSE(data);
    emit_collective(e, OP_ALL_REDUCE, channel, &(struct op_params){.n = {tensor_numel(data)}, .dt = (uint8_t)data.dt});
    UPDATE(e, data);
}

/* Transfers to a tensor of the caller's are copies in a group of one. */
void emit_all_to_all(struct emitter *e, enum channel channel, struct tensor out, struct tensor in)
{
    const int n = group_size(e, channel);

    VECTOR(out, in.dt, tensor_numel(in), in);
    FIT(is_dense(in) && span(in) % (size_t)n == 0, in, in);
    if (n == 1) {
        emit_copy(e, out, tensor_reshape(in, out.rows, out.cols));
        return;
    }
    emit_collective(e, OP_ALL_TO_ALL, channel, &(struct op_params){.n = {(int64_t)(span(in) / (size_t)n)}});
    WRITE(e, out);
    READ(e, in);
}

void emit_all_to_all_v(struct emitter *e, enum channel channel, struct tensor out, struct tensor receive_counts,
                       struct tensor in, struct tensor send_counts, int64_t expected)
{
    const int n = group_size(e, channel);
    const struct op_params params = {.n = {in.cols * (int64_t)dtype_bytes(in.dt), expected}};

    FIT(is_dense(out) && is_dense(in) && out.cols == in.cols && out.dt == in.dt, out, in);
    VECTOR(receive_counts, DTYPE_I32, n, out);
    VECTOR(send_counts, DTYPE_I32, n, in);
    emit_collective(e, OP_ALL_TO_ALL_V, channel, &params);
    WRITE(e, out);
    READ(e, receive_counts, in, send_counts);
}

void emit_shift(struct emitter *e, enum channel channel, struct tensor out, struct tensor in, int distance)
{
    VECTOR(out, in.dt, tensor_numel(in), in);
    DENSE(in);
    if (group_size(e, channel) == 1) {
        emit_copy(e, out, tensor_reshape(in, out.rows, out.cols));
        return;
    }
    emit_collective(e, OP_SHIFT, channel, &(struct op_params){.n = {(int64_t)span(in), distance}});
    WRITE(e, out);
    READ(e, in);
}

static void emit_pipeline(struct emitter *e, enum op op, enum channel channel, int peer, struct tensor t)
{
    const int first = op == OP_SEND ? STREAM_SEND : STREAM_RECV;

    DENSE(t);
    titan_assert(channel >= CHANNEL_FORWARD_NEXT && channel < CHANNEL_COUNT);
    emit_transfer(e, op, channel, (enum stream_id)(first + (int)channel - CHANNEL_FORWARD_NEXT),
                  &(struct op_params){.n = {(int64_t)span(t)}});
    emit_last(e)->peer = (int16_t)peer;
    emit_operand(e, t, op == OP_SEND ? ACCESS_READ : ACCESS_WRITE);
}

void emit_send(struct emitter *e, enum channel channel, int peer, struct tensor t)
{
    emit_pipeline(e, OP_SEND, channel, peer, t);
}

void emit_recv(struct emitter *e, enum channel channel, int peer, struct tensor t)
{
    emit_pipeline(e, OP_RECV, channel, peer, t);
}
