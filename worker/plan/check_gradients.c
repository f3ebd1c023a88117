/* SPDX-License-Identifier: Apache-2.0 */
/* check_gradients.c - follows every microbatch's gradient: it must be added up, reduced over each group that shares it,
 * and go once into norm and update. Also checks the order of norm, agreement, decision and update.
 *
 * For each buffer with gradients, `struct flow` has the set of microbatches whose gradients are in it, and the
 * reductions that it has been through. In canonical mode a gradient of experts is of one rank's tokens of a microbatch.
 * So each microbatch counts as several, one for each rank that shares the experts. One rank's gradient must not be
 * added to another rank's before all ranks' gradients are exchanged. A tied head on another pp rank has a copy of the
 * embedding's matrix. The gradient of the copy, once reduced, is added to the gradient of the embedding. */
#include <string.h>

#include "base/cleanup.h"
#include "worker/plan/checker.h"

enum done {
    DONE_TP = 1,        /* whole tensors summed over tp, or over the ranks of a unit that rotates */
    DONE_REDUCE = 2,    /* over the group that shares out the unit */
    DONE_REPLICATE = 4, /* over replicas */
};

/* How far a range is on its way to the sum of all replicas, if that goes as codes. */
enum replica_way {
    WAY_NONE,    /* a gradient that is not on that way, or is at its end */
    WAY_PIECES,  /* codes of a piece for each replica */
    WAY_OWN,     /* codes of this replica's piece, from all */
    WAY_SUM,     /* their sum */
    WAY_CODED,   /* codes of it */
    WAY_GATHERED /* from all replicas */
};

struct flow {
    int unit;       /* unit of the gradient; NONE: no gradient */
    uint64_t *held; /* bits of microbatches (bit_of); NULL: none */
    int part;       /* rank (among the ranks that share experts) whose tokens gave the gradients; MANY: several */
    unsigned done;
    bool passed;      /* has gone to another buffer, or to the norm: nothing is added to it any more */
    int state_of;     /* unit of whose state the buffer is a copy; NONE: no copy of a state */
    bool owned;       /* the buffer is a copy of the state of owned matrices */
    bool updated;     /* the buffer is a copy of a state, and is updated */
    int packed;       /* unit whose shard the buffer holds as codes, to be gathered; NONE: no codes */
    bool measured;    /* scales of codes are made of the gradient: it may not change any more */
    enum codec coded; /* the buffer holds the gradient as codes */
    enum replica_way way;
    int parts;     /* unit of whose direction the buffer holds parts; NONE: no parts */
    bool gathered; /* of all replicas */
    bool heads;    /* the buffer holds the head's part of a tied matrix, from another pp rank */
    /* A unit that rotates: number of ranks from which the gradient has come here, and bits of the unit's tensors to
     * which this rank has added since. */
    int turns;
    uint64_t added;
};

#define MANY (-1)

struct unit_progress {
    int normed; /* buffer that NORM read, or that was sent to the rank with the unit; NONE: no buffer yet */
    bool fetched, summed, optimised, returned;
    bool sent, directed;                /* to the owners of its matrices, and back */
    bool extracted, gathered, combined; /* parts that replicas send each other */
    bool counted, balanced;             /* loads of experts */
    bool coded;                         /* ENCODE */
    bool coded_for_replicas, sum_coded; /* the same of the range, and of a piece of the replicas' sum */
    int largest;                        /* buffer of BUCKET_LARGEST; NONE: none */
    bool weights_counted, learned;      /* levels of its weights */
};

struct gradients {
    struct checker *c;
    size_t words;
    struct flow *flows; /* per buffer */
    struct unit_progress *units;
    uint64_t *given; /* [model tensors]: bits of microbatches that have added to the tensor */
    bool agreed, decided, committed;
    bool summed; /* TENSOR_SUMS */
    struct {
        int values, masters, cut_parts, next; /* buffers of owned matrices; NONE: not yet */
        bool fetched, whole, adopted, returned;
    } owned;
    struct {
        int64_t method, kept, values; /* of all units; kept 0: not yet */
    } parts;
    bool table_moved; /* the embedding's shard has been sent to the rank of a tied head, or received there */
};

static const char *done_names(unsigned done)
{
    static const char *const names[] = {
        "nothing",   "tp", "its shards' group", "tp and shards", "replicas", "tp and replicas", "shards and replicas",
        "all groups"};
    return names[done & 7];
}

/* --- sets --------------------------------------------------------------------------------------------------------- */

static titan_status set_of(const struct gradients *g, struct flow *f)
{
    titan_assert(g->words > 0);
    if (!f->held)
        f->held = calloc(g->words, sizeof *f->held);
    return f->held ? TITAN_OK : checker_no_memory(g->c);
}

/* How many gradients of each microbatch a unit has. */
static int parts_of(const struct gradients *g, int unit)
{
    const struct program *p = g->c->p;

    titan_assert(unit >= 0 && unit < g->c->model->n_units);
    return p->canonical && g->c->model->units[unit].kind == UNIT_EXPERTS ? mesh_group_size(&p->mesh, GROUP_EP) : 1;
}

static int bit_of(const struct gradients *g, int part, int slot)
{
    titan_assert(part >= 0 && slot >= 0);
    return part * (int)g->c->p->share_max + slot;
}

static bool has_bit(const uint64_t *set, int bit)
{
    return set[bit / 64] >> (bit % 64) & 1;
}

/* into |= from. The two must not share a microbatch. */
static titan_status join(const struct gradients *g, struct flow *into, const struct flow *from)
{
    const struct checker *c = g->c;

    TRY(set_of(g, into));
    for (size_t w = 0; from->held && w < g->words; w++) {
        if (into->held[w] & from->held[w])
            return REFUSE(c, "adds microbatch %d of unit %d a second time",
                          ((int)(64 * w) + __builtin_ctzll(into->held[w] & from->held[w])) % (int)c->p->share_max,
                          from->unit);
        into->held[w] |= from->held[w];
    }
    return TITAN_OK;
}

/* Does the buffer hold a microbatch other than `bit`? */
static bool others(const struct gradients *g, const struct flow *f, int bit)
{
    titan_assert(bit >= 0 && f->held);
    for (size_t w = 0; w < g->words; w++)
        if (f->held[w] & ~(w == (size_t)bit / 64 ? UINT64_C(1) << (bit % 64) : 0))
            return true;
    return false;
}

static struct flow *flow_of(const struct gradients *g, const struct operand *o)
{
    return &g->flows[o->buffer];
}

/* --- what each operation does to it ------------------------------------------------------------------------------- */

static bool is_gradient(const struct gradients *g, const struct operand *o)
{
    return g->c->p->buffers[o->buffer].kind == BUF_GRAD;
}

/* Checks that each tensor of the unit has a gradient of every microbatch, and of each rank's tokens in the
 * microbatch. */
static titan_status check_tensors(const struct gradients *g, int unit)
{
    const struct checker *c = g->c;
    const struct model_unit *u = &c->model->units[unit];

    for (int t = u->first_tensor; t < u->first_tensor + u->n_tensors; t++)
        for (int i = 0; i < c->p->share * parts_of(g, unit); i++) {
            const int part = i / (int)c->p->share, slot = i % (int)c->p->share;
            if (!has_bit(g->given + (size_t)t * g->words, bit_of(g, part, slot)))
                return REFUSE(c, "unit %d: microbatch %d adds nothing to the gradient of %s (part %d)", unit, slot,
                              c->model->tensors[t].name, part);
        }
    return TITAN_OK;
}

