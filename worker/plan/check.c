/* check.c - soundness of step programs. Written against program.h's contract, not against the builder. */
#include "worker/plan/check.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "worker/plan/tree.h"

/* --- what each action must look like
 * -------------------------------------------------------------------------------------- */

#define IN(kind) (1u << BUF_##kind)
#define PARAMS (IN(SHARD) | IN(FULL))
#define GRADIENT (IN(GRAD) | IN(GRAD_SHARD))

struct shape {
    int n_in, n_out, n_out_min; /* n_in -1: any number of in[0]'s kind */
    unsigned in[4], out[3];     /* kinds allowed */
    bool microbatch;
};

static const struct shape shapes[ACT_COUNT] = {
    [ACT_GATHER] = {1, 1, 1, {IN(SHARD)}, {IN(FULL)}, false},
    [ACT_RELEASE] = {1, 0, 0, {IN(FULL)}, {0}, false},
    [ACT_LOAD] = {0, 1, 1, {0}, {IN(TOKENS)}, true},
    [ACT_EMBED_FORWARD] = {2, 1, 1, {PARAMS, IN(TOKENS)}, {IN(X)}, true},
    [ACT_LAYER_FORWARD] = {2, 3, 1, {PARAMS, IN(X)}, {IN(SAVED), IN(X), IN(REPORT)}, true},
    [ACT_HEAD_FORWARD] = {3, 3, 3, {PARAMS, IN(X), IN(TOKENS)}, {IN(HEAD), IN(LOSSES), IN(REPORT)}, true},
    [ACT_HEAD_DGRAD] = {3, 2, 2, {PARAMS, IN(X), IN(HEAD)}, {IN(DX), IN(HEAD_BACK)}, true},
    [ACT_HEAD_WGRAD] = {3, 1, 1, {IN(X), IN(HEAD), IN(HEAD_BACK)}, {IN(GRAD)}, true},
    [ACT_LAYER_DGRAD] = {4, 3, 3, {PARAMS, IN(X), IN(SAVED), IN(DX)}, {IN(DX), IN(BACK), IN(WORK)}, true},
    [ACT_LAYER_WGRAD] = {4, 1, 1, {IN(X), IN(SAVED), IN(BACK), IN(DX)}, {IN(GRAD)}, true},
    [ACT_EMBED_WGRAD] = {2, 1, 1, {IN(TOKENS), IN(DX)}, {IN(GRAD)}, true},
    [ACT_ZERO] = {0, 1, 1, {0}, {IN(GRAD)}, false},
    [ACT_ADD] = {1, 1, 1, {IN(GRAD)}, {IN(GRAD)}, false},
    [ACT_REDUCE] = {1, 1, 1, {IN(GRAD)}, {IN(GRAD_SHARD)}, false},
    [ACT_PACK] = {-1, 1, 1, {IN(GRAD)}, {IN(PACK)}, false},
    [ACT_EXCHANGE] = {1, 1, 1, {IN(PACK)}, {IN(RECEIVED)}, false},
    [ACT_COMBINE] = {1, 2, 2, {IN(RECEIVED)}, {IN(RECEIVED), IN(GRAD_SHARD)}, false},
    [ACT_NORM] = {1, 1, 1, {GRADIENT}, {IN(REPORT)}, false},
    [ACT_AGREE] = {1, 2, 2, {IN(REPORT)}, {IN(REPORT), IN(REPORTS)}, false},
    [ACT_DECIDE] = {1, 0, 0, {IN(REPORTS)}, {0}, false},
    [ACT_OPTIMISE] = {1, 2, 2, {GRADIENT}, {IN(STATE), IN(SHARD)}, false},
};

/* What a layer-numbered buffer's number is for an action on unit u: position i of in or out. */
static int expected_unit(const struct action *a, const struct buffer *b, bool is_out, int i)
{
    switch (b->kind) {
    case BUF_SHARD:
    case BUF_STATE:
    case BUF_FULL:
    case BUF_GRAD:
    case BUF_GRAD_SHARD:
    case BUF_PACK:
    case BUF_RECEIVED:
        return a->unit;
    case BUF_SAVED:
    case BUF_BACK:
        return a->unit - 1;
    case BUF_X:
        if (a->kind == ACT_EMBED_FORWARD)
            return 0;
        return a->kind == ACT_LAYER_FORWARD && is_out ? a->unit : a->unit - 1;
    case BUF_DX:
        if (a->kind == ACT_EMBED_WGRAD)
            return 0;
        if (a->kind == ACT_LAYER_DGRAD)
            return is_out ? a->unit - 1 : a->unit;
        return a->kind == ACT_LAYER_WGRAD && i == 3 ? a->unit : a->unit - 1;
    default:
        return b->unit;
    }
}

