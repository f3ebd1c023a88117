/* SPDX-License-Identifier: Apache-2.0 */
/* recompute.c - writes actions a second time, as far as their results are needed. */
#include "worker/plan/recompute.h"

#include <stdlib.h>

#include "base/cleanup.h"

#define NONE (-1)

/* A buffer that the actions use. defined: the first access to it is a write. */
struct recompute_buffer {
    int id, copy; /* copy: NONE: no copy has been made */
    bool defined, kept, live;
};

struct recompute {
    struct emitter *e;
    int from, to;
    struct recompute_buffer *buffers; /* sorted by id */
    int n;
    bool *taken; /* per action */
};

static int by_id(const void *x, const void *y)
{
    const struct recompute_buffer *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}

static struct recompute_buffer *recompute_find(const struct recompute *g, int id)
{
    titan_assert(g->n > 0);
    const struct recompute_buffer key = {.id = id};
    return bsearch(&key, g->buffers, (size_t)g->n, sizeof key, by_id);
}

/* Walks backwards from the needed buffers. An action that writes a live buffer is taken, and makes live what it reads.
 * An action that updates a kept buffer in place would update it twice. So such a buffer is not kept but recomputed.
 * Returns false if it found such a buffer. The walk must then be repeated, because the buffer was live for the later
 * actions, too. */
static bool recompute_mark(struct recompute *g)
{
    const struct program *p = g->e->p;

    for (int i = g->to - 1; i >= g->from; i--) {
        const struct action *a = &p->actions[i];
        const struct operand *o = action_operands(p, a);
        bool taken = false;
        for (int k = 0; k < a->n_operands; k++)
            taken |= (o[k].access & ACCESS_WRITE) && recompute_find(g, o[k].buffer)->live;
        if (!taken || a->op == OP_CHECK || a->op == OP_LOSS_SUM)
            continue;
        g->taken[i - g->from] = true;
        for (int k = 0; k < a->n_operands; k++) {
            struct recompute_buffer *b = recompute_find(g, o[k].buffer);
            if (b->kept && o[k].access == ACCESS_UPDATE) {
                b->kept = false;
                b->live = true;
                return false;
            }
            if ((o[k].access & ACCESS_READ) && b->defined && !b->kept)
                b->live = true;
        }
    }
    return true;
}

static void recompute_write(struct recompute *g, int i)
{
    const struct program *p = g->e->p;
    struct action *a = emit_action_like(g->e, i);

    titan_assert(i >= g->from && i < g->to);
    if (!a)
        return;
    titan_assert(a->op != OP_SEND && a->op != OP_RECV);
    a->phase = PHASE_RECOMPUTE;
    for (int k = 0; k < p->actions[i].n_operands; k++) {
        struct operand o = action_operands(p, &p->actions[i])[k];
        /* Choices of tokens, dropped rows and rounds are counted in the forward: recomputation must not count them
         * again. */
        const bool counts = a->op == OP_ROUTE || a->op == OP_PERMUTE || a->op == OP_SPLIT_ROUNDS;
        if (counts && o.access == ACCESS_UPDATE)
            continue;
        /* A buffer that is written but not live goes to a copy, too, because kept buffers must not change. */
        struct recompute_buffer *const b = recompute_find(g, o.buffer);
        if (b->defined && (!b->kept || o.access & ACCESS_WRITE)) {
            if (b->copy == NONE)
                b->copy = emit_buffer_like(g->e, b->id);
            o.buffer = b->copy;
        }
        emit_operand_like(g->e, o);
    }
}

static void recompute_free(struct recompute *g)
{
    free(g->buffers);
    free(g->taken);
}

void recompute_actions(struct emitter *e, struct action_range range,
                       bool (*keep)(void *arg, const struct action *a, int buffer), void *arg,
                       struct tensor *const *needed, int n)
{
    _cleanup_(recompute_free) struct recompute g = {.e = e, .from = range.from, .to = range.to};
    const struct program *p = e->p;

    if (e->status != TITAN_OK || g.from == g.to)
        return;
    titan_assert(g.from >= 0 && g.from < g.to && g.to <= p->n_actions);
    const int first = p->actions[g.from].operand;
    const int end = p->actions[g.to - 1].operand + p->actions[g.to - 1].n_operands;
    g.taken = calloc((size_t)(g.to - g.from), sizeof *g.taken);
    g.buffers = calloc((size_t)(end - first) + 1, sizeof *g.buffers);
    if (!g.taken || !g.buffers) {
        e->status = TITAN_ENOMEM;
        return;
    }

    /* Finds the buffers of the actions, and which of them these actions define and which are kept. */
    for (int k = first; k < end; k++)
        g.buffers[k - first] = (struct recompute_buffer){.id = p->operands[k].buffer, .copy = NONE};
    qsort(g.buffers, (size_t)(end - first), sizeof *g.buffers, by_id);
    for (int k = 0; k < end - first; k++)
        if (g.n == 0 || g.buffers[g.n - 1].id != g.buffers[k].id)
            g.buffers[g.n++] = g.buffers[k];
    for (int i = g.to - 1; i >= g.from; i--) /* the loop is backwards, so that the first access to a buffer decides */
        for (int k = p->actions[i].n_operands - 1; k >= 0; k--) {
            const struct operand *o = &action_operands(p, &p->actions[i])[k];
            struct recompute_buffer *b = recompute_find(&g, o->buffer);
            b->defined = o->access == ACCESS_WRITE && !buffer_is_external(p->buffers[b->id].kind);
            b->kept = b->defined && keep && keep(arg, &p->actions[i], b->id);
        }

    for (int i = 0; i < n; i++) {
        struct recompute_buffer *b = recompute_find(&g, needed[i]->buffer);
        if (b && b->defined && !b->kept)
            b->live = true;
    }
    while (!recompute_mark(&g))
        ;
    for (int i = g.from; i < g.to; i++)
        if (g.taken[i - g.from])
            recompute_write(&g, i);
    for (int i = 0; i < n && e->status == TITAN_OK; i++) {
        const struct recompute_buffer *b = recompute_find(&g, needed[i]->buffer);
        titan_assert(!b || !b->live || b->copy != NONE);
        if (b && b->live)
            needed[i]->buffer = b->copy;
    }
}
