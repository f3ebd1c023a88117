/* SPDX-License-Identifier: Apache-2.0 */
/* buddy.c - a buddy's work for its owner: the copy of the shard, its first fill, its updates. */
#include "worker/elastic/buddy.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/failpoint.h"
#include "base/progress.h"

#define CHUNK ((size_t)16 << 20) /* bytes per message of the copy's first fill */

/* A balanced unit of the owner's stages. Its expert biases change by the statistics. */
struct balance {
    int64_t bias, expert_tokens, experts; /* place in the state's biases; place in the statistics; number of experts */
    float rate;
};

/* A unit's gradient: fp32, or codes that it is the sum of. */
struct arrival {
    int unit;
    size_t bytes;
    struct decode_sum_args codes; /* without addresses; CODEC_NONE: fp32 */
};

struct buddy {
    struct buddy_options opt;
    const struct device_ops *ops;
    bool staged;           /* copy and gradients are in host memory */
    struct comm *out, *in; /* edges to the buddy and from the owner; NULL once the epoch is over */
    int buddy, owner;      /* their ranks in these communicators: 0 or 1 */
    struct stream *sending, *receiving;
    struct {
        struct stream *on;
        struct event *event;
    } final[STREAM_COUNT]; /* per stream with final gradients, which come one after another; a zero entry is unused */
    struct arrival *units; /* the owner's units, in the order in which their gradients arrive */
    int n_units;
    int n_before;   /* units whose gradients arrive before AGREE; the others follow before COMMIT */
    int expected;   /* units whose gradients are received or waited for in this step */
    bool directs;   /* the step has a direction section with owners of matrices */
    bool agreed;    /* gradients before AGREE are settled, in a step with a direction section */
    float *grads;   /* (copy->total): gradients, or codes of them */
    float *decoded; /* device: the gradient of a unit whose codes arrive; NULL: no codes arrive */
    float *next;    /* (layout_owned) the owner's state of whole matrices after the step */
    void *room;     /* device: gradient, then state of a unit; NULL: not staged */
    struct balance *balances;
    int n_balances;
    float *host_expert_tokens, *expert_tokens; /* (biases) the statistics' counts: on the host, on the device */
};

/* --- owners and buddies ------------------------------------------------------------------------------------------- */

int buddy_shift(const int *nodes, int world)
{
    int best = 0, most = -1;

    titan_assert(world >= 1);
    for (int shift = 1; shift < world; shift++) {
        int apart = 0;
        for (int r = 0; nodes && r < world; r++)
            apart += nodes[r] != nodes[(r + shift) % world];
        if (apart > most) {
            most = apart;
            best = shift;
        }
    }
    return best;
}

/* The edges r -> r + shift form rings. Neighbouring edges of a ring have different colours, so edges of one colour have
 * no rank in common. */
static int edge_colour(int rank, int shift, int world, int length)
{
    int first = rank, at = 0;

    for (int r = (rank + shift) % world; r != rank; r = (r + shift) % world)
        first = MIN(first, r);
    for (int r = first; r != rank; r = (r + shift) % world)
        at++;
    return length % 2 == 1 && at == length - 1 ? 2 : at % 2;
}

/* Splits an edge's communicator, which has the two ranks in order. */
static titan_status open_edge(struct buddy *b, int from, int to, struct comm **ret, struct titan_error *err)
{
    const int members[2] = {MIN(from, to), MAX(from, to)};

    return b->opt.ops->split(b->opt.comm, members, 2, b->opt.abort_flag, ret, err);
}

/* --- set-up ------------------------------------------------------------------------------------------------------- */

static int64_t shard_of(const struct buddy *b, int unit)
{
    return b->opt.copy->layout->units[unit].shard;
}

