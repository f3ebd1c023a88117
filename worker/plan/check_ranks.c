/* SPDX-License-Identifier: Apache-2.0 */
/* check_ranks.c - soundness of all ranks' programs together.
 *
 * Program classes differ by pp rank and by share of the batch. Groups along dp_shard and dp_replicate have members of
 * all shares of one pp rank. Groups along pp have members of one share. The world has members of all classes. */
#include "worker/plan/check.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define NONE (-1)
#define P2P_CHANNELS (CHANNEL_COUNT - CHANNEL_FORWARD_NEXT)

struct ranks {
    const struct program *const *classes;
    int n, pp, shares; /* class = pp rank * shares + share */
    struct titan_error *err;
};

/* Can ranks of different shares meet in a channel's group? */
static bool mixes(const struct mesh *m, enum channel channel)
{
    const int inner = m->size[AXIS_CP] * m->size[AXIS_TP] / mesh_expert_cut(m); /* ep takes these ranks first */

    switch (channel) {
    case CHANNEL_GATHER:
    case CHANNEL_REDUCE:
    case CHANNEL_EXPERT_GATHER:
    case CHANNEL_EXPERT_REDUCE:
    case CHANNEL_OWNERS:
    case CHANNEL_ROTATE:
        return m->size[AXIS_DP_SHARD] > 1;
    case CHANNEL_REPLICATE:
        return m->size[AXIS_DP_REPLICATE] > 1;
    case CHANNEL_EP:
        return m->size[AXIS_DP_SHARD] > 1 && inner % m->ep != 0;
    case CHANNEL_WORLD:
        return true;
    default:
        return false;
    }
}

/* "pp rank 1, action 17 (ALL_GATHER, unit 3, microbatch -1)" */
#define WHERE_MAX 112
static const char *where(const struct program *p, int i, char *text)
{
    if (i >= p->n_actions)
        (void)snprintf(text, WHERE_MAX, "pp rank %d, the end of the step", p->pp_rank);
    else
        (void)snprintf(text, WHERE_MAX, "pp rank %d, action %d (%s, unit %d, microbatch %d)", p->pp_rank, i,
                       op_name((enum op)p->actions[i].op), p->actions[i].unit, p->actions[i].microbatch);
    return text;
}

/* --- one order of collectives ------------------------------------------------------------------------------------- */

static int next_on(const struct program *p, int i, enum channel channel)
{
    do
        i++;
    while (i < p->n_actions && p->actions[i].channel != (int)channel);
    return i;
}

static titan_status check_same(const struct ranks *r, int class, int other, enum channel channel)
{
    const struct program *p = r->classes[class], *q = r->classes[other];
    char here[WHERE_MAX], there[WHERE_MAX];
    int i = NONE, j = NONE;

    for (;;) {
        i = next_on(p, i, channel);
        j = next_on(q, j, channel);
        if (i >= p->n_actions && j >= q->n_actions)
            return TITAN_OK;
        const struct action *a = &p->actions[i], *b = &q->actions[j];
        bool same = i < p->n_actions && j < q->n_actions && a->op == b->op && a->unit == b->unit &&
                    a->n_operands == b->n_operands;
        for (int k = 0; same && k < a->n_operands; k++)
            same = action_operands(p, a)[k].bytes == action_operands(q, b)[k].bytes;
        if (!same)
            return titan_fail(
                r->err, TITAN_EBUG,
                "collectives on %s differ: program class %d, %s (%zu bytes), against program class %d, %s (%zu bytes)",
                channel_name(channel), class, where(p, i, here), i < p->n_actions ? action_sent_bytes(p, a) : 0, other,
                where(q, j, there), j < q->n_actions ? action_sent_bytes(q, b) : 0);
    }
}

/* --- sends match receives ----------------------------------------------------------------------------------------- */

static int next_transfer(const struct program *p, int i, enum op op, enum channel channel)
{
    do
        i = next_on(p, i, channel);
    while (i < p->n_actions && p->actions[i].op != op);
    return i;
}