/* Bits of the tensors of a unit, of which an operand has a part. */
static uint64_t tensors_of(const struct gradients *g, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct buffer *const b = &c->p->buffers[o->buffer];
    const struct model_unit *const u = &c->model->units[b->unit];
    const size_t begin = o->offset + (size_t)b->from * sizeof(float);
    uint64_t tensors = 0;

    titan_assert(u->n_tensors <= 64);
    for (int t = 0; t < u->n_tensors; t++) {
        const struct local_tensor *const local = &c->p->layout->tensors[u->first_tensor + t];
        const size_t from = (size_t)local->offset * sizeof(float);
        const size_t to = from + (size_t)(local->rows * local->cols) * sizeof(float);
        if (begin < to && from < begin + o->bytes)
            tensors |= UINT64_C(1) << t;
    }
    return tensors;
}

/* Bits of the tensors of a unit that are cut. */
static uint64_t cut_tensors(const struct gradients *g, int unit)
{
    const struct model_unit *const u = &g->c->model->units[unit];
    uint64_t tensors = 0;

    for (int t = 0; t < u->n_tensors; t++)
        if (g->c->model->tensors[u->first_tensor + t].split != SPLIT_NONE)
            tensors |= UINT64_C(1) << t;
    return tensors;
}

static bool rotates(const struct gradients *g, int unit)
{
    return unit != NONE && g->c->p->layout->units[unit].cut == GROUP_ROTATE;
}

/* Takes note of a weight gradient: from now on the unit's buffer holds the gradient of the action's microbatch. */
static titan_status contribute(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    struct flow *f = flow_of(g, o);
    const int slot = a->microbatch;

    if (f->done || f->passed || f->measured)
        return REFUSE(c, "adds to the gradient of unit %d, which is on its way already (reduced over %s)", f->unit,
                      done_names(f->done));
    f->unit = c->p->buffers[o->buffer].unit;
    if (slot < 0)
        return REFUSE(c, "writes the gradient of unit %d, but is of no microbatch", f->unit);
    TRY(set_of(g, f));
    /* A weight gradient of experts comes from the tokens of one rank. */
    const struct op_params *q = action_params(c->p, a);
    const bool shared = parts_of(g, f->unit) > 1;
    f->part = shared && a->op == OP_MATMUL_GROUPED       ? (int)q->matmul_grouped.parts - 1
              : shared && a->op == OP_BIAS_WGRAD_GROUPED ? (int)q->bias_wgrad_grouped.parts - 1
                                                         : 0;
    if (f->part < 0 || f->part >= parts_of(g, f->unit))
        return REFUSE(c, "is of rank %d of %d that share unit %d", f->part, parts_of(g, f->unit), f->unit);
    const int bit = bit_of(g, f->part, slot);
    if (c->p->canonical && others(g, f, bit))
        return REFUSE(c, "adds microbatch %d to what other microbatches%s of unit %d have added: sums follow the tree",
                      slot, shared ? ", or other ranks," : "", f->unit);
    titan_assert((size_t)bit / 64 < g->words);
    f->held[bit / 64] |= UINT64_C(1) << (bit % 64);

    /* The tensors of the unit that this part of its gradient belongs to. */
    const struct model_unit *u = &c->model->units[f->unit];
    const uint64_t adds = tensors_of(g, o);
    for (int t = u->first_tensor; t < u->first_tensor + u->n_tensors; t++)
        if (adds >> (t - u->first_tensor) & 1)
            g->given[(size_t)t * g->words + (size_t)bit / 64] |= UINT64_C(1) << (bit % 64);
    f->added |= adds;
    return TITAN_OK;
}

/* A reduction must cover the whole buffer. */
static titan_status check_whole(const struct gradients *g, const struct operand *o)
{
    const struct checker *c = g->c;
    const size_t bytes = c->p->buffers[o->buffer].bytes;

    if (o->offset == 0 && o->bytes == bytes)
        return TITAN_OK;
    return REFUSE(c, "takes bytes %zu to %zu of unit %d's gradient (#%d), which has %zu", o->offset,
                  o->offset + o->bytes, flow_of(g, o)->unit, o->buffer, bytes);
}

/* An operation uses the whole gradient, or codes of it: everything that is to be added to it must have been added. */
static titan_status take_any(const struct gradients *g, const struct operand *o)
{
    const struct checker *c = g->c;

    TRY(check_whole(g, o));
    if (flow_of(g, o)->passed)
        return REFUSE(c, "takes unit %d's gradient (#%d), which has been passed on", flow_of(g, o)->unit, o->buffer);
    return TITAN_OK;
}

static titan_status take(const struct gradients *g, const struct operand *o)
{
    const struct checker *c = g->c;

    if (flow_of(g, o)->coded != CODEC_NONE)
        return REFUSE(c, "takes codes of unit %d's gradient (#%d) as the gradient", flow_of(g, o)->unit, o->buffer);
    if (flow_of(g, o)->way != WAY_NONE)
        return REFUSE(c, "takes a piece of the replicas' sum of unit %d (#%d) as the gradient", flow_of(g, o)->unit,
                      o->buffer);
    return take_any(g, o);
}

/* Afterwards `out` holds the gradients of `in`, and has been through one more reduction. */
static titan_status pass_on(const struct gradients *g, const struct operand *out, const struct operand *in,
                            unsigned done)
{
    const struct checker *c = g->c;
    struct flow *from = flow_of(g, in), *to = flow_of(g, out);

    titan_assert((done & (done - 1)) == 0);
    if (from->unit == NONE)
        return TITAN_OK;
    if (done != DONE_TP) {
        TRY(take_any(g, in));
        TRY(check_whole(g, out));
    }
    if (from->done & done)
        return REFUSE(c, "reduces the gradient of unit %d over %s again", from->unit, done_names(done));
    if (done == DONE_TP && from->measured)
        return REFUSE(c, "sums whole tensors of unit %d over tp when scales of its codes are made", from->unit);
    if (done == DONE_TP && from->done)
        return REFUSE(c, "sums whole tensors of unit %d over tp after the reduction over %s", from->unit,
                      done_names(from->done));
    if (to->unit != NONE && to != from)
        return REFUSE(c, "writes unit %d's gradient over one of unit %d", from->unit, to->unit);
    to->unit = from->unit;
    to->part = from->part;
    to->done = from->done | done;
    to->turns = from->turns;
    to->added = from->added;
    if (to == from)
        return TITAN_OK;
    from->passed = true;
    return join(g, to, from);
}

/* Parts of a unit that rotates, and their gradients, go to the next rank. All ranks have the same program, so the
 * gradient that comes has been through the same turns as the gradient that goes: this rank has added to all of it, and
 * adds to all of it again. */
static titan_status rotate(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const bool in_place = a->op == OP_ROTATE;
    const struct operand *const out = &o[0], *const in = &o[in_place ? 0 : OPERAND_OF(shift, in)];
    const struct buffer *const to = &c->p->buffers[out->buffer], *const from = &c->p->buffers[in->buffer];
    struct flow *const comes = flow_of(g, out), *const goes = flow_of(g, in);
    const int ranks = mesh_group_size(&c->p->mesh, GROUP_ROTATE);

    if (from->unit == NONE || to->unit != from->unit || !rotates(g, from->unit) ||
        (!in_place && action_params(c->p, a)->shift.distance != 1))
        return REFUSE(c, "rotates %s of unit %d as %s of unit %d", buffer_kind_name(from->kind), from->unit,
                      buffer_kind_name(to->kind), to->unit);
    if (to->kind == BUF_FULL && (from->kind == BUF_SHARD || from->kind == BUF_FULL))
        return TITAN_OK;
    if (to->kind != BUF_GRAD || from->kind != BUF_GRAD)
        return REFUSE(c, "rotates %s as %s", buffer_kind_name(from->kind), buffer_kind_name(to->kind));
    TRY(check_whole(g, in));
    const uint64_t tensors = tensors_of(g, in);
    if (goes->passed || goes->done || tensors == 0 || tensors != tensors_of(g, out))
        return REFUSE(c, "passes a gradient of unit %d to its place, or a second time", from->unit);
    if ((goes->added & tensors) != tensors)
        return REFUSE(c, "passes unit %d's gradient on, to which this rank has not added all", from->unit);
    if (goes->turns + 1 >= ranks || (comes != goes && comes->held && comes->turns != goes->turns + 1))
        return REFUSE(c, "passes unit %d's gradient on for the %dth time, among %d ranks", from->unit, goes->turns + 1,
                      ranks);
    comes->unit = from->unit;
    comes->turns = goes->turns + 1;
    TRY(set_of(g, comes));
    for (size_t w = 0; goes->held && w < g->words; w++)
        comes->held[w] |= goes->held[w];
    if (comes == goes)
        comes->added = 0;
    else
        goes->passed = true;
    return TITAN_OK;
}