/* What arrives in a step, from the owner's program. */
static titan_status find_arrivals(struct buddy *b, struct titan_error *err)
{
    const struct program *const p = b->opt.owners;
    _cleanup_free_ struct final *finals = NULL;
    int agree = 0;

    TRY(program_finals(p, &finals, &b->n_units, err));
    b->units = calloc((size_t)b->n_units + 1, sizeof *b->units);
    if (!b->units)
        return titan_fail(err, TITAN_ENOMEM, "buddy: out of memory");
    while (agree < p->n_actions && p->actions[agree].op != OP_AGREE)
        agree++;
    for (int i = 0; i < b->n_units; i++) {
        const struct action *const norm = &p->actions[finals[i].norm];
        struct arrival *const x = &b->units[i];
        *x = (struct arrival){.unit = norm->unit, .bytes = (size_t)shard_of(b, norm->unit) * sizeof(float)};
        b->n_before += finals[i].writer < agree;
        if (finals[i].codes < 0)
            continue;
        const size_t room = x->bytes;
        x->codes = program_codes(p, &finals[i]);
        x->bytes = p->buffers[finals[i].codes].bytes;
        /* Codes arrive in the place of the gradient. */
        if (x->codes.n != shard_of(b, x->unit) || x->bytes > room)
            return titan_fail(err, TITAN_EBUG, "buddy: %zu bytes of codes of unit %d, whose gradient has %zu", x->bytes,
                              x->unit, room);
    }
    return TITAN_OK;
}

static titan_status open_all(struct buddy *b, struct titan_error *err)
{
    const struct device_handle *d = b->opt.device;
    const struct program *p = b->opt.owners;
    const struct train_state *copy = b->opt.copy;
    const struct model *m = copy->layout->model;
    const size_t grads = (size_t)copy->total * sizeof(float), biases = (size_t)layout_biases(m) * sizeof(float);
    const size_t owned = (size_t)layout_owned(copy->layout, copy->rank);

    TRY(find_arrivals(b, err));
    b->balances = calloc((size_t)m->n_units, sizeof *b->balances);
    if (!b->balances)
        return titan_fail(err, TITAN_ENOMEM, "buddy: out of memory");
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        if (a->op != OP_BALANCE)
            continue;
        const int64_t bias = layout_bias_offset(m, m->units[a->unit].layer);
        titan_assert(b->n_balances < m->n_units); /* a unit is balanced once */
        b->balances[b->n_balances++] = (struct balance){.bias = bias,
                                                        .expert_tokens = p->statistics.expert_tokens + bias,
                                                        .experts = action_params(p, a)->balance.E,
                                                        .rate = (float)action_params(p, a)->balance.rate};
    }
    size_t room = 0, decoded = 0;
    TRY(b->staged ? b->ops->alloc_host(d->dev, grads, (void **)&b->grads, err)
                  : b->ops->alloc(d->dev, grads, (void **)&b->grads, err));
    for (int i = 0; i < b->n_units; i++) {
        const size_t gradient = (size_t)shard_of(b, b->units[i].unit) * sizeof(float);
        room = MAX(room, gradient + state_unit_bytes(copy, b->units[i].unit));
        decoded = b->units[i].codes.codec != CODEC_NONE ? MAX(decoded, gradient) : decoded;
    }
    if (decoded > 0)
        TRY(b->ops->alloc(d->dev, decoded, (void **)&b->decoded, err));
    room = MAX(room, owned * sizeof(float) + moment_bytes(copy->types.moment, (int64_t)owned));
    if (owned > 0)
        TRY(b->staged ? b->ops->alloc_host(d->dev, owned * sizeof(float), (void **)&b->next, err)
                      : b->ops->alloc(d->dev, owned * sizeof(float), (void **)&b->next, err));
    if (b->staged)
        TRY(b->ops->alloc(d->dev, room, &b->room, err));
    if (biases > 0) {
        TRY(b->ops->alloc_host(d->dev, biases, (void **)&b->host_expert_tokens, err));
        TRY(b->ops->alloc(d->dev, biases, (void **)&b->expert_tokens, err));
    }
    TRY(b->ops->stream_open(d->dev, "to buddy", false, &b->sending, err));
    TRY(b->ops->stream_open(d->dev, "of owner", false, &b->receiving, err));

    /* Splits an edge for each colour, or a communicator of this rank alone. */
    const int me = b->opt.rank, world = b->opt.world, shift = b->opt.shift;
    const int buddy = (me + shift) % world, owner = (me - shift + world) % world;
    int length = 1; /* ranks in each ring */
    titan_assert(shift > 0 && shift < world);
    for (int r = shift; r != 0; r = (r + shift) % world)
        length++;
    for (int colour = 0; colour < (length % 2 == 0 ? 2 : 3); colour++) {
        struct comm *alone = NULL;
        if (edge_colour(me, shift, world, length) == colour) {
            TRY(open_edge(b, me, buddy, &b->out, err));
        } else if (edge_colour(owner, shift, world, length) == colour) {
            TRY(open_edge(b, owner, me, &b->in, err));
        } else {
            TRY(b->opt.ops->split(b->opt.comm, &me, 1, b->opt.abort_flag, &alone, err));
            b->opt.ops->close(alone);
        }
    }
    titan_assert(b->out && b->in);
    b->buddy = buddy > me;
    b->owner = owner > me;
    return TITAN_OK;
}