static titan_status check_messages(const struct ranks *r, int sender, int receiver, enum channel channel)
{
    const struct program *p = r->classes[sender], *q = r->classes[receiver];
    char here[WHERE_MAX], there[WHERE_MAX];
    int i = NONE, j = NONE;

    titan_assert(channel >= CHANNEL_FORWARD_NEXT);
    for (;;) {
        i = next_transfer(p, i, OP_SEND, channel);
        j = next_transfer(q, j, OP_RECV, channel);
        if (i >= p->n_actions && j >= q->n_actions)
            return TITAN_OK;
        const struct action *a = &p->actions[i], *b = &q->actions[j];
        if (i >= p->n_actions || j >= q->n_actions || a->microbatch != b->microbatch || a->phase != b->phase ||
            action_operands(p, a)->bytes != action_operands(q, b)->bytes)
            return titan_fail(r->err, TITAN_EBUG, "messages on %s do not match: %s sends %zu bytes, %s takes %zu",
                              channel_name(channel), where(p, i, here),
                              i < p->n_actions ? action_operands(p, a)->bytes : 0, where(q, j, there),
                              j < q->n_actions ? action_operands(q, b)->bytes : 0);
    }
}

/* --- the run ------------------------------------------------------------------------------------------------------ */

/* Runs one rank of every class. Streams run their actions in order. An action begins when its waits are over and the
 * host has issued it. The host stops at DECIDE until it is over. A transfer ends when all ranks that take part in it
 * have begun it. */

/* A stream of a class. */
struct line {
    int at;     /* its first action that is not over; n_actions: none */
    bool begun; /* the action `at` has begun, and waits for others */
    int next_waiter;
};

struct run {
    const struct ranks *r;
    size_t *base;      /* per class: number of its first action */
    bool *over;        /* per action of all classes */
    int *next;         /* per action: the next action of its stream */
    int *waiters;      /* per action: first line that waits for the action; NONE: no line waits */
    int *decide;       /* per class */
    struct line *line; /* [class][stream] */
    int *ready;        /* lines to look at */
    int n_ready;
    bool *is_ready;
};

static const struct program *program_of(const struct run *w, int line)
{
    return w->r->classes[line / STREAM_COUNT];
}

static const struct action *head_of(const struct run *w, int line)
{
    const struct program *p = program_of(w, line);
    const int at = w->line[line].at;
    return at < p->n_actions ? &p->actions[at] : NULL;
}

static size_t number(const struct run *w, int line, int action)
{
    return w->base[line / STREAM_COUNT] + (size_t)action;
}

static void look_at(struct run *w, int line)
{
    if (w->is_ready[line])
        return;
    titan_assert(w->n_ready < w->r->n * STREAM_COUNT);
    w->is_ready[line] = true;
    w->ready[w->n_ready++] = line;
}

static void finish(struct run *w, int line)
{
    struct line *l = &w->line[line];
    const size_t action = number(w, line, l->at);

    titan_assert(!w->over[action]);
    w->over[action] = true;
    l->at = w->next[action];
    l->begun = false;
    look_at(w, line);
    for (int k = w->waiters[action]; k != NONE; k = w->line[k].next_waiter)
        look_at(w, k);
    w->waiters[action] = NONE;
}

/* An action of the same class that a line's head must wait for; NONE: there is no such action. */
static int obstacle(const struct run *w, int line)
{
    const int class = line / STREAM_COUNT;
    const struct program *p = program_of(w, line);
    const struct action *a = head_of(w, line);

    titan_assert(a);
    for (int k = 0; k < a->n_waits; k++)
        if (!w->over[number(w, line, p->waits[a->wait + k])])
            return p->waits[a->wait + k];
    if (w->line[line].at > w->decide[class] && !w->over[number(w, line, w->decide[class])])
        return w->decide[class];
    return NONE;
}

