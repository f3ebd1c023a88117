/* SPDX-License-Identifier: Apache-2.0 */
/* passes.c - bucketing, reordering and pipelined pieces over the array of actions. */
#include "worker/plan/passes.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"
#include "worker/device/device.h"

#define BUCKET_PAIRS 8
#define HORIZON 1.5 /* compute must cover this many times a gather's time, to hide late gathers too */
#define HORIZON_HALVINGS 4
#define BUCKET_SHARE 5 /* a bucket is at most 1/5 of all bytes of its channel */
#define NONE (-1)

static titan_status no_memory(struct titan_error *err)
{
    return titan_fail(err, TITAN_ENOMEM, "pass: out of memory");
}

/* --- a new order -------------------------------------------------------------------------------------------------- */

/* An action and its new place: it comes before all actions with a larger place. Equal places keep their order. */
struct placed {
    double place;
    int index;
};

static int by_place(const void *x, const void *y)
{
    const struct placed *a = x, *b = y;
    if (a->place != b->place)
        return a->place < b->place ? -1 : 1;
    return a->index - b->index;
}

/* Sorts the actions by their places. An action with the place DROPPED is removed. */
#define DROPPED (-2.0)
static titan_status rearrange(struct program *p, const double *places, struct titan_error *err)
{
    _cleanup_free_ struct placed *order = malloc(((size_t)p->n_actions + 1) * sizeof *order);
    struct action *actions = malloc(((size_t)p->n_actions + 1) * sizeof *actions);
    int n = 0;

    if (!order || !actions) {
        free(actions);
        return no_memory(err);
    }
    for (int i = 0; i < p->n_actions; i++)
        if (places[i] != DROPPED)
            order[n++] = (struct placed){.place = places[i], .index = i};
    qsort(order, (size_t)n, sizeof *order, by_place);
    for (int i = 0; i < n; i++)
        actions[i] = p->actions[order[i].index];
    free(p->actions);
    p->actions = actions;
    p->cap_actions = p->n_actions;
    p->n_actions = n;
    return TITAN_OK;
}

bool pass_fits(struct program *p, const struct pass_options *o)
{
    size_t external = 0;

    if (o->memory_bytes == 0)
        return true;
    for (int i = 0; i < p->n_buffers; i++)
        if (buffer_is_external(p->buffers[i].kind) && buffer_memory(p->buffers[i].kind) != MEMORY_HOST)
            external += p->buffers[i].bytes;
    return program_peak(p, NULL, NULL) + external <= o->memory_bytes;
}

/* --- reorder ------------------------------------------------------------------------------------------------------ */

static bool is_gather(const struct action *a)
{
    return a->op == OP_ALL_GATHER && a->stream == STREAM_GATHER;
}

static bool writes_to(const struct program *p, const struct action *a, const struct operand *read)
{
    for (int k = 0; k < a->n_operands; k++) {
        const struct operand *o = &action_operands(p, a)[k];
        if (o->access & ACCESS_WRITE && o->buffer == read->buffer)
            return true;
    }
    return false;
}

/* Does an action read what another one writes? */
static bool reads_of(const struct program *p, const struct action *reader, const struct action *writer)
{
    for (int k = 0; k < reader->n_operands; k++) {
        const struct operand *o = &action_operands(p, reader)[k];
        if (o->access == ACCESS_READ && writes_to(p, writer, o))
            return true;
    }
    return false;
}

static bool makes_codes(const struct action *a)
{
    return a->op == OP_FLOAT8_PACK || a->op == OP_WEIGHT_ENCODE || a->op == OP_WEIGHT_ENCODE_BY;
}

/* Actions right before a gather may make codes of the shard. These actions move together with the gather. Returns the
 * first of them, or the gather itself if there are none. A gather can move freely, because a shard does not change
 * before the update. */
static int first_pack(const struct program *p, int gather)
{
    int first = gather;

    while (first > 0 && makes_codes(&p->actions[first - 1]) && reads_of(p, &p->actions[gather], &p->actions[first - 1]))
        first--;
    return first;
}

