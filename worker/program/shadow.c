/* SPDX-License-Identifier: Apache-2.0 */
/* shadow.c - keeps segments of memory and their last accesses. */
#include "worker/program/shadow.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/vec.h"

#define NONE (-1)

struct shadow_segment {
    int write;
    uint32_t readers; /* bits of streams */
    int read[STREAM_COUNT];
};

static int take_segment(struct shadow *s)
{
    titan_assert(s->unused != NONE || s->n_pool < s->cap_pool);
    if (s->unused == NONE)
        return s->n_pool++; /* make_room() has made room */
    const int i = s->unused;
    s->unused = s->pool[i].write;
    return i;
}

static void give_segment(struct shadow *s, int i)
{
    titan_assert(i >= 0 && i < s->n_pool && i != s->unused);
    s->pool[i].write = s->unused;
    s->unused = i;
}

/* Makes room for the new segments of two cuts. */
static bool make_room(struct shadow *s)
{
    int cap = s->cap;
    return VEC_RESERVE(s->start, cap, s->n + 4) && VEC_RESERVE(s->slot, s->cap, s->n + 4) &&
           VEC_RESERVE(s->pool, s->cap_pool, s->n_pool + 4);
}

/* Returns the segment that begins at an address, and cuts a segment there if necessary. */
static int cut_at(struct shadow *s, size_t address)
{
    int low = 0, high = s->n - 1; /* last segment with start <= address */

    titan_assert(s->n >= 1 && s->start[0] == 0);
    while (low < high) {
        const int mid = (low + high + 1) / 2;
        if (s->start[mid] <= address)
            low = mid;
        else
            high = mid - 1;
    }
    if (s->start[low] == address)
        return low;
    const size_t behind = (size_t)(s->n - low - 1);
    memmove(s->start + low + 2, s->start + low + 1, behind * sizeof *s->start);
    memmove(s->slot + low + 2, s->slot + low + 1, behind * sizeof *s->slot);
    s->n++;
    titan_assert(s->n <= s->cap);
    s->start[low + 1] = address;
    s->slot[low + 1] = take_segment(s);
    s->pool[s->slot[low + 1]] = s->pool[s->slot[low]];
    return low + 1;
}

bool shadow_touch(struct shadow *s, int action, const struct operand *o, void (*before)(void *arg, int earlier),
                  void *arg)
{
    const int stream = s->p->actions[action].stream;
    const size_t address = s->base[o->buffer] + o->offset;
    const bool writes = o->access & ACCESS_WRITE;

    titan_assert(action >= 0 && action < s->p->n_actions && stream < STREAM_COUNT);
    if (o->bytes == 0)
        return true;
    if (!make_room(s))
        return false;
    const int from = cut_at(s, address), to = cut_at(s, address + o->bytes);
    titan_assert(from < to && to < s->n);
    for (int k = from; k < to; k++) {
        struct shadow_segment *g = &s->pool[s->slot[k]];
        if (g->write != NONE)
            before(arg, g->write);
        for (uint32_t bits = writes ? g->readers : 0; bits != 0; bits &= bits - 1)
            before(arg, g->read[__builtin_ctz(bits)]);
        if (!writes) {
            g->readers |= 1u << stream;
            g->read[stream] = action;
        }
    }
    if (writes) { /* a write covers all of these segments: they become one */
        if (to - from > 1) {
            const size_t behind = (size_t)(s->n - to);
            for (int k = from + 1; k < to; k++)
                give_segment(s, s->slot[k]);
            memmove(s->start + from + 1, s->start + to, behind * sizeof *s->start);
            memmove(s->slot + from + 1, s->slot + to, behind * sizeof *s->slot);
            s->n -= to - from - 1;
        }
        s->pool[s->slot[from]].write = action;
        s->pool[s->slot[from]].readers = 0;
    }
    return true;
}

bool shadow_init(struct shadow *s, const struct program *p)
{
    size_t end = p->arena_bytes;

    *s = (struct shadow){.p = p, .unused = NONE};
    s->base = malloc(((size_t)p->n_buffers + 1) * sizeof *s->base);
    if (!s->base || !make_room(s))
        return false;
    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *b = &p->buffers[i];
        s->base[i] = buffer_is_external(b->kind) ? end : b->offset;
        end += buffer_is_external(b->kind) ? b->bytes : 0;
    }
    s->start[0] = 0;
    s->slot[0] = take_segment(s);
    s->pool[s->slot[0]] = (struct shadow_segment){.write = NONE};
    s->n = 1;
    return true;
}

void shadow_free(struct shadow *s)
{
    free(s->base);
    free(s->start);
    free(s->slot);
    free(s->pool);
}