/* Finds the other lines that take part in the transfer at a line's head. *ret_n 0: the transfer needs no other line.
 * Calls are few, because a group is listed only when a member arrives. */
static void partners(const struct run *w, int line, int *ret, int *ret_n)
{
    const struct ranks *r = w->r;
    const int class = line / STREAM_COUNT, share = class % r->shares;
    const struct action *a = head_of(w, line);

    *ret_n = 0;
    if (a->op == OP_SEND || a->op == OP_RECV) {
        const int first = a->op == OP_SEND ? STREAM_RECV : STREAM_SEND;
        ret[(*ret_n)++] = (a->peer * r->shares + share) * STREAM_COUNT + first + a->channel - CHANNEL_FORWARD_NEXT;
        return;
    }
    if (a->channel < 0 || !mixes(&r->classes[class]->mesh, (enum channel)a->channel))
        return;
    const bool world = a->channel == CHANNEL_WORLD;
    const int from = world ? 0 : class - share, to = world ? r->n : from + r->shares;
    for (int k = from; k < to; k++)
        if (k != class)
            ret[(*ret_n)++] = k * STREAM_COUNT + a->stream;
}

/* A partner has arrived when the action at its head has begun and is on the same channel. */
static bool has_begun(const struct run *w, int line, const struct action *with)
{
    const struct action *a = head_of(w, line);
    return w->line[line].begun && a && a->channel == with->channel;
}

/* --- when it does not get to its end ------------------------------------------------------------------------------ */

/* The line that a stuck line waits for; NONE: it waits for a line that has ended. */
static int waits_for(const struct run *w, int line, int *others)
{
    const struct action *a = head_of(w, line);
    int n;

    if (!w->line[line].begun) {
        const int before = obstacle(w, line);
        return line / STREAM_COUNT * STREAM_COUNT + program_of(w, line)->actions[before].stream;
    }
    partners(w, line, others, &n);
    for (int k = 0; k < n; k++)
        if (!has_begun(w, others[k], a))
            return head_of(w, others[k]) ? others[k] : NONE;
    return NONE;
}

/* --- set-up ------------------------------------------------------------------------------------------------------- */

static void free_run(struct run *w)
{
    free(w->base);
    free(w->over);
    free(w->next);
    free(w->waiters);
    free(w->decide);
    free(w->line);
    free(w->ready);
    free(w->is_ready);
}

static titan_status alloc_run(struct run *w)
{
    const size_t n = (size_t)w->r->n, lines = n * STREAM_COUNT;
    size_t actions = 0;

    w->base = calloc(n, sizeof *w->base);
    for (size_t k = 0; w->base && k < n; k++) {
        w->base[k] = actions;
        actions += (size_t)w->r->classes[k]->n_actions;
    }
    w->over = calloc(actions + 1, sizeof *w->over);
    w->next = calloc(actions + 1, sizeof *w->next);
    w->waiters = calloc(actions + 1, sizeof *w->waiters);
    w->decide = calloc(n, sizeof *w->decide);
    w->line = calloc(lines, sizeof *w->line);
    w->ready = calloc(lines, sizeof *w->ready);
    w->is_ready = calloc(lines, sizeof *w->is_ready);
    if (!w->base || !w->over || !w->next || !w->waiters || !w->decide || !w->line || !w->ready || !w->is_ready)
        return titan_fail(w->r->err, TITAN_ENOMEM, "checking programs: out of memory");
    return TITAN_OK;
}