static titan_status accumulate(const struct gradients *g, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct operand *dst = &o[OPERAND_OF(accumulate, dst)], *src = &o[OPERAND_OF(accumulate, src)];
    struct flow *into = flow_of(g, dst);
    struct flow *from = flow_of(g, src);

    if (into->unit == NONE && from->unit == NONE)
        return TITAN_OK;
    TRY(take(g, dst));
    TRY(take(g, src));
    from->passed = true;
    if (into->unit != from->unit || into->done != from->done)
        return REFUSE(c, "adds unit %d's gradient, reduced over %s, to unit %d's, reduced over %s", from->unit,
                      done_names(from->done), into->unit, done_names(into->done));
    if (into->turns != from->turns || (rotates(g, into->unit) && into->added != from->added))
        return REFUSE(c, "adds unit %d's gradient of %d other ranks to that of %d", from->unit, from->turns,
                      into->turns);
    if (into->part != from->part)
        return REFUSE(c, "adds what rank %d has of unit %d to what rank %d has: each goes up its own tree", from->part,
                      from->unit, into->part);
    if (into->heads && from->heads)
        return REFUSE(c, "adds the head's part to unit %d's gradient a second time", into->unit);
    into->heads |= from->heads;
    return join(g, into, from);
}

/* Slices of several subtrees of one unit. */
static titan_status pack(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    struct flow *to = flow_of(g, &o[OPERAND_OF(pack, slices)]);

    to->unit = a->unit;
    for (int k = OPERAND_OF(pack, gradient); k < a->n_operands; k++) {
        struct flow *from = flow_of(g, &o[k]);
        TRY(take(g, &o[k]));
        from->passed = true;
        if (from->unit != a->unit || (k > OPERAND_OF(pack, gradient) && from->done != to->done))
            return REFUSE(c, "operand %d is unit %d's gradient, reduced over %s", k, from->unit,
                          done_names(from->done));
        to->done = from->done;
        to->part = parts_of(g, a->unit) > 1 ? MANY : 0;
        TRY(join(g, to, from));
    }
    return TITAN_OK;
}

/* Codes of pieces go to their replicas, and codes of pieces of the sum to all. */
static titan_status move_pieces(const struct gradients *g, const struct action *a, const struct operand *out,
                                const struct operand *in)
{
    const struct checker *c = g->c;
    struct flow *const from = flow_of(g, in);
    const bool cut = from->way == WAY_PIECES && a->op == OP_ALL_TO_ALL;
    const bool gathers = from->way == WAY_CODED && a->op == OP_ALL_GATHER;

    if (a->channel != CHANNEL_REPLICATE || (!cut && !gathers))
        return REFUSE(c,
                      "moves codes of unit %d between replicas out of turn: pieces by ALL_TO_ALL, their sums by "
                      "ALL_GATHER, on REPLICATE",
                      from->unit);
    const enum codec coded = from->coded;
    TRY(pass_on(g, out, in, gathers ? DONE_REPLICATE : 0));
    flow_of(g, out)->coded = coded;
    flow_of(g, out)->way = gathers ? WAY_GATHERED : WAY_OWN;
    return TITAN_OK;
}

static titan_status collective(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const int each = a->op == OP_ALL_REDUCE ? 1 : 2;
    const bool over_tp = a->op == OP_ALL_REDUCE && (a->channel == CHANNEL_TP || a->channel == CHANNEL_ROTATE);

    for (int k = 0; k + each <= a->n_operands; k += each) {
        const struct operand *out = &o[k], *in = &o[k + each - 1];
        const int unit = flow_of(g, in)->unit;
        if (unit == NONE || (over_tp && !is_gradient(g, out)))
            continue;
        /* A sum over tp must cover exactly the tensors that every tp rank holds whole. */
        const struct unit_layout *u = &c->p->layout->units[unit];
        if (over_tp && a->channel != (int)u->sum)
            return REFUSE(c, "sums whole tensors of unit %d on %s instead of %s", unit,
                          channel_name((enum channel)a->channel), channel_name(u->sum));
        if (over_tp && (out->offset != (size_t)u->whole * sizeof(float) ||
                        out->bytes != (size_t)(u->numel - u->whole) * sizeof(float)))
            return REFUSE(c, "sums bytes %zu to %zu of unit %d over tp; whole tensors are elements %ld to %ld",
                          out->offset, out->offset + out->bytes, unit, (long)u->whole, (long)u->numel);
        if (!over_tp && a->channel != CHANNEL_REPLICATE && a->channel != (int)u->reduce)
            return REFUSE(c, "reduces unit %d's gradient on %s instead of %s", unit,
                          channel_name((enum channel)a->channel), channel_name(u->reduce));
        const enum codec coded = flow_of(g, in)->coded;
        const enum replica_way way = flow_of(g, in)->way;
        if (way != WAY_NONE) {
            TRY(move_pieces(g, a, out, in));
            continue;
        }
        if (coded != CODEC_NONE && (a->op != OP_ALL_TO_ALL || a->channel != (int)u->reduce))
            return REFUSE(c, "reduces codes of unit %d's gradient: only ALL_TO_ALL on %s moves them", unit,
                          channel_name(u->reduce));
        TRY(pass_on(g, out, in, over_tp ? DONE_TP : a->channel == CHANNEL_REPLICATE ? DONE_REPLICATE : DONE_REDUCE));
        flow_of(g, out)->coded = coded;
    }
    return TITAN_OK;
}

/* --- codes -------------------------------------------------------------------------------------------------------- */

/* Reductions that a unit's gradient must have been through on this mesh. */
static unsigned must_be_done(const struct gradients *g, int unit)
{
    const struct layout *l = g->c->p->layout;
    const struct unit_layout *u = &l->units[unit];
    unsigned done = 0;

    titan_assert(unit >= 0 && unit < g->c->model->n_units);
    if (u->cut != GROUP_EP && u->whole < u->numel && mesh_group_size(&l->mesh, u->cut) > 1)
        done |= DONE_TP;
    if (mesh_group_size(&l->mesh, u->group) > 1)
        done |= DONE_REDUCE;
    if (mesh_group_size(&l->mesh, GROUP_REPLICATE) > 1 && !layout_replicas_differ(l))
        done |= DONE_REPLICATE;
    return done;
}

/* Are errors of codes given where the codec has them, and are they the unit's own? error: NULL if they are not given.
 * at: where in the buffer they begin. */
static titan_status check_errors(const struct gradients *g, const struct action *a, const struct operand *error,
                                 enum buffer_kind kind, size_t at)
{
    const struct checker *c = g->c;

    if (error && (c->p->buffers[error->buffer].kind != kind || c->p->buffers[error->buffer].unit != a->unit ||
                  error->offset != at))
        return REFUSE(c, "takes errors from buffer #%d, which is not for those of unit %d", error->buffer, a->unit);
    return TITAN_OK;
}

/* Codes of x, which this operation passes on: the gradient, its pieces for replicas, or a piece of their sum. */
static titan_status code(const struct gradients *g, const struct operand *codes, const struct operand *x,
                         enum codec codec, enum replica_way way)
{
    struct flow *const from = flow_of(g, x), *const to = flow_of(g, codes);

