/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: real programs of every mesh, schedule and policy pass; programs with one thing broken do not, and the
 * message says where. Places and operands are drawn; the seed is printed. TITAN_TEST_ALL=1 tries every place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "tests/support/programs.h"
#include "tests/support/seeded.h"
#include "tests/support/sets.h"
#include "worker/plan/check.h"

#define PLACES 24 /* of a mutation in a program, unless all are tried */
#define SCHEDULES 8

static uint64_t drawn;

static int draw(int n)
{
    return (int)(hash_draw(&drawn) % (uint64_t)n);
}

/* --- a copy to break ---------------------------------------------------------------------------------------------- */

static void *copy_of(const void *from, int n, size_t element)
{
    void *p = malloc(((size_t)n + 1) * element);
    assert_non_null(p);
    if (n > 0)
        memcpy(p, from, (size_t)n * element);
    return p;
}

/* Each action's operands and numbers are its own, so that changing them changes one action. */
static struct program *clone(const struct program *p)
{
    struct program *q = copy_of(p, 1, sizeof *p);

    q->sum.adds = copy_of(p->sum.adds, p->sum.n, sizeof *p->sum.adds);
    q->sum_experts.adds = copy_of(p->sum_experts.adds, p->sum_experts.n, sizeof *p->sum_experts.adds);
    q->buffers = copy_of(p->buffers, p->n_buffers, sizeof *p->buffers);
    q->operands = copy_of(p->operands, p->n_operands, sizeof *p->operands);
    q->waits = copy_of(p->waits, p->n_waits, sizeof *p->waits);
    q->cap_waits = p->n_waits;
    q->actions = copy_of(p->actions, p->n_actions, sizeof *p->actions);
    q->params = malloc(((size_t)p->n_actions + 1) * sizeof *q->params);
    assert_non_null(q->params);
    for (int i = 0; i < p->n_actions; i++) {
        q->params[i] = p->params[p->actions[i].params];
        q->actions[i].params = i;
    }
    q->n_params = p->n_actions;
    q->params_index = NULL;
    return q;
}

static titan_status check_all(struct program *const *classes, int n, struct titan_error *err)
{
    titan_status status = TITAN_OK;

    for (int k = 0; status == TITAN_OK && k < n; k++)
        status = program_check(classes[k], 0, err);
    return status == TITAN_OK ? programs_check((const struct program *const *)classes, n, err) : status;
}

/* --- ways to break a program -------------------------------------------------------------------------------------- */

/* Break p at action i. false: nothing to break there, or the result would be as good. */
typedef bool (*break_fn)(struct program *p, int i);

static struct operand *operands_of(struct program *p, int i)
{
    return p->operands + p->actions[i].operand;
}

static void remove_action(struct program *p, int i)
{
    memmove(p->actions + i, p->actions + i + 1, (size_t)(p->n_actions - i - 1) * sizeof *p->actions);
    p->n_actions--;
}

static void move_action(struct program *p, int from, int to)
{
    const struct action a = p->actions[from];
    remove_action(p, from);
    memmove(p->actions + to + 1, p->actions + to, (size_t)(p->n_actions - to) * sizeof *p->actions);
    p->actions[to] = a;
    p->n_actions++;
}

/* Without a release memory is held longer, nothing worse. */
static bool drop(struct program *p, int i)
{
    if (p->actions[i].op == OP_RELEASE)
        return false;
    remove_action(p, i);
    return true;
}

static bool is_named(const struct program *p, const struct operand *o, const char *name)
{
    return strcmp(p->buffers[o->buffer].name, name) == 0;
}

static bool sums_tensors(const struct program *p, const struct operand *o)
{
    return p->buffers[o->buffer].kind == BUF_WORK && is_named(p, o, "tensor sums");
}

/* Sums of tensors, and owned matrices, may be zeroed twice before the first is added. */
static bool duplicate(struct program *p, int i)
{
    const struct operand *const o = operands_of(p, i);

    if (p->actions[i].op == OP_ZERO &&
        (sums_tensors(p, o) || is_named(p, o, "owned matrices") || is_named(p, o, "masters of owned matrices")))
        return false;
    struct action *larger = realloc(p->actions, ((size_t)p->n_actions + 1) * sizeof *larger);

    assert_non_null(larger);
    p->actions = larger;
    memmove(p->actions + i + 1, p->actions + i, (size_t)(p->n_actions - i) * sizeof *p->actions);
    p->n_actions++;
    return true;
}

static bool is_sum(const struct program *p, const struct operand *o)
{
    const enum buffer_kind kind = p->buffers[o->buffer].kind;
    return o->access == ACCESS_UPDATE &&
           (kind == BUF_GRAD || kind == BUF_GRAD_SHARD || kind == BUF_STATISTICS || sums_tensors(p, o));
}