/* The first place to which a gather, and the actions that move with it, can be moved. */
static int first_place(const struct program *p, int gather)
{
    const struct action *a = &p->actions[gather];
    const int pack = first_pack(p, gather);
    bool external = true;
    int behind = NONE;

    for (int i = pack; i < gather;
         i++) /* codes come after what they are made of: scales, levels, or a received shard */
        for (int k = 0; k < p->actions[i].n_operands; k++) {
            const struct operand *const read = &action_operands(p, &p->actions[i])[k];
            int writer = 0;
            if (read->access & ACCESS_WRITE || buffer_is_external(p->buffers[read->buffer].kind))
                continue;
            while (writer < gather && !writes_to(p, &p->actions[writer], read))
                writer++;
            behind = writer < gather ? MAX(behind, writer) : behind;
        }
    for (int k = OPERAND_OF(all_gather, in); k < a->n_operands; k += 2)
        external &= buffer_is_external(p->buffers[action_operands(p, a)[k].buffer].kind);
    if (pack == gather && !external)
        for (behind = gather - 1; behind >= 0 && !reads_of(p, a, &p->actions[behind]); behind--)
            ;
    return behind + 1;
}

/* First action after gather `from` that touches a buffer the gather writes; the program's end if no action does. */
static int first_use(const struct program *p, int from)
{
    const struct action *a = &p->actions[from];
    const struct operand *o = action_operands(p, a);

    for (int i = from + 1; i < p->n_actions; i++) {
        const struct operand *other = action_operands(p, &p->actions[i]);
        for (int k = 0; k < p->actions[i].n_operands; k++)
            for (int j = 0; j < a->n_operands; j += 2)
                if (other[k].buffer == o[j].buffer)
                    return i;
    }
    return p->n_actions;
}

/* Finds the place where each gather has to be issued. The compute between this place and the gather's first use covers
 * `horizon` times the duration of the gather and of the gathers between. The walk is backwards, because a gather can
 * push the gathers before it to earlier places. */
static void place_gathers(const struct program *p, const struct cost *cost, double horizon, double *places)
{
    /* Place of the next gather in the program; no earlier gather is placed after it. */
    double limit = (double)p->n_actions;

    titan_assert(horizon > 0);
    int least = 0; /* first place of a gather and of all gathers behind it */
    for (int i = 0; i < p->n_actions; i++) {
        if (is_gather(&p->actions[i]))
            least = MAX(least, first_place(p, i));
        places[i] = is_gather(&p->actions[i]) ? least : i;
    }
    double queued = 0; /* time of the gathers between the place and the use */
    for (int i = p->n_actions - 1; i >= 0; i--) {
        if (!is_gather(&p->actions[i]))
            continue;
        const int use = first_use(p, i);
        least = (int)places[i];
        double covered = 0;
        int at = MIN(use, i);
        queued = cost_action(cost, p, &p->actions[i]);
        while (at > least && covered < horizon * queued) {
            const struct action *before = &p->actions[at - 1];
            if (before->op == OP_OPTIMISE)
                break;
            if (before->stream == STREAM_COMPUTE)
                covered += cost_action(cost, p, before);
            else if (is_gather(before))
                queued += cost_action(cost, p, before);
            at--;
        }
        places[i] = MIN((double)at - 0.5, limit);
        limit = places[i];
        for (int pack = first_pack(p, i); pack < i; pack++)
            places[pack] = places[i];
    }
}

titan_status pass_reorder(struct program *p, const struct pass_options *options, struct titan_error *err)
{
    _cleanup_free_ double *places = calloc((size_t)p->n_actions + 1, sizeof *places);
    _cleanup_free_ struct action *before = malloc(((size_t)p->n_actions + 1) * sizeof *before);

    titan_assert(options->cost);
    if (!places || !before)
        return no_memory(err);
    memcpy(before, p->actions, (size_t)p->n_actions * sizeof *before);
    for (int halvings = 0; halvings < HORIZON_HALVINGS; halvings++) {
        place_gathers(p, options->cost, HORIZON / (1 << halvings), places);
        TRY(rearrange(p, places, err));
        if (pass_fits(p, options))
            return TITAN_OK;
        memcpy(p->actions, before, (size_t)p->n_actions * sizeof *before);
    }
    return TITAN_OK; /* no horizon has room: the order stays as it was */
}

/* --- bucket ------------------------------------------------------------------------------------------------------- */