/* --- the walk over one program
 * ---------------------------------------------------------------------------------------------- */

struct checker {
    const struct program *p;
    struct titan_error *err;
    int index; /* of the action at hand */
    bool *written, *released;
    uint64_t *share;                   /* per buffer: bits of own microbatches whose gradient it holds */
    size_t words;                      /* of such a set */
    int *done;                         /* [own microbatch][unit][STAGES] */
    int *reduced, *normed, *optimised; /* per unit */
    int *gradient_of;                  /* per unit: buffer with the reduced gradient, -1 */
    int losses, agreed, decided;
};

enum { STAGE_FORWARD, STAGE_DGRAD, STAGE_WGRAD, STAGES };

/* Fill the error with a reason, say where, and be the status to return. */
#define REFUSE(c, ...) (titan_fail((c)->err, TITAN_EBUG, __VA_ARGS__), refuse(c))

static titan_status refuse(const struct checker *c)
{
    if (c->index < 0)
        return titan_error_wrap(c->err, "program of rank %d", c->p->rank);
    return titan_error_wrap(c->err, "program of rank %d, action %d (%s)", c->p->rank, c->index,
                            action_name(c->p->actions[c->index].kind));
}

static titan_status check_operand(const struct checker *c, const struct action *a, int id, unsigned kinds, bool is_out,
                                  int i)
{
    if (id < 0 || id >= c->p->n_buffers)
        return REFUSE(c, "operand %d is no buffer", id);
    const struct buffer *b = &c->p->buffers[id];
    if (!(kinds >> b->kind & 1))
        return REFUSE(c, "%s %d may not be a %s", is_out ? "output" : "input", i, buffer_name(b->kind));
    if (b->unit != expected_unit(a, b, is_out, i))
        return REFUSE(c, "%s #%d belongs to %d, the action to unit %d", buffer_name(b->kind), id, b->unit, a->unit);
    if (a->microbatch >= 0 && b->microbatch >= 0 && b->kind != BUF_GRAD && b->microbatch != a->microbatch)
        return REFUSE(c, "%s #%d is of microbatch %ld, the action of %ld", buffer_name(b->kind), id,
                      (long)b->microbatch, (long)a->microbatch);
    if (c->released[id])
        return REFUSE(c, "%s #%d is used after its release", buffer_name(b->kind), id);
    return TITAN_OK;
}

static titan_status check_form(const struct checker *c, const struct action *a)
{
    const struct shape *s = &shapes[a->kind];

    if (a->kind >= ACT_COUNT || a->stream >= STREAM_COUNT)
        return REFUSE(c, "unknown action or stream");
    if (a->n_in > ACTION_IN_MAX || (s->n_in >= 0 && a->n_in != s->n_in) || a->n_out > s->n_out ||
        a->n_out < s->n_out_min)
        return REFUSE(c, "%d inputs and %d outputs", a->n_in, a->n_out);
    if (a->unit >= c->p->n_units)
        return REFUSE(c, "unit %d of %d", a->unit, c->p->n_units);
    if (s->microbatch && (a->microbatch < c->p->from || a->microbatch >= c->p->to))
        return REFUSE(c, "microbatch %ld is not of this rank (%ld to %ld)", (long)a->microbatch, (long)c->p->from,
                      (long)c->p->to);
    if (a->wait >= c->index)
        return REFUSE(c, "waits for action %d, which comes later", a->wait);
    if (a->wait >= 0 && (c->p->actions[a->wait].stream == a->stream || !c->p->actions[a->wait].signal))
        return REFUSE(c, "waits for action %d, which does not signal to it", a->wait);
    if (action_is_collective(a->kind) && (a->bytes == 0 || (c->p->world > 1 && a->stream != STREAM_COMM)))
        return REFUSE(c, "a collective of %zu bytes on the %s stream", a->bytes,
                      a->stream == STREAM_COMM ? "comm" : "compute");
    for (int i = 0; i < a->n_in; i++)
        TRY(check_operand(c, a, a->in[i], s->in[s->n_in < 0 ? 0 : i], false, i));
    for (int i = 0; i < a->n_out; i++)
        TRY(check_operand(c, a, a->out[i], s->out[i], true, i));
    return TITAN_OK;
}