/* Must b stay behind a? Sums may be added to in any order. */
static bool depends(struct program *p, int a, int b)
{
    const struct operand *x = operands_of(p, a), *y = operands_of(p, b);
    const enum op op = (enum op)p->actions[a].op;

    if (op == p->actions[b].op && (op == OP_TO_OWNERS || op == OP_FROM_OWNERS)) /* units may go in any order */
        return false;

    for (int i = 0; i < p->actions[a].n_operands; i++)
        for (int j = 0; j < p->actions[b].n_operands; j++)
            if (x[i].buffer == y[j].buffer && ((x[i].access | y[j].access) & ACCESS_WRITE) &&
                x[i].offset < y[j].offset + y[j].bytes && y[j].offset < x[i].offset + x[i].bytes &&
                !(is_sum(p, &x[i]) && is_sum(p, &y[j])))
                return true;
    return false;
}

static bool swap(struct program *p, int i)
{
    if (i + 1 == p->n_actions || !depends(p, i, i + 1))
        return false;
    move_action(p, i, i + 1);
    return true;
}

/* A release has no bytes of its own. */
static bool shrink_operand(struct program *p, int i)
{
    struct operand *o = &operands_of(p, i)[draw(p->actions[i].n_operands)];
    if (o->bytes < 8)
        return false;
    o->bytes -= 4;
    return true;
}

static bool grow_operand(struct program *p, int i)
{
    struct operand *o = &operands_of(p, i)[draw(p->actions[i].n_operands)];
    o->bytes = p->buffers[o->buffer].bytes - o->offset + 4;
    return true;
}

static bool change_access(struct program *p, int i)
{
    struct operand *o = &operands_of(p, i)[draw(p->actions[i].n_operands)];
    o->access = o->access == ACCESS_READ ? ACCESS_WRITE : ACCESS_READ;
    return true;
}

static char what[160]; /* was done, for the message */

/* Use another buffer of the same kind and size. */
static bool redirect(struct program *p, int i)
{
    struct operand *o = &operands_of(p, i)[draw(p->actions[i].n_operands)];
    const struct buffer *b = &p->buffers[o->buffer];

    if (p->actions[i].op == OP_RELEASE || p->actions[i].op == OP_SEND || is_named(p, o, "piece of a part"))
        return false; /* any scratch is as good */
    for (int k = o->buffer + 1; k != o->buffer; k = (k + 1) % p->n_buffers) {
        k %= p->n_buffers;
        const struct buffer *d = &p->buffers[k];
        if (k != o->buffer && d->kind == b->kind && d->bytes == b->bytes && d->first >= 0 &&
            (d->unit != b->unit || d->microbatch != b->microbatch || strcmp(d->name, b->name) != 0)) {
            (void)snprintf(what, sizeof what, " %s #%d of unit %d -> %s #%d of unit %d", b->name, o->buffer, b->unit,
                           d->name, k, d->unit);
            o->buffer = k;
            return true;
        }
    }
    return false;
}

static bool change_number(struct program *p, int i)
{
    struct op_params *q = &p->params[p->actions[i].params];

    if (q->word[0] == 0 || p->actions[i].op == OP_AGREE || p->actions[i].op == OP_DECIDE)
        return false; /* their size is the statistics's */
    q->word[0]++;
    return true;
}

static bool change_flag(struct program *p, int i)
{
    if (p->actions[i].op != OP_MATMUL)
        return false;
    struct op_params *q = &p->params[p->actions[i].params];
    if (q->matmul.M == q->matmul.K && q->matmul.lda == q->matmul.M)
        return false; /* a square: the same bytes */
    q->flags ^= OP_TA;
    return true;
}

static bool change_microbatch(struct program *p, int i)
{
    struct action *a = &p->actions[i];
    if (p->share_max < 2 || a->microbatch < 0 || a->op == OP_ZERO || a->phase > PHASE_WGRAD)
        return false;
    a->microbatch = (a->microbatch + 1) % (int)p->share_max;
    return true;
}

static bool change_unit(struct program *p, int i)
{
    struct action *a = &p->actions[i];
    if (a->unit < 0 || a->op == OP_ZERO || a->op == OP_ALL_GATHER || a->op == OP_RELEASE || a->phase > PHASE_WGRAD)
        return false;
    a->unit = (a->unit + 1) % p->layout->model->n_units;
    return true;
}

static bool change_peer(struct program *p, int i)
{
    if (p->actions[i].op != OP_SEND && p->actions[i].op != OP_RECV)
        return false;
    p->actions[i].peer++;
    return true;
}

/* To a channel of the same kind. */
static bool change_channel(struct program *p, int i)
{
    struct action *a = &p->actions[i];
    if (a->channel < 0)
        return false;
    const int first = a->channel < CHANNEL_FORWARD_NEXT ? 0 : CHANNEL_FORWARD_NEXT;
    const int n = a->channel < CHANNEL_FORWARD_NEXT ? CHANNEL_FORWARD_NEXT : CHANNEL_COUNT - CHANNEL_FORWARD_NEXT;
    a->channel = (int8_t)(first + (a->channel - first + 1) % n);
    return true;
}

static bool release_early(struct program *p, int i)
{
    if (p->actions[i].op != OP_RELEASE)
        return false;
    for (int to = i - 1; to > 0; to--)
        for (int k = 0; k < p->actions[to].n_operands; k++)
            if (operands_of(p, to)[k].buffer == operands_of(p, i)[0].buffer) {
                move_action(p, i, to);
                return true;
            }
    return false;
}