static titan_status append_params(struct program *p, const struct op_params *params, int *ret, struct titan_error *err)
{
    *ret = p->n_params;
    return VEC_PUSH(p->params, p->n_params, p->cap_params, *params) ? TITAN_OK : no_memory(err);
}

static titan_status append_operands(struct program *p, int from, int n, struct titan_error *err)
{
    titan_assert(from >= 0 && from + n <= p->n_operands);
    if (!VEC_RESERVE(p->operands, p->cap_operands, p->n_operands + n))
        return no_memory(err);
    memcpy(p->operands + p->n_operands, p->operands + from, (size_t)n * sizeof *p->operands);
    p->n_operands += n;
    return TITAN_OK;
}

/* Joins action b to action a: a then does the work of both. */
static titan_status join(struct program *p, struct action *a, const struct action *b, struct titan_error *err)
{
    struct op_params params = *action_params(p, a);
    const int pairs = a->n_operands / 2, more = b->n_operands / 2, first = p->n_operands;

    titan_assert(pairs + more <= OP_PARTS);
    for (int i = 0; i < more; i++)
        params.part[pairs + i] = action_params(p, b)->part[i];
    TRY(append_params(p, &params, &a->params, err));
    TRY(append_operands(p, a->operand, a->n_operands, err));
    TRY(append_operands(p, b->operand, b->n_operands, err));
    a->operand = first;
    a->n_operands += b->n_operands;
    return TITAN_OK;
}

static double compute_between(const struct program *p, const struct cost *cost, int from, int to)
{
    double sum = 0;
    for (int i = from; i < to && p->actions[i].phase != PHASE_UPDATE; i++) /* the update waits for all transfers */
        if (p->actions[i].stream == STREAM_COMPUTE)
            sum += cost_action(cost, p, &p->actions[i]);
    return sum;
}

#define BUCKET_CHANNELS 4

struct bucketing {
    struct program *p;
    const struct pass_options *o;
    double total;   /* bytes of all transfers of the operation on the channel */
    double *places; /* places of actions; DROPPED: the action has become part of another action */
    bool *joins;    /* [index of a transfer on the channel]: the transfer is joined to the transfer before it */
    bool decided;   /* the leader has already filled `joins` */
};

/* Does anything between two actions touch a buffer of the first? */
static bool touched_between(const struct program *p, int a, int b)
{
    const struct operand *mine = action_operands(p, &p->actions[a]);

    for (int i = a + 1; i < b; i++) {
        const struct operand *other = action_operands(p, &p->actions[i]);
        for (int k = 0; k < p->actions[i].n_operands; k++)
            for (int j = 0; j < p->actions[a].n_operands; j++)
                if (other[k].buffer == mine[j].buffer)
                    return true;
    }
    return false;
}

/* Is it worth joining b to a? A gather b moves forward to the place of a. Its memory then lives longer, and the bucket
 * must still arrive in time for the first use of a. A reduction a moves back to the place of b. */
static bool worth_it(const struct bucketing *k, int a, int b)
{
    const struct program *p = k->p;
    const struct action *x = &p->actions[a], *y = &p->actions[b];
    const double bytes = (double)(action_sent_bytes(p, x) + action_sent_bytes(p, y));

    titan_assert(a < b && x->n_operands % 2 == 0 && y->n_operands % 2 == 0);
    if (x->op != y->op || x->channel != y->channel || action_params(p, x)->dt != action_params(p, y)->dt ||
        x->n_operands + y->n_operands > 2 * BUCKET_PAIRS || bytes > k->total / BUCKET_SHARE)
        return false;
    if (x->op == OP_REDUCE_SCATTER) /* the compute left behind the bucket must cover it */
        return !touched_between(p, a, b) && compute_between(p, k->o->cost, b, p->n_actions) >
                                                5 * (cost_action(k->o->cost, p, x) + cost_action(k->o->cost, p, y));
    if (first_place(p, b) > a)
        return false;
    return compute_between(p, k->o->cost, a, first_use(p, a)) >=
           cost_action(k->o->cost, p, x) + cost_action(k->o->cost, p, y);
}

/* Joins gathers into the earlier action and reductions into the later action: at the later action the inputs of both
 * are present. */