static titan_status check_written(struct checker *c, const struct action *a)
{
    for (int i = 0; i < a->n_in; i++)
        if (!c->written[a->in[i]] && !c->p->buffers[a->in[i]].external)
            return REFUSE(c, "reads %s #%d, which nothing has written", buffer_name(c->p->buffers[a->in[i]].kind),
                          a->in[i]);
    for (int i = 0; i < a->n_out; i++) {
        const struct buffer *b = &c->p->buffers[a->out[i]];
        if (action_adds(a, i) && !c->written[a->out[i]] && !b->external)
            return REFUSE(c, "adds to %s #%d, which nothing has written", buffer_name(b->kind), a->out[i]);
        c->written[a->out[i]] = true;
    }
    if (a->kind == ACT_RELEASE)
        c->released[a->in[0]] = true;
    return TITAN_OK;
}

static titan_status count_stage(struct checker *c, const struct action *a, int stage)
{
    int *n = &c->done[((a->microbatch - c->p->from) * c->p->n_units + a->unit) * STAGES + stage];
    const int *wgrad = n - stage + STAGE_WGRAD;

    if (a->kind == ACT_LAYER_FORWARD && a->n_out == 1) /* recomputation */
        return *n == 1 && *wgrad == 0 ? TITAN_OK : REFUSE(c, "recomputation at the wrong time");
    if (++*n != 1)
        return REFUSE(c, "microbatch %ld goes through unit %d twice", (long)a->microbatch, a->unit);
    return TITAN_OK;
}

/* --- gradients as sets of microbatches
 * ------------------------------------------------------------------------------------- */

static uint64_t *set_of(const struct checker *c, int buffer)
{
    return c->share + (size_t)buffer * c->words;
}

static titan_status add_sets(const struct checker *c, uint64_t *into, const uint64_t *from)
{
    for (size_t i = 0; i < c->words; i++) {
        if (into[i] & from[i])
            return REFUSE(c, "a microbatch's gradient is counted twice");
        into[i] |= from[i];
    }
    return TITAN_OK;
}

static titan_status check_complete(const struct checker *c, const uint64_t *set)
{
    for (int64_t i = 0; i < c->p->to - c->p->from; i++)
        if (!(set[i / 64] >> (i % 64) & 1))
            return REFUSE(c, "the gradient of microbatch %ld is missing", (long)(c->p->from + i));
    return TITAN_OK;
}

static titan_status reduce_once(struct checker *c, const struct action *a, int out)
{
    if (++c->reduced[a->unit] != 1)
        return REFUSE(c, "unit %d is reduced twice", a->unit);
    c->gradient_of[a->unit] = out;
    return TITAN_OK;
}

/* Operands that check_gradient reads without asking. */
static bool has_operands(const struct action *a)
{
    switch (a->kind) {
    case ACT_EMBED_WGRAD:
    case ACT_LAYER_WGRAD:
    case ACT_HEAD_WGRAD:
    case ACT_ZERO:
        return a->n_out >= 1;
    case ACT_ADD:
    case ACT_REDUCE:
        return a->n_in >= 1 && a->n_out >= 1;
    case ACT_COMBINE:
        return a->n_out >= 2;
    default:
        return true;
    }
}