/* A collective of half the size, in all that is said of it. */
static bool resize_collective(struct program *p, int i)
{
    struct action *a = &p->actions[i];
    if (!op_is_collective((enum op)a->op) || a->op == OP_AGREE || p->params[a->params].part[0] % 2 != 0)
        return false;
    p->params[a->params].part[0] /= 2;
    for (int k = 0; k < a->n_operands; k++)
        operands_of(p, i)[k].bytes /= 2;
    return true;
}

/* Two gathers of parameters in another order than on ranks with another share. */
static bool reorder_collectives(struct program *p, int i)
{
    if (p->statistics.microbatches % mesh_batch_size(&p->mesh) == 0 || p->mesh.size[AXIS_DP_SHARD] == 1 ||
        p->actions[i].channel != CHANNEL_GATHER)
        return false;
    for (int j = i - 1; j >= 0; j--)
        if (p->actions[j].channel == CHANNEL_GATHER) {
            if (p->actions[j].unit == p->actions[i].unit)
                return false;
            move_action(p, i, j);
            return true;
        }
    return false;
}

/* The host stops at DECIDE before it has sent what others need to get there. */
static bool send_too_late(struct program *p, int i)
{
    int to = p->n_actions - 1;

    if (p->actions[i].op != OP_SEND)
        return false;
    while (p->actions[to].op != OP_DECIDE)
        to--;
    move_action(p, i, to);
    return true;
}

static int find_op(const struct program *p, enum op op)
{
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].op == op)
            return i;
    return -1;
}

/* An update or a transfer on the wrong side of COMMIT, or a sum. */
static bool cross_commit(struct program *p, int i)
{
    const int commit = find_op(p, OP_COMMIT);
    const enum op op = (enum op)p->actions[i].op;

    if (commit < 0 || (op != OP_OPTIMISE && op != OP_TENSOR_SUMS && op != OP_BALANCE && op != OP_PARTS_EXTRACT &&
                       op != OP_PARTS_COMBINE && !op_is_collective(op)))
        return false;
    if (i == commit || i < commit)
        move_action(p, i, i == commit ? p->n_actions - 1 : commit);
    else
        move_action(p, i, commit);
    return true;
}

/* Another codec on one side; fp8 and int8 have codes of the same size. */
static bool change_codec(struct program *p, int i)
{
    struct op_params *q = &p->params[p->actions[i].params];
    int64_t *const codec = p->actions[i].op == OP_ENCODE       ? &q->encode.codec
                           : p->actions[i].op == OP_DECODE_SUM ? &q->decode_sum.codec
                           : p->actions[i].op == OP_DECODE     ? &q->decode.codec
                                                               : NULL;
    if (!codec)
        return false;
    *codec = *codec == CODEC_INT8 ? CODEC_FP8 : CODEC_INT8;
    return true;
}

/* --- and its plan of memory and waits, left as it stands ---------------------------------------------------------- */

static bool drop_wait(struct program *p, int i)
{
    struct action *a = &p->actions[i];
    if (a->n_waits == 0)
        return false;
    const int k = draw(a->n_waits);
    p->waits[a->wait + k] = p->waits[a->wait + a->n_waits - 1];
    a->n_waits--;
    return true;
}

static bool wait_for_later(struct program *p, int i)
{
    struct action *a = &p->actions[i];
    if (a->n_waits == 0 || i + 1 >= p->n_actions)
        return false;
    p->waits[a->wait] = i + 1;
    return true;
}

/* What was ordered by nothing but its stream no longer is. */
static bool change_stream(struct program *p, int i)
{
    struct action *a = &p->actions[i];
    if (a->op == OP_RELEASE || a->op == OP_DECIDE || a->n_waits > 0) /* the host stops at DECIDE on any */
        return false;
    a->stream = a->stream == STREAM_COPY ? STREAM_COMPUTE : STREAM_COPY;
    return true;
}

static bool overlap(struct program *p, int i)
{
    const struct buffer *a = &p->buffers[operands_of(p, i)[0].buffer];

    if (buffer_is_external(a->kind) || a->bytes == 0)
        return false;
    for (int tries = 0; tries < 100; tries++) {
        struct buffer *b = &p->buffers[draw(p->n_buffers)];
        if (a == b || buffer_is_external(b->kind) || b->bytes == 0 || b->first > i || b->last < i)
            continue;
        b->offset = a->offset;
        return true;
    }
    return false;
}

static bool beyond_arena(struct program *p, int i)
{
    struct buffer *b = &p->buffers[operands_of(p, i)[0].buffer];
    if (buffer_is_external(b->kind) || b->bytes == 0)
        return false;
    b->offset = p->arena_bytes - b->bytes + 256;
    return true;
}