    if (to->unit != NONE)
        return REFUSE(g->c, "writes codes over a gradient of unit %d", to->unit);
    from->passed = true;
    to->unit = from->unit;
    to->part = from->part;
    to->done = from->done;
    to->turns = from->turns;
    to->added = from->added;
    to->coded = codec;
    to->way = way;
    return join(g, to, from);
}

/* Replicas code a range of which all is summed but replicas, then each its piece of their sum. Both once, with errors
 * of their own. */
static titan_status encode_for_replicas(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct operand *const x = &o[OPERAND_OF(encode, x)];
    const struct op_encode *const q = &action_params(c->p, a)->encode;
    const struct flow *const from = flow_of(g, x);
    const int64_t replicas = mesh_group_size(&c->p->mesh, GROUP_REPLICATE), shard = c->p->layout->units[a->unit].shard;
    const bool sum = from->way == WAY_SUM, errors = q->codec == CODEC_LOCO;
    struct unit_progress *const u = &g->units[a->unit];
    bool *const done = sum ? &u->sum_coded : &u->coded_for_replicas;
    const unsigned want = must_be_done(g, a->unit);

    TRY(sum ? take_any(g, x) : take(g, x));
    if (*done || !(want & DONE_REPLICATE))
        return REFUSE(c, "codes unit %d for replicas %s", a->unit, *done ? "again" : "that it does not have");
    if (from->done != (want & ~(unsigned)DONE_REPLICATE))
        return REFUSE(c, "codes the gradient of unit %d, which has been reduced over %s, it must be over %s", a->unit,
                      done_names(from->done), done_names(want & ~(unsigned)DONE_REPLICATE));
    if (q->n * replicas != shard || q->pieces != (sum ? 1 : replicas))
        return REFUSE(c, "codes %ld pieces of %ld of unit %d, which has a range of %ld for %ld replicas",
                      (long)q->pieces, (long)q->n, a->unit, (long)shard, (long)replicas);
    TRY(check_errors(g, a, errors ? &o[OPERAND_OF(encode, error)] : NULL, BUF_REPLICA_ERROR,
                     sum ? (size_t)replicas * codec_error_bytes(q->n) : 0));
    if (from->measured || a->n_operands > OPERAND_OF(encode, error) + errors)
        return REFUSE(c, "codes unit %d for replicas with scales of something else", a->unit);
    *done = true;
    return code(g, &o[OPERAND_OF(encode, codes)], x, (enum codec)q->codec, sum ? WAY_CODED : WAY_PIECES);
}

/* What scales are made of is the gradient that is coded, with the errors that are coded with it. */
static titan_status measure(struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct operand *const x = &o[OPERAND_OF(bucket_largest, x)];
    const int errors = OPERAND_OF(bucket_largest, error);

    TRY(take(g, x));
    if (a->unit < 0 || flow_of(g, x)->unit != a->unit || g->units[a->unit].largest != NONE)
        return REFUSE(c, "measures buffer #%d, which is not its unit's gradient, or again", x->buffer);
    TRY(check_errors(g, a, a->n_operands > errors ? &o[errors] : NULL, BUF_ERROR, 0));
    flow_of(g, x)->measured = true;
    g->units[a->unit].largest = o[OPERAND_OF(bucket_largest, largest)].buffer;
    return TITAN_OK;
}

/* A unit's gradient is coded once, when it is the rank's whole gradient: summed over tp where that is due, and over
 * nothing else. The errors of the unit's codes are its own, and are read and written that once. */
static titan_status encode(struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct operand *const codes = &o[OPERAND_OF(encode, codes)], *const x = &o[OPERAND_OF(encode, x)];
    const enum codec codec = (enum codec)action_params(c->p, a)->encode.codec;
    struct flow *const from = flow_of(g, x);

    const bool cut = a->unit >= 0 && must_be_done(g, a->unit) & DONE_REDUCE && !(from->done & DONE_REDUCE);
    if (a->unit >= 0 && from->unit == a->unit && !cut)
        return encode_for_replicas(g, a, o);
    TRY(take(g, x));
    if (a->unit < 0 || from->unit != a->unit || g->units[a->unit].coded)
        return REFUSE(c, "codes buffer #%d, %s", x->buffer,
                      from->unit != a->unit ? "which is not its unit's gradient" : "and the unit has codes already");
    const unsigned want = must_be_done(g, a->unit) & DONE_TP;
    if (from->done != want)
        return REFUSE(c, "codes the gradient of unit %d, which has been reduced over %s, it must be over %s", a->unit,
                      done_names(from->done), done_names(want));
    const bool errors = codec == CODEC_LOCO;
    const int largest = OPERAND_OF(encode, error) + errors;
    TRY(check_errors(g, a, errors ? &o[OPERAND_OF(encode, error)] : NULL, BUF_ERROR, 0));
    if (from->measured != (a->n_operands > largest) ||
        (from->measured && o[largest].buffer != g->units[a->unit].largest))
        return REFUSE(c, "scales of unit %d's codes are not made of what is coded", a->unit);
    g->units[a->unit].coded = true;
    return code(g, codes, x, codec, WAY_NONE);
}

/* Sums the codes of all ranks, or replicas, which are in their order, into this rank's part of the gradient. */
static titan_status decode_sum(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct operand *const sum = &o[OPERAND_OF(decode_sum, sum)], *const codes = &o[OPERAND_OF(decode_sum, codes)];
    const struct flow *const from = flow_of(g, codes);

    if (from->coded == CODEC_NONE || (int64_t)from->coded != action_params(c->p, a)->decode_sum.codec)
        return REFUSE(c, "decodes buffer #%d, which holds no codes of that codec", codes->buffer);
    if (from->unit != a->unit || (from->way == WAY_NONE ? !(from->done & DONE_REDUCE) : from->way != WAY_OWN))
        return REFUSE(c, "decodes codes of unit %d that are not those of all ranks", from->unit);
    const enum replica_way way = from->way == WAY_OWN ? WAY_SUM : WAY_NONE;
    TRY(pass_on(g, sum, codes, 0));
    flow_of(g, sum)->way = way;
    return TITAN_OK;
}

/* The replicas' sum, of the codes of all its pieces. */
static titan_status decode(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct operand *const codes = &o[OPERAND_OF(decode, codes)];
    const struct flow *const from = flow_of(g, codes);

    if (from->coded == CODEC_NONE || (int64_t)from->coded != action_params(c->p, a)->decode.codec)
        return REFUSE(c, "decodes buffer #%d, which holds no codes of that codec", codes->buffer);
    if (from->way != WAY_GATHERED || from->unit != a->unit)
        return REFUSE(c, "decodes codes of unit %d that are not those of the replicas' sum", from->unit);
    return pass_on(g, &o[OPERAND_OF(decode, range)], codes, 0);
}

/* --- gathers and copies of the state ------------------------------------------------------------------------------ */

/* A unit's parameters are gathered on its own channel, from its own shard or from codes of the shard. */
static titan_status gather(struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;

    for (int k = 0; k + 1 < a->n_operands; k += 2) {
        const struct buffer *out = &c->p->buffers[o[k].buffer], *in = &c->p->buffers[o[k + 1].buffer];
        const struct flow *const from = flow_of(g, &o[k + 1]);
        const int unit = in->kind == BUF_SHARD ? in->unit : from->packed;
        if (from->parts != NONE) { /* of a direction */
            if (a->channel != CHANNEL_REPLICATE || from->gathered || g->units[from->parts].gathered)
                return REFUSE(c, "gathers the parts of unit %d a second time, or not over replicas", from->parts);
            TRY(check_whole(g, &o[k]));
            TRY(check_whole(g, &o[k + 1]));
            flow_of(g, &o[k])->parts = from->parts;
            flow_of(g, &o[k])->gathered = g->units[from->parts].gathered = true;
            continue;
        }
        if (unit == NONE && out->kind != BUF_FULL)
            continue;
        if (unit == NONE || out->kind != BUF_FULL || unit != out->unit ||
            a->channel != (int)c->p->layout->units[unit].gather)
            return REFUSE(c, "gathers %s of unit %d into %s of unit %d on %s", buffer_kind_name(in->kind), in->unit,
                          buffer_kind_name(out->kind), out->unit, channel_name((enum channel)a->channel));
    }
    return TITAN_OK;
}