static titan_status bucket_channel(struct bucketing *k, enum op op, int channel, struct titan_error *err)
{
    struct program *p = k->p;
    int open = NONE, place = 0;

    k->total = 0;
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].op == op && p->actions[i].channel == channel)
            k->total += (double)action_sent_bytes(p, &p->actions[i]);
    for (int i = 0; i < p->n_actions; i++) {
        struct action *a = &p->actions[i];
        if (a->op != op || a->channel != channel || a->stream != (op == OP_ALL_GATHER ? STREAM_GATHER : STREAM_REDUCE))
            continue;
        if (!k->decided)
            k->joins[place] = open != NONE && worth_it(k, open, i);
        if (!k->joins[place++]) {
            open = i;
            continue;
        }
        if (op == OP_ALL_GATHER) {
            for (int pack = first_pack(p, i); pack < i; pack++)
                k->places[pack] = (double)open - 0.5;
            TRY(join(p, &p->actions[open], a, err));
            k->places[i] = DROPPED;
        } else {
            struct action merged = p->actions[open];
            TRY(join(p, &merged, a, err));
            a->params = merged.params;
            a->operand = merged.operand;
            a->n_operands = merged.n_operands;
            k->places[open] = DROPPED;
            open = i;
        }
    }
    return TITAN_OK;
}

/* joins has a stretch of its own for each channel, `stretch` entries long. */
static titan_status bucket(struct program *p, const struct pass_options *o, bool *joins, size_t stretch, bool decided,
                           struct titan_error *err)
{
    static const int channels[BUCKET_CHANNELS] = {CHANNEL_GATHER, CHANNEL_EXPERT_GATHER, CHANNEL_REDUCE,
                                                  CHANNEL_EXPERT_REDUCE};
    _cleanup_free_ double *places = malloc(((size_t)p->n_actions + 1) * sizeof *places);
    struct bucketing k = {.p = p, .o = o, .places = places, .decided = decided};

    if (!places)
        return no_memory(err);
    for (int i = 0; i < p->n_actions; i++)
        places[i] = i;
    for (size_t c = 0; c < BUCKET_CHANNELS; c++) {
        k.joins = joins + c * stretch;
        TRY(bucket_channel(&k, c < 2 ? OP_ALL_GATHER : OP_REDUCE_SCATTER, channels[c], err));
    }
    titan_assert(stretch >= (size_t)p->n_actions);
    return rearrange(p, places, err);
}

/* The leader's joins count for all ranks. A rank with fewer microbatches than others has as many gathers and
 * reductions, but less to hide them under. So by its own program it would decide otherwise than its peers. */
titan_status pass_bucket(struct program *p, const struct pass_options *options, struct titan_error *err)
{
    struct program *const leader = options->leader ? options->leader : p;
    const size_t stretch = (size_t)MAX(leader->n_actions, p->n_actions);
    _cleanup_free_ bool *joins = calloc(BUCKET_CHANNELS * stretch + 1, sizeof *joins);
    _cleanup_free_ struct action *before = malloc(((size_t)p->n_actions + 1) * sizeof *before);
    const int n_before = p->n_actions;

    titan_assert(options->cost && options->leader != p);
    if (!joins || !before)
        return no_memory(err);
    memcpy(before, p->actions, (size_t)n_before * sizeof *before);
    TRY(bucket(leader, options, joins, stretch, false, err));
    if (!pass_fits(leader, options)) {
        memcpy(p->actions, before, (size_t)n_before * sizeof *before);
        p->n_actions = n_before;
        return TITAN_OK;
    }
    return leader == p ? TITAN_OK : bucket(p, options, joins, stretch, true, err);
}

/* --- gradients that are being sent -------------------------------------------------------------------------------- */

static bool is_reduction(const struct action *a)
{
    return a->op == OP_REDUCE_SCATTER && a->stream == STREAM_REDUCE;
}

/* Is it a part of the way of a sum over replicas as codes? Such programs have a DECODE at the end of each way. */
static bool is_coding(const struct action *a)
{
    return a->stream == STREAM_REDUCE && (a->op == OP_ENCODE || a->op == OP_ALL_TO_ALL || a->op == OP_DECODE_SUM ||
                                          a->op == OP_ALL_GATHER || a->op == OP_DECODE);
}