titan_status buddy_open(const struct buddy_options *options, struct buddy **ret, struct titan_error *err)
{
    struct buddy *b = calloc(1, sizeof *b);

    if (!b)
        return titan_fail(err, TITAN_ENOMEM, "buddy: out of memory");
    titan_assert(options->world > 1 && options->comm && options->copy->copy);
    titan_assert(options->copy->rank == (options->rank - options->shift + options->world) % options->world);
    b->opt = *options;
    b->ops = options->device->ops;
    b->staged = options->copy->offload;
    b->directs = options->copy->layout->owners != NULL;
    const titan_status status = open_all(b, err);
    b->opt.owners = NULL;
    if (status != TITAN_OK) {
        buddy_leave(b);
        buddy_close(b);
        return status;
    }
    *ret = b;
    return TITAN_OK;
}

static void drain(const struct buddy *b, struct stream *s)
{
    if (s && b->ops->stream_sync(s, NULL) != TITAN_OK)
        b->ops->stream_clear(s);
}

void buddy_leave(struct buddy *b)
{
    if (!b)
        return;
    drain(b, b->sending);
    drain(b, b->receiving);
    b->opt.ops->close(TAKE(b->out));
    b->opt.ops->close(TAKE(b->in));
}

void buddy_close(struct buddy *b)
{
    if (!b)
        return;
    struct device *const dev = b->opt.device->dev;

    if (b->sending)
        b->ops->stream_close(b->sending);
    if (b->receiving)
        b->ops->stream_close(b->receiving);
    for (int i = 0; i < STREAM_COUNT && b->final[i].event; i++)
        b->ops->event_close(b->final[i].event);
    if (b->grads && b->staged)
        b->ops->release_host(dev, b->grads);
    else if (b->grads)
        b->ops->release(dev, b->grads);
    if (b->next && b->staged)
        b->ops->release_host(dev, b->next);
    else if (b->next)
        b->ops->release(dev, b->next);
    if (b->room)
        b->ops->release(dev, b->room);
    if (b->decoded)
        b->ops->release(dev, b->decoded);
    if (b->host_expert_tokens)
        b->ops->release_host(dev, b->host_expert_tokens);
    if (b->expert_tokens)
        b->ops->release(dev, b->expert_tokens);
    free(b->balances);
    free(b->units);
    free(b);
}

/* --- the first copy ----------------------------------------------------------------------------------------------- */

/* Sends host or device memory to the buddy. scratch: a chunk of device memory; NULL: the communicator reads `data`
 * itself. */
static titan_status send_all(struct buddy *b, const void *data, size_t n, char *scratch)
{
    const char *from = data;

    for (size_t at = 0; at < n; at += CHUNK) {
        const size_t bytes = MIN(CHUNK, n - at);
        if (scratch)
            TRY(b->ops->copy(b->sending, scratch, from + at, bytes));
        TRY(b->opt.ops->send(b->out, scratch ? scratch : from + at, bytes, b->buddy, b->sending));
    }
    return TITAN_OK;
}

static titan_status receive_all(struct buddy *b, void *data, size_t n, char *scratch)
{
    char *to = data;

    for (size_t at = 0; at < n; at += CHUNK) {
        const size_t bytes = MIN(CHUNK, n - at);
        TRY(b->opt.ops->recv(b->in, scratch ? scratch : to + at, bytes, b->owner, b->receiving));
        if (scratch)
            TRY(b->ops->copy(b->receiving, to + at, scratch, bytes));
    }
    return TITAN_OK;
}