static titan_status check_gradient(struct checker *c, const struct action *a)
{
    if (!has_operands(a))
        return REFUSE(c, "an operand is missing");
    uint64_t *out = a->n_out > 0 ? set_of(c, a->out[0]) : NULL;
    _cleanup_free_ uint64_t *all = NULL;

    switch (a->kind) {
    case ACT_EMBED_WGRAD:
    case ACT_LAYER_WGRAD:
    case ACT_HEAD_WGRAD: {
        const int64_t bit = a->microbatch - c->p->from;
        if (a->first)
            memset(out, 0, c->words * sizeof *out);
        if (out[bit / 64] >> (bit % 64) & 1)
            return REFUSE(c, "microbatch %ld is counted twice", (long)a->microbatch);
        out[bit / 64] |= UINT64_C(1) << (bit % 64);
        return count_stage(c, a, STAGE_WGRAD);
    }
    case ACT_ZERO:
        memset(out, 0, c->words * sizeof *out);
        return TITAN_OK;
    case ACT_ADD:
        return add_sets(c, out, set_of(c, a->in[0]));
    case ACT_REDUCE:
        TRY(check_complete(c, set_of(c, a->in[0])));
        return reduce_once(c, a, a->out[0]);
    case ACT_PACK:
        all = calloc(c->words, sizeof *all);
        if (!all)
            return titan_fail(c->err, TITAN_ENOMEM, "check: out of memory");
        if (a->n_in != c->p->subtrees)
            return REFUSE(c, "%d subtrees instead of %d", a->n_in, c->p->subtrees);
        for (int i = 0; i < a->n_in; i++)
            TRY(add_sets(c, all, set_of(c, a->in[i])));
        return check_complete(c, all);
    case ACT_COMBINE:
        return reduce_once(c, a, a->out[1]);
    default:
        return TITAN_OK;
    }
}

/* --- the end of the step
 * --------------------------------------------------------------------------------------------------- */

static titan_status check_reduced(struct checker *c, const struct action *a)
{
    const struct program *p = c->p;

    if (p->world == 1 && c->gradient_of[a->unit] < 0) { /* nothing to reduce: this rank's sum is the gradient */
        TRY(check_complete(c, set_of(c, a->in[0])));
        TRY(reduce_once(c, a, a->in[0]));
    }
    if (c->gradient_of[a->unit] != a->in[0])
        return REFUSE(c, "%s #%d is not the reduced gradient of unit %d", buffer_name(p->buffers[a->in[0]].kind),
                      a->in[0], a->unit);
    return TITAN_OK;
}

static titan_status check_update(struct checker *c, const struct action *a)
{
    switch (a->kind) {
    case ACT_NORM:
        TRY(check_reduced(c, a));
        return ++c->normed[a->unit] == 1 && !c->agreed ? TITAN_OK : REFUSE(c, "norm of unit %d twice or late", a->unit);
    case ACT_AGREE:
        for (int u = 0; u < c->p->n_units; u++)
            if (c->normed[u] != 1)
                return REFUSE(c, "before the norm of unit %d", u);
        if (c->losses != c->p->to - c->p->from)
            return REFUSE(c, "%d of %ld losses are there", c->losses, (long)(c->p->to - c->p->from));
        return ++c->agreed == 1 ? TITAN_OK : REFUSE(c, "twice");
    case ACT_DECIDE:
        return ++c->decided == 1 && c->agreed == 1 ? TITAN_OK : REFUSE(c, "twice or before the agreement");
    case ACT_OPTIMISE:
        TRY(check_reduced(c, a));
        if (c->decided != 1)
            return REFUSE(c, "before the decision");
        return ++c->optimised[a->unit] == 1 ? TITAN_OK : REFUSE(c, "unit %d is updated twice", a->unit);
    default:
        return TITAN_OK;
    }
}

static titan_status check_action(struct checker *c, const struct action *a)
{
    TRY(check_form(c, a));
    TRY(check_written(c, a));
    switch (a->kind) {
    case ACT_EMBED_FORWARD:
    case ACT_LAYER_FORWARD:
        TRY(count_stage(c, a, STAGE_FORWARD));
        break;
    case ACT_HEAD_FORWARD:
        c->losses++;
        TRY(count_stage(c, a, STAGE_FORWARD));
        break;
    case ACT_HEAD_DGRAD:
    case ACT_LAYER_DGRAD:
        TRY(count_stage(c, a, STAGE_DGRAD));
        break;
    default:
        break;
    }
    TRY(check_gradient(c, a));
    return check_update(c, a);
}