static const struct mutation {
    const char *name;
    break_fn apply;
    bool as_it_stands; /* memory and waits are not derived anew */
} mutations[] = {
    {"drop an action", drop, false},
    {"do an action twice", duplicate, false},
    {"swap two that depend", swap, false},
    {"shrink an operand", shrink_operand, false},
    {"an operand beyond its buffer", grow_operand, false},
    {"read for write", change_access, false},
    {"another buffer", redirect, false},
    {"another number", change_number, false},
    {"another flag", change_flag, false},
    {"another microbatch", change_microbatch, false},
    {"another unit", change_unit, false},
    {"another peer", change_peer, false},
    {"another channel", change_channel, false},
    {"release early", release_early, false},
    {"resize a collective", resize_collective, false},
    {"reorder collectives", reorder_collectives, false},
    {"send too late", send_too_late, false},
    {"on the wrong side of COMMIT", cross_commit, false},
    {"another codec", change_codec, false},
    {"drop a wait", drop_wait, true},
    {"wait for what comes later", wait_for_later, true},
    {"another stream", change_stream, true},
    {"overlap two buffers", overlap, true},
    {"beyond the arena", beyond_arena, true},
};

/* --- the test ----------------------------------------------------------------------------------------------------- */

static const struct programs_case broken_cases[] = {
    {.pp = 1,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 1,
     .tp = 1,
     .microbatches = 4,
     .dt = DTYPE_BF16,
     .prefetch = 1,
     .gather_codec = WEIGHTS_INT6},
    {.pp = 1,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 1,
     .tp = 1,
     .microbatches = 4,
     .dt = DTYPE_BF16,
     .prefetch = 1,
     .gather_codec = WEIGHTS_INT4,
     .gather_learns = true},
    {.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2, .microbatches = 4, .dt = DTYPE_BF16, .prefetch = 1},
    {.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2, .microbatches = 4, .tensor_sums = true},
    {.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2, .microbatches = 4, .optimizer = "Muon"},
    {.pp = 1, .dp_replicate = 3, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 12, .replicate = "demo"},
    {.pp = 2,
     .dp_replicate = 2,
     .dp_shard = 1,
     .cp = 1,
     .tp = 2,
     .microbatches = 6,
     .tied = true,
     .replicate = "random"},
    {.pp = 2,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 1,
     .tp = 1,
     .microbatches = 6,
     .dt = DTYPE_BF16,
     .offload = true,
     .optimizer = "Muon"},
    {.pp = 2,
     .dp_replicate = 2,
     .dp_shard = 1,
     .cp = 1,
     .tp = 1,
     .microbatches = 6,
     .offload = true,
     .tensor_sums = true},
    {.pp = 1,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 1,
     .tp = 1,
     .microbatches = 4,
     .dt = DTYPE_BF16,
     .checkpointing = CHECKPOINT_FULL,
     .fuse = true},
    {.pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 7, .checkpointing = CHECKPOINT_OPS},
    {.pp = 2,
     .dp_replicate = 2,
     .dp_shard = 1,
     .cp = 2,
     .tp = 2,
     .microbatches = 6,
     .schedule = "Interleaved1F1B",
     .dt = DTYPE_BF16,
     .checkpointing = CHECKPOINT_FULL,
     .offload = true},
    {.pp = 2,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 2,
     .tp = 1,
     .microbatches = 8,
     .schedule = "ZBVZeroBubble",
     .reshard = RESHARD_ALWAYS,
     .ring = true,
     .fuse = true,
     .prefetch = 2},
    {.pp = 1, .dp_replicate = 2, .dp_shard = 2, .cp = 1, .tp = 2, .microbatches = 9, .canonical = true},
    {.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 13, .tied = true},
    {.pp = 3,
     .dp_replicate = 1,
     .dp_shard = 1,
     .cp = 1,
     .tp = 1,
     .microbatches = 6,
     .schedule = "ZB1P",
     .canonical = true,
     .tied = true},
    {.pp = 2,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 1,
     .tp = 2,
     .microbatches = 6,
     .forward_only = true,
     .tied = true},
    {.dims = &programs_experts,
     .pp = 2,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 1,
     .tp = 2,
     .ep = 4,
     .microbatches = 6,
     .checkpointing = CHECKPOINT_OPS,
     .fuse = true},
    {.pp = 2,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 1,
     .tp = 2,
     .microbatches = 6,
     .schedule = "Interleaved1F1B",
     .prefetch = 1,
     .forward_only = true},
    {.dims = &programs_experts,
     .pp = 1,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 2,
     .tp = 1,
     .ep = 2,
     .microbatches = 4,
     .dt = DTYPE_BF16,
     .forward_only = true},
    {.pp = 1,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 1,
     .tp = 2,
     .microbatches = 6,
     .modules = 2,
     .dt = DTYPE_BF16,
     .checkpointing = CHECKPOINT_FULL,
     .fuse = true},
    {.dims = &programs_experts,
     .pp = 1,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 2,
     .tp = 1,
     .ep = 2,
     .microbatches = 8,
     .modules = 1,
     .canonical = true,
     .offload = true},
    {.dims = &programs_heads,
     .pp = 1,
     .dp_replicate = 1,
     .dp_shard = 4,
     .cp = 1,
     .tp = 1,
     .microbatches = 8,
     .dt = DTYPE_BF16,
     .rotate = true,
     .fuse = true},
    {.pp = 1,
     .dp_replicate = 2,
     .dp_shard = 2,
     .cp = 2,
     .tp = 1,
     .microbatches = 8,
     .ring = true,
     .rotate = true,
     .in_place = true,
     .checkpointing = CHECKPOINT_OPS,
     .tensor_sums = true},
    {.dims = &programs_heads,
     .pp = 1,
     .dp_replicate = 1,
     .dp_shard = 4,
     .cp = 2,
     .tp = 1,
     .microbatches = 8,
     .rotate = true,
     .in_place = true,
     .checkpointing = CHECKPOINT_FULL},
    {.pp = 1,
     .dp_replicate = 2,
     .dp_shard = 2,
     .cp = 1,
     .tp = 2,
     .microbatches = 9,
     .codec = CODEC_LOCO,
     .tensor_scales = true},
    {.pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 7, .codec = CODEC_LOCO, .tied = true},
    {.dims = &programs_experts,
     .pp = 1,
     .dp_replicate = 1,
     .dp_shard = 2,
     .cp = 2,
     .tp = 2,
     .ep = 2,
     .microbatches = 6,
     .dt = DTYPE_BF16,
     .codec = CODEC_INT8,
     .optimizer = "Muon"},
    {.pp = 1,
     .dp_replicate = 3,
     .dp_shard = 2,
     .cp = 1,
     .tp = 2,
     .microbatches = 13,
     .codec = CODEC_INT4,
     .replicate_codec = CODEC_LOCO},
    {.pp = 2,
     .dp_replicate = 2,
     .dp_shard = 1,
     .cp = 1,
     .tp = 1,
     .microbatches = 7,
     .tied = true,
     .replicate_codec = CODEC_INT8},
};

