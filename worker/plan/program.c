/* program.c - lifetimes, memory and dependencies of a step program. */
#include "worker/plan/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define ARENA_ALIGN 256

const char *action_name(enum action_kind kind)
{
    static const char *const names[] = {
#define X(name, text) #name,
        ACTION_KINDS(X)
#undef X
    };
    return kind < ACT_COUNT ? names[kind] : "?";
}

const char *buffer_name(enum buffer_kind kind)
{
    static const char *const names[] = {
#define X(name, external) #name,
        BUFFER_KINDS(X)
#undef X
    };
    return kind < BUF_COUNT ? names[kind] : "?";
}

bool action_is_collective(enum action_kind kind)
{
    return kind == ACT_GATHER || kind == ACT_REDUCE || kind == ACT_EXCHANGE || kind == ACT_AGREE;
}

bool action_adds(const struct action *a, int out)
{
    switch (a->kind) {
    case ACT_EMBED_WGRAD:
    case ACT_LAYER_WGRAD:
    case ACT_HEAD_WGRAD:
        return !a->first;
    case ACT_ADD:
        return true;
    case ACT_OPTIMISE:
        return out == 0; /* state is updated, the shard overwritten */
    default:
        return false;
    }
}

void program_close(struct program *p)
{
    if (!p)
        return;
    free(p->adds);
    free(p->actions);
    free(p->buffers);
    free(p);
}

/* --- lifetimes
 * ---------------------------------------------------------------------------------------------------------- */

static void touch(struct buffer *b, int action)
{
    if (b->first < 0)
        b->first = action;
    b->last = action;
}

static void find_lifetimes(struct program *p)
{
    for (int i = 0; i < p->n_buffers; i++)
        p->buffers[i].first = p->buffers[i].last = -1;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        for (int k = 0; k < a->n_in; k++)
            touch(&p->buffers[a->in[k]], i);
        for (int k = 0; k < a->n_out; k++)
            touch(&p->buffers[a->out[k]], i);
    }
}

/* --- arena: largest buffer first, each at the lowest place free during its life
 * ------------------------------------------- */

static int by_bytes(const void *x, const void *y)
{
    const struct buffer *a = *(struct buffer *const *)x, *b = *(struct buffer *const *)y;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->first - b->first;
}