/* Optimizer state from and to host memory. */
static titan_status copy(struct gradients *g, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct operand *dst = &o[OPERAND_OF(copy, dst)], *src = &o[OPERAND_OF(copy, src)];
    const struct buffer *to = &c->p->buffers[dst->buffer], *from = &c->p->buffers[src->buffer];

    if (from->kind == BUF_OWNED_HOST) {
        if (g->owned.fetched)
            return REFUSE(c, "fetches the state of owned matrices again");
        g->owned.fetched = flow_of(g, dst)->owned = true;
        return TITAN_OK;
    }
    if (to->kind == BUF_OWNED_HOST) {
        if (!flow_of(g, src)->owned || !flow_of(g, src)->updated || g->owned.returned)
            return REFUSE(c, "brings back what is not the updated state of owned matrices");
        g->owned.returned = true;
        return TITAN_OK;
    }
    if (from->kind == BUF_STATE_HOST) {
        if (g->units[from->unit].fetched)
            return REFUSE(c, "fetches the state of unit %d again", from->unit);
        g->units[from->unit].fetched = true;
        flow_of(g, dst)->state_of = from->unit;
        return TITAN_OK;
    }
    if (to->kind != BUF_STATE_HOST)
        return TITAN_OK;
    const struct flow *f = flow_of(g, src);
    if (f->state_of != to->unit || !f->updated || g->units[to->unit].returned)
        return REFUSE(c, "brings back to unit %d what is not its updated state", to->unit);
    g->units[to->unit].returned = true;
    return TITAN_OK;
}

/* --- norm, agreement, decision, update ---------------------------------------------------------------------------- */

/* Does a gradient hold every microbatch of this rank, and has it been through every reduction? */
static titan_status check_complete(const struct gradients *g, const struct flow *f, int unit)
{
    const struct checker *c = g->c;
    const unsigned want = must_be_done(g, unit);

    for (int i = 0; i < c->p->share * parts_of(g, unit); i++) {
        const int part = i / (int)c->p->share, slot = i % (int)c->p->share;
        if (f->unit != unit || !f->held || !has_bit(f->held, bit_of(g, part, slot)))
            return REFUSE(c, "the gradient it reads lacks microbatch %d", slot);
    }
    if (rotates(g, unit) && (f->turns != mesh_group_size(&c->p->mesh, GROUP_ROTATE) - 1 ||
                             (f->added & cut_tensors(g, unit)) != cut_tensors(g, unit)))
        return REFUSE(c, "the gradient it reads has come from %d other ranks, or lacks this rank's part", f->turns);
    if (c->p->share > 0 && (f->done & want) != want)
        return REFUSE(c, "the gradient it reads has been reduced over %s, it must be over %s", done_names(f->done),
                      done_names(want));
    if (layout_replicas_differ(c->p->layout) && f->done & DONE_REPLICATE)
        return REFUSE(c, "the gradient it reads is of all replicas, which send each other parts of their own");
    return TITAN_OK;
}

static titan_status norm(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct operand *gradient = &o[OPERAND_OF(norm, gradient)];
    struct flow *f = flow_of(g, gradient);

    TRY(take(g, gradient));
    f->passed = true;
    if (a->unit < 0 || g->units[a->unit].normed != NONE)
        return REFUSE(c, "a second norm of this unit");
    if (c->p->layout->units[a->unit].pp_rank != c->p->pp_rank)
        return REFUSE(c, "is of unit %d, which pp rank %d trains", a->unit, c->p->layout->units[a->unit].pp_rank);
    if (g->agreed)
        return REFUSE(c, "comes after the agreement");
    TRY(check_complete(g, f, a->unit));
    if (a->unit == 0 && layout_tied_across_ranks(c->p->layout) && !f->heads)
        return REFUSE(c, "the gradient it reads lacks the head's part");
    g->units[a->unit].normed = gradient->buffer;
    return TITAN_OK;
}

/* The direction section is between DECIDE and COMMIT: peers may be needed there, so the state must not change yet. */
static titan_status direction(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const bool directs = g->decided && !g->committed && c->p->statistics.sums > 0;

    if (g->decided && !directs && op_is_transfer((enum op)a->op) && a->op != OP_COMMIT)
        return REFUSE(c, "needs a peer behind the commit point");
    for (int k = 0; directs && k < a->n_operands; k++) {
        const struct buffer *b = &c->p->buffers[o[k].buffer];
        if (o[k].access & ACCESS_WRITE && buffer_is_external(b->kind))
            return REFUSE(c, "operand %d: writes to %s #%d before the commit point", k, buffer_kind_name(b->kind),
                          o[k].buffer);
    }
    return TITAN_OK;
}

/* Sums of a unit's tensors, from its own state and the gradient that the update takes. */
static titan_status tensor_sums(struct gradients *g, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct operand *state = &o[OPERAND_OF(tensor_sums, state)], *gradient = &o[OPERAND_OF(tensor_sums, gradient)];
    const struct buffer *b = &c->p->buffers[state->buffer];
    const int unit = b->kind == BUF_STATE ? b->unit : flow_of(g, state)->state_of;

    if (!g->decided || g->committed)
        return REFUSE(c, "comes %s", g->committed ? "after the commit point" : "before the decision");
    if (unit < 0 || g->units[unit].summed)
        return REFUSE(c, "sums the tensors of unit %d %s", unit, unit < 0 ? "without its state" : "a second time");
    if (g->units[unit].normed != gradient->buffer)
        return REFUSE(c, "sums with buffer #%d, the norm is that of #%d", gradient->buffer, g->units[unit].normed);
    g->units[unit].summed = g->summed = true;
    g->units[unit].fetched = false; /* the update fetches it again */
    return TITAN_OK;
}

/* Takes parts out of a unit's own gradient before the commit point. Behind it the residual becomes what is left, and
 * the gradient becomes the direction of all replicas' parts. Both once. */
static titan_status parts(struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const bool takes = a->op == OP_PARTS_EXTRACT;
    const struct operand *const gradient =
        &o[takes ? OPERAND_OF(parts_extract, gradient) : OPERAND_OF(parts_combine, gradient)];
    const struct operand *const state = &o[takes ? OPERAND_OF(parts_extract, state) : OPERAND_OF(parts_combine, state)];
    const struct buffer *const b = &c->p->buffers[state->buffer];
    const int unit = b->kind == BUF_STATE ? b->unit : NONE;

    if (!layout_replicas_differ(c->p->layout) || !g->decided || g->committed == takes)
        return REFUSE(c, "comes %s the commit point, or replicas have no residuals", takes ? "behind" : "before");
    if (unit < 0 || (takes ? g->units[unit].extracted : g->units[unit].combined))
        return REFUSE(c, "is of unit %d %s", unit, unit < 0 ? "without its state" : "a second time");
    if (g->units[unit].normed != gradient->buffer)
        return REFUSE(c, "takes buffer #%d, the norm is that of #%d", gradient->buffer, g->units[unit].normed);
    const struct op_params *const q = action_params(c->p, a);
    const int64_t method = takes ? q->parts_extract.method : q->parts_combine.method;
    const int64_t kept = takes ? q->parts_extract.kept : q->parts_combine.kept;
    const int64_t values = takes ? q->parts_extract.values : q->parts_combine.values;
    if (g->parts.kept == 0) {
        g->parts.method = method;
        g->parts.kept = kept;
        g->parts.values = values;
    }
    if (kept <= 0 || g->parts.method != method || g->parts.kept != kept || g->parts.values != values)
        return REFUSE(c, "takes other parts of unit %d than of others", unit);
    TRY(check_whole(g, gradient));
    if (takes) {
        flow_of(g, &o[OPERAND_OF(parts_extract, sent)])->parts = unit;
        g->units[unit].extracted = true;
        return check_whole(g, &o[OPERAND_OF(parts_extract, sent)]);
    }
    const struct operand *const received = &o[OPERAND_OF(parts_combine, received)];
    const struct flow *const f = flow_of(g, received);
    if (f->parts != unit || f->gathered != g->units[unit].gathered)
        return REFUSE(c, "makes unit %d's direction of parts of unit %d, or of this replica alone", unit, f->parts);
    g->units[unit].combined = true;
    return check_whole(g, received);
}