struct tally {
    int tried, found;
};

static void break_once(const struct programs *p, int kind, const struct mutation *m, int at, struct tally *tally)
{
    struct program *const whole = p->classes[kind];
    struct program *broken = clone(whole);
    struct titan_error err = {0};

    what[0] = '\0';
    if (!m->apply(broken, at)) {
        program_close(broken);
        return;
    }
    if (!m->as_it_stands)
        assert_int_equal(program_finish(broken, &err), TITAN_OK);
    p->classes[kind] = broken;
    const titan_status status = check_all(p->classes, p->n, &err);
    p->classes[kind] = whole;
    tally->tried++;
    tally->found += status == TITAN_EBUG;
    const struct action *a = &whole->actions[at];
    if (status != TITAN_EBUG)
        print_error("%s: program class %d, action %d (%s, %s, unit %d, microbatch %d)%s was not found\n", m->name, kind,
                    at, op_name((enum op)a->op), phase_name((enum phase)a->phase), a->unit, a->microbatch, what);
    else if (!strstr(err.msg, "action ") && !strstr(err.msg, "unit ") && !strstr(err.msg, "there is no DECIDE") &&
             !strstr(err.msg, "owne"))
        fail_msg("%s: the message names nothing: %s", m->name, err.msg);
    program_close(broken);
}

static void break_case(const struct programs_case *c, struct tally *tally)
{
    const bool all = getenv("TITAN_TEST_ALL");
    const int places = (int)sliced(4, PLACES);
    struct programs p;
    struct titan_error err = {0};

    if (programs_open(c, &p, &err) != TITAN_OK)
        fail_msg("%s", err.msg);
    for (size_t m = 0; m < ARRAY_SIZE(mutations); m++) {
        const int before = tally[m].tried;
        for (int tries = 0; !all && tries < 40 * PLACES && tally[m].tried < before + places; tries++) {
            const int kind = draw(p.n);
            break_once(&p, kind, &mutations[m], draw(p.classes[kind]->n_actions), &tally[m]);
        }
        for (int kind = 0; all && kind < p.n; kind++)
            for (int at = 0; at < p.classes[kind]->n_actions; at++)
                break_once(&p, kind, &mutations[m], at, &tally[m]);
    }
    programs_close(&p);
}

static void test_broken_programs_are_found(void **state)
{
    struct tally tally[ARRAY_SIZE(mutations)] = {0};
    int missed = 0;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(broken_cases); i++)
        break_case(&broken_cases[i], tally);
    for (size_t m = 0; m < ARRAY_SIZE(mutations); m++) {
        print_message("%-28s %4d of %4d found\n", mutations[m].name, tally[m].found, tally[m].tried);
        assert_true(tally[m].tried > 0);
        missed += tally[m].tried - tally[m].found;
    }
    assert_int_equal(missed, 0);
}

static void expect_sound(const struct programs_case *c)
{
    struct programs p;
    struct titan_error err = {0};
    char name[200];

    programs_name(c, name, sizeof name);
    if (programs_open(c, &p, &err) != TITAN_OK || check_all(p.classes, p.n, &err) != TITAN_OK)
        fail_msg("%s: %s", name, err.msg);
    programs_close(&p);
}

/* All meshes of small degrees with all schedules; policies go round with the turn. */
static struct programs_case case_of(int turn)
{
    static const char *const schedules[SCHEDULES] = {
        "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "ZB1P", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"};
    const int mesh = turn / SCHEDULES, dp = (1 + (mesh & 1)) * (1 + (mesh >> 1 & 1));