/* Appends the RELEASE of an operand of action `at`, if that is the last action to touch its buffer. External buffers
 * are not released. */
static titan_status let_go(struct program *p, const int *last, int at, int operand, int params, struct action *out,
                           int *n_out, struct titan_error *err)
{
    const struct action *const a = &p->actions[at];
    const int buffer = action_operands(p, a)[operand].buffer;

    if (last[buffer] != at || buffer_is_external(p->buffers[buffer].kind))
        return TITAN_OK;
    out[(*n_out)++] = (struct action){.op = OP_RELEASE,
                                      .stream = STREAM_COMPUTE,
                                      .phase = a->phase,
                                      .channel = -1,
                                      .peer = a->peer,
                                      .unit = p->buffers[buffer].unit,
                                      .stage = a->stage,
                                      .microbatch = -1,
                                      .params = params,
                                      .operand = p->n_operands,
                                      .n_operands = 1};
    TRY(append_operands(p, a->operand + operand, 1, err));
    p->operands[p->n_operands - 1].access = ACCESS_READ;
    return TITAN_OK;
}

/* If a reduction is the last action to read a buffer, puts the buffer's RELEASE behind the next reduction of the
 * channel. What a sum as codes touches last is let go behind the next such sum. */
static titan_status hold(struct program *p, const int *last, struct action *out, int *n_out, struct titan_error *err)
{
    int before[CHANNEL_COUNT], decode = NONE, decode_before = NONE, params;

    for (int c = 0; c < CHANNEL_COUNT; c++)
        before[c] = NONE;
    TRY(append_params(p, &(struct op_params){0}, &params, err));
    for (int i = 0; i < p->n_actions; i++) {
        out[(*n_out)++] = p->actions[i];
        if (p->actions[i].op == OP_DECODE) {
            for (int j = decode_before + 1; j <= decode; j++)
                for (int k = 0; is_coding(&p->actions[j]) && k < p->actions[j].n_operands; k++)
                    TRY(let_go(p, last, j, k, params, out, n_out, err));
            decode_before = decode;
            decode = i;
        }
        if (!is_reduction(&p->actions[i]))
            continue;
        titan_assert(p->actions[i].channel >= 0 && p->actions[i].channel < CHANNEL_COUNT);
        int *const held = &before[p->actions[i].channel];
        for (int k = 1; *held != NONE && k < p->actions[*held].n_operands; k += 2)
            TRY(let_go(p, last, *held, k, params, out, n_out, err));
        *held = i;
    }
    return TITAN_OK;
}

titan_status pass_hold(struct program *p, const struct pass_options *options, struct titan_error *err)
{
    _cleanup_free_ int *last = malloc(((size_t)p->n_buffers + 1) * sizeof *last);
    struct action *const before = p->actions;
    const int n_before = p->n_actions;
    int n = 0, pairs = 0;

    for (int i = 0; i < p->n_actions; i++)
        pairs += is_reduction(&p->actions[i]) ? p->actions[i].n_operands / 2
                 : is_coding(&p->actions[i])  ? p->actions[i].n_operands
                                              : 0;
    struct action *out = malloc(((size_t)(p->n_actions + pairs) + 1) * sizeof *out);
    if (!last || !out) {
        free(out);
        return no_memory(err);
    }
    for (int i = 0; i < p->n_actions; i++)
        for (int k = 0; k < p->actions[i].n_operands; k++)
            last[action_operands(p, &p->actions[i])[k].buffer] = i;
    const titan_status status = hold(p, last, out, &n, err);
    if (status == TITAN_OK) {
        p->actions = out;
        p->n_actions = n;
        titan_assert(n >= n_before && n <= n_before + pairs);
        if (pass_fits(p, options)) {
            p->cap_actions = n_before + pairs;
            free(before);
            return TITAN_OK;
        }
        p->actions = before;
        p->n_actions = n_before;
    }
    free(out);
    return status;
}

/* --- asynchronous tensor parallelism ------------------------------------------------------------------------------ */

struct pieces {
    struct program *p;
    int n;
    struct action *out; /* the new array */
    int n_out, cap_out;
};

/* Does a transfer carry token activations? Other transfers over tp (loss statistics, gradients of norms) are not cut by
 * tokens. */