/* Sends the own state and receives the owner's. Both ranks of an edge's first message may wait in their calls for each
 * other. In a ring where all ranks send first, they wait for ever. So a rank that comes before its owner receives
 * first. Every ring has such a rank, and a rank that sends first. */
static titan_status exchange(struct buddy *b, const struct train_state *own, char *scratch, struct titan_error *err)
{
    struct train_state *const copy = b->opt.copy;
    const size_t biases = (size_t)layout_biases(copy->layout->model) * sizeof(float);
    /* b->owner is the owner's rank in the edge's communicator of two: 1 if the owner comes after this rank. */
    const bool receives_first = b->owner > 0;

    if (receives_first)
        TRY(receive_all(b, copy->values, state_bytes(copy), scratch ? scratch + CHUNK : NULL));
    TRY(send_all(b, own->values, state_bytes(own), scratch));
    TRY(failpoint("buddy.seeding", err));
    if (!receives_first)
        TRY(receive_all(b, copy->values, state_bytes(copy), scratch ? scratch + CHUNK : NULL));
    if (biases > 0) {
        TRY(send_all(b, own->biases, biases, scratch));
        TRY(receive_all(b, copy->biases, biases, scratch ? scratch + CHUNK : NULL));
    }
    TRY(b->ops->stream_sync(b->sending, err));
    return b->ops->stream_sync(b->receiving, err);
}