    return (struct programs_case){.pp = 1 << mesh / 16,
                                  .dp_replicate = 1 + (mesh & 1),
                                  .dp_shard = 1 + (mesh >> 1 & 1),
                                  .cp = 1 + (mesh >> 2 & 1),
                                  .tp = 1 + (mesh >> 3 & 1),
                                  .layers = 8,
                                  .schedule = schedules[turn % SCHEDULES],
                                  .microbatches = turn % 3 == 0 ? 8 * dp : 7 * dp + turn % 2,
                                  .dt = turn % 2 ? DTYPE_BF16 : DTYPE_F32,
                                  .reshard = (enum reshard)(turn % 3),
                                  .reduce = (enum reduce_when)(turn / 3 % 3),
                                  .checkpointing = (enum checkpointing)(turn / 2 % 3),
                                  .prefetch = turn % 4,
                                  .canonical = turn % 5 == 0,
                                  .fuse = turn / 3 % 2,
                                  .masked = turn % 2,
                                  .ring = turn / 2 % 2,
                                  .offload = turn % 7 == 0,
                                  .tensor_scales = turn / 2 % 2,
                                  .codec = turn % 5 == 0 ? CODEC_NONE : (enum codec)(turn % CODECS),
                                  .tensor_sums = turn % 5 == 1,
                                  .optimizer = turn % 4 == 1 ? "Muon" : NULL,
                                  .gather_codec = (enum weight_codec)(turn / 7 % WEIGHT_CODECS),
                                  .gather_learns = turn % 2,
                                  .tied = turn / 5 % 2,
                                  .modules = mesh < 16 && turn / 5 % 2 == 0 ? turn / 7 % 3 : 0};
}

static void test_programs_pass(void **state)
{
    const int all = 3 * 16 * SCHEDULES, turns = (int)sliced(60, all);

    (void)state;
    for (int i = 0; i < turns; i++) {
        const int turn = turns == all ? i : draw(all);
        struct programs_case c = case_of(turn);
        static const char *const replicate[] = {"demo", "random", "striding", "full"};
        if (turn % 3 == 1 && !c.canonical && !c.offload && !c.optimizer && !c.tensor_sums)
            c.replicate = replicate[turn / 3 % 4];
        else if (!c.canonical)
            c.replicate_codec = (enum codec)(turn / 2 % CODECS);
        expect_sound(&c);
        c.forward_only = true;
        if (turn % 3 == 0)
            expect_sound(&c);
    }
}

/* An evaluation that trains: a training step's program, said to be one. */
static void test_an_evaluation_changes_nothing(void **state)
{
    const struct programs_case c = {.pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 2};
    struct programs p;
    struct titan_error err = {0};

    (void)state;
    assert_int_equal(programs_open(&c, &p, &err), TITAN_OK);
    p.classes[0]->forward_only = true;
    assert_int_equal(program_check(p.classes[0], 0, &err), TITAN_EBUG);
    assert_non_null(strstr(err.msg, "is no part of an evaluation"));
    programs_close(&p);
    struct programs_case forward = c;
    forward.forward_only = true;
    assert_int_equal(programs_open(&forward, &p, &err), TITAN_OK);
    p.classes[0]->forward_only = false;
    assert_int_equal(program_check(p.classes[0], 0, &err), TITAN_EBUG);
    programs_close(&p);
}

/* Replicas with residuals must not sum gradients, too. */
static void test_parts_of_a_sum(void **state)
{
    const struct programs_case c = {.pp = 1, .dp_replicate = 2, .dp_shard = 1, .cp = 1, .tp = 1, .microbatches = 2};
    struct programs p;
    struct titan_error err = {0};

    (void)state;
    assert_int_equal(programs_open(&c, &p, &err), TITAN_OK);
    p.layout->kinds.each = 2;
    assert_int_equal(program_check(p.classes[0], 0, &err), TITAN_EBUG);
    assert_non_null(strstr(err.msg, "is of all replicas, which send each other parts of their own"));
    programs_close(&p);
    struct programs_case apart = c;
    apart.replicate = "demo";
    assert_int_equal(programs_open(&apart, &p, &err), TITAN_OK);
    p.layout->kinds.each = 0;
    assert_int_equal(program_check(p.classes[0], 0, &err), TITAN_EBUG);
    if (!strstr(err.msg, "it must be over replicas"))
        fail_msg("%s", err.msg);
    programs_close(&p);
}

/* Moves the first action of a kind of a unit right before or behind another one. */
static void put(struct program *p, int unit, enum op what_op, bool behind, enum op other, enum channel channel)
{
    int from = -1, to = -1;

    for (int i = 0; i < p->n_actions; i++) {
        const struct action *const a = &p->actions[i];
        if (a->unit != unit)
            continue;
        from = a->op == what_op && from < 0 ? i : from;
        to = a->op == other && (channel == CHANNEL_COUNT || a->channel == (int)channel) ? i : to;
    }
    assert_true(from >= 0 && to >= 0);
    move_action(p, from, to + behind - (from < to));
}

static int action_of(const struct program *p, int unit, enum op op)
{
    int i = 0;
    while (i < p->n_actions && (p->actions[i].op != op || p->actions[i].unit != unit))
        i++;
    assert_true(i < p->n_actions);
    return i;
}