static bool has_matrices(const struct gradients *g, int unit)
{
    return owners_have(g->c->p->layout->owners, &g->c->model->units[unit]);
}

/* Is an operand the state of owned matrices, or a copy of it? */
static bool is_owned(const struct gradients *g, const struct operand *o)
{
    return g->c->p->buffers[o->buffer].kind == BUF_OWNED || flow_of(g, o)->owned;
}

/* Takes note of the buffer that an operand must be from now on. */
static bool same_buffer(int *known, const struct operand *o)
{
    *known = *known == NONE ? o->buffer : *known;
    return *known == o->buffer;
}

/* All gradients have gone to the owners. Directions are made in place, once. */
static titan_status whole(struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;

    if (g->owned.whole)
        return REFUSE(c, "directions are made a second time");
    for (int u = 0; u < c->model->n_units; u++)
        if (c->p->layout->units[u].pp_rank == c->p->pp_rank && has_matrices(g, u) && !g->units[u].sent)
            return REFUSE(c, "unit %d's gradient has not gone to the owners", u);
    const bool masters = a->n_operands > OPERAND_OF(whole, masters);
    if (o[OPERAND_OF(whole, values)].buffer != g->owned.values || !is_owned(g, &o[OPERAND_OF(whole, state)]) ||
        (masters ? o[OPERAND_OF(whole, masters)].buffer : NONE) != g->owned.masters)
        return REFUSE(c, "operands are not what has gone to the owners, or their state");
    g->owned.whole = true;
    g->owned.next = o[OPERAND_OF(whole, after)].buffer;
    return TITAN_OK;
}

/* A unit's gradient goes to the owners once, and the directions come back to the same buffer once. */
static titan_status owners(struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const bool to = a->op == OP_TO_OWNERS;
    const struct operand *const gradient = &o[to ? OPERAND_OF(to_owners, gradient) : OPERAND_OF(from_owners, gradient)];
    const struct operand *const values = &o[to ? OPERAND_OF(to_owners, values) : OPERAND_OF(from_owners, values)];

    if (!g->decided || g->committed)
        return REFUSE(c, "comes %s", g->committed ? "after the commit point" : "before the decision");
    if (a->op == OP_WHOLE)
        return whole(g, a, o);
    if (a->unit < 0 || !has_matrices(g, a->unit) || a->channel != CHANNEL_OWNERS)
        return REFUSE(c, "is not on OWNERS, or of no unit with matrices");
    const struct operand *const cut_parts =
        &o[to ? OPERAND_OF(to_owners, cut_parts) : OPERAND_OF(from_owners, cut_parts)];
    if (!same_buffer(&g->owned.cut_parts, cut_parts) || cut_parts->buffer == values->buffer ||
        cut_parts->buffer == g->owned.next)
        return REFUSE(c, "cut parts are in buffer #%d, not #%d", g->owned.cut_parts, cut_parts->buffer);
    struct unit_progress *const u = &g->units[a->unit];
    if (to && g->owned.whole)
        return REFUSE(c, "comes after the directions");
    if (to && action_params(c->p, a)->to_owners.masters) {
        const struct buffer *const from = &c->p->buffers[gradient->buffer];
        const bool its = from->kind == BUF_SHARD || from->kind == BUF_STATE ? from->unit == a->unit
                                                                            : flow_of(g, gradient)->state_of == a->unit;
        u->fetched = false; /* the update fetches the state again */
        if (!its || values->buffer == g->owned.values || !same_buffer(&g->owned.masters, values))
            return REFUSE(c, "moves buffer #%d, which has no masters of the unit", gradient->buffer);
        return TITAN_OK;
    }
    if (u->normed != gradient->buffer)
        return REFUSE(c, "moves buffer #%d, the norm is that of #%d", gradient->buffer, u->normed);
    TRY(check_whole(g, gradient));
    if (to ? u->sent : u->directed || !g->owned.whole)
        return REFUSE(c, "comes %s", to ? "again" : "again, or before the directions");
    if (!same_buffer(&g->owned.values, values) || values->buffer == g->owned.masters)
        return REFUSE(c, "owned matrices are in buffer #%d, not #%d", g->owned.values, values->buffer);
    *(to ? &u->sent : &u->directed) = true;
    return TITAN_OK;
}

/* Behind the commit point, owners get the state that they have made. */
static titan_status adopt(struct gradients *g, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct operand *const state = &o[OPERAND_OF(adopt, state)];

    if (!g->committed || g->owned.adopted)
        return REFUSE(c, "comes %s", g->owned.adopted ? "a second time" : "before the commit point");
    if (o[OPERAND_OF(adopt, after)].buffer != g->owned.next || !is_owned(g, state))
        return REFUSE(c, "operands are not the owners' state, and what it is after the step");
    g->owned.adopted = flow_of(g, state)->updated = true;
    return TITAN_OK;
}

static titan_status commit(struct gradients *g)
{
    const struct checker *c = g->c;

    if (!g->decided || g->committed || c->p->statistics.sums == 0)
        return REFUSE(c, "%s", g->committed ? "a second commit" : "comes without a decision, or has nothing to sum");
    const bool differ = layout_replicas_differ(c->p->layout);
    const bool several = mesh_group_size(&c->p->mesh, GROUP_REPLICATE) > 1;
    if (!g->summed && !c->p->layout->owners && !differ)
        return REFUSE(c, "nothing is summed");
    for (int u = 0; u < c->model->n_units; u++) {
        if (c->p->layout->units[u].pp_rank != c->p->pp_rank)
            continue;
        if (g->summed && !g->units[u].summed)
            return REFUSE(c, "the tensors of unit %d are not summed", u);
        if (has_matrices(g, u) && !g->units[u].directed)
            return REFUSE(c, "the owners' directions of unit %d are not back", u);
        if (differ && (!g->units[u].extracted || (several && !g->units[u].gathered)))
            return REFUSE(c, "replicas have not sent each other parts of unit %d", u);
    }
    g->committed = true;
    return TITAN_OK;
}

static titan_status optimise(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;

    if (!g->decided || (c->p->statistics.sums > 0 && !g->committed))
        return REFUSE(c, "comes before the %s", g->decided ? "commit point" : "decision");
    for (int k = 0; k + UPDATE_OPERANDS <= a->n_operands; k += UPDATE_OPERANDS) {
        const struct operand *state = &o[k + OPERAND_OF(optimise, state)];
        const struct operand *shard = &o[k + OPERAND_OF(optimise, shard)];
        const struct operand *gradient = &o[k + OPERAND_OF(optimise, gradient)];
        const int unit = c->p->buffers[state->buffer].unit;
        struct flow *staged = flow_of(g, state);
        if (unit < 0 || g->units[unit].optimised)
            return REFUSE(c, "a second update of unit %d", unit);
        if (c->p->buffers[shard->buffer].unit != unit)
            return REFUSE(c, "the state is unit %d's, the shard unit %d's", unit, c->p->buffers[shard->buffer].unit);
        if (layout_replicas_differ(c->p->layout) && !g->units[unit].combined)
            return REFUSE(c, "updates unit %d before the direction of all replicas' parts", unit);
        if (g->units[unit].normed != gradient->buffer)
            return REFUSE(c, "updates with buffer #%d, the norm is that of #%d", gradient->buffer,
                          g->units[unit].normed);
        if (c->p->buffers[state->buffer].kind != BUF_STATE && staged->state_of != unit)
            return REFUSE(c, "operand state is not the unit's state");
        TRY(check_whole(g, gradient));
        staged->updated = true;
        g->units[unit].optimised = true;
    }
    return TITAN_OK;
}

