/* waits.c - hazards between streams.
 *
 * All memory is one line of addresses: the arena, then the external buffers. It is cut into segments, each with its
 * last write and, for every stream, the last read since. An access must come after the write of what it touches; one
 * that writes, after the reads too. Memory that is used again needs no rule of its own: its next owner's first write
 * meets the last accesses of the one before.
 *
 * What a stream knows to be over is a vector of actions, one for each stream. A wait takes over all that the signalling
 * action's stream knew, so that most hazards are ordered already when they are met. */
#include "worker/plan/waits.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define NONE (-1)

struct clock {
    int done[STREAM_COUNT]; /* last action of each stream that is over */
};

struct segment {
    int write;
    uint32_t readers; /* bits of streams */
    int read[STREAM_COUNT];
};

struct hazards {
    struct program *p;
    size_t *base; /* address of every buffer */
    /* Segment k covers [start[k], start[k + 1]); what it holds is pool[slot[k]]. */
    size_t *start;
    int *slot;
    int n, cap;
    struct segment *pool;
    int n_pool, cap_pool, unused; /* a free one's write is the next free one */
    struct clock now[STREAM_COUNT];
    int version[STREAM_COUNT]; /* of now, in clocks */
    struct clock *clocks;
    int n_clocks, cap_clocks;
    int *at; /* per action: the version under which it was issued */
};

static bool grow(void *array, int *cap, int need, size_t elem)
{
    if (need <= *cap)
        return true;
    const int more = MAX(MAX(64, need), *cap * 2);
    void *larger = realloc(*(void **)array, (size_t)more * elem);
    if (!larger)
        return false;
    *(void **)array = larger;
    *cap = more;
    return true;
}

static void hazards_free(struct hazards *h)
{
    free(h->base);
    free(h->start);
    free(h->slot);
    free(h->pool);
    free(h->clocks);
    free(h->at);
}

/* --- segments ----------------------------------------------------------------------------------------------------- */

static int take_segment(struct hazards *h)
{
    if (h->unused == NONE)
        return h->n_pool++; /* room was made beforehand */
    const int i = h->unused;
    h->unused = h->pool[i].write;
    return i;
}

static void give_segment(struct hazards *h, int i)
{
    h->pool[i].write = h->unused;
    h->unused = i;
}

/* Room for two cuts. */
static bool make_room(struct hazards *h)
{
    int cap = h->cap;
    return grow(&h->start, &cap, h->n + 4, sizeof *h->start) && grow(&h->slot, &h->cap, h->n + 4, sizeof *h->slot) &&
           grow(&h->pool, &h->cap_pool, h->n_pool + 4, sizeof *h->pool);
}

/* The segment that begins at an address, cut there if need be. */
static int cut_at(struct hazards *h, size_t address)
{
    int low = 0, high = h->n - 1; /* last segment with start <= address */

    while (low < high) {
        const int mid = (low + high + 1) / 2;
        if (h->start[mid] <= address)
            low = mid;
        else
            high = mid - 1;
    }
    if (h->start[low] == address)
        return low;
    const size_t behind = (size_t)(h->n - low - 1);
    memmove(h->start + low + 2, h->start + low + 1, behind * sizeof *h->start);
    memmove(h->slot + low + 2, h->slot + low + 1, behind * sizeof *h->slot);
    h->n++;
    h->start[low + 1] = address;
    h->slot[low + 1] = take_segment(h);
    h->pool[h->slot[low + 1]] = h->pool[h->slot[low]];
    return low + 1;
}

/* Segments [from, to) become one. */
static void merge(struct hazards *h, int from, int to)
{
    if (to - from < 2)
        return;
    const size_t behind = (size_t)(h->n - to);
    for (int k = from + 1; k < to; k++)
        give_segment(h, h->slot[k]);
    memmove(h->start + from + 1, h->start + to, behind * sizeof *h->start);
    memmove(h->slot + from + 1, h->slot + to, behind * sizeof *h->slot);
    h->n -= to - from - 1;
}

/* --- one action --------------------------------------------------------------------------------------------------- */

static void need_action(const struct hazards *h, struct clock *need, int action)
{
    if (action != NONE) {
        const int s = h->p->actions[action].stream;
        need->done[s] = MAX(need->done[s], action);
    }
}

static void need_segment(const struct hazards *h, struct clock *need, const struct segment *s, bool writes)
{
    need_action(h, need, s->write);
    for (uint32_t bits = writes ? s->readers : 0; bits != 0; bits &= bits - 1) {
        const int stream = __builtin_ctz(bits);
        need->done[stream] = MAX(need->done[stream], s->read[stream]);
    }
}