/* What is done to unit 2, a layer like unit 1. */
static void code_before_tp(struct program *p)
{
    put(p, 2, OP_ENCODE, false, OP_ALL_REDUCE, CHANNEL_TP);
}

static void code_again(struct program *p)
{
    assert_true(duplicate(p, action_of(p, 2, OP_ENCODE)));
}

static void sum_again(struct program *p)
{
    assert_true(duplicate(p, action_of(p, 2, OP_DECODE_SUM)));
}

static void sum_own_codes(struct program *p)
{
    const int encode = action_of(p, 2, OP_ENCODE), sum = action_of(p, 2, OP_DECODE_SUM);
    operands_of(p, sum)[OPERAND_OF(decode_sum, codes)] = operands_of(p, encode)[OPERAND_OF(encode, codes)];
    operands_of(p, sum)[OPERAND_OF(decode_sum, codes)].access = ACCESS_READ;
}

static void travel_elsewhere(struct program *p)
{
    p->actions[action_of(p, 2, OP_ALL_TO_ALL)].channel = CHANNEL_REPLICATE;
}

static void keep_errors_of_another(struct program *p)
{
    const int own = action_of(p, 2, OP_ENCODE), other = action_of(p, 1, OP_ENCODE);
    operands_of(p, own)[OPERAND_OF(encode, error)] = operands_of(p, other)[OPERAND_OF(encode, error)];
}

static void measure_early(struct program *p)
{
    put(p, 2, OP_BUCKET_LARGEST, false, OP_ALL_REDUCE, CHANNEL_TP);
}

static void measure_another_unit(struct program *p)
{
    const int own = action_of(p, 2, OP_ENCODE), other = action_of(p, 3, OP_ENCODE);
    operands_of(p, own)[OPERAND_OF(encode, largest)] = operands_of(p, other)[OPERAND_OF(encode, largest)];
}

static void code_another_unit(struct program *p)
{
    const int own = action_of(p, 2, OP_ENCODE), other = action_of(p, 1, OP_ENCODE);
    operands_of(p, own)[OPERAND_OF(encode, x)] = operands_of(p, other)[OPERAND_OF(encode, x)];
}

static void test_codes_go_their_way(void **state)
{
    struct programs_case c = {.pp = 1,
                              .dp_replicate = 2,
                              .dp_shard = 2,
                              .cp = 1,
                              .tp = 2,
                              .microbatches = 8,
                              .codec = CODEC_LOCO,
                              .tensor_scales = true};
    static const struct {
        void (*apply)(struct program *p);
        const char *says;
        bool scaled; /* with a scale for each tensor */
    } wrong[] = {
        {code_before_tp, "over nothing, it must be over tp", false},
        {code_again, "which has been passed on", false},
        {sum_again, "which has been begun", false},
        {sum_own_codes, "that are not those of all ranks", false},
        {travel_elsewhere, "reduces codes of unit 2's gradient: only ALL_TO_ALL on REDUCE moves them", false},
        {keep_errors_of_another, "which is not for those of unit 2", false},
        {measure_early, "over tp when scales of its codes are made", true},
        {measure_another_unit, "are not made of what is coded", true},
        {code_another_unit, "belongs to unit 1", false},
    };
    struct titan_error err = {0};
    struct programs p;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        c.tensor_scales = wrong[i].scaled;
        assert_int_equal(programs_open(&c, &p, &err), TITAN_OK);
        assert_int_equal(check_all(p.classes, p.n, &err), TITAN_OK);
        struct program *broken = clone(p.classes[0]);
        wrong[i].apply(broken);
        assert_int_equal(program_finish(broken, &err), TITAN_OK);
        const titan_status status = program_check(broken, 0, &err);
        if (status != TITAN_EBUG || !strstr(err.msg, wrong[i].says))
            fail_msg("%zu: %s: %s", i, titan_status_name(status), err.msg);
        program_close(broken);
        programs_close(&p);
    }
}

/* The n-th action of a kind of unit 2. */
static int place_of(const struct program *p, enum op op, int n)
{
    int i = -1;
    do
        for (i++; i < p->n_actions && (p->actions[i].op != op || p->actions[i].unit != 2); i++)
            ;
    while (n-- > 0);
    assert_true(i < p->n_actions);
    return i;
}

/* Actions between replicas without a codec within shards: ENCODE, ALL_TO_ALL, DECODE_SUM, ENCODE, ALL_GATHER, DECODE.
 */
static void leave_out(struct program *p, enum op op, int n)
{
    remove_action(p, place_of(p, op, n));
}

static void leave_out_encode(struct program *p)
{
    leave_out(p, OP_ENCODE, 0);
}

static void leave_out_sum(struct program *p)
{
    leave_out(p, OP_DECODE_SUM, 0);
}

static void leave_out_second_encode(struct program *p)
{
    leave_out(p, OP_ENCODE, 1);
}

static void leave_out_decode(struct program *p)
{
    leave_out(p, OP_DECODE, 0);
}

static struct operand *operand_of(struct program *p, enum op op, int n, int which)
{
    return &operands_of(p, place_of(p, op, n))[which];
}