/* A router reads the biases of its own layer's experts, and adds to the loads of these experts. An action that drops
 * rows also adds to these loads. */
static titan_status route(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;

    for (int k = a->op == OP_ROUTE ? OPERAND_OF(route, index) : OPERAND_OF(permute, dropped); k < a->n_operands; k++) {
        if (c->p->buffers[o[k].buffer].kind == BUF_TOKENS) /* numbers of tokens */
            continue;
        const int unit = c->p->buffers[o[k].buffer].unit;
        if (a->unit < 0 || unit < 0 || c->model->units[unit].layer != c->model->units[a->unit].layer)
            return REFUSE(c, "operand %d is buffer #%d, of another layer's experts", k, o[k].buffer);
    }
    return TITAN_OK;
}

/* Expert tokens must be in the statistics before the sum over ranks. Biases change only after the decision whether the
 * step counts. */
static titan_status balance(struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;
    const bool counts = a->op == OP_EXPERT_LOAD;
    const struct operand *own = &o[counts ? OPERAND_OF(expert_load, expert_tokens) : OPERAND_OF(balance, bias)];
    bool *const done = a->unit < 0 ? NULL : counts ? &g->units[a->unit].counted : &g->units[a->unit].balanced;

    if (!done || c->model->units[a->unit].kind != UNIT_EXPERTS || *done)
        return REFUSE(c, "is not of a unit of experts, or comes a second time");
    if (c->p->buffers[own->buffer].unit != a->unit)
        return REFUSE(c, "takes buffer #%d, which is another unit's", own->buffer);
    if (counts ? g->agreed : !g->decided)
        return REFUSE(c, "comes %s", counts ? "after the agreement" : "before the decision");
    *done = true;
    return TITAN_OK;
}

/* An evaluation only goes forward, and does not change the training state. */
static titan_status evaluate(const struct gradients *g, const struct action *a, const struct operand *o)
{
    const struct checker *c = g->c;

    if (a->phase != PHASE_FORWARD)
        return REFUSE(c, "is no part of an evaluation");
    if (g->decided)
        return REFUSE(c, "comes after the decision");
    for (int k = 0; k < a->n_operands; k++) {
        const struct buffer *b = &c->p->buffers[o[k].buffer];
        const bool trains = b->kind == BUF_GRAD || b->kind == BUF_GRAD_SHARD || b->kind == BUF_EXPERT_TOKENS;
        if (o[k].access & ACCESS_WRITE && (trains || buffer_is_external(b->kind)))
            return REFUSE(c, "operand %d: an evaluation writes to %s #%d", k, buffer_kind_name(b->kind), o[k].buffer);
    }
    return TITAN_OK;
}

/* --- a tied head on another pp rank than the embedding ------------------------------------------------------------ */

/* The embedding's shard goes to the head's rank, and the head's gradient of the shard to the embedding's rank, once
 * each. Shards and gradients of other units stay on their rank. */
static titan_status send(struct gradients *g, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct buffer *b = &c->p->buffers[o->buffer];
    struct flow *f = flow_of(g, o);

    if (b->kind == BUF_SHARD || b->kind == BUF_FULL) {
        if (b->kind != BUF_SHARD || b->unit != 0 || !layout_tied_across_ranks(c->p->layout) || g->table_moved)
            return REFUSE(c, "sends %s of unit %d", buffer_kind_name(b->kind), b->unit);
        g->table_moved = true;
        return check_whole(g, o);
    }
    if (f->unit == NONE)
        return TITAN_OK;
    if (f->unit != 0 || !layout_copies_table(c->p->layout, c->p->pp_rank) || g->agreed || g->units[0].normed != NONE)
        return REFUSE(c, "sends the gradient of unit %d", f->unit);
    TRY(take(g, o));
    TRY(check_complete(g, f, 0));
    f->passed = true;
    g->units[0].normed = o->buffer;
    return TITAN_OK;
}

static titan_status receive(struct gradients *g, const struct operand *o)
{
    const struct checker *c = g->c;
    const struct buffer *b = &c->p->buffers[o->buffer];
    struct flow *f = flow_of(g, o);

    if (b->kind == BUF_ACTIVATION || b->kind == BUF_DACTIVATION)
        return TITAN_OK;
    const bool copies = layout_copies_table(c->p->layout, c->p->pp_rank);
    const bool trains = layout_tied_across_ranks(c->p->layout) && c->p->layout->units[0].pp_rank == c->p->pp_rank;
    if (b->unit != 0 || !((copies && b->kind == BUF_FULL && !g->table_moved) || (trains && b->kind == BUF_EXCHANGE)))
        return REFUSE(c, "receives %s of unit %d", buffer_kind_name(b->kind), b->unit);
    TRY(check_whole(g, o));
    if (copies) {
        g->table_moved = true;
        f->packed = 0;
        return TITAN_OK;
    }
    f->unit = 0;
    f->done = must_be_done(g, 0);
    f->heads = true;
    return TITAN_OK;
}

/* --- the walk ----------------------------------------------------------------------------------------------------- */