static titan_status check_run(const struct ranks *r)
{
    _cleanup_(free_run) struct run w = {.r = r};
    _cleanup_free_ int *others = calloc((size_t)r->n + 1, sizeof *others); /* lines of all classes */

    TRY(alloc_run(&w));
    if (!others)
        return titan_fail(r->err, TITAN_ENOMEM, "checking programs: out of memory");
    for (int k = 0; k < r->n; k++) {
        const struct program *const p = r->classes[k];
        w.decide[k] = p->n_actions;
        for (int s = 0; s < STREAM_COUNT; s++)
            w.line[k * STREAM_COUNT + s] = (struct line){.at = p->n_actions, .next_waiter = NONE};
        for (int i = p->n_actions - 1; i >= 0; i--) {
            struct line *const l = &w.line[k * STREAM_COUNT + p->actions[i].stream];
            w.next[w.base[k] + (size_t)i] = l->at;
            w.waiters[w.base[k] + (size_t)i] = NONE;
            l->at = i;
            if (p->actions[i].op == OP_DECIDE)
                w.decide[k] = i;
        }
    }
    for (int line = 0; line < r->n * STREAM_COUNT; line++)
        look_at(&w, line);
    while (w.n_ready > 0) { /* each line runs as far as it goes */
        const int line = w.ready[--w.n_ready];
        struct line *l = &w.line[line];
        const struct action *a = head_of(&w, line);
        int n;
        w.is_ready[line] = false;
        if (!a || l->begun)
            continue;
        const int before = obstacle(&w, line);
        if (before != NONE) {
            const size_t action = number(&w, line, before);
            l->next_waiter = w.waiters[action];
            w.waiters[action] = line;
            continue;
        }
        l->begun = true;
        partners(&w, line, others, &n);
        bool all = true;
        for (int k = 0; all && k < n; k++)
            all = has_begun(&w, others[k], a);
        if (!all)
            continue;
        finish(&w, line);
        for (int k = 0; k < n; k++)
            finish(&w, others[k]);
    }

    int stuck = 0, steps = 0;
    while (stuck < r->n * STREAM_COUNT && !head_of(&w, stuck))
        stuck++;
    if (stuck == r->n * STREAM_COUNT)
        return TITAN_OK;
    /* Follows the waits from a stuck line. They lead to a line on a circle of waits, or to a line whose partner has
     * ended. */
    for (int next; steps < r->n * STREAM_COUNT && (next = waits_for(&w, stuck, others)) != NONE; steps++)
        stuck = next;
    char text[3][WHERE_MAX];
    for (int k = 0; k < 3; k++) {
        if (stuck == NONE)
            (void)snprintf(text[k], WHERE_MAX, "one that never comes");
        else
            (void)where(program_of(&w, stuck), w.line[stuck].at, text[k]);
        stuck = stuck == NONE ? NONE : waits_for(&w, stuck, others);
    }
    return titan_fail(r->err, TITAN_EBUG, "the step stops for ever: %s waits for %s, that for %s", text[0], text[1],
                      text[2]);
}

titan_status programs_check(const struct program *const *by_class, int n, struct titan_error *err)
{
    const int pp = by_class[0]->mesh.size[AXIS_PP];
    const struct ranks r = {.classes = by_class, .n = n, .pp = pp, .shares = n / pp, .err = err};

    titan_assert(n > 0);
    for (int k = 0; k < n; k++)
        if (n % pp != 0 || by_class[k]->pp_rank != k / r.shares)
            return titan_fail(err, TITAN_EBUG, "program %d of %d is pp rank %d's", k, n, by_class[k]->pp_rank);
    for (int k = 0; k < n; k++)
        for (int c = 0; c < CHANNEL_FORWARD_NEXT; c++) {
            const int first = c == CHANNEL_WORLD ? 0 : k / r.shares * r.shares;
            if (k != first && mixes(&by_class[k]->mesh, (enum channel)c))
                TRY(check_same(&r, k, first, (enum channel)c));
        }
    for (int k = 0; k < n; k++) {
        const int next = (k + r.shares) % n, previous = (k + n - r.shares) % n;
        TRY(check_messages(&r, k, next, CHANNEL_FORWARD_NEXT));
        TRY(check_messages(&r, k, previous, CHANNEL_FORWARD_PREVIOUS));
        TRY(check_messages(&r, k, next, CHANNEL_BACKWARD_NEXT));
        TRY(check_messages(&r, k, previous, CHANNEL_BACKWARD_PREVIOUS));
    }
    return check_run(&r);
}