static titan_status check_all_done(struct checker *c)
{
    const struct program *p = c->p;

    c->index = -1;
    for (int64_t m = 0; m < p->to - p->from; m++)
        for (int u = 0; u < p->n_units; u++)
            for (int stage = 0; stage < STAGES; stage++) {
                const int want = u == 0 && stage == STAGE_DGRAD ? 0 : 1;
                if (c->done[(m * p->n_units + u) * STAGES + stage] != want)
                    return REFUSE(c, "microbatch %ld does not go through every stage of unit %d", (long)(p->from + m),
                                  u);
            }
    for (int u = 0; u < p->n_units; u++)
        if (c->reduced[u] != 1 || c->optimised[u] != 1)
            return REFUSE(c, "unit %d is never reduced or never updated", u);
    for (int i = 0; i < p->n_buffers; i++)
        if (p->buffers[i].kind == BUF_FULL && c->written[i] && !c->released[i])
            return REFUSE(c, "gathered parameters of unit %d (#%d) are never released", p->buffers[i].unit, i);
    return TITAN_OK;
}

/* --- memory and order between streams
 * ---------------------------------------------------------------------------------------- */

static bool overlap(const struct buffer *a, const struct buffer *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static titan_status check_lifetime(struct checker *c, int id)
{
    const struct buffer *b = &c->p->buffers[id];
    if (c->index < b->first || c->index > b->last)
        return REFUSE(c, "%s #%d is touched outside its life (%d to %d)", buffer_name(b->kind), id, b->first, b->last);
    return TITAN_OK;
}

static titan_status check_memory(struct checker *c)
{
    const struct program *p = c->p;

    for (int i = 0; i < p->n_actions; i++) {
        c->index = i;
        for (int k = 0; k < p->actions[i].n_in; k++)
            TRY(check_lifetime(c, p->actions[i].in[k]));
        for (int k = 0; k < p->actions[i].n_out; k++)
            TRY(check_lifetime(c, p->actions[i].out[k]));
    }
    c->index = -1;
    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *a = &p->buffers[i];
        if (a->external || a->first < 0)
            continue;
        if (a->offset + a->bytes > p->arena_bytes)
            return REFUSE(c, "%s #%d lies outside the arena", buffer_name(a->kind), i);
        for (int j = i + 1; j < p->n_buffers; j++) {
            const struct buffer *b = &p->buffers[j];
            if (!b->external && b->first >= 0 && a->first <= b->last && b->first <= a->last && overlap(a, b))
                return REFUSE(c, "%s #%d and %s #%d share memory while both live", buffer_name(a->kind), i,
                              buffer_name(b->kind), j);
        }
    }
    return TITAN_OK;
}

static bool touches(const struct action *a, int id, bool *writes)
{
    bool found = false;
    *writes = false;
    for (int i = 0; i < a->n_in; i++)
        found = found || a->in[i] == id;
    for (int i = 0; i < a->n_out; i++)
        if (a->out[i] == id)
            found = *writes = true;
    return found;
}

/* Latest action of the other stream before `before` that conflicts with a touch of buffer id. */
static int latest_conflict(const struct program *p, int before, int after, enum stream_id other, int id, bool writing)
{
    const struct buffer *b = &p->buffers[id];

    for (int i = before - 1; i > after; i--) {
        const struct action *a = &p->actions[i];
        if (a->stream != other)
            continue;
        bool writes;
        if (touches(a, id, &writes) && (writes || writing))
            return i;
        if (b->external)
            continue;
        for (int k = 0; k < a->n_in + a->n_out; k++) {
            const int j = k < a->n_in ? a->in[k] : a->out[k - a->n_in];
            const struct buffer *o = &p->buffers[j];
            if (j != id && !o->external && overlap(b, o))
                return i;
        }
    }
    return -1;
}

static titan_status check_order(struct checker *c)
{
    const struct program *p = c->p;
    int known[STREAM_COUNT] = {-1, -1}; /* of the other stream */

    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        const enum stream_id other = a->stream == STREAM_COMPUTE ? STREAM_COMM : STREAM_COMPUTE;
        c->index = i;
        known[a->stream] = MAX(known[a->stream], a->wait);
        for (int k = 0; k < a->n_in + a->n_out; k++) {
            const bool is_in = k < a->n_in;
            const int id = is_in ? a->in[k] : a->out[k - a->n_in];
            const int need = latest_conflict(p, i, known[a->stream], other, id, !is_in);
            if (need >= 0)
                return REFUSE(c, "does not wait for action %d (%s), which touches %s #%d on the other stream", need,
                              action_name(p->actions[need].kind), buffer_name(p->buffers[id].kind), id);
        }
    }
    return TITAN_OK;
}