titan_status buddy_seed(struct buddy *b, const struct train_state *own, struct titan_error *err)
{
    struct device *const dev = b->opt.device->dev;
    struct train_state *const copy = b->opt.copy;
    char *scratch = NULL;

    titan_assert(b->out && own->rank == b->opt.rank && own->epoch == copy->epoch);
    if (b->staged)
        TRY(b->ops->alloc(dev, 2 * CHUNK, (void **)&scratch, err));
    const titan_status status = exchange(b, own, scratch, err);
    if (scratch) {
        drain(b, b->sending);
        drain(b, b->receiving);
        b->ops->release(dev, scratch);
    }
    state_set_numbers(copy, own->step, own->tokens, own->skipped);
    return status;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static float *grad_of(const struct buddy *b, int unit)
{
    return b->grads + b->opt.copy->layout->units[unit].offset;
}

static titan_status receive_bytes(struct buddy *b, void *to, size_t bytes)
{
    TRY(b->opt.ops->recv(b->in, b->staged ? b->room : to, bytes, b->owner, b->receiving));
    return b->staged ? b->ops->copy(b->receiving, to, b->room, bytes) : TITAN_OK;
}

/* Receives the owner's next gradient. */
static titan_status receive_next(struct buddy *b)
{
    titan_assert(b->in && b->expected < b->n_units);
    const struct arrival *const x = &b->units[b->expected++];

    return receive_bytes(b, grad_of(b, x->unit), x->bytes);
}

titan_status buddy_send(struct buddy *b, const struct exec_reduced *reduced, struct stream *s, struct titan_error *err)
{
    const void *const data = reduced->codes ? reduced->codes : reduced->grad;
    const size_t bytes = reduced->codes ? reduced->bytes : (size_t)reduced->n * sizeof *reduced->grad;
    int i = 0;

    titan_assert(b->out && reduced->n >= 0 && b->expected <= b->n_units);
    TRY(failpoint("buddy.send", err));
    /* With experts, some gradients become final on the compute stream, others on the collectives' stream. */
    while (i < STREAM_COUNT && b->final[i].event && b->final[i].on != s)
        i++;
    titan_assert(i < STREAM_COUNT); /* gradients become final on streams of the program */
    if (!b->final[i].event)
        TRY(b->ops->event_open(b->opt.device->dev, &b->final[i].event, err));
    b->final[i].on = s;
    TRY(b->ops->event_record(b->final[i].event, s, err));
    TRY(b->ops->event_wait(b->final[i].event, b->sending, err));
    TRY(b->opt.ops->send(b->out, data, bytes, b->buddy, b->sending));
    return b->expected < (b->agreed ? b->n_units : b->n_before) ? receive_next(b) : TITAN_OK;
}

titan_status buddy_send_owned(struct buddy *b, const float *next, int64_t n, struct titan_error *err)
{
    titan_assert(b->out && b->agreed && n >= 0);
    TRY(failpoint("buddy.send", err));
    return b->opt.ops->send(b->out, next, (size_t)n * sizeof *next, b->buddy, b->sending);
}

titan_status buddy_settle(struct buddy *b, bool directed, struct titan_error *err)
{
    titan_assert(directed == b->agreed);
    while (b->expected < (directed ? b->n_units : b->n_before))
        TRY(receive_next(b));
    if (directed && b->next)
        TRY(receive_bytes(b, b->next, (size_t)layout_owned(b->opt.copy->layout, b->opt.copy->rank) * sizeof *b->next));
    if (directed || !b->directs)
        b->expected = 0;
    b->agreed = b->directs && !directed;
    progress_wait_begin(); /* peers are waited for */
    titan_status status = b->ops->stream_sync(b->sending, err);
    if (status == TITAN_OK)
        status = b->ops->stream_sync(b->receiving, err);
    progress_wait_end();
    return status;
}

titan_status buddy_update(struct buddy *b, const struct update *update, const double *statistics,
                          struct titan_error *err)
{
    (void)err;
    if (failpoint("buddy.update", NULL) != TITAN_OK) /* in tests: the copy drifts from the shard */
        return TITAN_OK;
    const struct train_state *copy = b->opt.copy;
    for (int i = 0; i < b->n_units; i++) {
        const struct arrival *const x = &b->units[i];
        const int unit = x->unit;
        const int64_t n = shard_of(b, unit);
        const size_t bytes = state_unit_bytes(copy, unit), grad_bytes = (size_t)n * sizeof(float);
        void *const values = state_unit(copy, unit), *const used = b->staged ? (char *)b->room + grad_bytes : values;
        const struct update_range range = {.layout = copy->layout,
                                           .unit = unit,
                                           .rank = copy->rank,
                                           .values = used,
                                           .grad = x->codes.codec != CODEC_NONE ? b->decoded
                                                   : b->staged                  ? b->room
                                                                                : grad_of(b, unit),
                                           .n = n};
        if (b->staged) {
            TRY(b->ops->copy(b->receiving, b->room, grad_of(b, unit), x->bytes));
            TRY(b->ops->copy(b->receiving, used, values, bytes));
        }
        if (x->codes.codec != CODEC_NONE) {
            struct decode_sum_args args = x->codes;
            args.out = b->decoded;
            args.codes = b->staged ? b->room : (const void *)grad_of(b, unit);
            TRY(b->ops->decode_sum(b->receiving, &args));
        }
        TRY(update_apply(update, &range, 1, b->ops, DTYPE_F32, b->receiving));
        if (b->staged)
            TRY(b->ops->copy(b->receiving, values, used, bytes));
    }
    if (b->next) {
        const size_t n = (size_t)layout_owned(copy->layout, copy->rank), bytes = n * sizeof *b->next;
        void *const owned = state_owned(copy), *const kept = b->staged ? (char *)b->room + bytes : owned;
        const float *const next = b->staged ? b->room : b->next;
        if (b->staged)
            TRY(b->ops->copy(b->receiving, b->room, b->next, bytes));
        TRY(update_keep_owned(copy->layout, copy->rank, copy->types.moment, kept, next, b->ops, b->receiving));
        if (b->staged)
            TRY(b->ops->copy(b->receiving, owned, kept, moment_bytes(copy->types.moment, (int64_t)n)));
    }
    for (int i = 0; i < b->n_balances; i++) {
        const struct balance *const x = &b->balances[i];
        float *const host = b->host_expert_tokens + x->bias, *const tokens = b->expert_tokens + x->bias;
        for (int64_t k = 0; k < x->experts; k++)
            host[k] = (float)statistics[x->expert_tokens + k];
        TRY(b->ops->copy(b->receiving, tokens, host, (size_t)x->experts * sizeof *host));
        TRY(b->ops->router_balance(b->receiving, copy->biases + x->bias, tokens, x->experts, x->rate));
    }
    return TITAN_OK;
}

titan_status buddy_sync(struct buddy *b, struct titan_error *err)
{
    return b->ops->stream_sync(b->receiving, err);
}
