/* SPDX-License-Identifier: Apache-2.0 */
/* check_memory.c - what lies where, and what waits for what. */
#include <string.h>

#include "base/cleanup.h"
#include "worker/plan/checker.h"
#include "worker/program/shadow.h"

/* --- buffers alive at the same time lie apart --------------------------------------------------------------------- */

/* Buffers that are alive, by address. */
struct alive {
    int *ids;
    int n;
};

static int place_of(const struct program *p, const struct alive *s, size_t offset)
{
    int low = 0, high = s->n;

    while (low < high) {
        const int mid = (low + high) / 2;
        if (p->buffers[s->ids[mid]].offset < offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static titan_status overlap(const struct checker *c, int a, int b)
{
    const struct buffer *x = &c->p->buffers[a], *y = &c->p->buffers[b];
    return REFUSE(c, "%s #%d at %zu+%zu lies over %s #%d at %zu+%zu, which is alive", buffer_kind_name(x->kind), a,
                  x->offset, x->bytes, buffer_kind_name(y->kind), b, y->offset, y->bytes);
}

static titan_status check_places(struct checker *c)
{
    const struct program *p = c->p;
    _cleanup_free_ int *ids = malloc(((size_t)p->n_buffers + 1) * sizeof *ids);
    struct alive s = {.ids = ids};

    if (!ids)
        return checker_no_memory(c);
    for (c->index = 0; c->index < p->n_actions; c->index++) {
        const struct operand *o = action_operands(p, &p->actions[c->index]);
        const int n = p->actions[c->index].n_operands;
        for (int end = 0; end < 2; end++)
            for (int k = 0, before; k < n; k++) {
                const int id = o[k].buffer;
                for (before = 0; o[before].buffer != id;)
                    before++;
                if (buffer_is_external(p->buffers[id].kind) || p->buffers[id].bytes == 0 || before < k)
                    continue;
                if ((end ? c->last : c->first)[id] != c->index)
                    continue;
                const struct buffer *b = &p->buffers[id];
                const int at = place_of(p, &s, b->offset);
                if (end) {
                    titan_assert(at < s.n && s.ids[at] == id);
                    memmove(s.ids + at, s.ids + at + 1, (size_t)(s.n - at - 1) * sizeof *s.ids);
                    s.n--;
                    continue;
                }
                if (b->bytes > p->arena_bytes || b->offset > p->arena_bytes - b->bytes)
                    return REFUSE(c, "%s #%d ends behind the arena", buffer_kind_name(b->kind), id);
                if (at < s.n && p->buffers[s.ids[at]].offset < b->offset + b->bytes)
                    return overlap(c, id, s.ids[at]);
                if (at > 0 && p->buffers[s.ids[at - 1]].offset + p->buffers[s.ids[at - 1]].bytes > b->offset)
                    return overlap(c, id, s.ids[at - 1]);
                memmove(s.ids + at + 1, s.ids + at, (size_t)(s.n - at) * sizeof *s.ids);
                s.ids[at] = id;
                s.n++;
            }
    }
    c->index = NONE;
    titan_assert(s.n == 0);
    return TITAN_OK;
}

/* --- what two streams both touch is ordered ----------------------------------------------------------------------- */

/* done: for each stream, the last action that is over before the current action begins. Only waits make a new clock. */
struct clock {
    int done[STREAM_COUNT];
};

struct order {
    struct checker *c;
    struct shadow shadow;
    struct clock *clocks;
    int n_clocks;
    int *clock_of;             /* per action */
    int current[STREAM_COUNT]; /* clock of each stream */
    int unordered; /* earlier action for which the current action must wait, but does not; NONE: no such action */
};

static void must_be_over(void *arg, int earlier)
{
    struct order *w = arg;
    const int stream = w->c->p->actions[earlier].stream;

    titan_assert(earlier <= w->c->index);
    if (stream != w->c->p->actions[w->c->index].stream && w->clocks[w->clock_of[w->c->index]].done[stream] < earlier)
        w->unordered = earlier;
}

static void free_order(struct order *w)
{
    shadow_free(&w->shadow);
    free(w->clocks);
    free(w->clock_of);
}

titan_status check_memory(struct checker *c)
{
    const struct program *p = c->p;
    _cleanup_(free_order) struct order w = {.c = c};
    int waiting = 0;

    TRY(check_places(c));
    for (int i = 0; i < p->n_actions; i++)
        waiting += p->actions[i].n_waits > 0;
    w.clocks = malloc(((size_t)waiting + 1) * sizeof *w.clocks);
    w.clock_of = malloc(((size_t)p->n_actions + 1) * sizeof *w.clock_of);
    if (!shadow_init(&w.shadow, p) || !w.clocks || !w.clock_of)
        return checker_no_memory(c);
    memset(&w.clocks[w.n_clocks++], 0xff, sizeof *w.clocks); /* NONE everywhere */
    titan_assert(w.n_clocks == 1);
    for (c->index = 0; c->index < p->n_actions; c->index++) {
        const struct action *a = &p->actions[c->index];
        const struct operand *o = action_operands(p, a);
        if (a->n_waits > 0) { /* after a wait the other action is over, and so is all that was over before it began */
            struct clock *clock = &w.clocks[w.n_clocks];
            *clock = w.clocks[w.current[a->stream]];
            for (int k = 0; k < a->n_waits; k++) {
                const int other = p->waits[a->wait + k];
                for (int s = 0; s < STREAM_COUNT; s++)
                    clock->done[s] = MAX(clock->done[s], w.clocks[w.clock_of[other]].done[s]);
                clock->done[p->actions[other].stream] = MAX(clock->done[p->actions[other].stream], other);
            }
            w.current[a->stream] = w.n_clocks++;
        }
        w.clock_of[c->index] = w.current[a->stream];
        w.unordered = NONE;
        for (int k = 0; k < a->n_operands && a->op != OP_RELEASE; k++) {
            if (!shadow_touch(&w.shadow, c->index, &o[k], must_be_over, &w))
                return checker_no_memory(c);
            if (w.unordered == NONE)
                continue;
            const struct action *other = &p->actions[w.unordered];
            return REFUSE(
                c, "on stream %s, touches memory (%s #%d) that action %d (%s) on %s touches, without waiting for it",
                program_stream_name((enum stream_id)a->stream), buffer_kind_name(p->buffers[o[k].buffer].kind),
                o[k].buffer, w.unordered, op_name((enum op)other->op),
                program_stream_name((enum stream_id)other->stream));
        }
    }
    c->index = NONE;
    titan_assert(w.n_clocks == waiting + 1);
    return TITAN_OK;
}