/* --- entry points
 * --------------------------------------------------------------------------------------------------------- */

static void free_checker(struct checker *c)
{
    free(c->written);
    free(c->released);
    free(c->share);
    free(c->done);
    free(c->reduced);
    free(c->normed);
    free(c->optimised);
    free(c->gradient_of);
}

static titan_status alloc_checker(struct checker *c)
{
    const struct program *p = c->p;
    const size_t buffers = (size_t)p->n_buffers + 1, units = (size_t)p->n_units, own = (size_t)(p->to - p->from);

    c->words = own / 64 + 1;
    c->written = calloc(buffers, sizeof *c->written);
    c->released = calloc(buffers, sizeof *c->released);
    c->share = calloc(buffers * c->words, sizeof *c->share);
    c->done = calloc(own * units * STAGES + 1, sizeof *c->done);
    c->reduced = calloc(units, sizeof *c->reduced);
    c->normed = calloc(units, sizeof *c->normed);
    c->optimised = calloc(units, sizeof *c->optimised);
    c->gradient_of = malloc(units * sizeof *c->gradient_of);
    if (!c->written || !c->released || !c->share || !c->done || !c->reduced || !c->normed || !c->optimised ||
        !c->gradient_of)
        return titan_fail(c->err, TITAN_ENOMEM, "check: out of memory");
    for (size_t u = 0; u < units; u++)
        c->gradient_of[u] = -1;
    return TITAN_OK;
}

static titan_status check_program(struct checker *c)
{
    const struct program *p = c->p;

    TRY(alloc_checker(c));
    for (c->index = 0; c->index < p->n_actions; c->index++)
        TRY(check_action(c, &p->actions[c->index]));
    TRY(check_all_done(c));
    TRY(check_memory(c));
    return check_order(c);
}

titan_status program_check(const struct program *p, uint64_t memory_bytes, struct titan_error *err)
{
    struct titan_error local = {0};
    struct checker c = {.p = p, .err = err ? err : &local};
    const titan_status status = check_program(&c);

    free_checker(&c);
    if (status != TITAN_OK)
        return status;
    if (memory_bytes > 0 && p->arena_bytes + p->external_bytes > memory_bytes) {
        (void)titan_fail(err, TITAN_EUNPLACEABLE, "rank %d needs %.2f GiB of device memory, there are %.2f GiB",
                         p->rank, (double)(p->arena_bytes + p->external_bytes) / 1073741824.0,
                         (double)memory_bytes / 1073741824.0);
        titan_error_hint(err, "use more workers, a smaller training.local_batch_size or a shorter training.seq_len");
        return TITAN_EUNPLACEABLE;
    }
    return TITAN_OK;
}

static int next_collective(const struct program *p, int i)
{
    while (i < p->n_actions && !action_is_collective(p->actions[i].kind))
        i++;
    return i;
}

titan_status program_check_pair(const struct program *a, const struct program *b, struct titan_error *err)
{
    int i = -1, j = -1;

    if (b->rank == a->rank + 1 && b->from != a->to)
        return titan_fail(err, TITAN_EBUG, "rank %d ends at microbatch %ld, rank %d begins at %ld", a->rank,
                          (long)a->to, b->rank, (long)b->from);
    if ((a->rank == 0 && a->from != 0) || (b->rank == b->world - 1 && b->to != b->microbatches))
        return titan_fail(err, TITAN_EBUG, "ranks do not cover all %ld microbatches", (long)a->microbatches);
    for (;;) {
        i = next_collective(a, i + 1);
        j = next_collective(b, j + 1);
        if (i == a->n_actions && j == b->n_actions)
            return TITAN_OK;
        const struct action *x = i < a->n_actions ? &a->actions[i] : NULL;
        const struct action *y = j < b->n_actions ? &b->actions[j] : NULL;
        if (!x || !y || x->kind != y->kind || x->unit != y->unit || x->bytes != y->bytes)
            return titan_fail(err, TITAN_EBUG,
                              "collectives differ: rank %d has %s of unit %d as action %d, rank %d %s of unit %d as %d",
                              a->rank, x ? action_name(x->kind) : "nothing", x ? x->unit : -1, i, b->rank,
                              y ? action_name(y->kind) : "nothing", y ? y->unit : -1, j);
    }
}