static int by_offset(const void *x, const void *y)
{
    const struct buffer *a = *(struct buffer *const *)x, *b = *(struct buffer *const *)y;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static size_t round_up(size_t n)
{
    return (n + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

static void place(struct buffer *b, struct buffer **placed, int n_placed, struct buffer **busy)
{
    int n = 0;
    for (int i = 0; i < n_placed; i++)
        if (placed[i]->first <= b->last && b->first <= placed[i]->last)
            busy[n++] = placed[i];
    qsort(busy, (size_t)n, sizeof(struct buffer *), by_offset);
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        if (busy[i]->offset >= at + round_up(b->bytes))
            break;
        at = MAX(at, busy[i]->offset + round_up(busy[i]->bytes));
    }
    b->offset = at;
}

static titan_status place_arena(struct program *p, struct titan_error *err)
{
    _cleanup_free_ struct buffer **order = calloc((size_t)p->n_buffers + 1, sizeof *order);
    _cleanup_free_ struct buffer **busy = calloc((size_t)p->n_buffers + 1, sizeof *busy);
    int n = 0;

    if (!order || !busy)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    p->arena_bytes = p->external_bytes = 0;
    for (int i = 0; i < p->n_buffers; i++) {
        struct buffer *b = &p->buffers[i];
        if (b->external)
            p->external_bytes += b->bytes;
        else if (b->first >= 0)
            order[n++] = b;
    }
    qsort(order, (size_t)n, sizeof(struct buffer *), by_bytes);
    for (int i = 0; i < n; i++) {
        place(order[i], order, i, busy);
        p->arena_bytes = MAX(p->arena_bytes, order[i]->offset + round_up(order[i]->bytes));
    }
    return TITAN_OK;
}

/* --- waits between streams
 * --------------------------------------------------------------------------------------------- */

struct access {
    int read[STREAM_COUNT], write[STREAM_COUNT]; /* latest action on each stream, -1 */
};

static int last_any(const struct access *acc, enum stream_id s)
{
    return MAX(acc->read[s], acc->write[s]);
}

static bool share_memory(const struct buffer *a, const struct buffer *b)
{
    return !a->external && !b->external && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Latest action of the other stream that must be over before action i may touch buffer id. */
static int conflict(const struct program *p, const struct access *acc, int i, int id, bool writes, enum stream_id other)
{
    const struct buffer *b = &p->buffers[id];
    int latest = writes ? last_any(&acc[id], other) : acc[id].write[other];

    if (b->first != i)
        return latest;
    for (int j = 0; j < p->n_buffers; j++) /* who had this memory before */
        if (j != id && p->buffers[j].last < i && share_memory(b, &p->buffers[j]))
            latest = MAX(latest, last_any(&acc[j], other));
    return latest;
}

static titan_status derive_waits(struct program *p, struct titan_error *err)
{
    _cleanup_free_ struct access *acc = calloc((size_t)p->n_buffers + 1, sizeof *acc);
    int known[STREAM_COUNT]; /* what a stream has already waited for of the other */

    if (!acc)
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    for (int i = 0; i < p->n_buffers; i++)
        acc[i] = (struct access){{-1, -1}, {-1, -1}};
    for (int s = 0; s < STREAM_COUNT; s++)
        known[s] = -1;
    for (int i = 0; i < p->n_actions; i++)
        p->actions[i].signal = false;

    for (int i = 0; i < p->n_actions; i++) {
        struct action *a = &p->actions[i];
        const enum stream_id other = a->stream == STREAM_COMPUTE ? STREAM_COMM : STREAM_COMPUTE;
        int latest = -1;
        for (int k = 0; k < a->n_in; k++)
            latest = MAX(latest, conflict(p, acc, i, a->in[k], false, other));
        for (int k = 0; k < a->n_out; k++)
            latest = MAX(latest, conflict(p, acc, i, a->out[k], true, other));
        a->wait = latest > known[a->stream] ? latest : -1;
        if (a->wait >= 0) {
            known[a->stream] = a->wait;
            p->actions[a->wait].signal = true;
        }
        for (int k = 0; k < a->n_in; k++)
            acc[a->in[k]].read[a->stream] = i;
        for (int k = 0; k < a->n_out; k++)
            acc[a->out[k]].write[a->stream] = i;
    }
    return TITAN_OK;
}

titan_status program_finish(struct program *p, struct titan_error *err)
{
    find_lifetimes(p);
    TRY(place_arena(p, err));
    return derive_waits(p, err);
}

/* --- printing
 * ----------------------------------------------------------------------------------------------------------- */

static void print_operands(const struct program *p, const char *label, const int *ids, int n, struct buf *out)
{
    for (int i = 0; i < n; i++) {
        const struct buffer *b = &p->buffers[ids[i]];
        buf_printf(out, "%s%s", i == 0 ? label : ",", buffer_name(b->kind));
        if (b->unit >= 0)
            buf_printf(out, "(%d)", b->unit);
        buf_printf(out, "#%d", ids[i]);
    }
}

void program_print(const struct program *p, struct buf *out)
{
    buf_printf(out, "rank %d of %d: microbatches %ld to %ld of %ld, %d actions, arena %.1f MiB, state %.1f MiB\n",
               p->rank, p->world, (long)p->from, (long)p->to, (long)p->microbatches, p->n_actions,
               (double)p->arena_bytes / 1048576.0, (double)p->external_bytes / 1048576.0);
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        buf_printf(out, "%5d %-7s %-13s", i, a->stream == STREAM_COMM ? "comm" : "compute", action_name(a->kind));
        if (a->unit >= 0)
            buf_printf(out, " unit=%d", a->unit);
        if (a->microbatch >= 0)
            buf_printf(out, " microbatch=%ld", (long)a->microbatch);
        print_operands(p, " in=", a->in, a->n_in, out);
        print_operands(p, " out=", a->out, a->n_out, out);
        if (a->bytes > 0)
            buf_printf(out, " bytes=%zu", a->bytes);
        if (a->first)
            buf_puts(out, " first");
        if (a->wait >= 0)
            buf_printf(out, " wait=%d", a->wait);
        buf_puts(out, "\n");
    }
}