/* From a buffer that another action has, as the operand takes it. */
static void take_from(struct operand *to, const struct operand *from)
{
    to->buffer = from->buffer;
    to->offset = from->offset;
}

static void code_what_is_not_summed(struct program *p)
{
    take_from(operand_of(p, OP_ENCODE, 1, OPERAND_OF(encode, x)), operand_of(p, OP_ENCODE, 0, OPERAND_OF(encode, x)));
}

static void decode_own_codes(struct program *p)
{
    take_from(operand_of(p, OP_DECODE, 0, OPERAND_OF(decode, codes)),
              operand_of(p, OP_ENCODE, 0, OPERAND_OF(encode, codes)));
}

static void decode_what_came_first(struct program *p)
{
    take_from(operand_of(p, OP_DECODE, 0, OPERAND_OF(decode, codes)),
              operand_of(p, OP_DECODE_SUM, 0, OPERAND_OF(decode_sum, codes)));
}

static void sum_before_they_came(struct program *p)
{
    take_from(operand_of(p, OP_DECODE_SUM, 0, OPERAND_OF(decode_sum, codes)),
              operand_of(p, OP_ENCODE, 0, OPERAND_OF(encode, codes)));
}

static void decode_another_unit(struct program *p)
{
    const int other = action_of(p, 3, OP_DECODE);
    take_from(operand_of(p, OP_DECODE, 0, OPERAND_OF(decode, codes)),
              &operands_of(p, other)[OPERAND_OF(decode, codes)]);
}

static void share_errors(struct program *p)
{
    operand_of(p, OP_ENCODE, 1, OPERAND_OF(encode, error))->offset = 0;
}

static void pieces_elsewhere(struct program *p)
{
    p->actions[place_of(p, OP_ALL_TO_ALL, 0)].channel = CHANNEL_REDUCE;
}

static void other_pieces(struct program *p)
{
    struct op_params *const q = &p->params[p->actions[place_of(p, OP_ENCODE, 0)].params];
    q->encode.pieces = 1;
}

static void norm_of_own_range(struct program *p)
{
    *operand_of(p, OP_NORM, 0, OPERAND_OF(norm, gradient)) = *operand_of(p, OP_ENCODE, 0, OPERAND_OF(encode, x));
}

static void test_codes_between_replicas(void **state)
{
    const struct programs_case c = {
        .pp = 1, .dp_replicate = 3, .dp_shard = 3, .cp = 1, .tp = 1, .microbatches = 18, .replicate_codec = CODEC_LOCO};
    static const struct {
        void (*apply)(struct program *p);
        const char *says;
    } wrong[] = {
        {leave_out_encode, "which no action has written"},
        {leave_out_sum, "which no action has written"},
        {leave_out_second_encode, "which no action has written"},
        {leave_out_decode, "which no action has written"},
        {code_what_is_not_summed, "takes bytes 0 to"},
        {decode_own_codes, "decodes"},
        {decode_what_came_first, "that are not those of the replicas' sum"},
        {sum_before_they_came, "that are not those of all ranks"},
        {decode_another_unit, "unit 3"},
        {share_errors, "which is not for those of unit 2"},
        {pieces_elsewhere, "between replicas out of turn"},
        {other_pieces, "its numbers say"},
        {norm_of_own_range, "which has been passed on"},
    };
    struct titan_error err = {0};
    struct programs p;

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        assert_int_equal(programs_open(&c, &p, &err), TITAN_OK);
        assert_int_equal(check_all(p.classes, p.n, &err), TITAN_OK);
        struct program *broken = clone(p.classes[0]);
        wrong[i].apply(broken);
        assert_int_equal(program_finish(broken, &err), TITAN_OK);
        const titan_status status = program_check(broken, 0, &err);
        if (status != TITAN_EBUG || !strstr(err.msg, wrong[i].says))
            fail_msg("%zu: %s: %s", i, titan_status_name(status), err.msg);
        program_close(broken);
        programs_close(&p);
    }
}

static void test_too_little_memory(void **state)
{
    const struct programs_case c = {
        .pp = 1, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 1, .microbatches = 4, .dt = DTYPE_BF16};
    struct programs p;
    struct titan_error err = {0};
    uint64_t need = 0;

    (void)state;
    assert_int_equal(programs_open(&c, &p, &err), TITAN_OK);
    const struct program *q = p.classes[0];
    for (int i = 0; i < q->n_buffers; i++)
        need += buffer_is_external(q->buffers[i].kind) ? q->buffers[i].bytes : 0;
    need += q->arena_bytes;
    assert_int_equal(program_check(q, need, &err), TITAN_OK);
    assert_int_equal(program_check(q, need - 1, &err), TITAN_EUNPLACEABLE);
    assert_non_null(strstr(err.msg, "activations 0.0"));
    programs_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        longer(test_programs_pass),
        longer(test_broken_programs_are_found),
        quick(test_an_evaluation_changes_nothing),
        quick(test_parts_of_a_sum),
        quick(test_too_little_memory),
        quick(test_codes_go_their_way),
        quick(test_codes_between_replicas),
    };

    drawn = seeded_seed(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