static titan_status step(struct gradients *g, const struct action *a)
{
    const struct checker *c = g->c;
    const struct operand *o = action_operands(c->p, a);

    if (c->p->forward_only)
        TRY(evaluate(g, a, o));
    TRY(direction(g, a, o));
    switch (a->op) {
    case OP_AGREE:
        if (g->agreed)
            return REFUSE(c, "a second agreement");
        for (int u = 0; u < c->model->n_units && !c->p->forward_only; u++)
            if (c->p->layout->units[u].pp_rank == c->p->pp_rank && g->units[u].normed == NONE)
                return REFUSE(c, "unit %d has no norm yet", u);
        if (layout_copies_table(c->p->layout, c->p->pp_rank) && !c->p->forward_only && g->units[0].normed == NONE)
            return REFUSE(c, "the head's part of unit 0's gradient has not been sent");
        g->agreed = true;
        return TITAN_OK;
    case OP_DECIDE:
        if (!g->agreed || g->decided)
            return REFUSE(c, "%s", g->decided ? "a second decision" : "comes before the agreement");
        g->decided = true;
        return TITAN_OK;
    case OP_NORM:
        return norm(g, a, o);
    case OP_TENSOR_SUMS:
        return tensor_sums(g, o);
    case OP_COMMIT:
        return commit(g);
    case OP_TO_OWNERS:
    case OP_FROM_OWNERS:
    case OP_WHOLE:
        return owners(g, a, o);
    case OP_ADOPT:
        return adopt(g, o);
    case OP_PARTS_EXTRACT:
    case OP_PARTS_COMBINE:
        return parts(g, a, o);
    case OP_OPTIMISE:
        return optimise(g, a, o);
    case OP_ROUTE:
    case OP_PERMUTE:
        return route(g, a, o);
    case OP_EXPERT_LOAD:
    case OP_BALANCE:
        return balance(g, a, o);
    case OP_COPY:
        return copy(g, o);
    case OP_PACK:
        return pack(g, a, o);
    case OP_FLOAT8_PACK: { /* the codes that are to be gathered instead of a shard */
        const struct buffer *shard = &c->p->buffers[o[OPERAND_OF(float8_pack, shard)].buffer];
        if (shard->kind != BUF_SHARD)
            return REFUSE(c, "packs %s, which is no shard", buffer_kind_name(shard->kind));
        flow_of(g, &o[OPERAND_OF(float8_pack, codes)])->packed = shard->unit;
        flow_of(g, &o[OPERAND_OF(float8_pack, others)])->packed = shard->unit;
        return TITAN_OK;
    }
    case OP_WEIGHT_COUNT: {
        const struct buffer *shard = &c->p->buffers[o[OPERAND_OF(weight_count, shard)].buffer];
        if (shard->kind != BUF_SHARD || g->units[shard->unit].weights_counted || g->units[shard->unit].learned)
            return REFUSE(c, "counts what is no shard, or was counted");
        g->units[shard->unit].weights_counted = true;
        return TITAN_OK;
    }
    case OP_WEIGHT_LEARN: {
        const int unit = c->p->buffers[o[OPERAND_OF(weight_learn, levels)].buffer].unit;
        if (unit < 0 || !g->units[unit].weights_counted || g->units[unit].learned)
            return REFUSE(c, "learns levels of unit %d, whose weights are not counted, or a second time", unit);
        g->units[unit].learned = true;
        return TITAN_OK;
    }
    case OP_WEIGHT_ENCODE:
    case OP_WEIGHT_ENCODE_BY: { /* the same operands, and levels */
        const struct operand *const read = &o[OPERAND_OF(weight_encode, shard)];
        const struct buffer *shard = &c->p->buffers[read->buffer];
        const int unit = shard->kind == BUF_SHARD ? shard->unit : flow_of(g, read)->packed;
        if (unit == NONE)
            return REFUSE(c, "makes codes of %s, which is no shard", buffer_kind_name(shard->kind));
        if (a->op == OP_WEIGHT_ENCODE_BY && c->p->buffers[o[OPERAND_OF(weight_encode_by, levels)].buffer].unit != unit)
            return REFUSE(c, "makes codes of unit %d by levels of another", unit);
        flow_of(g, &o[OPERAND_OF(weight_encode, codes)])->packed = unit;
        flow_of(g, &o[OPERAND_OF(weight_encode, others)])->packed = unit;
        return TITAN_OK;
    }
    case OP_WEIGHT_DECODE:
    case OP_WEIGHT_DECODE_BY: {
        const struct buffer *full = &c->p->buffers[o[OPERAND_OF(weight_decode, full)].buffer];
        const int codes = flow_of(g, &o[OPERAND_OF(weight_decode, codes)])->packed;
        if (codes == NONE || codes != full->unit || full->kind != BUF_FULL ||
            flow_of(g, &o[OPERAND_OF(weight_decode, others)])->packed != codes)
            return REFUSE(c, "makes %s of unit %d of what are no codes of it", buffer_kind_name(full->kind),
                          full->unit);
        if (a->op == OP_WEIGHT_DECODE_BY &&
            c->p->buffers[o[OPERAND_OF(weight_decode_by, levels)].buffer].unit != full->unit)
            return REFUSE(c, "decodes unit %d by levels of another", full->unit);
        return TITAN_OK;
    }
    case OP_SUM_TREE:
        return pass_on(g, &o[OPERAND_OF(sum_tree, sum)], &o[OPERAND_OF(sum_tree, slices)], 0);
    case OP_ACCUMULATE:
        return accumulate(g, o);
    case OP_RELEASE: /* buddies get codes of gradients up to AGREE, and nothing new may lie in their place before it */
        if (mesh_group_size(&c->p->mesh, GROUP_REPLICATE) > 1) /* codes of replicas' sums, which no buddy gets */
            return TITAN_OK;
        for (int u = 0; u < c->model->n_units && flow_of(g, &o[0])->coded != CODEC_NONE; u++)
            if (c->p->layout->units[u].pp_rank == c->p->pp_rank && g->units[u].normed == NONE)
                return REFUSE(c, "releases codes of unit %d before unit %d has its norm", flow_of(g, &o[0])->unit, u);
        return TITAN_OK;
    case OP_BUCKET_LARGEST:
        return measure(g, a, o);
    case OP_ENCODE:
        return encode(g, a, o);
    case OP_DECODE_SUM:
        return decode_sum(g, a, o);
    case OP_DECODE:
        return decode(g, a, o);
    case OP_ALL_GATHER:
        TRY(gather(g, a, o));
        return collective(g, a, o);
    case OP_REDUCE_SCATTER:
    case OP_ALL_REDUCE:
    case OP_ALL_TO_ALL:
        return collective(g, a, o);
    case OP_SHIFT:
    case OP_ROTATE:
        return a->channel == CHANNEL_ROTATE ? rotate(g, a, o) : TITAN_OK;
    case OP_SEND:
        return send(g, o);
    case OP_RECV:
        return receive(g, o);
    case OP_ZERO:
        if (is_gradient(g, &o[0])) /* zeros: a gradient to which no microbatch has been added */
            flow_of(g, &o[0])->unit = c->p->buffers[o[0].buffer].unit;
        return TITAN_OK;
    default:
        for (int k = 0; k < a->n_operands; k++)
            if (o[k].access & ACCESS_WRITE && is_gradient(g, &o[k]))
                TRY(contribute(g, a, &o[k]));
        return TITAN_OK;
    }
}

static void free_gradients(struct gradients *g)
{
    for (int i = 0; g->flows && i < g->c->p->n_buffers; i++)
        free(g->flows[i].held);
    free(g->flows);
    free(g->units);
    free(g->given);
}

titan_status check_gradients(struct checker *c)
{
    const struct program *p = c->p;
    _cleanup_(free_gradients) struct gradients g = {.c = c};
    const size_t parts = p->canonical ? (size_t)mesh_group_size(&p->mesh, GROUP_EP) : 1;

    g.words = (size_t)p->share_max * parts / 64 + 1;
    g.flows = calloc((size_t)p->n_buffers + 1, sizeof *g.flows);
    g.units = calloc((size_t)c->model->n_units, sizeof *g.units);
    g.given = calloc((size_t)c->model->n_tensors * g.words, sizeof *g.given);
    if (!g.flows || !g.units || !g.given)
        return checker_no_memory(c);
    for (int i = 0; i < p->n_buffers; i++)
        g.flows[i].unit = g.flows[i].state_of = g.flows[i].packed = g.flows[i].parts = NONE;
    for (int u = 0; u < c->model->n_units; u++)
        g.units[u].normed = g.units[u].largest = NONE;
    g.owned.values = g.owned.masters = g.owned.cut_parts = g.owned.next = NONE;
    for (c->index = 0; c->index < p->n_actions; c->index++)
        TRY(step(&g, &p->actions[c->index]));
    c->index = NONE;

    if (!g.decided)
        return REFUSE(c, "there is no %s", g.agreed ? "DECIDE" : "AGREE");
    if (p->forward_only)
        return TITAN_OK;
    if (layout_copies_table(p->layout, p->pp_rank))
        TRY(check_tensors(&g, 0));
    for (int u = 0; u < c->model->n_units; u++) {
        const bool experts = c->model->units[u].kind == UNIT_EXPERTS;
        if (p->layout->units[u].pp_rank != p->pp_rank)
            continue;
        if (!g.units[u].optimised)
            return REFUSE(c, "unit %d has no OPTIMISE", u);
        if (experts && !g.units[u].counted)
            return REFUSE(c, "unit %d has no EXPERT_LOAD", u);
        if (experts && c->model->dims.balance_rate > 0 && !g.units[u].balanced)
            return REFUSE(c, "unit %d has no BALANCE", u);
        TRY(check_tensors(&g, u));
    }
    if (g.owned.adopted != g.owned.whole)
        return REFUSE(c, "owners do not get the state after the step");
    for (int b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].kind == BUF_OWNED_HOST && !g.owned.returned)
            return REFUSE(c, "the state of owned matrices does not come back to host memory");
    for (int b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].kind == BUF_STATE_HOST && !g.units[p->buffers[b].unit].returned)
            return REFUSE(c, "unit %d's state does not come back to host memory", p->buffers[b].unit);
    return TITAN_OK;
}