/* Note the access; what it must come after goes to need. */
static void touch(struct hazards *h, int action, const struct operand *o, struct clock *need)
{
    const int stream = h->p->actions[action].stream;
    const size_t address = h->base[o->buffer] + o->offset;
    const int from = cut_at(h, address), to = cut_at(h, address + o->bytes);

    for (int k = from; k < to; k++) {
        struct segment *s = &h->pool[h->slot[k]];
        need_segment(h, need, s, o->access & ACCESS_WRITE);
        if (o->access & ACCESS_WRITE)
            continue;
        s->readers |= 1u << stream;
        s->read[stream] = action;
    }
    if (o->access & ACCESS_WRITE) {
        merge(h, from, to);
        h->pool[h->slot[from]].write = action;
        h->pool[h->slot[from]].readers = 0;
    }
}

/* Turn needs into waits, the latest first since it is likely to bring the others along. */
static titan_status wait_for(struct hazards *h, struct action *a, struct clock *need, struct titan_error *err)
{
    struct program *p = h->p;
    struct clock *now = &h->now[a->stream];

    need->done[a->stream] = NONE;
    a->wait = p->n_waits;
    for (;;) {
        int latest = NONE;
        for (int s = 0; s < STREAM_COUNT; s++)
            if (need->done[s] > now->done[s])
                latest = MAX(latest, need->done[s]);
        if (latest == NONE)
            break;
        if (!grow(&p->waits, &p->cap_waits, p->n_waits + 1, sizeof *p->waits))
            return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
        p->waits[p->n_waits++] = latest;
        p->actions[latest].signal = true;
        const struct clock *then = &h->clocks[h->at[latest]];
        for (int s = 0; s < STREAM_COUNT; s++)
            now->done[s] = MAX(now->done[s], then->done[s]);
        now->done[p->actions[latest].stream] = MAX(now->done[p->actions[latest].stream], latest);
    }
    a->n_waits = p->n_waits - a->wait;
    if (a->n_waits == 0)
        return TITAN_OK;
    if (!grow(&h->clocks, &h->cap_clocks, h->n_clocks + 1, sizeof *h->clocks))
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    h->version[a->stream] = h->n_clocks;
    h->clocks[h->n_clocks++] = *now;
    return TITAN_OK;
}

static titan_status derive_action(struct hazards *h, int i, struct titan_error *err)
{
    struct action *a = &h->p->actions[i];
    const struct operand *o = action_operands(h->p, a);
    struct clock need;

    memset(&need, 0xff, sizeof need); /* NONE everywhere */
    for (int k = 0; k < a->n_operands && a->op != OP_RELEASE; k++) {
        if (o[k].bytes == 0)
            continue;
        if (!make_room(h))
            return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
        touch(h, i, &o[k], &need);
    }
    need.done[a->stream] = NONE;
    TRY(wait_for(h, a, &need, err));
    h->at[i] = h->version[a->stream];
    return TITAN_OK;
}

static bool hazards_init(struct hazards *h, struct program *p)
{
    size_t end = p->arena_bytes;

    *h = (struct hazards){.p = p, .unused = NONE};
    h->base = malloc(((size_t)p->n_buffers + 1) * sizeof *h->base);
    h->at = malloc(((size_t)p->n_actions + 1) * sizeof *h->at);
    if (!h->base || !h->at || !make_room(h) || !grow(&h->clocks, &h->cap_clocks, 1, sizeof *h->clocks))
        return false;
    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *b = &p->buffers[i];
        h->base[i] = buffer_is_external(b->kind) ? end : b->offset;
        end += buffer_is_external(b->kind) ? b->bytes : 0;
    }
    h->start[0] = 0;
    h->slot[0] = take_segment(h);
    h->pool[h->slot[0]] = (struct segment){.write = NONE};
    h->n = 1;
    memset(h->now, 0xff, sizeof h->now);
    h->clocks[0] = h->now[0];
    h->n_clocks = 1;
    return true;
}

titan_status waits_derive(struct program *p, struct titan_error *err)
{
    _cleanup_(hazards_free) struct hazards h;

    if (!hazards_init(&h, p))
        return titan_fail(err, TITAN_ENOMEM, "program: out of memory");
    p->n_waits = 0;
    for (int i = 0; i < p->n_actions; i++)
        p->actions[i].signal = false;
    for (int i = 0; i < p->n_actions; i++)
        TRY(derive_action(&h, i, err));
    return TITAN_OK;
}