static bool is_token_transfer(const struct program *p, const struct action *a)
{
    if (a->channel != CHANNEL_TP || (a->op != OP_ALL_GATHER && a->op != OP_REDUCE_SCATTER))
        return false;
    const enum buffer_kind kind = p->buffers[action_operands(p, a)[0].buffer].kind;
    return kind == BUF_ACTIVATION || kind == BUF_DACTIVATION;
}

static titan_status put(struct pieces *k, const struct action *a, struct titan_error *err)
{
    return VEC_PUSH(k->out, k->n_out, k->cap_out, *a) ? TITAN_OK : no_memory(err);
}

/* Appends a piece of a transfer: one row block of the input and of the output. */
static titan_status put_transfer(struct pieces *k, const struct action *a, int piece, struct titan_error *err)
{
    struct program *p = k->p;
    struct action part = *a;
    struct op_params params = *action_params(p, a);

    titan_assert(params.part[0] % k->n == 0);
    params.part[0] /= k->n;
    TRY(append_params(p, &params, &part.params, err));
    part.operand = p->n_operands;
    TRY(append_operands(p, a->operand, a->n_operands, err));
    titan_assert(piece < k->n);
    for (int i = 0; i < part.n_operands; i++) {
        struct operand *o = &p->operands[part.operand + i];
        titan_assert(o->bytes % (size_t)k->n == 0);
        o->bytes /= (size_t)k->n;
        o->offset += (size_t)piece * o->bytes;
    }
    return put(k, &part, err);
}

/* Appends a row block of a product: m/n rows of c and a, and the whole b. A strided operand ends at the end of its last
 * row, not a stride later. */
static titan_status put_product(struct pieces *k, const struct action *a, int piece, struct titan_error *err)
{
    struct program *p = k->p;
    struct action part = *a;
    struct op_params params = *action_params(p, a);
    const size_t elem = dtype_bytes((enum dtype)params.dt), c_elem = params.flags & OP_F32 ? sizeof(float) : elem;
    struct op_matmul *const m = &params.matmul;

    titan_assert(m->M % k->n == 0);
    m->M /= k->n;
    TRY(append_params(p, &params, &part.params, err));
    part.operand = p->n_operands;
    TRY(append_operands(p, a->operand, a->n_operands, err));
    struct operand *const c = &p->operands[part.operand + OPERAND_OF(matmul, c)];
    struct operand *const x = &p->operands[part.operand + OPERAND_OF(matmul, a)];
    c->offset += (size_t)(piece * m->M * m->ldc) * c_elem;
    c->bytes = (size_t)((m->M - 1) * m->ldc + m->N) * c_elem;
    x->offset += (size_t)(piece * m->M * m->lda) * elem;
    x->bytes = (size_t)((m->M - 1) * m->lda + m->K) * elem;
    return put(k, &part, err);
}

/* Appends a row block of a ROUTE that chooses experts in turn. This choice depends on the tokens' places in the
 * microbatch, where other ranks' pieces lie between this rank's pieces. */
static titan_status put_route(struct pieces *k, const struct action *a, int piece, struct titan_error *err)
{
    static const int cut[] = {OPERAND_OF(route, chosen), OPERAND_OF(route, weights), OPERAND_OF(route, logits),
                              OPERAND_OF(route, index)};
    struct program *p = k->p;
    struct action part = *a;
    struct op_params params = *action_params(p, a);

    titan_assert(params.route.N % k->n == 0 && params.route.all % params.route.N == 0);
    params.route.N /= k->n;
    params.route.all /= k->n;
    TRY(append_params(p, &params, &part.params, err));
    part.operand = p->n_operands;
    TRY(append_operands(p, a->operand, a->n_operands, err));
    for (size_t i = 0; i < ARRAY_SIZE(cut); i++) {
        struct operand *o = &p->operands[part.operand + cut[i]];
        o->bytes /= (size_t)k->n;
        o->offset += (size_t)piece * o->bytes;
    }
    return put(k, &part, err);
}

static bool divides(const struct pieces *k, int64_t n)
{
    return n % k->n == 0;
}

/* Is the action a product with rows of `buffer` as `operand`, which is its left factor or its result? If it is the
 * result, the product may add to it. */
