/* SPDX-License-Identifier: Apache-2.0 */
/* emit.c - writing a program. */
#include "worker/program/emit.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/round.h"
#include "base/vec.h"

#define NONE (-1)

/* Makes room for one more entry. false: it failed, or an earlier call did. */
#define ROOM(e, what)                                                                                                  \
    ((e)->status == TITAN_OK &&                                                                                        \
     (VEC_RESERVE((e)->p->what, (e)->p->cap_##what, (e)->p->n_##what + 1) || ((e)->status = TITAN_ENOMEM, false)))

titan_status emit_open(const struct layout *layout, int pp_rank, struct emitter *ret, struct titan_error *err)
{
    struct program *p = calloc(1, sizeof *p);

    titan_assert(pp_rank >= 0 && pp_rank < layout->mesh.size[AXIS_PP]);
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
    titan_assert(kind < BUF_COUNT);
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
    titan_assert(rows >= 0 && cols >= 0);
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
        titan_bug("a tensor (%ld,%ld) with rows %ld cut_parts cannot be (%ld,%ld)", (long)t.rows, (long)t.cols,
                  (long)t.ld, (long)rows, (long)cols);
    t.rows = rows;
    t.cols = t.ld = cols;
    return t;
}

size_t tensor_span(struct tensor t)
{
    if (tensor_numel(t) == 0)
        return 0;
    return (size_t)((t.rows - 1) * t.ld + t.cols) * dtype_bytes(t.dt);
}

/* --- parameters, each distinct one once --------------------------------------------------------------------------- */

/* Open addressing; slots hold index + 1. */
struct params_index {
    uint32_t cap; /* a power of two, more than half empty */
    int slot[];
};

/* Returns the slot where these parameters are, or where they would be put. */
static int *find_params(const struct program *p, struct params_index *index, const struct op_params *q)
{
    uint64_t hash = HASH_INIT;

    titan_assert((index->cap & (index->cap - 1)) == 0);
    for (int i = 0; i < OP_WORDS; i++)
        hash = hash_word(hash, (uint64_t)q->word[i]);
    hash = hash_mix(hash_word(hash, q->flags ^ (uint64_t)q->dt << 32 ^ (uint64_t)q->dt2 << 40));
    for (;; hash++) {
        int *slot = &index->slot[hash & (index->cap - 1)];
        const struct op_params *at = *slot > 0 ? &p->params[*slot - 1] : NULL;
        if (!at || (memcmp(at->word, q->word, sizeof q->word) == 0 && at->flags == q->flags && at->dt == q->dt &&
                    at->dt2 == q->dt2))
            return slot;
    }
}

static int intern_params(struct emitter *e, enum op op, const struct op_params *params)
{
    struct program *p = e->p;
    struct params_index *const index = p->params_index;
    const uint32_t cap = index ? index->cap : 0;
    struct op_params q = {0};

    if (params) { /* behind the operation's own numbers, the union may hold anything */
        q = (struct op_params){.flags = params->flags, .dt = params->dt, .dt2 = params->dt2};
        memcpy(q.word, params->word, (size_t)op_words(op) * sizeof q.word[0]);
    }

    if (!ROOM(e, params))
        return 0;
    if ((uint32_t)p->n_params >= cap / 2) {
        const uint32_t more = cap > 0 ? cap * 2 : 256;
        struct params_index *const larger = calloc(1, sizeof *larger + more * sizeof larger->slot[0]);
        if (!larger) {
            e->status = TITAN_ENOMEM;
            return 0;
        }
        larger->cap = more;
        titan_assert((uint32_t)p->n_params < more / 2);
        for (int i = 0; i < p->n_params; i++)
            *find_params(p, larger, &p->params[i]) = i + 1;
        free(index);
        p->params_index = larger;
    }

    int *slot = find_params(p, p->params_index, &q);
    if (*slot == 0) {
        p->params[p->n_params] = q;
        *slot = ++p->n_params;
    }
    titan_assert(*slot > 0 && *slot <= p->n_params);
    return *slot - 1;
}

/* --- any operation ------------------------------------------------------------------------------------------------ */

/* Stream of a transfer on a channel. */
static enum stream_id channel_stream(enum op op, enum channel channel)
{
    titan_assert(channel < CHANNEL_COUNT);
    switch (channel) {
    case CHANNEL_GATHER:
    case CHANNEL_EXPERT_GATHER:
    case CHANNEL_ROTATE:
        return STREAM_GATHER;
    case CHANNEL_CP:
    case CHANNEL_TP:
    case CHANNEL_EP:
        return STREAM_TENSOR;
    default:
        if (channel < CHANNEL_FORWARD_NEXT)
            return STREAM_REDUCE;
        return (op == OP_SEND ? STREAM_SEND : STREAM_RECV) + channel - CHANNEL_FORWARD_NEXT;
    }
}

void emit_action(struct emitter *e, enum op op, const struct op_params *params)
{
    const int at = intern_params(e, op, params);

    titan_assert(op < OP_COUNT && e->stream < STREAM_COUNT);
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
    if (op_is_agreement(op) && e->p->mesh.world > 1) {
        emit_last(e)->channel = CHANNEL_WORLD;
        emit_last(e)->stream = (uint8_t)channel_stream(op, CHANNEL_WORLD);
    }
}

void emit_operand_like(struct emitter *e, struct operand o)
{
    if (!ROOM(e, operands))
        return;
    titan_assert(o.buffer >= 0 && o.buffer < e->p->n_buffers);
    e->p->operands[e->p->n_operands++] = o;
    emit_last(e)->n_operands++;
}

void emit_operand(struct emitter *e, struct tensor t, enum access access)
{
    if (e->status != TITAN_OK)
        return;
    const struct buffer *b = &e->p->buffers[t.buffer];
    if (t.offset + tensor_span(t) > b->bytes)
        titan_bug("%s: (%ld,%ld) ld %ld at byte %zu is not within %s, which has %zu",
                  op_name((enum op)emit_last(e)->op), (long)t.rows, (long)t.cols, (long)t.ld, t.offset, b->name,
                  b->bytes);
    emit_operand_like(
        e, (struct operand){.buffer = t.buffer, .access = access, .offset = t.offset, .bytes = tensor_span(t)});
}

struct action *emit_last(struct emitter *e)
{
    if (e->status != TITAN_OK) /* no action was written: the caller writes to this unused action */
        return &e->none;
    titan_assert(e->p->n_actions > 0);
    return &e->p->actions[e->p->n_actions - 1];
}

int emit_buffer_like(struct emitter *e, int buffer)
{
    if (!ROOM(e, buffers))
        return NONE;
    titan_assert(buffer >= 0 && buffer < e->p->n_buffers);
    e->p->buffers[e->p->n_buffers] = e->p->buffers[buffer];
    return e->p->n_buffers++;
}

struct action *emit_action_like(struct emitter *e, int index)
{
    if (!ROOM(e, actions))
        return NULL;
    titan_assert(index >= 0 && index < e->p->n_actions);
    struct action *a = &e->p->actions[e->p->n_actions++];
    *a = e->p->actions[index];
    a->operand = e->p->n_operands;
    a->n_operands = 0;
    return a;
}

/* --- any operation of the table ----------------------------------------------------------------------------------- */

static bool fits(const struct tensor *t, const struct operand_form *f)
{
    if (f->dt != ANY_TYPE && (int)t->dt != f->dt)
        return false;
    switch (f->shape) {
    case FORM_DENSE:
        return is_dense(*t) && t->rows == f->rows && t->cols == f->cols;
    case FORM_STRIDED:
        return t->rows == f->rows && t->cols == f->cols && t->ld == f->ld;
    case FORM_VECTOR:
        return is_dense(*t) && tensor_numel(*t) == f->cols;
    case FORM_BYTES:
        return is_dense(*t) && tensor_span(*t) == (size_t)f->cols;
    case FORM_ROWS:
        return is_dense(*t) && t->cols == f->cols;
    default:
        return true;
    }
}

/* Appends an operation with its operands. ops.def says how they are accessed and what they must be. members: size of a
 * collective's group. An operand that is left out is TENSOR_NONE; a forgotten operand is all zeros. */
static void emit_checked(struct emitter *e, enum op op, const struct op_params *params, int members,
                         const struct tensor *t, int n)
{
    struct operand_form forms[FORMS_MAX];
    int there = 0, k = 0;

    titan_assert(members >= 1 && n <= FORMS_MAX);
    if (e->status != TITAN_OK)
        return;
    for (int i = 0; i < n; i++) {
        if (t[i].buffer == 0 && t[i].ld == 0 && t[i].rows == 0 && t[i].cols == 0)
            titan_bug("%s: operand %d was not given", op_name(op), i);
        there += tensor_exists(t[i]);
    }
    const int takes = op_forms(op, params, members, there, forms);
    if (takes != there)
        titan_bug("%s takes %d operands, not %d", op_name(op), takes, there);
    emit_action(e, op, params);
    for (int i = 0; i < n; i++) {
        if (!tensor_exists(t[i]))
            continue;
        const struct operand_form *f = &forms[k++];
        if (!fits(&t[i], f))
            titan_bug("%s: %s (%ld,%ld) ld %ld type %d does not fit: (%ld,%ld) ld %ld type %d", op_name(op), f->name,
                      (long)t[i].rows, (long)t[i].cols, (long)t[i].ld, t[i].dt, (long)f->rows, (long)f->cols,
                      (long)f->ld, f->dt);
        emit_operand(e, t[i], f->access);
    }
}

/* Defines a function for each operation of ops.def. The struct that it takes begins with the operands. */
#define UNUSED __attribute__((unused))
#define OP(NAME, name, class, type, flops, numbers, operands, ...)                                                     \
    void emit_op_##name(struct emitter *e, const struct emit_##name *given)                                            \
    {                                                                                                                  \
        operands struct op_params params = {.dt = (uint8_t)(type)};                                                    \
        struct op_##name *const own UNUSED = &params.name;                                                             \
        uint32_t flags = 0;                                                                                            \
        bool ta UNUSED = false, tb UNUSED = false;                                                                     \
        numbers params.flags = flags;                                                                                  \
        emit_checked(e, OP_##NAME, &params, 1, (const struct tensor *)given, sizeof(struct op_##name##_operands));     \
    }
#define OP_BY_HAND(...)
#define OPERAND(name, ...) const struct tensor name UNUSED = given->name;
#define NUM(name, ...) const int64_t name UNUSED = own->name = (__VA_ARGS__);
#define GIVEN(name) const int64_t name UNUSED = own->name = given->name;
#define REAL(name) own->name = (float)given->name;
#define FLAGS                                                                                                          \
    flags = given->flags;                                                                                              \
    ta = flags & OP_TA;                                                                                                \
    tb = flags & OP_TB;
#define SET(flag, when) flags |= (when) ? (flag) : 0;
#define TYPE2(value) params.dt2 = (uint8_t)(value);
#define RULE(condition)                                                                                                \
    if (!(condition))                                                                                                  \
        titan_bug("%s: %s does not hold", __func__, #condition);
#include "worker/program/ops.def"

/* --- operations with writers by hand ------------------------------------------------------------------------------ */

/* Queries and outputs have b*tq rows; keys and values have b*tk. */
static void check_heads(struct tensor q, struct tensor k, const struct attention_heads *h, bool masked)
{
    if (q.rows % h->b != 0 || k.rows % h->b != 0 || (!masked && q.rows != k.rows))
        titan_bug("attention of %ld queries to %ld keys in %ld sequences", (long)q.rows, (long)k.rows, (long)h->b);
}

static const struct attention_mask no_mask = {.index = {.buffer = NONE}, {.buffer = NONE}, {.buffer = NONE}};

static uint32_t order_flag(enum attention_order order)
{
    return order == ATTENTION_ANY ? OP_ANY_ORDER : order == ATTENTION_REPEATABLE ? OP_REPEATABLE : 0;
}

void emit_attention(struct emitter *e, const struct attention_tensors *t, const struct attention_heads *heads,
                    const struct attention_mask *mask)
{
    const struct attention_mask *const m = mask ? mask : &no_mask;
    const bool masked = tensor_exists(m->index);
    const struct op_params params = {.attention = {.B = heads->b,
                                                   .Tq = t->q.rows / heads->b,
                                                   .Tk = t->k.rows / heads->b,
                                                   .H = heads->h,
                                                   .K = heads->kv,
                                                   .D = heads->d,
                                                   .Dv = heads->dv,
                                                   .ldq = t->q.ld,
                                                   .ldk = t->k.ld,
                                                   .ldv = t->v.ld,
                                                   .ldo = t->out.ld,
                                                   .scale = (float)heads->scale,
                                                   .softcap = heads->softcap},
                                     .flags = (masked ? OP_MASKED : 0) | order_flag(heads->order),
                                     .dt = (uint8_t)t->q.dt};
    const struct tensor all[] = {t->out, t->lse, t->q, t->k, t->v, m->index, m->start, m->key_index};

    check_heads(t->q, t->k, heads, masked);
    emit_checked(e, OP_ATTENTION, &params, 1, all, ARRAY_SIZE(all));
}

void emit_attention_dgrad(struct emitter *e, const struct attention_dtensors *d, const struct attention_tensors *t,
                          const struct attention_heads *heads, const struct attention_mask *mask)
{
    const struct attention_mask *const m = mask ? mask : &no_mask;
    const bool masked = tensor_exists(m->index);
    const struct op_params params = {.attention_dgrad = {.B = heads->b,
                                                         .Tq = t->q.rows / heads->b,
                                                         .Tk = t->k.rows / heads->b,
                                                         .H = heads->h,
                                                         .K = heads->kv,
                                                         .D = heads->d,
                                                         .Dv = heads->dv,
                                                         .ldq = t->q.ld,
                                                         .ldk = t->k.ld,
                                                         .ldv = t->v.ld,
                                                         .ldo = t->out.ld,
                                                         .lddq = d->dq.ld,
                                                         .lddk = d->dk.ld,
                                                         .lddv = d->dv.ld,
                                                         .lddo = d->dout.ld,
                                                         .scale = (float)heads->scale,
                                                         .softcap = heads->softcap},
                                     .flags = (masked ? OP_MASKED : 0) | order_flag(heads->order),
                                     .dt = (uint8_t)t->q.dt};
    const struct tensor all[] = {d->dq, d->dk, d->dv,   d->dout,  t->out,   t->lse,      t->q,
                                 t->k,  t->v,  d->work, m->index, m->start, m->key_index};

    check_heads(t->q, t->k, heads, masked);
    emit_checked(e, OP_ATTENTION_DGRAD, &params, 1, all, ARRAY_SIZE(all));
}

void emit_copy(struct emitter *e, struct tensor dst, struct tensor src)
{
    const struct tensor t[] = {dst, src};
    struct op_params params = {.copy = {.bytes = (int64_t)tensor_span(dst)}};

    if (src.rows <= 0 || dst.rows % src.rows != 0 || dst.cols != src.cols || dst.dt != src.dt)
        titan_bug("a copy of (%ld,%ld) type %d to (%ld,%ld) type %d", (long)src.rows, (long)src.cols, src.dt,
                  (long)dst.rows, (long)dst.cols, dst.dt);
    if (is_dense(dst) && is_dense(src) && dst.rows == src.rows) {
        emit_checked(e, OP_COPY, &params, 1, t, 2);
        return;
    }
    params = (struct op_params){
        .copy_2d = {.rows = dst.rows, .cols = dst.cols, .ldd = dst.ld, .lds = src.ld, .repeat = dst.rows / src.rows},
        .dt = (uint8_t)dst.dt};
    emit_checked(e, OP_COPY_2D, &params, 1, t, 2);
}

void emit_pack(struct emitter *e, struct tensor slices, const struct tensor *gradients, int n, int64_t owners)
{
    const struct op_params params = {.pack = {.shard = slices.cols, .owners = owners, .subtrees = slices.rows / owners},
                                     .dt = DTYPE_F32};
    struct tensor t[FORMS_MAX] = {slices};

    titan_assert(owners > 0 && slices.rows % owners == 0);
    titan_assert(n < FORMS_MAX);
    memcpy(t + 1, gradients, (size_t)n * sizeof *gradients);
    emit_checked(e, OP_PACK, &params, 1, t, n + 1);
}

void emit_optimise(struct emitter *e, const struct tensor (*units)[UPDATE_OPERANDS], int n)
{
    const int shard = OPERAND_OF(optimise, shard);
    struct op_params params = {.dt = (uint8_t)units[0][shard].dt};

    titan_assert(n > 0 && n <= OP_PARTS);
    for (int i = 0; i < n; i++)
        params.part[i] = tensor_numel(units[i][shard]);
    emit_checked(e, OP_OPTIMISE, &params, 1, units[0], UPDATE_OPERANDS * n);
}

/* --- transfers ---------------------------------------------------------------------------------------------------- */

static int group_size(const struct emitter *e, enum channel channel)
{
    return mesh_group_size(&e->p->mesh, channel_group(channel));
}

static void emit_transfer(struct emitter *e, enum op op, enum channel channel, const struct op_params *params,
                          const struct tensor *t, int n)
{
    emit_checked(e, op, params, group_size(e, channel), t, n);
    emit_last(e)->channel = (int8_t)channel;
    emit_last(e)->stream = (uint8_t)channel_stream(op, channel);
}

struct tensor emit_all_gather(struct emitter *e, enum channel channel, enum buffer_kind kind, const char *name,
                              struct tensor in)
{
    const int n = group_size(e, channel);
    const struct op_params params = {.part = {tensor_numel(in)}, .dt = (uint8_t)in.dt};

    if (n == 1)
        return in;
    const struct tensor out = emit_tensor(e, kind, name, in.dt, in.rows * n, in.cols);
    emit_transfer(e, OP_ALL_GATHER, channel, &params, (struct tensor[]){out, in}, 2);
    return out;
}

static struct tensor as_bytes(struct tensor t)
{
    titan_assert(is_dense(t));
    return tensor_at(t.buffer, t.offset, DTYPE_U8, 1, (int64_t)tensor_span(t));
}

void emit_all_gather_both(struct emitter *e, enum channel channel, struct tensor out, struct tensor in,
                          struct tensor second_out, struct tensor second_in)
{
    const struct tensor t[] = {as_bytes(out), as_bytes(in), as_bytes(second_out), as_bytes(second_in)};
    const struct op_params params = {.part = {t[1].cols, t[3].cols}, .dt = DTYPE_U8};

    titan_assert(group_size(e, channel) > 1);
    emit_transfer(e, OP_ALL_GATHER, channel, &params, t, 4);
}

struct tensor emit_reduce_scatter(struct emitter *e, enum channel channel, enum buffer_kind kind, const char *name,
                                  struct tensor in)
{
    const int n = group_size(e, channel);
    const struct op_params params = {.part = {in.rows / n * in.cols}, .dt = (uint8_t)in.dt};

    titan_assert(in.rows % n == 0);
    if (n == 1)
        return in;
    const struct tensor out = emit_tensor(e, kind, name, in.dt, in.rows / n, in.cols);
    emit_transfer(e, OP_REDUCE_SCATTER, channel, &params, (struct tensor[]){out, in}, 2);
    return out;
}

void emit_all_reduce(struct emitter *e, enum channel channel, struct tensor data)
{
    const struct op_params params = {.part = {tensor_numel(data)}, .dt = (uint8_t)data.dt};

    if (group_size(e, channel) > 1)
        emit_transfer(e, OP_ALL_REDUCE, channel, &params, &data, 1);
}

/* In a group of one member, the input is copied to the caller's tensor. */
void emit_all_to_all(struct emitter *e, enum channel channel, struct tensor out, struct tensor in)
{
    const int64_t n = group_size(e, channel);
    const struct op_params params = {.all_to_all = {.bytes = (int64_t)tensor_span(in) / n}};

    titan_assert(tensor_span(in) % (size_t)n == 0);
    titan_assert(out.dt == in.dt);
    if (n == 1)
        emit_copy(e, out, tensor_reshape(in, out.rows, out.cols));
    else
        emit_transfer(e, OP_ALL_TO_ALL, channel, &params, (struct tensor[]){out, in}, 2);
}

void emit_all_to_all_v(struct emitter *e, enum channel channel, struct counted_rows out, struct counted_rows in,
                       int64_t expected)
{
    const struct op_params params = {
        .all_to_all_v = {.bytes = in.rows.cols * (int64_t)dtype_bytes(in.rows.dt), .rows = expected}};
    const struct tensor t[] = {out.rows, out.counts, in.rows, in.counts};

    titan_assert(is_dense(out.rows) && is_dense(in.rows) && out.rows.cols == in.rows.cols && out.rows.dt == in.rows.dt);
    emit_transfer(e, OP_ALL_TO_ALL_V, channel, &params, t, ARRAY_SIZE(t));
}

void emit_to_owners(struct emitter *e, struct tensor values, struct tensor cut_parts, struct tensor gradient,
                    bool masters)
{
    const struct op_params params = {.to_owners = {.n = tensor_numel(gradient),
                                                   .room = tensor_numel(values),
                                                   .cut = tensor_numel(cut_parts),
                                                   .masters = masters}};

    emit_transfer(e, OP_TO_OWNERS, CHANNEL_OWNERS, &params, (struct tensor[]){values, cut_parts, gradient}, 3);
}

void emit_from_owners(struct emitter *e, struct tensor gradient, struct tensor cut_parts, struct tensor values)
{
    const struct op_params params = {
        .from_owners = {.n = tensor_numel(gradient), .room = tensor_numel(values), .cut = tensor_numel(cut_parts)}};

    emit_transfer(e, OP_FROM_OWNERS, CHANNEL_OWNERS, &params, (struct tensor[]){gradient, cut_parts, values}, 3);
}

void emit_shift(struct emitter *e, enum channel channel, struct tensor out, struct tensor in, int distance)
{
    const struct op_params params = {.shift = {.bytes = (int64_t)tensor_span(in), .distance = distance}};

    titan_assert(out.dt == in.dt);
    if (group_size(e, channel) == 1)
        emit_copy(e, out, tensor_reshape(in, out.rows, out.cols));
    else
        emit_transfer(e, OP_SHIFT, channel, &params, (struct tensor[]){out, in}, 2);
}

#define ROTATE_PIECES 8
#define ROTATE_ALIGN 256 /* bytes */

void emit_rotate(struct emitter *e, enum channel channel, struct tensor data)
{
    const int64_t bytes = (int64_t)tensor_span(data);
    const int64_t piece = MIN(bytes, round_up((bytes + ROTATE_PIECES - 1) / ROTATE_PIECES, ROTATE_ALIGN));
    const struct op_params params = {.rotate = {.bytes = bytes, .piece = piece}};
    const struct tensor scratch = emit_tensor(e, BUF_WORK, "piece of a part", DTYPE_U8, 1, piece);

    titan_assert(group_size(e, channel) > 1 && is_dense(data));
    emit_transfer(e, OP_ROTATE, channel, &params, (struct tensor[]){data, scratch}, 2);
}

void emit_send(struct emitter *e, enum channel channel, int peer, struct tensor t)
{
    const struct op_params params = {.send = {.bytes = (int64_t)tensor_span(t)}};

    titan_assert(peer >= 0 && peer < e->p->mesh.size[AXIS_PP]);
    titan_assert(channel >= CHANNEL_FORWARD_NEXT && channel < CHANNEL_COUNT);
    emit_transfer(e, OP_SEND, channel, &params, &t, 1);
    emit_last(e)->peer = (int16_t)peer;
}

void emit_recv(struct emitter *e, enum channel channel, int peer, struct tensor t)
{
    const struct op_params params = {.recv = {.bytes = (int64_t)tensor_span(t)}};

    titan_assert(peer >= 0 && peer < e->p->mesh.size[AXIS_PP]);
    titan_assert(channel >= CHANNEL_FORWARD_NEXT && channel < CHANNEL_COUNT);
    emit_transfer(e, OP_RECV, channel, &params, &t, 1);
    emit_last(e)->peer = (int16_t)peer;
}