static bool is_product_of(const struct pieces *k, const struct action *a, int buffer, int operand)
{
    const uint32_t never = operand == OPERAND_OF(matmul, c) ? OP_TA : OP_TA | OP_ADD_TO;

    return a->op == OP_MATMUL && !(action_params(k->p, a)->flags & never) &&
           action_operands(k->p, a)[operand].buffer == buffer && action_operands(k->p, a)[operand].offset == 0 &&
           divides(k, action_params(k->p, a)->matmul.M);
}

/* Writes a product and the scatter of its result piece by piece. */
static titan_status put_scatter(struct pieces *k, int i, bool product, struct titan_error *err)
{
    for (int piece = 0; piece < k->n; piece++) {
        if (product)
            TRY(put_product(k, &k->p->actions[i], piece, err));
        TRY(put_transfer(k, &k->p->actions[i + product], piece, err));
    }
    return TITAN_OK;
}

static titan_status rewrite(struct pieces *k, struct titan_error *err)
{
    struct program *p = k->p;

    for (int i = 0, used; i < p->n_actions; i += used) {
        const struct action *a = &p->actions[i], *next = i + 1 < p->n_actions ? a + 1 : NULL;
        used = 1;
        if (is_token_transfer(p, a) && a->op == OP_ALL_GATHER) {
            /* First come the pieces of a gather, then the pieces of each product that reads the gathered rows. */
            const int gathered = action_operands(p, a)[OPERAND_OF(all_gather, out)].buffer;
            while (i + used < p->n_actions && is_product_of(k, a + used, gathered, OPERAND_OF(matmul, a)))
                used++;
            for (int piece = 0; piece < k->n; piece++)
                TRY(put_transfer(k, a, piece, err));
            for (int piece = 0; piece < k->n; piece++)
                for (int j = 1; j < used; j++)
                    TRY(put_product(k, a + j, piece, err));
        } else if (is_token_transfer(p, a)) {
            TRY(put_scatter(k, i, false, err));
        } else if (next && next->op == OP_REDUCE_SCATTER && is_token_transfer(p, next) &&
                   is_product_of(k, a, action_operands(p, next)[OPERAND_OF(reduce_scatter, in)].buffer,
                                 OPERAND_OF(matmul, c))) {
            TRY(put_scatter(k, i, true, err));
            used = 2;
        } else if (a->op == OP_ROUTE && action_params(p, a)->flags & OP_ROUND_ROBIN &&
                   action_params(p, a)->route.all > action_params(p, a)->route.N) {
            for (int piece = 0; piece < k->n; piece++)
                TRY(put_route(k, a, piece, err));
        } else if (a->op == OP_BALANCE_STATS || a->op == OP_BALANCE_DGRAD) {
            /* Balance losses need to know the sequence of each token, and pieces change which tokens a rank has. */
            struct action same = *a;
            struct op_params params = *action_params(p, a);
            *(a->op == OP_BALANCE_STATS ? &params.balance_stats.pieces : &params.balance_dgrad.pieces) = k->n;
            TRY(append_params(p, &params, &same.params, err));
            TRY(put(k, &same, err));
        } else {
            TRY(put(k, a, err));
        }
    }
    return TITAN_OK;
}

titan_status pass_async_tensor(struct program *p, int pieces, struct titan_error *err)
{
    struct pieces k = {.p = p, .n = pieces};
    const int64_t width = p->layout->model->dims.dim;

    if (pieces < 2 || p->mesh.size[AXIS_TP] < 2)
        return TITAN_OK;
    for (int i = 0; i < p->n_actions; i++) /* cuts all transfers or none: a rank has the same rows in all */
        if (is_token_transfer(p, &p->actions[i]) && (action_params(p, &p->actions[i])->part[0] % width != 0 ||
                                                     !divides(&k, action_params(p, &p->actions[i])->part[0] / width)))
            return TITAN_OK;
    const titan_status status = rewrite(&k, err);
    titan_assert(status != TITAN_OK || k.n_out >= p->n_actions);
    if (status != TITAN_OK) {
        free(k.out);
        return status;
    }
    free(p->actions);
    p->actions = k.out;
    p->n_actions = k.n_out;
    p->cap_actions = k.cap_out;
    return TITAN_OK;
}
